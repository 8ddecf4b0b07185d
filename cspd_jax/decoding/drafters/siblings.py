"""Siblings: candidates for the same position, selected from its draft distribution."""

import jax
import jax.numpy as jnp

from cspd_jax.core import contracts
from cspd_jax.decoding import row_random, warp as warp_lib
from cspd_jax.decoding.base import DecodeContext, Rng, RngState


def probabilities(context: DecodeContext, logits: jax.Array, positions: jax.Array) -> jax.Array:
  """Returns the draft distributions `[B, n, V]` of the tokens at `positions` `[B, n]`.

  `logits` are `[S, B, n, V]`. At temperature 0 this is the distribution at temperature 1: `choose`
  then selects its most probable tokens, and the one-hot distribution would contain only the first.
  """
  forced = contracts.forced_tokens(context.target, positions)
  return warp_lib.probabilities(logits, warp_lib.not_greedy(context.sampling), positions, forced)


def choose(context: DecodeContext, rng: RngState, probs: jax.Array, positions: jax.Array,
           count: int, draws: str) -> tuple[RngState, jax.Array, jax.Array | None]:
  """Selects `count` candidates for every position, in the order in which they are to be tested.

  At temperature 0 they are the most probable tokens of `probs` `[B, n, V]`, whatever `draws` is,
  one of `base.DRAWS`. The recorded distribution is then one-hot at the first; the others have
  probability 0 in it, which marks them as not drawn (`base.Draft`). With a seed-exact verifier
  'iid' is 'distinct'. Returns the random numbers; tokens `[B, n, count]`, -1 where too few have
  positive probability; and the distributions `[B, n, V]` to record, None for 'fixed' draws.
  """
  if draws == 'fixed':
    return rng, row_random.winners(probs, count), None

  def row(rng: Rng, probs: jax.Array, positions: jax.Array, greedy: jax.Array) -> jax.Array:
    if context.seed_exact:  # The best tokens under the noise that the verifier will draw with.
      return rng.best_at(positions, probs, count, greedy)
    if draws == 'iid':
      drawn = rng.draw(jnp.repeat(probs, count, axis=0)).reshape(-1, count)
      return jnp.where(greedy, row_random.winners(probs, count), drawn)
    return rng.draw_distinct(probs, count, greedy)

  greedy = jnp.broadcast_to(warp_lib.is_greedy(jnp.asarray(context.sampling.temperature)),
                            probs.shape[:1])
  rng, chosen = context.rowwise(row)(rng, probs, positions, greedy)
  if context.sampling.top_k is None:  # The temperature is then never 0.
    return rng, chosen, probs
  recorded = jnp.where(
      greedy[:, None, None],
      jax.nn.one_hot(chosen[..., 0], probs.shape[-1], dtype=probs.dtype), probs)
  return rng, chosen, recorded
