"""Tables of the pages on families: official options, published passes, and bytes by shapes."""

import dataclasses
import functools
import gzip
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from checkpoints_conversion import rules
from cspd_jax import families
from cspd_jax.core import matrices
from cspd_jax.families.folder import with_cache_dtype
from cspd_jax.files import store, weights
from cspd_jax.generation import memory as memory_lib
from cspd_jax.measure import tables
from cspd_jax.models import vq
from docs.passes import PASSES

_sketch = functools.cache(store.sketch)
# Kinds of image tokenizers of codes, and the rows of codes that are traced.
_CODES = 'vq', 'cosmos'
_SIDE = 8
_MANIFESTS = pathlib.Path(__file__).parents[1] / 'tests' / 'data' / 'manifests'

# By the name of a page: the family of files with its target, and those with what belongs to it.
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    'llamagen': ('llamagen', ('llamagen_vq', 't5')),
    'lumina_mgpt': ('lumina_mgpt', ('chameleon_vqgan', 'eagle_lumina_mgpt')),
    'lumina_mgpt_2': ('lumina_mgpt_2', ('movqgan',)),
    'anole': ('anole', ('chameleon_vqgan', 'eagle_anole')),
    'emu3': ('emu3', ('emu3_vq',)),
    'emu3_5': ('emu3_5', ('emu3_5_vq',)),
    'janus': ('janus_pro', ('janus_pro_vq',)),
    'simplear': ('simplear', ('cosmos_dv',)),
    'liquid': ('liquid', ('chameleon_vqgan',)),
    'glm_image': ('glm_image', ()),
    'tar': ('ar_dtok', ('tar_vq',)),
    'mar': ('mar', ('kl_vae',)),
    'nextstep': ('nextstep', ('nextstep_vae',)),
}


def name(page: str) -> str:
  """Returns the name of a family, the title of its page."""
  with (pathlib.Path(__file__).parent / 'families' / f'{page}.md').open(encoding='utf-8') as text:
    return text.readline().removeprefix('# ').strip()


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
  """Rows as Markdown; the first one has all columns."""
  rows = list(rows)
  return tables.markdown({name: f'{{{name}}}' for name in rows[0]}, rows)


def official(page: str) -> str:
  """The sampling options that a conversion stores, per published model and use."""
  file = rules.FAMILIES[FILES[page][0]]
  found: dict[Any, list[str]] = {}
  for preset, config in file.presets.items():
    for use, options in file.sampling(config).items():
      said = ', '.join(f'`{name}` {value}' if name != 'decoder' else f'`{value}`'
                       for name, value in options.items())
      found.setdefault((use, said), []).append(f'`{preset}`')
  return markdown((
      {'model': ', '.join(presets), 'for': use, 'options': said}
      for (use, said), presets in found.items()))


def passes(page: str) -> str:
  """Forward passes per image that others published."""
  return markdown(
      {'method': entry.method + (', not lossless' * (not entry.lossless)),
       'decoder here': f'`{entry.decoder}`' if entry.decoder else '-',
       'images': ', '.join(filter(None, (f'`{entry.model}`', entry.prompts))),
       'source': entry.source, 'tokens per pass': f'{entry.ratio:.2f}'}
      for entry in PASSES[FILES[page][0]])


class Size(NamedTuple):
  """Numbers of a published target.

  Attributes:
    pixels: rows and columns of pixels of an image.
    tokens: of an image.
    parameters: their number.
    bytes: of the parameters, in bfloat16 and with int8 matrices; the second is None where the
      network has no int8 matrices.
    cache: bytes of the cache of a guided image, in bfloat16 and in int8; None without a cache.
  """

  pixels: tuple[int, int]
  tokens: int
  parameters: int
  bytes: tuple[int, int | None]
  cache: tuple[int, int] | None


def billions(count: float) -> str:
  """Returns a number of parameters as text."""
  return f'{count / 1e9:.2f} B'


def gigabytes(count: float | None) -> str:
  """Returns a number of bytes as text; '-' for None."""
  return '-' if count is None else f'{count / 1e9:.2f} GB'


@functools.cache
def of_targets(page: str) -> dict[str, Size]:
  """Returns the sizes of the targets of a page by name."""
  file = rules.FAMILIES[FILES[page][0]]
  side = _pixels_of_a_token(page)
  return {preset: _size(file.kind, config, side) for preset, config in file.presets.items()}


