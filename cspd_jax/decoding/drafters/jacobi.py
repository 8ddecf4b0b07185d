"""Jacobi windows: the model drafts for itself, from its own last forward pass.

Every forward pass gives a distribution at every position of the window. Those behind the
first refusal are conditioned on drafts that may change, but they are known distributions:
tokens drawn from them, recorded with them, are the drafts of the next round
(SJD, arXiv 2410.01699). Two invariants make every variant exact: the recorded
distribution of a draft is its true distribution given all that is attached to earlier positions,
and nothing attached to a position influences an earlier one.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Draft, Drafter, Env, Layout, Outcome, Target
from cspd_jax.decoding.drafters import fresh as fresh_lib
from cspd_jax.decoding.tree import chain, check_size, Tree

COUPLINGS = ('redraw', 'maximal', 'noise')


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


def jacobi(window: int = 16, coupling: str = 'redraw', fresh: str = 'uniform',
           tree: Tree | None = None) -> Drafter:
  """Drafts from the previous forward pass.

  Args:
    window: `W`, tokens per forward pass: the last committed one and `W - 1`
      drafts. 1 drafts nothing.
    coupling: how the draft at a position follows its predecessor there.
      'redraw' draws anew from the new distribution (SJD). 'maximal' keeps the token with
      probability `min(1, p / q)` and draws from the residual distribution otherwise, so
      that it changes as rarely as the two distributions allow (MC-SJD, arXiv 2510.24211;
      the same rule is SJD-PAC's adaptive continuation, arXiv 2603.18599).
      'noise' draws with the noise that belongs to the position (Gumbel
      coupling).
    fresh: distribution of the tokens that enter the window, one of `fresh.KINDS`.
    tree: topology of the `W - 1` drafts; side nodes hold further candidates
      drawn without replacement from the same distributions (SJD-PAC's proactive
      drafting). With 'noise' they are the runners-up under the position's
      noise. A chain by default.

  Raises:
    ValueError: for a window below 1, unknown names, or a tree that does not fit.
  """
  check_size('window', window, 1)
  if coupling not in COUPLINGS:
    raise ValueError(f'coupling is {coupling!r}; it must be one of {", ".join(COUPLINGS)}.')
  if fresh not in fresh_lib.KINDS:
    raise ValueError(f'fresh is {fresh!r}; it must be one of {", ".join(fresh_lib.KINDS)}.')
  tree = chain(window - 1) if tree is None else tree
  if tree.num_nodes != window - 1:
    raise ValueError(
        f'tree has {tree.num_nodes} draft nodes, but window is {window}: with the last '
        f'committed token the tree must fill it, so give it {window - 1} nodes.')
  if tree.max_depth > tree.main_length:
    raise ValueError(
        f'tree has side nodes at depth {tree.max_depth}, beyond the main chain of '
        f'{tree.main_length}; a Jacobi window has distributions for the main chain only.')

  def check(target: Target) -> None:
    if tree.main_length >= target.num_tokens:
      raise ValueError(
          f'window is {window} with a main chain of {tree.main_length} drafts, but an image has '
          f'{target.num_tokens} tokens; the chain may have at most {target.num_tokens - 1}.')

  def init(env, condition, rng, outcome):
    del condition
    batch, extent = outcome.tokens.shape
    dtype, vocab = outcome.probs.dtype, env.target.vocab_size
    length = tree.main_length
    history = None
    if fresh == 'resample-above':
      history = jnp.zeros((batch, extent + length, vocab), dtype).at[:, 0].set(outcome.probs[:, 0])

    def refill(rng, *args):
      # Nothing is carried over: token 0 is the last known one.
      none = jnp.zeros((length + 1,), jnp.int32), jnp.zeros((length + 1, vocab), dtype)
      return _refill(rng, env, tree, coupling, fresh, none, length + 1, *args)

    rng, state = env.rowwise(refill)(
        rng, outcome.probs[:, 0], outcome.tokens, outcome.count, history)
    return rng, state

  def propose(env, state, rng, root, start):
    del env, root, start
    return rng, state, Draft(
        jnp.concatenate([state.tokens, state.side], axis=1), state.probs)

  def update(env, state, rng, outcome):
    row = functools.partial(_update, env=env, tree=tree, coupling=coupling, fresh=fresh)
    return env.rowwise(row)(rng, state, outcome._replace(features=None))

  return Drafter(
      layout=_layout(tree),
      init=init, propose=propose, update=update, check=check, keeps_drafts=True)


def _layout(tree: Tree) -> Layout:
  """A position has one distribution, and its main token is a candidate after every side branch.

  Keeping that token where a branch ends keeps the context of the drafts behind it.
  """
  is_leaf = tree.children[:, 0] < 0
  leaf_candidate = np.where(is_leaf & (tree.depth < tree.main_length), tree.depth + 1, -1)
  return Layout(
      tree, tuple(int(depth) for depth in np.maximum(tree.depth - 1, 0)),
      tuple(int(node) for node in leaf_candidate))


def _update(rng, state: JacobiState, outcome: Outcome, env: Env, tree: Tree, coupling, fresh):
  """The next drafts of one row."""
  first = outcome.count - outcome.accepted - 1  # The position after the root.
  tokens, probs = _couple(rng, state, outcome, first, tree.main_length, coupling)
  history = state.history
  if history is not None:
    history = jax.lax.dynamic_update_slice_in_dim(history, probs, first, 0)
  return _refill(
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
  kept = rng.accept(accept.take(probs[:-1], state.tokens), accept.take(state.probs, state.tokens))
  rest = jnp.concatenate([accept.residual(probs[:-1], state.probs), probs[-1:]])
  redrawn = rng.draw(rest)
  return jnp.concatenate([jnp.where(kept, state.tokens, redrawn[:-1]), redrawn[-1:]]), probs


def _refill(rng, env, tree, coupling, fresh, drawn, shift, last_probs, image, count, history):
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
  padded = lambda x: jnp.concatenate([x, jnp.zeros((length + 1,) + x.shape[1:], x.dtype)])
  tokens = jax.lax.dynamic_slice_in_dim(padded(drawn[0]), shift, length)
  probs = jax.lax.dynamic_slice_in_dim(padded(drawn[1]), shift, length)
  left = length + 1 - shift  # Drafts carried over; in front of the fresh ones.
  slots = jnp.arange(length)
  positions = count + slots
  is_fresh = slots >= left

  if length:
    image = jax.lax.dynamic_update_slice(jnp.pad(image, (0, length)), tokens, (count,))
    at = jnp.clip(left - 1, 0, length - 1)
    known = fresh_lib.Known(
        token=image[count + left - 1],
        distribution=jnp.where(left > 0, probs[at], last_probs),
        position=count + left - 1, tokens=image, probs=history)
    fresh_tokens, fresh_probs = fresh_lib.tokens_and_probs(
        rng, fresh, positions, known, env.target.row_width, vocab)
    if env.target.forced is not None:
      forced = env.target.forced(positions)
      fresh_tokens = jnp.where(forced < 0, fresh_tokens, forced)
      fresh_probs = jnp.where(
          (forced < 0)[:, None], fresh_probs, jax.nn.one_hot(forced, vocab, dtype=probs.dtype))
    tokens = jnp.where(is_fresh, fresh_tokens, tokens)
    probs = jnp.where(is_fresh[:, None], fresh_probs, probs)

  side = _side_tokens(rng, tree, coupling, tokens, probs, positions, is_fresh)
  return JacobiState(tokens, probs if env.needs_probs else None, side, history)


def _side_tokens(rng, tree, coupling, tokens, probs, positions, is_fresh) -> jax.Array:
  """`[N - L]` further candidates for the side nodes.

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
