"""Ancestral sampling: no drafts, one token per forward pass; the baseline."""

import functools

import jax.numpy as jnp

from cspd_jax.decoding.base import Draft, Drafter, Layout
from cspd_jax.decoding.drafters.jacobi import check_length
from cspd_jax.decoding.tree import chain, check_size


def ancestral(window: int = 1) -> Drafter:
  """Drafts nothing: every round commits one token.

  A forward pass has `window` tokens: the last committed one and nodes without a candidate. These
  cost time and do not change the distribution, but they change how sums are rounded: with the
  window of another decoder, logits are rounded as in that decoder.

  Raises:
    ValueError: if the window is below 1 or longer than an image.
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
      check=functools.partial(check_length, window, tree), reuses_drafts=False)
