"""The state of a Jacobi window: its tokens, their distributions, and the update of a round.

Positions that enter the window have fresh tokens. Any choice is exact as long as its true
distribution is recorded. The names of the choices are those of SJD (arXiv 2410.01699, section 3.3);
left and above refer to the image.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import accept, contract
from cspd_jax.decoding.base import Env, Outcome, Rng
from cspd_jax.decoding.tree import Tree


class JacobiState(NamedTuple):
  """Drafts of the next round, per row."""

  tokens: jax.Array  # `[B, L]` main chain, for the positions right after the root.
  # `[B, L, V]` the distribution each was drawn from; None if the verifier needs none.
  probs: jax.Array | None
  side: jax.Array  # `[B, N - L]` tokens of the side nodes, -1 for a node without a candidate.
  # `[B, R, V]` the last distribution of every position, for 'resample-above' fresh tokens; None
  # otherwise.
  history: jax.Array | None


def update(rng: Rng, state: JacobiState, outcome: Outcome, env: Env, tree: Tree, coupling: str,
           fresh: str) -> JacobiState:
  """The drafts of one row for the next round."""
  first = outcome.root + 1  # The position after the root.
  tokens, probs = _couple(rng, state, outcome, first, tree.main_length, coupling)
  history = state.history
  if history is not None:
    history = jax.lax.dynamic_update_slice_in_dim(history, probs, first, 0)
  return fill(
      rng, env, tree, coupling, fresh, (tokens, probs), outcome.accepted + 1,
      outcome.probs[outcome.verdict.node], outcome.tokens, outcome.count, history)


def _couple(rng: Rng, state: JacobiState, outcome: Outcome, first: jax.Array, length: int,
            coupling: str) -> tuple[jax.Array, jax.Array]:
  """Tokens `[L + 1]` for the positions after the root, and their distributions `[L + 1, V]`.

  However a token is drawn, its distribution is the target's of this round; the next round verifies
  it with that.
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
        'target, but the verifier has needs_probs=False and returns no samples; set needs_probs, '
        "or use coupling 'redraw'.")
  return coupled(rng, state.tokens, state.probs, probs), probs


def coupled(rng: Rng, tokens: jax.Array, probs: jax.Array, new_probs: jax.Array) -> jax.Array:
  """Draws tokens from new distributions; they differ from the old ones as rarely as possible.

  The maximal coupling: a token is retained with probability `min(1, p / q)` and otherwise drawn
  from the residual distribution (MC-SJD, arXiv 2510.24211). `tokens` `[L]` were drawn from `probs`
  `[L, V]`; the last `n` positions of `new_probs` `[L + n, V]` have no token yet.
  """
  length = tokens.shape[0]
  overlapping = new_probs[:length]
  retained = rng.accept(accept.take(overlapping, tokens), accept.take(probs, tokens))
  redrawn = rng.draw(
      jnp.concatenate([accept.residual(overlapping, probs), new_probs[length:]]))
  return jnp.concatenate([jnp.where(retained, tokens, redrawn[:length]), redrawn[length:]])


