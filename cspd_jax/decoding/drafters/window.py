"""What a Jacobi window is from one round to the next: its tokens and their distributions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import accept, contract
from cspd_jax.decoding.base import Env, Outcome
from cspd_jax.decoding.drafters import fresh as fresh_lib
from cspd_jax.decoding.tree import Tree


class JacobiState(NamedTuple):
  """Drafts of the next round, per row.

  Attributes:
    tokens: `[B, L]` main chain, for the positions right after the root.
    probs: `[B, L, V]` the distribution each was drawn from; None if nobody asks.
    side: `[B, N - L]` tokens of the side nodes, -1 where there is none.
    history: `[B, R, V]` the last distribution of every position, for 'resample-above'
      fresh tokens; None otherwise.
  """

  tokens: jax.Array
  probs: jax.Array | None
  side: jax.Array
  history: jax.Array | None


def update(rng, state: JacobiState, outcome: Outcome, env: Env, tree: Tree, coupling: str,
           fresh: str) -> JacobiState:
  """The next drafts of one row."""
  first = outcome.root + 1  # The position after the root.
  tokens, probs = _couple(rng, state, outcome, first, tree.main_length, coupling)
  history = state.history
  if history is not None:
    history = jax.lax.dynamic_update_slice_in_dim(history, probs, first, 0)
  return refill(
      rng, env, tree, coupling, fresh, (tokens, probs), outcome.accepted + 1,
      outcome.probs[outcome.verdict.node], outcome.tokens, outcome.count, history)


def _couple(rng, state, outcome, first, length, coupling) -> tuple[jax.Array, jax.Array]:
  """Tokens `[L + 1]` for the positions after the root, and their distributions `[L + 1, V]`.

  However a token comes about, its distribution is the target's of this round: that is
  what the next round verifies it with.
  """
  probs = outcome.probs[:length + 1]
  if outcome.verdict.samples is not None:  # The verifier has drawn them already.
    return outcome.verdict.samples[:length + 1], probs
  if coupling == 'redraw':
    return rng.draw(probs), probs
  if coupling == 'noise':
    return rng.draw_at(first + jnp.arange(length + 1), probs), probs
  if state.probs is None:
    raise ValueError(
        f'coupling is {coupling!r}, which needs the distributions of the drafts or samples of the '
        "target, but the verifier asks for none and returns none; set the verifier's needs_probs, "
        "or take coupling 'redraw'.")
  return coupled(rng, state.tokens, state.probs, probs), probs


def coupled(rng, tokens: jax.Array, probs: jax.Array, found: jax.Array) -> jax.Array:
  """Tokens from new distributions, as rarely other than the old ones as possible.

  The maximal coupling: a token is kept with probability `min(1, p / q)` and drawn from the residual
  distribution otherwise (MC-SJD, arXiv 2510.24211).

  Args:
    rng: the row's random numbers.
    tokens: `[L]`.
    probs: `[L, V]` the distribution each was drawn from.
    found: `[L + n, V]` the new distributions; further places have no token yet.

  Returns:
    `[L + n]` tokens.
  """
  length = tokens.shape[0]
  same = found[:length]
  kept = rng.accept(accept.take(same, tokens), accept.take(probs, tokens))
  redrawn = rng.draw(jnp.concatenate([accept.residual(same, probs), found[length:]]))
  return jnp.concatenate([jnp.where(kept, tokens, redrawn[:length]), redrawn[length:]])


def refill(rng, env, tree, coupling, fresh, drawn, shift, last_probs, image, count, history):
  """Shifts the drawn tokens past the committed ones and fills up the window.

  Args:
    drawn: tokens `[L + 1]` and distributions `[L + 1, V]` for the positions after the
      old root.
    shift: `[]` how many of these positions are committed now.
    last_probs: `[V]` the distribution of the last committed token.
    image: `[T']` tokens by position; `count` of them are committed.
    history: distributions by position, or None.

  Returns:
    The state of one row.
  """
  length, vocab = tree.main_length, last_probs.shape[-1]
  left = length + 1 - shift  # Drafts carried over; in front of the fresh ones.
  slots = jnp.arange(length)
  positions = count + slots
  is_fresh = slots >= left
  # Rows by number: TPUs slice rows that begin in different places of different images in a loop.
  carried = jnp.minimum(shift + slots, length)
  tokens, probs = jnp.where(is_fresh, 0, drawn[0][carried]), drawn[1][carried]

  if length:
    image = jax.lax.dynamic_update_slice(jnp.pad(image, (0, length)), tokens, (count,))
    at = jnp.clip(left - 1, 0, length - 1)
    known = fresh_lib.Known(
        token=image[count + left - 1],
        distribution=jnp.where(left > 0, probs[at], last_probs),
        position=count + left - 1, tokens=image, probs=history)
    fresh_tokens, fresh_probs = fresh_lib.tokens_and_probs(
        rng, fresh, positions, known, env.target.row_width, vocab)
    forced = contract.forced_tokens(env.target, positions)
    if forced is not None:
      fresh_tokens = jnp.where(forced < 0, fresh_tokens, forced)
      fresh_probs = jnp.where(
          (forced < 0)[:, None], fresh_probs, jax.nn.one_hot(forced, vocab, dtype=probs.dtype))
    tokens = jnp.where(is_fresh, fresh_tokens, tokens)
    probs = jnp.where(is_fresh[:, None], fresh_probs, probs)

  side = side_tokens(rng, tree, coupling, tokens, probs, positions, is_fresh)
  return JacobiState(tokens, probs if env.needs_probs else None, side, history)


def side_tokens(rng, tree, coupling, tokens, probs, positions, is_fresh) -> jax.Array:
  """Draws `[N - L]` further candidates for the side nodes.

  All nodes of one depth and rank hold the same token: only one path is ever
  taken, so paths need not differ from each other, only siblings do.
  """
  depths, ranks = tree.depth[tree.main_length + 1:], tree.rank[tree.main_length + 1:]
  if not depths.size:
    return jnp.zeros((0,), jnp.int32)
  deep, count = tree.side_depth, int(ranks.max())
  tokens, probs = tokens[:deep], probs[:deep]
  if coupling == 'noise':
    # The token itself is the best under its noise, unless it is a fresh one.
    others = rng.best_at(positions[:deep], probs, count + 1)[:, 1:]
    others = jnp.where(is_fresh[:deep, None], -1, others)
  else:
    others = rng.draw_distinct(
        jnp.where(jnp.arange(probs.shape[-1]) == tokens[:, None], 0, probs), count)
  candidates = jnp.concatenate([tokens[:, None], others], axis=1)
  return candidates[depths - 1, ranks]
