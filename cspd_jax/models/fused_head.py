"""The diffusion head for few states on NVIDIA GPUs: one kernel per matrix.

The kernels of the diffusion head are short, so on a GPU most of the time goes into launching them.
XLA runs the layer norm, activation and gate next to a product as separate kernels, four or five per
block; here they are fused with the product, which leaves two kernels per block.

In the shape descriptions, `N` is the number of states, `C` the length of a token, `K` the width of
a layer's input, `O` its output's, `W` the diffusion head's, `R` the number of
modulations and `M` the rows of each; see `diffusion_head`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from cspd_jax.core import kernels
from cspd_jax.models import diffusion_head

Params = Any

# The value 'plain' disables these kernels. Read once, because compiled programs do not change.
_VARIABLE = 'CSPD_JAX_HEAD'
# With more states than this, XLA's own matrix products keep a GPU busy.
_MAX_STATES = 64
# States and columns that one thread block computes: the smallest size that Triton multiplies.
_TILE = 16
# Lengths of a token: of MAR and NextStep-1. Inputs have whole tiles and are a power of two.
_TOKEN_DIMS = _TILE, 4 * _TILE
# Inputs that it multiplies at a time.
_CHUNK = 256
# Warps, of 32 threads each, of a thread block.
_WARPS = 4
# Largest rounding error of outputs of standard deviation 1.
_TOLERANCE = 1e-4


def fits(states: int, width: int, token_dim: int) -> bool:
  """Whether the kernels support this number of states and a diffusion head of these sizes."""
  return states <= _MAX_STATES and width % _CHUNK == 0 and token_dim in _TOKEN_DIMS


def apply(params: Params, x: jax.Array, modulation: jax.Array, row: jax.Array, *,
          interpret: bool = False) -> tuple[jax.Array, jax.Array]:
  """Predicts noise and variance of states `[N, C]`, like `diffusion_head.Head.apply_modulated`.

  `modulation` is `[R, M, W]`, `row` `[N]` is each state's. `interpret` runs the kernels in
  Pallas's interpreter, on any device.
  """
  layer = functools.partial(_layer, row=row, modulation=modulation, interpret=interpret)
  parts = modulation.shape[1]
  h = layer(x, params['state'])
  for i in range(parts // 3):
    inner = layer(h, params[f'mlp_in_{i}'], part=3 * i, norm=params[f'norm_{i}'], silu=True)
    h = layer(inner, params[f'mlp_out_{i}'], part=3 * i + 2, onto=h)
  out = layer(h, params['out'], part=parts - 2, norm={})[:x.shape[0]]
  return diffusion_head.outputs(out, x.shape[1])


def _layer(x: jax.Array, dense: Params, *, row: jax.Array, modulation: jax.Array, interpret: bool,
           part: int = 0, norm: Params = None, silu: bool = False,
           onto: jax.Array | None = None) -> jax.Array:
  """Runs one dense layer with its norm, modulation, activation and gate as one kernel.

  `x` is `[N, K]`, or with `N` rounded up to whole tiles, as the result `[N, O]`. Row `part` of a
  modulation has the shift of the normalised `x`, which the scale follows, or the gate. `norm` is
  scale and bias of the norm of `x`, empty for a norm without them; None for no norm and no
  modulation of `x`. The gated result is added to `onto` `[N, O]`; None for no gate.
  """
  operands = {'row': row, 'x': x, 'kernel': dense['kernel'], 'bias': dense['bias']}
  if norm is not None or onto is not None:
    operands['modulation'] = modulation
  operands |= {f'norm_{name}': leaf for name, leaf in (norm or {}).items()}
  if onto is not None:
    operands['onto'] = onto
  names = tuple(operands)

  def kernel(*refs):
    *inputs, out = refs
    _kernel(dict(zip(names, inputs, strict=True)), out, part, norm is not None, silu)

  grid = pl.cdiv(row.shape[0], _TILE), dense['kernel'].shape[1] // _TILE
  return pl.pallas_call(
      kernel, jax.ShapeDtypeStruct((grid[0] * _TILE, grid[1] * _TILE), jnp.float32),
      grid=grid, interpret=interpret, compiler_params=triton.CompilerParams(num_warps=_WARPS),
      name='head_layer')(*operands.values())


def _kernel(refs: Mapping[str, Any], out: Any, part: int, normed: bool, silu: bool) -> None:
  """Computes one tile of a layer."""
  first, columns = pl.program_id(0) * _TILE, pl.ds(pl.program_id(1) * _TILE, _TILE)
  # A partial tile repeats the last state.
  rows = lambda ref: jnp.minimum(first + jnp.arange(_TILE), ref.shape[0] - 1)
  row, x_rows, width = refs['row'][rows(refs['row'])], rows(refs['x']), refs['x'].shape[1]
  size = min(width, _CHUNK)
  chunk = lambda k: k * size + jnp.arange(size)
  load = lambda k: refs['x'][x_rows[:, None], chunk(k)[None]]
  modulation = lambda number, channels: refs['modulation'][row[:, None], number, channels[None]]

  def sums(term):
    """Sums a function of the inputs over each row, `[N, 1]`."""
    return jax.lax.fori_loop(
        0, width // size, lambda k, total: total + jnp.sum(term(load(k)), axis=1),
        jnp.zeros(_TILE, jnp.float32))[:, None]

  if normed:
    mean = sums(lambda x: x) / width
    scale = jax.lax.rsqrt(sums(lambda x: jnp.square(x - mean)) / width + diffusion_head.NORM_EPS)

  def step(k, total):
    x = load(k)
    if normed:
      x = (x - mean) * scale
      if 'norm_scale' in refs:
        x = (x * refs['norm_scale'][chunk(k)].astype(jnp.float32)
             + refs['norm_bias'][chunk(k)].astype(jnp.float32))
      x = x * (1 + modulation(part + 1, chunk(k))) + modulation(part, chunk(k))
    return total + _product(x, refs['kernel'][pl.ds(k * size, size), columns])

  y = jax.lax.fori_loop(0, width // size, step, jnp.zeros((_TILE, _TILE), jnp.float32))
  y += refs['bias'][columns].astype(jnp.float32)
  if silu:
    y *= jax.nn.sigmoid(y)
  if 'onto' in refs:
    gate = modulation(part, pl.program_id(1) * _TILE + jnp.arange(_TILE))
    y = refs['onto'][pl.ds(first, _TILE), columns] + gate * y
  out[pl.ds(first, _TILE), columns] = y


def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Multiplies float32 inputs and a tile of a matrix at full precision."""
  if kernel.dtype != jnp.bfloat16:
    return jnp.dot(x, kernel.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
  low, middle, high = (
      jnp.dot(part, kernel, precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32)
      for part in diffusion_head.parts(x))
  return low + middle + high


@functools.cache
def is_available() -> bool:
  """Whether this process has a GPU on which `apply` equals `diffusion_head.Head` on an example.

  If not, a warning is logged. CSPD_JAX_HEAD other than 'auto' and 'plain' raises ValueError.
  """
  return kernels.work('The fused head', _VARIABLE, difference, _TOLERANCE)


def difference(device: jax.Device, interpret: bool = False) -> float:
  """Largest difference between `apply` and `Head` on two small examples, run on a device.

  One is a head like MAR's with float32 matrices, the other one like NextStep-1's with
  bfloat16 matrices.
  """
  return max(_difference(device, interpret, *example) for example in (
      (_TOKEN_DIMS[0], True, jnp.float32), (_TOKEN_DIMS[1], False, jnp.bfloat16)))


def _difference(device: jax.Device, interpret: bool, token_dim: int, learned_variance: bool,
                dtype: Any) -> float:
  width, layers = 2 * _CHUNK, 1
  head = diffusion_head.Head(width, layers, token_dim, learned_variance)
  rng = np.random.default_rng(0)
  normal = lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
  shapes = jax.eval_shape(lambda: head.init(
      jax.random.key(0), jnp.zeros((1, token_dim)), jnp.zeros(1, int), jnp.zeros((1, _TILE))))
  scale = lambda leaf: leaf.shape[0]**-0.5 if leaf.ndim > 1 else 1
  params = jax.tree.map(
      lambda leaf: (scale(leaf) * normal(leaf.shape)).astype(dtype), shapes['params'])
  # More states than a tile; some share a modulation.
  states, row = _TILE + 2, rng.integers(0, 5, _TILE + 2)
  arguments = normal((states, token_dim)), 0.3 * normal((5, 3 * layers + 2, width)), row
  plain = functools.partial(head.apply, method='apply_modulated')
  with jax.default_device(device), jax.default_matmul_precision('highest'):
    actual = jax.jit(functools.partial(apply, interpret=interpret))(params, *arguments)
    expected = jax.jit(plain)({'params': params}, *arguments)
  return max(float(jnp.abs(a - b).max()) for a, b in zip(actual, expected))
