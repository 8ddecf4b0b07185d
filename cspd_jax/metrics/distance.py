"""Distance between two targets along the same images, for example after quantization."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import accept, warp as warp_lib
from cspd_jax.decoding.base import Condition, Target
from cspd_jax.metrics import likelihood


class Distance(NamedTuple):
  """Distances per image, over its tokens.

  Attributes:
    nll: `[B]` mean negative log-likelihood under the target, in nats.
    other_nll: `[B]` the same under the other target. Along images that the target drew, the mean
      of `other_nll - nll` is the relative entropy per token.
    total_variation: `[B]` mean total variation between the two distributions of a token.
    largest: `[B]` largest total variation.
  """

  nll: jax.Array
  other_nll: jax.Array
  total_variation: jax.Array
  largest: jax.Array


def distance(target: Target, params: Any, other_params: Any, condition: Condition,
             tokens: jax.Array, warp: warp_lib.Warp, other: Target | None = None) -> Distance:
  """Compares the distributions of two targets along whole images; call it under `jax.jit`.

  Args:
    target: the model, with the stream of the null condition if guidance is used.
    params: parameters of the target.
    other_params: parameters of the other target.
    condition: the conditions of the images, leading axis `B`.
    tokens: `[B, T]` tokens of complete images.
    warp: the sampling options.
    other: the other target; None if it differs in its parameters only.

  Returns:
    A `Distance`.
  """
  probs, other_probs = (
      likelihood.distributions(model, parameters, condition, tokens, warp)
      for model, parameters in ((target, params), (other or target, other_params)))
  variation = 0.5 * jnp.sum(jnp.abs(probs - other_probs), axis=-1)
  nll, other_nll = (jnp.mean(-jnp.log(accept.take(part, tokens)), axis=1)
                    for part in (probs, other_probs))
  return Distance(nll, other_nll, jnp.mean(variation, axis=1), jnp.max(variation, axis=1))
