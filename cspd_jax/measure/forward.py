"""Bare forward passes of a target, in a loop like that of a decode."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def passes(target: Any, tree: Any) -> Callable[[Any, Any, Any], jax.Array]:
  """A function that does the forward passes of `count` rounds and nothing else.

  The rounds lie evenly over the image.

  Args:
    target: a `decoding.base.Target`.
    tree: topology of the drafts of every round.

  Returns:
    `(params, condition, count) -> ` a number to wait for.
  """

  def run(params, condition, count):
    logits, _, cache = target.prefill(params, condition, target.num_tokens + tree.num_nodes)
    tokens = jnp.zeros((logits.shape[1], tree.num_nodes + 1), jnp.int32)

    def body(i, carry):
      tokens, cache, _ = carry
      start = jnp.broadcast_to(i * target.num_tokens // count, tokens.shape[:1])
      logits, _, cache = target.score(params, cache, tokens, start, tree)
      # The next tokens depend on all logits, so that no pass is left out.
      unchanged = (jnp.sum(logits) * 0).astype(jnp.int32)
      return tokens + unchanged, cache, jnp.sum(logits)

    return jax.lax.fori_loop(0, count, body, (tokens, cache, jnp.sum(logits)))[2]

  return run
