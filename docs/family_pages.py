"""The parts that the pages of families share: facts, and the commands that make a model faster."""

import functools
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from checkpoints_conversion import rules
from cspd_jax import families
from cspd_jax.decoding import specification
from docs import sizes, supported, verified, zoo

_PROMPT = 'a lighthouse at dusk'
# About as many tokens as a drafter needs to learn from.
_TOKENS = 1e6
# The published size that the commands of a page are for, unless it is the first.
_SHOWN = {'llamagen': 't2i_xl_256'}


def facts(page: str) -> str:
  """Returns what a family is, what of the library does not work on it, and its tests."""
  works = supported.row(page)
  lacks = [name for name in supported.FEATURES if works[name] != 'yes']
  numbers = zoo.numbers(page)
  return '\n'.join(_filled(f'- **{name}**: {value}.', '  ') for name, value in {
      'Images': f'{numbers["pixels"]} pixels, {numbers["tokens of an image"]} tokens, from '
                f'{zoo.prompts(page)}',
      'Parameters': f'{numbers["parameters"]}, {zoo.memory(page)}',
      'Licence of the weights': zoo.licence(page),
      'Decoders': works['decoders'],
      '[Not supported](../models.md#what-works)': ', '.join(lacks),
      '[Verified](../models.md#what-is-verified) at random weights': _verified(page),
      '[Not verified](../models.md#what-is-verified)': _not_verified(page)}.items() if value)


def hub(page: str) -> str:
  """Returns the commands from ids of the Hugging Face Hub to a picture, and the disk space."""
  name, _ = sizes.FILES[page]
  file = rules.FAMILIES[name]
  family = families.family.target_family(file.kind)
  preset, source = next(iter(file.hub.items()))
  config = file.presets[preset]
  others = [rules.FAMILIES[other] for other in dict.fromkeys(
      [*file.layout(preset), *file.others(config)]) if other != name]
  networks = [(name, preset, source)] + [
      (other.name, *next(iter(other.hub.items()))) for other in others if other.hub]
  of_words = not zoo.is_array(family, config)
  decoder = ["--decoder='mc_sjd(window=32)'"] * (family.table is specification.TABLE)
  commands = [f"pip install -e '.[hub{',text' * of_words}]'"] + [
      _command(f'cspd-convert --family={network} --model={model}', f'--source={place}',
               f'--output=checkpoints/{page}') for network, model, place in networks] + [_command(
          f'cspd-generate --model=checkpoints/{page}',
          f"--prompt='{_PROMPT if of_words else 'golden retriever'}'", '--dtype=bfloat16',
          *decoder, f'--output=runs/{page}')]
  count = sizes.of_targets(page)[preset].parameters + sum(
      sizes.parameters(other.name) for other in others if other.kind != 'text')
  return '\n'.join(['```sh', *commands, '```', '', _filled(
      f"""The networks of `{preset}` take {sizes.gigabytes(2 * count)} in bfloat16, for the download
      and again for the model folder.""")])


def _command(*words: str) -> str:
  """Returns a command in lines of at most 100 letters."""
  lines = [words[0]]
  for word in words[1:]:
    if len(f'{lines[-1]} {word}') > 98:
      lines.append(f'    {word}')
    else:
      lines[-1] += f' {word}'
  return ' \\\n'.join(lines)


def _verified(page: str) -> str:
  target, _ = sizes.FILES[page]
  files = [f'`tests/{mark.path.as_posix()}`' for mark in verified.marks()
           if target in mark.families]
  levels = [level for level in verified.of(target) if level not in verified.OF_PUBLISHED]
  return f'{", ".join(levels)}, by {", ".join(dict.fromkeys(files))}'


def _not_verified(page: str) -> str:
  target, _ = sizes.FILES[page]
  reached = verified.of(target)
  lacking = ', '.join(level for level in verified.OF_PUBLISHED if level not in reached)
  return f'{lacking}{verified.without_pictures(target)}' if lacking else ''


def training() -> str:
  """Returns what training an EAGLE network takes, by family."""
  return sizes.markdown(_training(page) for page in sizes.FILES if 'eagle' in _networks(page))


def _training(page: str) -> dict[str, str]:
  preset = _SHOWN.get(page) or next(iter(sizes.of_targets(page)))
  size = sizes.of_targets(page)[preset]
  assert size.cache is not None
  return {'model': f'`{preset}`', 'images': str(2**round(math.log2(_TOKENS / size.tokens))),
          'memory in float32': sizes.gigabytes(4 * size.parameters),
          'and per image at once': sizes.gigabytes(2 * size.cache[0])}


def _networks(page: str) -> Mapping[str, Any]:
  """Returns the drafters that a family can have, by role."""
  file = rules.FAMILIES[sizes.FILES[page][0]]
  config = file.presets[_SHOWN.get(page) or next(iter(file.presets))]
  return families.family.target_family(file.kind).published.networks(config)


def _filled(text: str, indent: str = '') -> str:
  return textwrap.fill(' '.join(text.split()), 100, subsequent_indent=indent,
                       break_long_words=False, break_on_hyphens=False)


LISTS: dict[str, Callable[[], str]] = {
    f'facts_{page}': functools.partial(facts, page) for page in sizes.FILES
} | {f'hub_{page}': functools.partial(hub, page)
     for page, (name, _) in sizes.FILES.items() if rules.FAMILIES[name].hub
} | {'training': training}
