"""What the pages say of families of published models: sizes, from shapes, and sampling options."""

import dataclasses
import functools
import gzip
import json
import math
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from checkpoints_conversion import rules
from cspd_jax import families
from cspd_jax.core import matrices
from cspd_jax.families.folder import with_cache_dtype
from cspd_jax.files import store, weights
from cspd_jax.generation import memory
from cspd_jax.generation.model import Model
from cspd_jax.measure import tables
from cspd_jax.models import vq

ROOT = pathlib.Path(__file__).parents[1]
# By the name of a page: the family of files with its target, those with what belongs to it, and the
# fewest published passes of a lossless decoder, of the table on the page.
FILES: dict[str, tuple[str, tuple[str, ...], str]] = {
    'llamagen': ('llamagen', ('llamagen_vq', 't5'), '1.73 tokens per pass (SJD, arXiv 2410.01699)'),
    'lumina_mgpt': ('lumina_mgpt', ('chameleon_vqgan', 'eagle_lumina_mgpt'),
                    '4.62 tokens per pass (SJD-PAC, arXiv 2603.18599)'),
    'lumina_mgpt_2': ('lumina_mgpt_2', ('movqgan',), '-'),
    'anole': ('anole', ('chameleon_vqgan', 'eagle_anole'),
              '2.00 tokens per pass (SJD, arXiv 2410.01699)'),
    'emu3': ('emu3', ('emu3_vq',), '4.59 tokens per pass (SJD-PAC, arXiv 2603.18599)'),
    'emu3_5': ('emu3_5', ('emu3_5_vq',), '-'),
    'janus': ('janus_pro', ('janus_pro_vq',),
              '154 of 576 passes (SCD, Gumbel coupling, arXiv 2510.24211)'),
    'simplear': ('simplear', ('cosmos_dv',), '-'),
    'liquid': ('liquid', ('chameleon_vqgan',), '-'),
    'glm_image': ('glm_image', (), '-'),
    'mammothmoda2': ('mammothmoda2', (), '-'),
    'tar': ('ar_dtok', ('tar_vq',), '-'),
    'mar': ('mar', ('kl_vae',), '-'),
    'nextstep': ('nextstep', ('nextstep_vae',), '-'),
}
_sketch = functools.cache(store.sketch)


def name(page: str) -> str:
  """Returns the name of a family, the title of its page."""
  with (ROOT / 'docs' / 'families' / f'{page}.md').open(encoding='utf-8') as text:
    return text.readline().removeprefix('# ').strip()


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
  """Rows as Markdown; the first one has all columns."""
  rows = list(rows)
  return tables.markdown({name: f'{{{name}}}' for name in rows[0]}, rows)


def _link(page: str) -> str:
  return f'[{name(page)}](families/{page}.md)'


def _family(page: str) -> tuple[rules.FileFamily, families.Family]:
  file = rules.FAMILIES[FILES[page][0]]
  return file, families.family.target_family(file.kind)


class Size(NamedTuple):
  """Numbers of a published target; None where its network has no such thing."""

  pixels: tuple[int, int]  # Rows and columns of an image.
  tokens: int  # Of an image.
  parameters: int  # Their number.
  int8: int | None  # Bytes of the parameters with int8 matrices; two each without.
  cache: tuple[int, int] | None  # Bytes of the cache of a guided image, in bfloat16 and in int8.


@functools.cache
def sizes(page: str) -> dict[str, Size]:
  """Returns the sizes of the targets of a page by name."""
  file, _ = _family(page)
  side = _pixels_of_a_token(page)
  return {preset: _size(file.kind, config, side) for preset, config in file.presets.items()}


def _size(kind: str, config: Any, side: int) -> Size:
  # Every layer adds the same, and the same more if it has a second network for images; few layers
  # are soon traced.
  first, stop = getattr(config, 'image_layers', (0, 0))
  seconds = min(stop, config.num_layers) - first
  images = {'image_layers': (0, 0)} if seconds else {}
  one, two = (dataclasses.replace(config, num_layers=count, **images) for count in (1, 2))
  both = dataclasses.replace(one, image_layers=(0, 1)) if seconds else one
  layers = lambda of: of(one) + (config.num_layers - 1) * (of(two) - of(one)) + (
      seconds * (of(both) - of(one)))
  model = described(kind, one)
  has_matrices, has_cache = store.KINDS[kind].matrices, memory.has_cache(model)
  rows, columns = model.grid
  return Size(
      (side * rows, side * columns), model.num_tokens,
      layers(lambda config: _count(_sketch(kind, config).params)),
      layers(lambda config: quantized_bytes(kind, _sketch(kind, config).params))
      if has_matrices else None,
      (layers(lambda config: cache_bytes(described(kind, config))),
       layers(lambda config: cache_bytes(with_cache_dtype(described(kind, config), 'int8'))))
      if has_cache else None)


def _count(params: Any) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(params))


def parameters(family: str) -> int:
  """Returns the number of parameters of the first published network of a family of files."""
  file = rules.FAMILIES[family]
  return _count(_sketch(file.kind, _config(file)).params)


def _config(file: rules.FileFamily) -> Any:
  """Returns a published config of a network, or else that of the tensors in its manifest."""
  for config in file.presets.values():
    return config
  manifest = ROOT / 'tests' / 'data' / 'manifests' / f'{file.name}.json.gz'
  tensors = json.loads(gzip.decompress(manifest.read_bytes()))['tensors']
  return file.infer({name: tuple(shape) for name, shape in tensors.items()}, {})


