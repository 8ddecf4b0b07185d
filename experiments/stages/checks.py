"""The distributions of decoders, and kernels against plain operations, on this device."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous.chains import draft_loop
from cspd_jax.core import matrices, programs, spec
from cspd_jax.decoding import specification
from cspd_jax.models import attention, fused_head
from experiments import exactness
from experiments.stages.piece import Piece

# Modules with a kernel for NVIDIA GPUs, which they use if it equals plain operations on an example.
KERNELS = {
    'fused attention': attention, 'fused head': fused_head, 'fused loop of drafts': draft_loop}
_KERNELS = {'kernel': '{kernel}', 'largest difference': '{difference:.2g}', 'used': '{used}'}
_SAMPLES, _THREADS = 20_000, 8


def kernels(piece: Piece) -> None:
  """Compares kernels for NVIDIA GPUs, and products with int8 matrices, with plain operations."""
  title, device = 'kernels and plain operations', jax.devices()[0]
  checks = {name: lambda module=module: dict(
      difference=float(module.difference(device)), used='yes' if module.is_available() else 'no')
            for name, module in KERNELS.items()}
  checks['int8 matrices'] = lambda: dict(difference=int8_difference(), used='yes')
  for name, check in checks.items():
    piece.measure(title, _KERNELS, dict(kernel=name), check)


def int8_difference() -> float:
  """Returns the largest difference of a product with an int8 matrix from NumPy's, relatively."""
  rng = np.random.default_rng(0)
  x = rng.standard_normal((16, 1024)).astype(np.float32)
  matrix = matrices.quantized(rng.standard_normal((1024, 512)).astype(np.float32), 1)
  result = programs.jit(functools.partial(matrices.einsum, 'nd,df->nf'))(jnp.asarray(x), matrix)
  wanted = np.float64(x) @ (np.float64(matrix.values) * np.float64(matrix.scale))
  return float(np.abs(np.float64(result) - wanted).max() / np.abs(wanted).max())


def exact(piece: Piece) -> None:
  """Compares sequences of exact decoders on tabular models with the enumerated distributions."""
  flags = exactness.Flags(samples=_SAMPLES)
  names = list(specification.DECODERS)[:2 if piece.rehearses else None]
  for greedy in (False,) if piece.rehearses else (False, True):
    bench = exactness.prepare(flags, greedy)
    title = f'sequences against their distribution, temperature {bench.sampling.temperature}'
    built = {text: exactness.build(exactness.sized(text, bench), bench) for text in names
             if not piece.has(title, decoder=text)}
    texts = [text for text in built if built[text].guarantee.is_exact]
    if not texts or piece.is_over:
      continue
    vanilla = exactness.decode(bench, exactness.build(spec.parse('vanilla'), bench), None)

    def row(text: str, bench=bench, built=built, vanilla=vanilla) -> dict[str, Any]:
      needs = specification.needs(exactness.sized(text, bench))
      return exactness.row(bench, text, built[text], needs, vanilla, 2 * len(names))

    for group in piece.in_groups(title, {text: functools.partial(row, text) for text in texts},
                                 _THREADS):
      for each in group.values():
        piece.add(title, exactness.COLUMNS, each)