def _pixels_of_a_token(page: str) -> int:
  """Returns the pixels of a token along each side, from what draws those of a page's models."""
  target, others = FILES[page]
  file = rules.FAMILIES[target]
  small = dataclasses.replace(next(iter(file.presets.values())), num_layers=1)
  if (handover := described(file.kind, small).handover) is not None:
    return handover.token_side
  supported = families.family.target_family(file.kind).roles['tokenizer']
  tokenizer = next(other for other in (rules.FAMILIES[name] for name in others)
                   if other.kind in supported)
  sketch = _sketch(tokenizer.kind, _config(tokenizer))
  config = dataclasses.replace(small, height=_SIDE, width=_SIDE)
  if tokenizer.kind in _CODES:
    decode = lambda params, codes: vq.decode(params, sketch.config, codes)
    tokens = jax.ShapeDtypeStruct((1, _SIDE, _SIDE), jnp.int32)
  else:
    decode = described(file.kind, config, tokenizer=sketch).tokenizer.decode
    tokens = jax.ShapeDtypeStruct((1, _SIDE**2, config.token_dim), jnp.float32)
  return jax.eval_shape(decode, sketch.params, tokens).shape[1] // _SIDE


def _config(file: rules.FileFamily) -> Any:
  """Returns a published config of a network, or else that of the tensors in its manifest."""
  for config in file.presets.values():
    return config
  manifest = json.loads(gzip.decompress((_MANIFESTS / f'{file.name}.json.gz').read_bytes()))
  return file.infer({name: tuple(shape) for name, shape in manifest['tensors'].items()}, {})


def _size(kind: str, config: Any, side: int) -> Size:
  count = _layers(config, functools.partial(_count, kind))
  model = described(kind, dataclasses.replace(config, num_layers=1))
  narrow = None
  if store.KINDS[kind].matrices:
    narrow = _layers(config, lambda config: quantized_bytes(kind, _sketch(kind, config).params))
  rows, columns = model.grid
  return Size((side * rows, side * columns), model.num_tokens, count, (2 * count, narrow), tuple(
      _layers(config, functools.partial(_cache, kind, dtype)) for dtype in (None, 'int8')
  ) if memory_lib.has_cache(model) else None)  # type: ignore[arg-type]


def quantized_bytes(kind: str, params: Any) -> int:
  """Returns the bytes of parameters in bfloat16, with int8 matrices and their scales.

  Args:
    kind: the kind of the network.
    params: arrays, or their shapes.
  """
  inputs = matrices.check('int8', kind, store.KINDS[kind].matrices)
  total = 0
  for name, leaf in weights.named(params).items():
    num_inputs = inputs(name)
    scales = 0 if num_inputs is None else math.prod(leaf.shape[num_inputs:])
    total += 2 * leaf.size if num_inputs is None else leaf.size + 4 * scales
  return total


def described(kind: str, config: Any, **networks: Any) -> families.Model:
  """Returns the model of a target without numbers, and with other described networks by role."""
  family = families.family.target_family(kind)
  sketch = _sketch(kind, config)
  params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), sketch.params)
  loaded = {'target': sketch._replace(params=params), **networks}
  return family.build(families.Parts(kind, loaded, {}))


def _cache(kind: str, dtype: str | None, config: Any) -> int:
  """Returns the bytes of the cache of a guided image in bfloat16, or in int8."""
  model = described(kind, config)
  model = model if dtype is None else with_cache_dtype(model, dtype)
  target = model.target(guided=True)
  condition = families.FAMILIES[model.family].published.condition(config, 1)
  return int(memory_lib.cache_size(target, model.params, condition, target.num_tokens))


def parameters(name: str) -> int:
  """Returns the number of parameters of the first published network of a family of files."""
  file = rules.FAMILIES[name]
  return _count(file.kind, _config(file))


def _count(kind: str, config: Any) -> int:
  """Returns the number of parameters of a network."""
  return sum(leaf.size for leaf in jax.tree.leaves(_sketch(kind, config).params))


def _layers(config: Any, of: Callable[[Any], int]) -> int:
  """Returns a number that every layer adds the same to: one of few layers is soon traced."""
  one, two = (of(dataclasses.replace(config, num_layers=count)) for count in (1, 2))
  return one + (config.num_layers - 1) * (two - one)


LISTS: dict[str, Callable[[], str]] = {
    f'official_{page}': functools.partial(official, page) for page in FILES
} | {f'passes_{page}': functools.partial(passes, page)
     for page, (target, _) in FILES.items() if target in PASSES}