def fill(rng: Rng, env: Env, tree: Tree, coupling: str, fresh: str,
         drawn: tuple[jax.Array, jax.Array], shift: Any, last_probs: jax.Array, image: jax.Array,
         count: jax.Array, history: jax.Array | None) -> JacobiState:
  """Shifts drawn tokens past the committed ones and fills the window of a row with fresh ones.

  Args:
    rng: the row's random numbers.
    env: the decode's environment.
    tree: topology of the drafts.
    coupling: one of `jacobi.COUPLINGS`.
    fresh: one of `KINDS`.
    drawn: tokens `[L + 1]` and distributions `[L + 1, V]` for the positions after the old root.
    shift: `[]` how many of these positions are now committed.
    last_probs: `[V]` the distribution of the last committed token.
    image: `[T']` tokens by position.
    count: `[]` how many of them are committed.
    history: `[R, V]` distributions by position, or None.
  """
  length, vocab = tree.main_length, last_probs.shape[-1]
  left = length + 1 - shift  # Drafts carried over; the fresh ones follow them.
  slots = jnp.arange(length)
  positions = count + slots
  is_fresh = slots >= left
  # Gathered by index: TPUs run slices with a different start in every image as a loop.
  carried = jnp.minimum(shift + slots, length)
  tokens, probs = jnp.where(is_fresh, 0, drawn[0][carried]), drawn[1][carried]

  if length:
    image = jax.lax.dynamic_update_slice(jnp.pad(image, (0, length)), tokens, (count,))
    at = jnp.clip(left - 1, 0, length - 1)
    fresh_tokens, fresh_probs = _fresh(
        rng, fresh, positions, count + left - 1, jnp.where(left > 0, probs[at], last_probs), image,
        history, env.target.row_width)
    forced = contract.forced_tokens(env.target, positions)
    if forced is not None:
      fresh_tokens = jnp.where(forced < 0, fresh_tokens, forced)
      fresh_probs = jnp.where(
          (forced < 0)[:, None], fresh_probs, jax.nn.one_hot(forced, vocab, dtype=probs.dtype))
    tokens = jnp.where(is_fresh, fresh_tokens, tokens)
    probs = jnp.where(is_fresh[:, None], fresh_probs, probs)

  side = side_tokens(rng, tree, coupling, tokens, probs, positions, is_fresh)
  return JacobiState(tokens, probs if env.needs_probs else None, side, history)


def side_tokens(rng: Rng, tree: Tree, coupling: str, tokens: jax.Array, probs: jax.Array,
                positions: jax.Array, is_fresh: jax.Array) -> jax.Array:
  """Draws `[N - L]` further candidates for the side nodes.

  All nodes of one depth and rank hold the same token: only one path is accepted in a round, so
  siblings must differ but paths need not.
  """
  depths, ranks = tree.depth[tree.main_length + 1:], tree.rank[tree.main_length + 1:]
  if not depths.size:
    return jnp.zeros((0,), jnp.int32)
  deep, count = tree.side_depth, int(ranks.max())
  tokens, probs = tokens[:deep], probs[:deep]
  if coupling == 'noise':
    # A draft is itself the best token under its noise; a fresh token may not be.
    others = rng.best_at(positions[:deep], probs, count + 1)[:, 1:]
    others = jnp.where(is_fresh[:deep, None], -1, others)
  else:
    others = rng.draw_distinct(
        jnp.where(jnp.arange(probs.shape[-1]) == tokens[:, None], 0, probs), count)
  candidates = jnp.concatenate([tokens[:, None], others], axis=1)
  return candidates[depths - 1, ranks]


KINDS = ('uniform', 'repeat-left', 'repeat-above', 'resample-left', 'resample-above')


def _fresh(rng: Rng, kind: str, positions: jax.Array, last: jax.Array, last_probs: jax.Array,
           image: jax.Array, history: jax.Array | None, row_width: int
           ) -> tuple[jax.Array, jax.Array]:
  """Fresh tokens for `positions` `[L]` of one row, and their true distributions `[L, V]`.

  These are one-hot for a repeated token, the neighbour's for a resampled one. A position without
  the neighbour that `kind` requires gets a uniform token. The last token that is not fresh is
  number `last` of `image`; `last_probs` `[V]` is the distribution it was last drawn from.
  """
  length, vocab_size = positions.shape[0], last_probs.shape[0]
  tokens = rng.integers(length, vocab_size)
  probs = jnp.full((length, vocab_size), 1 / vocab_size, last_probs.dtype)
  if kind == 'uniform':
    return tokens, probs

  if kind.endswith('left'):
    has_neighbour = positions // row_width == last // row_width
    near_tokens = jnp.broadcast_to(image[last], (length,))
    near_probs = jnp.broadcast_to(last_probs, probs.shape)
  else:
    source = positions - row_width
    has_neighbour = (source >= 0) & (source <= last)
    source = jnp.clip(source, 0, image.shape[0] - 1)
    near_tokens = image[source]
    near_probs = None if history is None else history[source]
  if kind.startswith('repeat'):
    near_probs = jax.nn.one_hot(near_tokens, vocab_size, dtype=probs.dtype)
  else:
    near_tokens = rng.draw(near_probs)
  return (jnp.where(has_neighbour, near_tokens, tokens),
          jnp.where(has_neighbour[:, None], near_probs, probs))
