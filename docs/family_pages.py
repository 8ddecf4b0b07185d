"""The parts that the pages of families share: facts, and the commands that make a model faster."""

import functools
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import jax

from checkpoints_conversion import rules
from cspd_jax import families
from cspd_jax.generation import engines
from docs import sizes, supported, verified, zoo

_PROMPT = 'a lighthouse at dusk'
# Tokens that drafters of the commands learn from, about.
_TOKENS = 1e6
# The published size that the commands of a page are for, unless it is the first.
_SHOWN = {'llamagen': 't2i_xl_256'}


def facts(page: str) -> str:
  """Returns what a family is, what of the library works on it, and which tests verify it."""
  works = supported.row(page)
  supports = [name for name in supported.FEATURES if works[name] == 'yes']
  lacks = [name for name in supported.FEATURES if works[name] != 'yes']
  numbers = zoo.numbers(page)
  return '\n'.join(_filled(f'- **{name}**: {value}.', '  ') for name, value in {
      'Prompts': zoo.prompts(page),
      'Images': f'{numbers["pixels"]} pixels, {numbers["tokens of an image"]} tokens',
      'Parameters': numbers['parameters'],
      'Licence of the weights': zoo.licence(page),
      'Decoders': works['decoders'],
      '[What works](../models.md#what-works)':
          ', '.join(supports) + (f'; not {", ".join(lacks)}' if lacks else ''),
      '[Verified](../models.md#what-is-verified)': _verified(page)}.items())


def hub(page: str) -> str:
  """Returns the commands from ids of the Hugging Face Hub to a picture, and the disk space."""
  name, _ = sizes.FILES[page]
  file = rules.FAMILIES[name]
  family = families.family.of_target(file.kind)
  preset, source = next(iter(file.hub.items()))
  others = [rules.FAMILIES[other] for other in file.layout(preset) if other != name]
  networks = [(name, preset, source)] + [
      (other.name, *next(iter(other.hub.items()))) for other in others if other.hub]
  # A class is one number.
  of_words = not isinstance(
      family.published.condition(file.presets[preset], 1), jax.ShapeDtypeStruct)
  decoder = ["--decoder='mc_sjd(window=32)'"] * (family.engine is engines.DISCRETE)
  commands = [f"pip install -e '.[hub{',text' * of_words}]'"] + [
      _command(f'cspd-convert --family={network} --model={model}', f'--source={place}',
               f'--output=checkpoints/{page}') for network, model, place in networks] + [_command(
          f'cspd-generate --model=checkpoints/{page}',
          f"--prompt='{_PROMPT if of_words else 'golden retriever'}'", '--dtype=bfloat16',
          *decoder, f'--output=runs/{page}')]
  count = sizes.of_targets(page)[preset].parameters + sum(
      sizes.parameters(other.name) for other in others if other.kind != 'text')
  return '\n'.join(['```sh', *commands, '```', '', _filled(
      f"""The networks of `{preset}` are {sizes.gigabytes(2 * count)} in bfloat16, twice as much in
      float32. The disk holds them twice: as the Hub has them, some with networks that are left out,
      and in the model folder. `cspd-convert` says how much it fetches before it does, and at the
      end which networks are missing.""")])


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
  files = {level: [f'`tests/{mark.path.as_posix()}`' for mark in verified.marks()
                   if mark.level == level and target in mark.families]
           for level in verified.of(target)}
  return ', '.join(f'{level} ({", ".join(dict.fromkeys(paths))})' for level, paths in files.items())


def drafters(page: str) -> str:
  """Returns the commands that train drafters of a model, and that compare decoders with them."""
  preset = _SHOWN.get(page) or next(iter(sizes.of_targets(page)))
  size = sizes.of_targets(page)[preset]
  count = 2**round(math.log2(_TOKENS / size.tokens))
  model, eagle = f'--model=checkpoints/{page}', f'--parts=eagle=checkpoints/{page}_eagle'
  sampled = f"--prompt='{_PROMPT}' --dtype=bfloat16"
  heads = ', or with `--kind=medusa` Medusa heads' if 'medusa' in _networks(page) else ''
  assert size.cache is not None
  return '\n\n'.join([
      _filled(f"""One command trains a corrector for `corrected` windows and adds it to the model's
          folder if it gains; another one trains an EAGLE network{heads}:"""),
      f"""```sh
cspd-train {model} --dtype=bfloat16
cspd-train {model} --kind=eagle --num_images={count} \\
    --output=checkpoints/{page}_eagle
cspd-generate {model} {sampled} \\
    --decoder='corrected(by=neighbours)' --output=runs/{page}_corrected
cspd-generate {model} {eagle} \\
    {sampled} --decoder=eagle --output=runs/{page}_eagle
```""",
      _filled(f"""Both learn from images that the model samples first, which takes most of the
          time: the first from as many as ten minutes allow, the second from {count}, which are
          {count * size.tokens / 1e6:.1f} million tokens of `{preset}`. Fewer images draft worse,
          but the distribution of the images stays that of the model. The second command holds the
          model and its cache in float32: {sizes.gigabytes(4 * size.parameters)}, and
          {sizes.gigabytes(2 * size.cache[0])} for every image that it samples at once. `--smoke`
          tries it with a few images and steps."""),
      _filled("""`cspd-compare` generates the same images with each of these decoders and shows what
          each costs. `cspd-tune` measures which decoder is fastest on this machine and stores it
          as the model's default. It tries those that the model's own folder has networks for: name
          the EAGLE network [among its parts](../load.md#the-model-folder) to include it."""),
      f"""```sh
cspd-compare {model} {eagle} \\
    {sampled} --num_images=1 --budget=600 \\
    --decoder='vanilla,mc_sjd(window=32),corrected(by=neighbours,window=32),eagle' \\
    --output=runs/{page}_compare
cspd-tune {model} {sampled} --minutes=30
```"""])


def _networks(page: str) -> Mapping[str, Any]:
  """Returns the drafters that a family can have, by role."""
  file = rules.FAMILIES[sizes.FILES[page][0]]
  config = file.presets[_SHOWN.get(page) or next(iter(file.presets))]
  return families.family.of_target(file.kind).published.networks(config)


def _filled(text: str, indent: str = '') -> str:
  return textwrap.fill(' '.join(text.split()), 100, subsequent_indent=indent,
                       break_long_words=False, break_on_hyphens=False)


LISTS: dict[str, Callable[[], str]] = {
    f'facts_{page}': functools.partial(facts, page) for page in sizes.FILES
} | {f'hub_{page}': functools.partial(hub, page)
     for page, (name, _) in sizes.FILES.items() if rules.FAMILIES[name].hub
} | {f'drafters_{page}': functools.partial(drafters, page)
     for page in sizes.FILES if 'eagle' in _networks(page)}
