"""How far one target is from another along the same images, such as a rounded one."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import accept, warp as warp_lib
from cspd_jax.decoding.base import Condition, Target
from cspd_jax.metrics import likelihood


class Distance(NamedTuple):
  """Per image, over its tokens.

  Attributes:
    nll: `[B]` mean negative log-likelihood under the target, in nats.
    other_nll: `[B]` that under the other target. Along images that the target drew, the mean of
      `other_nll - nll` is the relative entropy per token.
    total_variation: `[B]` mean total variation between the distributions of a token.
    largest: `[B]` largest total variation.
  """

  nll: jax.Array
  other_nll: jax.Array
  total_variation: jax.Array
  largest: jax.Array


def distance(target: Target, params: Any, other_params: Any, condition: Condition,
             tokens: jax.Array, warp: warp_lib.Warp) -> Distance:
  """Compares the distributions of two targets along whole images; to be jitted.

  Args:
    target: the model, with the guidance stream if it is used.
    params: parameters of the target.
    other_params: those of the other one.
    condition: what the images show, leading axis `B`.
    tokens: `[B, T]` finished images.
    warp: the sampling options.

  Returns:
    A `Distance`.
  """
  own, other = (likelihood.distributions(target, part, condition, tokens, warp)
                for part in (params, other_params))
  apart = 0.5 * jnp.sum(jnp.abs(own - other), axis=-1)
  nll, other_nll = (jnp.mean(-jnp.log(accept.take(found, tokens)), axis=1)
                    for found in (own, other))
  return Distance(nll, other_nll, jnp.mean(apart, axis=1), jnp.max(apart, axis=1))
