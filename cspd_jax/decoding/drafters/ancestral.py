"""No draft: one token per forward pass, the baseline."""

import functools

import jax.numpy as jnp

from cspd_jax.decoding.base import Draft, Drafter, Layout
from cspd_jax.decoding.drafters.jacobi import check_length
from cspd_jax.decoding.tree import chain, check_size


def ancestral(window: int = 1) -> Drafter:
  """Ancestral sampling: every round drafts nothing and commits one token.

  Args:
    window: `W`, tokens per forward pass: the last committed one and `W - 1` nodes without a
      candidate. These cost time and change no distribution, but sums of other shapes round
      differently: in the window of another decoder the logits are rounded as they are there.

  Raises:
    ValueError: for a window below 1, or one longer than an image.
  """
  check_size('window', window, 1)
  tree = chain(window - 1)

  def propose(env, state, rng, root, start):
    del start
    batch, vocab = root.shape[0], env.target.vocab_size
    probs = jnp.zeros((batch, min(window - 1, 1), vocab), jnp.float32) if env.needs_probs else None
    return rng, state, Draft(jnp.full((batch, window - 1), -1, jnp.int32), probs)

  return Drafter(
      layout=Layout(tree, (0,) * window, (-1,) * window),
      init=lambda env, condition, rng, outcome: (rng, ()),
      propose=propose,
      update=lambda env, state, rng, outcome: (rng, state),
      check=functools.partial(check_length, window, tree))
