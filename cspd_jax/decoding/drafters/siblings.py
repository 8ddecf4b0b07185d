"""Candidates that compete for one place, chosen from its draft distribution."""

import jax
import jax.numpy as jnp

from cspd_jax.decoding import contract, row_random, warp as warp_lib
from cspd_jax.decoding.base import DRAWS, Env


def check_draws(draws: str) -> None:
  """Raises ValueError for an unknown kind of draws."""
  if draws not in DRAWS:
    raise ValueError(f'draws is {draws!r}; it must be one of {", ".join(DRAWS)}.')


def probabilities(env: Env, logits: jax.Array, positions: jax.Array) -> jax.Array:
  """Returns the draft distributions `[B, n, V]` of the tokens at `positions` `[B, n]`.

  At temperature 0 this is the distribution at temperature 1: `choose` takes its most probable
  tokens then, of which the one-hot distribution would know only the first.

  Args:
    env: the decode's environment.
    logits: `[S, B, n, V]`.
    positions: `[B, n]` token numbers.
  """
  temperature = jnp.asarray(env.warp.temperature)
  warp = env.warp._replace(temperature=jnp.where(temperature == 0, 1, temperature))
  forced = contract.forced_tokens(env.target, positions)
  return warp_lib.probabilities(logits, warp, positions, forced)


def choose(env: Env, rng, probs: jax.Array, positions: jax.Array, count: int, draws: str):
  """Candidates for every place, in the order in which they are to be tested.

  At temperature 0 they are the most probable tokens, whatever `draws` says. What is recorded then
  is what they came from: one-hot at the first; the others have no probability, which says that
  they were not drawn (`base.Draft`).

  Args:
    env: the decode's environment.
    rng: the rows' random numbers.
    probs: `[B, n, V]` draft distributions.
    positions: `[B, n]` token numbers of the places.
    count: candidates per place.
    draws: one of `base.DRAWS`.

  Returns:
    The rows' random numbers; tokens `[B, n, count]`, -1 where the distribution has no more; and
    the distributions `[B, n, V]` to record, None for 'fixed' ones.
  """
  if draws == 'fixed':
    return rng, row_random.winners(probs, count), None

  def row(rng, probs, positions, greedy):
    if env.seed_exact:  # The runners-up under the noise that will decide.
      return rng.best_at(positions, probs, count, greedy)
    if draws == 'iid':
      drawn = rng.draw(jnp.repeat(probs, count, axis=0)).reshape(-1, count)
      return jnp.where(greedy, row_random.winners(probs, count), drawn)
    return rng.draw_distinct(probs, count, greedy)

  greedy = jnp.broadcast_to(jnp.asarray(env.warp.temperature) == 0, probs.shape[:1])
  rng, chosen = env.rowwise(row)(rng, probs, positions, greedy)
  if env.warp.top_k is None:  # Then no temperature is 0.
    return rng, chosen, probs
  recorded = jnp.where(
      greedy[:, None, None],
      jax.nn.one_hot(chosen[..., 0], probs.shape[-1], dtype=probs.dtype), probs)
  return rng, chosen, recorded
