"""The two ends of a decoder-only model: its token embedding and its output head.

Drafters that continue a target's features share both with it. They call these functions, so that
an embedding need not be a table and an output head need not be a matrix.

The diffusion head of a target of continuous tokens is its output end: at full precision, in fused
kernels if they fit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from cspd_jax.continuous import base
from cspd_jax.core import matrices
from cspd_jax.models import diffusion_head, fused_head
from cspd_jax.models.layers import Linear
from cspd_jax.models.transformer import Transformer, TransformerConfig

Params = Any
Embed = Callable[[Params, jax.Array], jax.Array]
Logits = Callable[[Params, jax.Array], jax.Array]

_IMPOSSIBLE = -1e30


class Ends(NamedTuple):
  """An embedding and an output head.

  `params` are the parameters of the model, with or without its layers.

  Attributes:
    embed: `(params, tokens [...]) -> [..., D]`.
    logits: `(params, features [..., D]) -> [..., V]` float32, of all tokens of an image.
    vocab_size: `V`, the number of tokens that can occur in an image.
    matrix: `params -> [D, outputs]`, the output head if it is one matrix, else None.
  """

  embed: Embed
  logits: Logits
  vocab_size: int
  matrix: Callable[[Params], jax.Array] | None


class HiddenHead(nn.Module):
  """An output head with a hidden layer `dim` wide: a linear layer, GELU and another linear layer.

  GELU is the exact one, with the error function. The first distributions are uniform.
  """

  dim: int
  num_outputs: int

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Returns float32 logits `[..., num_outputs]` of features `[..., D]`."""
    hidden = jax.nn.gelu(Linear(self.dim, name='hidden')(features), approximate=False)
    kernel = matrices.parameter(
        self, 'kernel', nn.initializers.zeros, (self.dim, self.num_outputs))
    bias = self.param('bias', nn.initializers.zeros, (self.num_outputs,))
    logits = matrices.einsum('...d,dv->...v', hidden, kernel, preferred_element_type=jnp.float32)
    return logits + bias.astype(jnp.float32)


def make(sizes: TransformerConfig, embed: Embed | None = None, logits: Logits | None = None,
         num_outputs: int | None = None, num_forced: int = 0) -> Ends:
  """Builds the ends of a model; those that are not supplied are the transformer's.

  Arguments as for `causal.Causal`. Raises ValueError if `logits` is supplied although the
  transformer has an output matrix, or without `num_outputs`.
  """
  if logits is not None and (sizes.num_outputs or not num_outputs):
    raise ValueError(f'logits was supplied with num_outputs {num_outputs} and an output matrix of '
                     f'{sizes.num_outputs} columns in the transformer; a model with logits '
                     'requires its num_outputs, and num_outputs=0 in its TransformerConfig.')
  if logits is None and num_outputs not in (None, sizes.num_outputs):
    raise ValueError(f'num_outputs is {num_outputs}, but the output matrix of the transformer has '
                     f'{sizes.num_outputs} columns; leave it out.')

  def from_transformer(method: str) -> Callable[[Params, jax.Array], jax.Array]:
    return lambda params, x: Transformer(sizes).apply(
        {'params': params['transformer']}, x, method=method)

  outputs, head = num_outputs or sizes.num_outputs or 0, logits or from_transformer('logits')

  def all_logits(params: Params, features: jax.Array) -> jax.Array:
    result = head(params, features)
    if result.shape != (*features.shape[:-1], outputs):
      raise ValueError(f'logits returned {result.shape} for features {features.shape}; it must '
                       f'return {(*features.shape[:-1], outputs)}, because num_outputs is '
                       f'{outputs}.')
    if not num_forced:
      return result
    # Forced tokens are never drawn; finite, because guidance subtracts the streams.
    padding = [(0, 0)] * (result.ndim - 1) + [(0, num_forced)]
    return jnp.pad(result, padding, constant_values=_IMPOSSIBLE)

  return Ends(embed or from_transformer('embed'), all_logits, outputs + num_forced,
              None if logits else lambda params: params['transformer']['output'])


def first_layers(params: Params, num_layers: int) -> Params:
  """Returns parameters with the transformer's first layers only; with 0, what ends may read."""
  subset = {name: part for name, part in params['transformer'].items()
            if not name.startswith('layers_') or int(name.removeprefix('layers_')) < num_layers}
  return dict(params, transformer=subset)


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
