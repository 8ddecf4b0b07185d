"""The Inception network of the Frechet inception distance, as a pure function.

It is the network of TensorFlow's `inception-2015-12-05`, which pytorch-fid, torch-fidelity and
ADM's evaluator share: Inception-v3 (Szegedy et al., arXiv:1512.00567) with average pools that do
not count padding, a maximum in place of the last of them, and 1008 classes.

  config = InceptionConfig()
  params = init(config, jax.random.key(0))
  features = apply(params, config, images)    # images [B, 299, 299, 3], about -1 to 1

Parameter tree: `NAME/{kernel, scale, bias, mean, variance}` for every convolution, and
`fc/kernel`; names are those of the published tensors in lower case.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.core import fields

Params = Any

SIDE = 299
# The features of sFID: the first channels of one layer, whose grid is 17 x 17.
SPATIAL_CHANNELS = 7
_SPATIAL_GRID = 17, 17
_POOL_UNITS = 128

_EPSILON = 1e-3
# Rounding to fewer bits, as accelerators do by default, would change a FID.
_PRECISION = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class InceptionConfig:
  """Sizes of the network; the defaults are the published ones.

  Attributes:
    unit: all widths are multiples of it.
    num_classes: rows of the last matrix.
  """

  unit: int = 16
  num_classes: int = 1008

  def __post_init__(self):
    fields.check(self)


class Features(NamedTuple):
  """Features of images, or their numbers for `widths`.

  Attributes:
    pool: `[B, 128 unit]` float32, of FID, precision and recall.
    spatial: `[B, 17 * 17 * 7]` float32, of sFID.
    logits: `[B, num_classes]` float32 without the bias, of the inception score.
  """

  pool: Any
  spatial: Any
  logits: Any


class _Conv(NamedTuple):
  """A convolution with normalisation: width in units, kernel, stride; strided ones do not pad."""

  width: int
  size: tuple[int, int]
  stride: int = 1
  pads: bool = True


# A chain of convolutions by name; a tuple of names is a fork, whose results are joined.
_Chain = Mapping[str, _Conv]


class _Block(NamedTuple):
  """Branches whose results are joined, and the branch behind a pool.

  Attributes:
    branches: chains of convolutions by name; names that end in `a` and `b` fork.
    pool: 'mean' or 'max', followed by a convolution of `pool_width`; 'stride' is a maximum with
      stride 2, followed by nothing.
    pool_width: width in units.
  """

  branches: tuple[_Chain, ...]
  pool: str
  pool_width: int = 0


def _conv(width: int, height: int = 1, breadth: int | None = None) -> _Conv:
  return _Conv(width, (height, height if breadth is None else breadth))


def _down(width: int) -> _Conv:
  return _Conv(width, (3, 3), stride=2, pads=False)


_STEM: tuple[tuple[str, _Conv | None], ...] = (
    ('conv2d_1a_3x3', _down(2)),
    ('conv2d_2a_3x3', _Conv(2, (3, 3), pads=False)),
    ('conv2d_2b_3x3', _conv(4, 3)),
    ('', None),  # A maximum with stride 2.
    ('conv2d_3b_1x1', _conv(5)),
    ('conv2d_4a_3x3', _Conv(12, (3, 3), pads=False)),
    ('', None))


def _block_a(pool_width: int) -> _Block:
  return _Block((
      {'branch1x1': _conv(4)},
      {'branch5x5_1': _conv(3), 'branch5x5_2': _conv(4, 5)},
      {'branch3x3dbl_1': _conv(4), 'branch3x3dbl_2': _conv(6, 3), 'branch3x3dbl_3': _conv(6, 3)}),
      'mean', pool_width)


def _block_c(width: int) -> _Block:
  return _Block((
      {'branch1x1': _conv(12)},
      {'branch7x7_1': _conv(width), 'branch7x7_2': _conv(width, 1, 7),
       'branch7x7_3': _conv(12, 7, 1)},
      {'branch7x7dbl_1': _conv(width), 'branch7x7dbl_2': _conv(width, 7, 1),
       'branch7x7dbl_3': _conv(width, 1, 7), 'branch7x7dbl_4': _conv(width, 7, 1),
       'branch7x7dbl_5': _conv(12, 1, 7)}), 'mean', 12)


def _block_e(pool: str) -> _Block:
  return _Block((
      {'branch1x1': _conv(20)},
      {'branch3x3_1': _conv(24), 'branch3x3_2a': _conv(24, 1, 3), 'branch3x3_2b': _conv(24, 3, 1)},
      {'branch3x3dbl_1': _conv(28), 'branch3x3dbl_2': _conv(24, 3),
       'branch3x3dbl_3a': _conv(24, 1, 3), 'branch3x3dbl_3b': _conv(24, 3, 1)}), pool, 12)


_BLOCKS = {
    'mixed_5b': _block_a(2), 'mixed_5c': _block_a(4), 'mixed_5d': _block_a(4),
    'mixed_6a': _Block((
        {'branch3x3': _down(24)},
        {'branch3x3dbl_1': _conv(4), 'branch3x3dbl_2': _conv(6, 3), 'branch3x3dbl_3': _down(6)}),
        'stride'),
    'mixed_6b': _block_c(8), 'mixed_6c': _block_c(10), 'mixed_6d': _block_c(10),
    'mixed_6e': _block_c(12),
    'mixed_7a': _Block((
        {'branch3x3_1': _conv(12), 'branch3x3_2': _down(20)},
        {'branch7x7x3_1': _conv(12), 'branch7x7x3_2': _conv(12, 1, 7),
         'branch7x7x3_3': _conv(12, 7, 1), 'branch7x7x3_4': _down(12)}), 'stride'),
    'mixed_7b': _block_e('mean'), 'mixed_7c': _block_e('max')}
# The branch whose first channels are the features of sFID.
_SPATIAL = 'mixed_6d', 'branch1x1'


def init(config: InceptionConfig, rng: jax.Array) -> Params:
  """Returns random parameters."""
  params: dict[str, Any] = {}
  channels = 3
  for name, conv in _STEM:
    if conv is not None:
      rng, key = jax.random.split(rng)
      params[name] = _init_conv(config, conv, channels, key)
      channels = conv.width * config.unit
  for name, block in _BLOCKS.items():
    rng, key = jax.random.split(rng)
    params[name] = _init_block(config, block, channels, key)
    channels = _width(block) * config.unit + (channels if block.pool == 'stride' else 0)
  params['fc'] = {'kernel': jax.random.normal(rng, (channels, config.num_classes)) * .02}
  return params


def _is_fork(name: str) -> bool:
  return name[-2:] in ('2a', '2b', '3a', '3b')


def _width(block: _Block) -> int:
  """Units that the branches of a block add up to, without those of a pool alone."""
  width = block.pool_width
  for chain in block.branches:
    forks = [conv.width for name, conv in chain.items() if _is_fork(name)]
    width += sum(forks) if forks else list(chain.values())[-1].width
  return width


def _init_block(config: InceptionConfig, block: _Block, channels: int, rng: jax.Array) -> Params:
  params = {}
  for chain in block.branches:
    width = channels
    for name, conv in chain.items():
      rng, key = jax.random.split(rng)
      params[name] = _init_conv(config, conv, width, key)
      if not name.endswith('a'):
        width = conv.width * config.unit
  if block.pool_width:
    params['branch_pool'] = _init_conv(config, _conv(block.pool_width), channels, rng)
  return params


def _init_conv(config: InceptionConfig, conv: _Conv, channels: int, rng: jax.Array) -> Params:
  width, (height, breadth) = conv.width * config.unit, conv.size
  scale = (height * breadth * channels / 2)**-.5
  return {'kernel': scale * jax.random.normal(rng, (height, breadth, channels, width)),
          'scale': jnp.ones(width), 'bias': jnp.zeros(width),
          'mean': jnp.zeros(width), 'variance': jnp.ones(width)}


def widths(config: InceptionConfig) -> Features:
  """Returns the numbers of features of an image."""
  rows, columns = _SPATIAL_GRID
  return Features(_POOL_UNITS * config.unit, rows * columns * SPATIAL_CHANNELS, config.num_classes)


def apply(params: Params, config: InceptionConfig, images: jax.Array) -> Features:
  """Returns the features of images `[B, 299, 299, 3]`, resized and scaled as `metrics.inception`
  does.

  Raises ValueError for images of another size.
  """
  if images.shape[1:] != (SIDE, SIDE, 3):
    raise ValueError(f'images have shape {images.shape}; it must be [B, {SIDE}, {SIDE}, 3].')
  del config  # Widths follow from the parameters.
  x = images.astype(jnp.float32)
  for name, conv in _STEM:
    x = _maximum(x, 2, 'VALID') if conv is None else _apply_conv(params[name], conv, x)
  spatial = x
  for name, block in _BLOCKS.items():
    branches = _branches(params[name], block, x)
    if name == _SPATIAL[0]:
      spatial = branches[_SPATIAL[1]][..., :SPATIAL_CHANNELS]
    x = jnp.concatenate(list(branches.values()), axis=-1)
  pool = jnp.mean(x, axis=(1, 2))
  return Features(pool, spatial.reshape(len(images), -1),
                  jnp.matmul(pool, params['fc']['kernel'], precision=_PRECISION))


def _branches(params: Params, block: _Block, x: jax.Array) -> dict[str, jax.Array]:
  """The results that a block joins, by the name of the last convolution."""
  results = {}
  for chain in block.branches:
    y, name = x, ''
    for name, conv in chain.items():
      if _is_fork(name):
        results[name] = _apply_conv(params[name], conv, y)
      else:
        y = _apply_conv(params[name], conv, y)
    if not _is_fork(name):
      results[name] = y
  if block.pool == 'stride':
    return results | {'pool': _maximum(x, 2, 'VALID')}
  pooled = _mean(x) if block.pool == 'mean' else _maximum(x, 1, 'SAME')
  return results | {
      'pool': _apply_conv(params['branch_pool'], _conv(block.pool_width), pooled)}


def _apply_conv(params: Params, conv: _Conv, x: jax.Array) -> jax.Array:
  x = jax.lax.conv_general_dilated(
      x, params['kernel'].astype(jnp.float32), (conv.stride, conv.stride),
      'SAME' if conv.pads else 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      precision=_PRECISION)
  scale = params['scale'] * jax.lax.rsqrt(params['variance'] + _EPSILON)
  return jax.nn.relu(scale * (x - params['mean']) + params['bias'])


def _maximum(x: jax.Array, stride: int, padding: str) -> jax.Array:
  return _window(x, -jnp.inf, jax.lax.max, stride, padding)


def _mean(x: jax.Array) -> jax.Array:
  """Means of 3 x 3 numbers, without padding in the count."""
  total = lambda y: _window(y, 0., jax.lax.add, 1, 'SAME')
  return total(x) / total(jnp.ones_like(x[:1, :, :, :1]))


def _window(x: jax.Array, start: float, function: Any, stride: int, padding: str) -> jax.Array:
  return jax.lax.reduce_window(
      x, start, function, (1, 3, 3, 1), (1, stride, stride, 1), padding)
