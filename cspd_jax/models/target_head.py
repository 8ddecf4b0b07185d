"""The diffusion head of a decoding target: at full precision, in fused kernels if they fit."""

from collections.abc import Callable
from typing import Any

import jax

from cspd_jax.continuous import base
from cspd_jax.models import diffusion_head, fused_head

Params = Any


def denoise(head: diffusion_head.Head) -> Callable[..., tuple[jax.Array, jax.Array]]:
  """Returns a head as `base.Target.denoise`; the parameters have it under `head`."""
  return _full_precision(head, '__call__')


def modulation(head: diffusion_head.Head) -> base.Modulation:
  """Returns a head as `base.Target.modulation`; the parameters have it under `head`."""
  plain = _full_precision(head, 'apply_modulated')

  def apply(params: Params, x: jax.Array, modulation: jax.Array, row: jax.Array
            ) -> tuple[jax.Array, jax.Array]:
    fits = fused_head.fits(x.shape[0], head.width, head.token_dim)
    if fits and fused_head.is_available():
      fused = lambda params, *args: fused_head.apply(params['head'], *args)
      return jax.lax.platform_dependent(params, x, modulation, row, cuda=fused, default=plain)
    return plain(params, x, modulation, row)

  return base.Modulation(_full_precision(head, 'modulate'), apply)


def _full_precision(head: diffusion_head.Head, method: str) -> Callable[..., Any]:
  """Returns a method of a head that runs float32 products at full precision.

  Accelerators use a lower precision by default, and the first denoising step of MAR multiplies an
  error of the noise by 316.
  """
  def run(params: Params, *args: jax.Array) -> Any:
    with jax.default_matmul_precision('highest'):
      return head.apply({'params': params['head']}, *args, method=method)

  return run
