"""No draft: one token per forward pass, the baseline."""

import jax.numpy as jnp

from cspd_jax.decoding.base import Draft, Drafter, Layout
from cspd_jax.decoding.tree import chain


def ancestral() -> Drafter:
  """Ancestral sampling: every round drafts nothing and commits one token."""

  def propose(env, state, rng, root, start):
    del start
    batch, vocab = root.shape[0], env.target.vocab_size
    probs = jnp.zeros((batch, 0, vocab), jnp.float32) if env.needs_probs else None
    return rng, state, Draft(jnp.zeros((batch, 0), jnp.int32), probs)

  return Drafter(
      layout=Layout(chain(0), (0,), (-1,)),
      init=lambda env, condition, rng, outcome: (rng, ()),
      propose=propose,
      update=lambda env, state, rng, outcome: (rng, state))