def _pixels_of_a_token(page: str) -> int:
  """Returns the pixels of a token along each side, from what draws those of a page's models."""
  file, family = _family(page)
  small = dataclasses.replace(next(iter(file.presets.values())), num_layers=1)
  if (handover := described(file.kind, small).handover) is not None:
    return handover.token_side
  tokenizer = next(other for other in map(rules.FAMILIES.get, FILES[page][1])
                   if other.kind in family.roles['tokenizer'])
  sketch, side = _sketch(tokenizer.kind, _config(tokenizer)), 8
  if tokenizer.kind in ('vq', 'cosmos'):  # Of codes.
    decode = lambda params, codes: vq.decode(params, sketch.config, codes)
    tokens = jax.ShapeDtypeStruct((1, side, side), jnp.int32)
  else:
    small = dataclasses.replace(small, height=side, width=side)
    decode = described(file.kind, small, tokenizer=sketch).tokenizer.decode
    tokens = jax.ShapeDtypeStruct((1, side**2, small.token_dim), jnp.float32)
  return jax.eval_shape(decode, sketch.params, tokens).shape[1] // side


def described(kind: str, config: Any, **networks: Any) -> Model:
  """Returns the model of a target without numbers, and with other described networks by role."""
  sketch = _sketch(kind, config)
  params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), sketch.params)
  return families.family.target_family(kind).build(families.Parts(
      kind, {'target': sketch._replace(params=params), **networks}, {}))


def quantized_bytes(kind: str, params: Any) -> int:
  """Returns the bytes of arrays or shapes in bfloat16, with int8 matrices and their scales."""
  inputs, total = matrices.check('int8', kind, store.KINDS[kind].matrices), 0
  for leaf_name, leaf in weights.named(params).items():
    count = inputs(leaf_name)
    total += 2 * leaf.size if count is None else leaf.size + 4 * math.prod(leaf.shape[count:])
  return total


def cache_bytes(model: Model) -> int:
  """Returns the bytes of the cache of a guided image."""
  target = model.target(guided=True)
  condition = families.FAMILIES[model.family].published.condition(model.config, 1)
  return int(memory.cache_size(target, model.params, condition, target.num_tokens))


def _between(page: str, of: Callable[[Size], Any], text: Callable[[Any], str]) -> str:
  """Returns the smallest and the largest number of a page's models in one cell."""
  numbers = [of(size) for size in sizes(page).values()]
  if not all(numbers):
    return '-'
  first, *rest = dict.fromkeys(map(text, sorted(numbers)))
  return f'{first} to {rest[-1]}' if rest else first


def gigabytes(count: float) -> str:
  """Returns a number of bytes as text."""
  return f'{count / 1e9:.2f} GB'


def _numbers(page: str) -> dict[str, str]:
  file, family = _family(page)
  # The condition that a prior draws from words is one array too.
  classes = {'prior' not in family.roles and isinstance(
      family.published.condition(config, 1), jax.ShapeDtypeStruct)
             for config in file.presets.values()}
  others = {rules.FAMILIES[other].licence for other in FILES[page][1]} - {'', file.licence}
  return {
      'prompts': ' or '.join(kind for kind, is_class in (('classes', True), ('words', False))
                             if is_class in classes),
      'licence of the weights': '; '.join(
          [file.licence, *(f'image tokenizer: {other}' for other in sorted(others))]),
      'models': str(len(file.presets)),
      'pixels': _between(page, lambda size: size.pixels, lambda sides: ' x '.join(map(str, sides))),
      'parameters': _between(page, lambda size: size.parameters, lambda n: f'{n / 1e9:.2f} B'),
      'tokens of an image': _between(page, lambda size: size.tokens, str),
      'cache of a guided image': _between(
          page, lambda size: size.cache and size.cache[0], gigabytes)}


def models() -> str:
  """Returns what the published models are, and what they cost."""
  return markdown({'family': _link(page), **_numbers(page), 'fewest published passes': fewest}
                  for page, (_, _, fewest) in FILES.items())


def official(page: str) -> str:
  """Returns the sampling options that a conversion stores, per published model and use."""
  file, _ = _family(page)
  found: dict[Any, list[str]] = {}
  for preset, config in file.presets.items():
    for use, options in file.sampling(config).items():
      said = ', '.join(f'`{name}` {value}' if name != 'decoder' else f'`{value}`'
                       for name, value in options.items())
      found.setdefault((use, said), []).append(f'`{preset}`')
  return markdown({'model': ', '.join(presets), 'for': use, 'options': said}
                  for (use, said), presets in found.items())


def facts(page: str) -> str:
  """Returns the images of a family, the sizes of its models, and their licence."""
  numbers = _numbers(page)
  wide, int8, cache, narrow = (_between(page, of, gigabytes) for of in (
      lambda size: 2 * size.parameters, lambda size: size.int8,
      lambda size: size.cache and size.cache[0], lambda size: size.cache and size.cache[1]))
  in_int8 = lambda text: f' (int8: {text})' if text != '-' else ''
  of_cache = f'; cache of a guided image {cache}{in_int8(narrow)}' if cache != '-' else ''
  return '\n'.join(textwrap.fill(
      f'- **{title}**: {value}.', 100, subsequent_indent='  ', break_on_hyphens=False)
                   for title, value in {
      'Images': f'{numbers["pixels"]} pixels, {numbers["tokens of an image"]} tokens, from '
                f'{numbers["prompts"]}',
      'Parameters': f'{numbers["parameters"]}, {wide}{in_int8(int8)} in bfloat16{of_cache}',
      'Licence of the weights': numbers['licence of the weights']}.items())


LISTS: dict[str, Callable[[], str]] = {
    **{f'official_{page}': functools.partial(official, page) for page in FILES},
    **{f'facts_{page}': functools.partial(facts, page) for page in FILES}, 'models': models}
