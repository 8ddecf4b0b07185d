"""Whether the kernels of this device compute what plain operations do."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous.chains import draft_loop
from cspd_jax.core import matrices, programs
from cspd_jax.models import attention, fused_head
from cspd_jax.verify.result import Result, judged, skipped

# Modules with a kernel for NVIDIA GPUs, which they use if it equals plain operations on an example.
KERNELS = {
    'fused attention': attention, 'fused head': fused_head, 'fused loop of drafts': draft_loop}
# The largest differences: in bfloat16, and of float32 numbers, which a GPU multiplies in parts.
_MOST, _MOST_OF_INT8 = 0.02, 2e-3


def check() -> Iterator[Result]:
  """Yields a result per kernel for NVIDIA GPUs, and for products with int8 matrices."""
  for name, module in KERNELS.items():
    try:
      difference = float(module.difference(jax.devices()[0]))
    except Exception as error:  # An untested device may raise anything.
      yield skipped(name, f'the kernel does not run here ({" ".join(str(error).split()):.300}), so '
                    'plain operations are used')
      continue
    used = module.is_available()
    yield judged(name, difference < _MOST,
                 f'the kernel differs from plain operations by {difference:.2g} and is '
                 f'{"" if used else "not "}used', difference=difference, used=used)
  difference = _int8_difference()
  yield judged('int8 matrices', difference < _MOST_OF_INT8,
               f'products differ from those of NumPy by {difference:.2g}, relatively',
               difference=difference, used=True)


def _int8_difference() -> float:
  rng = np.random.default_rng(0)
  x = rng.standard_normal((16, 1024)).astype(np.float32)
  matrix = matrices.quantized(rng.standard_normal((1024, 512)).astype(np.float32), 1)
  result = programs.jit(functools.partial(matrices.einsum, 'nd,df->nf'))(jnp.asarray(x), matrix)
  wide = functools.partial(np.asarray, dtype=np.float64)
  wanted = wide(x) @ (wide(matrix.values) * wide(matrix.scale))
  return float(np.abs(wide(result) - wanted).max() / np.abs(wanted).max())
