"""The tables of published models: what they are, how they are verified, and what they cost."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import jax

from checkpoints_conversion import rules
from cspd_jax import families
from docs import sizes
from docs.passes import PASSES


def models() -> str:
  """Returns what the published models are, and what they cost."""
  return sizes.markdown({
      'family': _link(page, 'families/'), 'prompts': prompts(page),
      'licence of the weights': licence(page), 'models': str(len(sizes.of_targets(page))),
      **numbers(page),
      'cache of a guided image': _range(page, lambda size: size.cache and size.cache[0],
                                        sizes.gigabytes),
      'fewest published passes': fewest(page)} for page in sizes.FILES)


def licence(page: str) -> str:
  """Returns the licence of the weights of a page's models, and those of their other networks."""
  target, others = sizes.FILES[page]
  own = rules.FAMILIES[target].licence
  additional = {rules.FAMILIES[name].licence for name in others} - {'', own}
  return '; '.join([own, *(f'image tokenizer: {other}' for other in sorted(additional))])


def fewest(page: str) -> str:
  """Returns the fewest passes per image that others published of lossless decoders."""
  entries = [entry for entry in PASSES.get(sizes.FILES[page][0], ()) if entry.lossless]
  if not entries:
    return '-'
  best = max(entries, key=lambda entry: entry.ratio)
  number = (f'{best.ratio:.2f} tokens per pass' if best.passes is None else
            f'{best.passes[0]} of {best.passes[1]} passes')
  paper = re.search(r'arXiv [\d.]+', best.source)
  return f'{number} ({best.method}, {paper[0] if paper else best.source})'


def numbers(page: str) -> dict[str, str]:
  """Returns the sizes of the images and of the networks of a page's models."""
  square = lambda pixels: ' x '.join(map(str, pixels))
  return {'pixels': _range(page, lambda size: size.pixels, square),
          'parameters': _range(page, lambda size: size.parameters, sizes.billions),
          'tokens of an image': _range(page, lambda size: size.tokens, str)}


def memory(page: str) -> str:
  """Returns what the parameters and the cache of a page's models take, in words."""
  cells = [_range(page, of, sizes.gigabytes) for of in (
      lambda size: size.bytes[0], lambda size: size.bytes[1],
      lambda size: size.cache and size.cache[0], lambda size: size.cache and size.cache[1])]
  wide, narrow, cache, small = cells
  int8 = lambda text: f' (int8: {text})' if text != '-' else ''
  return f'{wide}{int8(narrow)} in bfloat16' + (
      f'; cache of a guided image {cache}{int8(small)}' if cache != '-' else '')


def _link(page: str, folder: str) -> str:
  return f'[{sizes.name(page)}]({folder}{page}.md)'


def prompts(page: str) -> str:
  """Returns the prompts of a page's models: classes have one number per image."""
  file = rules.FAMILIES[sizes.FILES[page][0]]
  family = families.family.target_family(file.kind)
  is_class = {is_array(family, config) for config in file.presets.values()}
  return ' or '.join(name for name, value in (('classes', True), ('words', False))
                     if value in is_class)


def is_array(family: families.Family, config: Any) -> bool:
  """Whether the prompts of a model are classes, one number per image, and not words."""
  # The condition that a prior draws from words is one array too.
  return 'prior' not in family.roles and isinstance(
      family.published.condition(config, 1), jax.ShapeDtypeStruct)


def _range(page: str, of: Callable[[sizes.Size], Any], text: Callable[[Any], str]) -> str:
  """Returns the smallest and the largest number of a page's models in one cell."""
  numbers = [of(size) for size in sizes.of_targets(page).values()]
  return _between(text(number) for number in sorted(number for number in numbers if number)
                  ) if all(numbers) else '-'


def _between(texts: Iterable[str]) -> str:
  """Returns the first and the last of texts."""
  first, *rest = dict.fromkeys(texts)
  return f'{first} to {rest[-1]}' if rest else first
