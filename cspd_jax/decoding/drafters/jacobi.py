"""Jacobi windows: the target drafts for itself, from its own last forward pass.

Every forward pass returns a distribution at every position of the window. Those after the first
rejected draft are conditioned on drafts that may change, but they are available: tokens drawn from
them, with these distributions recorded, are the drafts of the next round (SJD, arXiv 2410.01699).
Two invariants make every variant exact: the record of a draft is its true distribution given all
that is attached to earlier positions, and nothing at a position influences an earlier one.

Positions that enter the window have fresh tokens. Any choice is exact as long as its true
distribution is recorded. Their names are SJD's, section 3.3; left and above in the image, or
at the same place of a small image before it.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts, fields
from cspd_jax.core.contracts import check_part
from cspd_jax.decoding import accept
from cspd_jax.decoding.base import DecodeContext, Draft, Drafter, Layout, Rng, RoundResult, Target
from cspd_jax.decoding.tree import Tree, chain, check_size

COUPLINGS = ('independent', 'maximal', 'gumbel')
Coupling = str | float  # One of `COUPLINGS`, or the threshold of `reuse`.
KINDS = ('uniform', 'repeat-left', 'repeat-above', 'resample-left', 'resample-above')
# Kinds for images that are drawn twice, see `Target.small`.
SMALL_KINDS = ('repeat-small', 'resample-small')


class JacobiState(NamedTuple):
  """Drafts of the next round, per row."""

  tokens: jax.Array  # `[B, L]` main chain, for the positions right after the root.
  # `[B, L, V]` the distribution each was drawn from; None if the verifier needs none.
  probs: jax.Array | None
  side: jax.Array  # `[B, N - L]` tokens of the side nodes, -1 for a node without a candidate.
  history: jax.Array | None  # `[B, R, V]` the last distributions; see `_stores_history`.


def jacobi(window: int = 16, coupling: str = 'independent', initialization: str = 'uniform',
           tree: Tree | None = None) -> Drafter:
  """Drafts from the previous forward pass; raises ValueError for options that do not exist or fit.

  Args:
    window: `W`, tokens per forward pass: the last committed one and `W - 1` drafts, maybe none.
    coupling: how the draft at a position depends on the one of the round before. 'independent'
      draws from the new distribution (SJD). 'maximal' retains the token with probability `min(1, p
      / q)` and draws from the residual distribution otherwise, so it changes as rarely as the two
      distributions allow (MC-SJD, arXiv 2510.24211; SJD-PAC's adaptive continuation, arXiv
      2603.18599, is the same). 'gumbel' draws with the noise of the position (Gumbel coupling).
      With a verifier that draws the target's tokens (`match`), these are the drafts of the main
      chain, whatever `coupling` is.
    initialization: distribution of the tokens that enter the window, one of `KINDS`, or of
      `SMALL_KINDS` for targets that draw a small image first.
    tree: topology of the `W - 1` drafts; side nodes hold further candidates drawn without
      replacement from the same distributions (SJD-PAC's proactive drafting). With 'gumbel' they are
      the runners-up under the position's noise. A chain by default.
  """
  fields.check_choice('coupling', coupling, COUPLINGS)
  return _window(window, coupling, initialization, tree)


def reuse(window: int = 16, threshold: float = 0.5, initialization: str = 'uniform',
          tree: Tree | None = None) -> Drafter:
  """Drafts from the previous forward pass, reused while they are probable (SJD++).

  The draft at a position is retained if its probability is at least `threshold` times that with
  which it was drawn (arXiv 2512.07503, as in its reimplementation), and drawn again otherwise. That
  makes its distribution a mixture, which is recorded, so that the window is exact: see `reused`.
  With a verifier that draws the target's tokens (`match`), these are the drafts of the main chain
  instead. Raises ValueError for options that do not exist or fit.

  Args:
    window: `W`, tokens per forward pass: the last committed one and `W - 1` drafts, maybe none.
    threshold: above 0 and at most 1.
    initialization: distribution of the tokens that enter the window, one of `KINDS`, or of
      `SMALL_KINDS` for targets that draw a small image first.
    tree: topology of the `W - 1` drafts; side nodes hold further candidates drawn without
      replacement from the same distributions. A chain by default.
  """
  fields.require(0 < threshold <= 1, 'threshold', threshold, 'above 0 and at most 1')
  return _window(window, float(threshold), initialization, tree)


def _window(window: int, coupling: Coupling, kind: str, tree: Tree | None) -> Drafter:
  """A drafter whose drafts depend on the last round's as `coupling` says."""
  check_size('window', window, 1)
  tree = chain(window - 1) if tree is None else tree
  fields.check_choice('initialization', kind, KINDS + SMALL_KINDS)
  check_tree(window, tree)

  def init(context, condition, rng, result):
    batch, extent = result.tokens.shape
    dtype, vocab = result.probs.dtype, context.target.vocab_size
    length = tree.main_length
    history = None
    if _stores_history(kind):
      history = jnp.zeros((batch, extent + length, vocab), dtype).at[:, 0].set(result.probs[:, 0])

    def row(rng, *args):
      # No draft is carried over: every position after token 0 is fresh.
      none = jnp.zeros((length + 1,), jnp.int32), jnp.zeros((length + 1, vocab), dtype)
      return _fill(rng, context, tree, coupling, kind, none, length + 1, _Committed(*args))

    return context.rowwise(row)(rng, result.probs[:, 0], result.tokens, result.count, history)

  def propose(context, state, rng, root, start):
    return rng, state, Draft(jnp.concatenate([state.tokens, state.side], axis=1), state.probs)

  def update(context, state, rng, result):
    row = functools.partial(_update_row, context=context, tree=tree, coupling=coupling, kind=kind)
    return context.rowwise(row)(rng, state, result._replace(features=None))

  def check(target):
    check_length(window, tree, target)
    if kind in SMALL_KINDS and target.small is None:
      raise ValueError(f'initialization is {kind!r}, but the target draws no small image first; '
                       f'use one of {", ".join(KINDS)}.')

  return Drafter(layout(tree), init, propose, update, check=check)


def _stores_history(kind: str) -> bool:
  """Whether the last distribution of every position is stored, to draw from it again."""
  return kind in ('resample-above', 'resample-small')


def ancestral(window: int = 1) -> Drafter:
  """Drafts nothing: every round commits one token; the baseline.

  A forward pass has `window` tokens: the last committed one and nodes without a candidate. These
  cost time and do not change the distribution, but they change how sums are rounded: with the
  window of another decoder, logits are rounded as in that decoder. Raises ValueError if the window
  is below 1 or longer than an image.
  """
  check_size('window', window, 1)
  tree = chain(window - 1)

  def propose(context, state, rng, root, start):
    batch, vocab = root.shape[0], context.target.vocab_size
    shape = batch, min(window - 1, 1), vocab
    probs = jnp.zeros(shape, jnp.float32) if context.needs_probs else None
    return rng, state, Draft(jnp.full((batch, window - 1), -1, jnp.int32), probs)

  return Drafter(
      layout=Layout(tree, (0,) * window, (-1,) * window),
      init=lambda context, condition, rng, result: (rng, ()),
      propose=propose,
      update=lambda context, state, rng, result: (rng, state),
      check=functools.partial(check_length, window, tree), reuses_drafts=False)


def check_tree(window: int, tree: Tree) -> None:
  """Raises ValueError for a tree that does not fill the window."""
  check_part('tree', tree, Tree)
  if tree.num_nodes != window - 1:
    raise ValueError(
        f'tree has {tree.num_nodes} draft nodes, but window is {window}: with the last '
        f'committed token the tree must fill it, so it must have {window - 1} nodes.')
  if tree.max_depth > tree.main_length:
    raise ValueError(
        f'tree has side nodes at depth {tree.max_depth}, beyond the main chain of '
        f'{tree.main_length}; a Jacobi window has distributions for the main chain only.')


def check_length(window: int, tree: Tree, target: Target) -> None:
  """Raises ValueError if the main chain is longer than an image has room for."""
  if tree.main_length >= target.num_tokens:
    raise ValueError(
        f'window is {window} with a main chain of {tree.main_length} drafts, but an image has '
        f'{target.num_tokens} tokens; the chain may have at most {target.num_tokens - 1}.')


def layout(tree: Tree) -> Layout:
  """The layout of a window with side nodes.

  Every position has one distribution, and the main token of a position is also a candidate after a
  side branch that ends before it, so that the drafts after it stay in their context.
  """
  is_leaf = tree.children[:, 0] < 0
  leaf_candidate = np.where(is_leaf & (tree.depth < tree.main_length), tree.depth + 1, -1)
  return Layout(
      tree, tuple(int(depth) for depth in np.maximum(tree.depth - 1, 0)),
      tuple(int(node) for node in leaf_candidate))


def _update_row(rng: Rng, state: JacobiState, result: RoundResult, context: DecodeContext,
                tree: Tree, coupling: Coupling, kind: str) -> JacobiState:
  """The drafts of one row for the next round."""
  first = result.root + 1  # The position after the root.
  tokens, probs = _couple(rng, state, result, first, tree.main_length, coupling)
  history = state.history
  if history is not None:
    history = jax.lax.dynamic_update_slice_in_dim(history, probs, first, 0)
  return _fill(
      rng, context, tree, coupling, kind, (tokens, probs), result.accepted + 1, _Committed(
          result.probs[result.verdict.node], result.tokens, result.count, history))


def _couple(rng: Rng, state: JacobiState, result: RoundResult, first: jax.Array, length: int,
            coupling: Coupling) -> tuple[jax.Array, jax.Array]:
  """Tokens `[L + 1]` for the positions after the root, and what each was drawn from `[L + 1, V]`.

  These are the target's distributions of this round, or with a threshold mixtures with the old.
  """
  probs = result.probs[:length + 1]
  if result.verdict.samples is not None:  # The verifier has drawn them already.
    return result.verdict.samples[:length + 1], probs
  if coupling == 'independent':
    return rng.draw(probs), probs
  if coupling == 'gumbel':
    return rng.draw_at(first + jnp.arange(length + 1), probs), probs
  if state.probs is None:
    name = f'coupling is {coupling!r}' if isinstance(coupling, str) else "the drafter is 'reuse'"
    raise ValueError(
        f'{name}, which needs the distributions of the drafts or samples of the target, but the '
        'verifier has needs_probs=False and returns no samples; set needs_probs, or use the '
        "drafter 'jacobi' with coupling 'independent'.")
  if not isinstance(coupling, str):
    return reused(rng, state.tokens, state.probs, probs, coupling)
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
  redrawn = rng.draw(jnp.concatenate([accept.residual(overlapping, probs), new_probs[length:]]))
  return jnp.concatenate([jnp.where(retained, tokens, redrawn[:length]), redrawn[length:]])


def reused(rng: Rng, tokens: jax.Array, probs: jax.Array, new_probs: jax.Array, threshold: float
           ) -> tuple[jax.Array, jax.Array]:
  """Retains tokens whose `p / q` is at least `threshold`, and draws the others again.

  Whether a token is retained depends on the token, so its distribution is no longer `p`. With `r`
  for `q` on the tokens that would be retained, and the others drawn from `[p - r]+` normalised, it
  is `r` plus the remaining mass times that: `p` if `threshold` is 1, and closer to `q` the lower it
  is. Arguments as for `coupled`; returns the tokens `[L + n]` and their distributions.
  """
  length = tokens.shape[0]
  overlapping = new_probs[:length]
  kept = jnp.where(overlapping >= threshold * probs, probs, 0)
  rest = accept.residual(overlapping, kept)
  recorded = kept + jnp.maximum(1 - jnp.sum(kept, axis=-1, keepdims=True), 0) * rest
  redrawn = rng.draw(jnp.concatenate([rest, new_probs[length:]]))
  retained = accept.take(kept, tokens) > 0
  return (redrawn.at[:length].set(jnp.where(retained, tokens, redrawn[:length])),
          jnp.concatenate([recorded, new_probs[length:]]))


class _Committed(NamedTuple):
  """What is committed of a row."""

  last_probs: jax.Array  # `[V]` the distribution of the last token.
  image: jax.Array  # `[T']` the tokens by position.
  count: jax.Array  # Their number.
  history: jax.Array | None  # `[R, V]` distributions by position, if `kind` needs them.


def _fill(rng: Rng, context: DecodeContext, tree: Tree, coupling: Coupling, kind: str,
          drawn: tuple[jax.Array, jax.Array], shift: Any, committed: _Committed) -> JacobiState:
  """Shifts drawn tokens past the committed ones and fills the window of a row with fresh ones.

  `drawn` are tokens `[L + 1]` and distributions `[L + 1, V]` for the positions after the old root;
  the first `shift` are now committed.
  """
  last_probs, image, count, history = committed
  length, vocab = tree.main_length, last_probs.shape[-1]
  num_carried = length + 1 - shift  # Drafts of the last round; the fresh ones follow them.
  slots = jnp.arange(length)
  positions = count + slots
  is_fresh = slots >= num_carried
  # Gathered by index: TPUs run slices with a different start in every image as a loop.
  carried = jnp.minimum(shift + slots, length)
  tokens, probs = jnp.where(is_fresh, 0, drawn[0][carried]), drawn[1][carried]

  if length:
    image = jax.lax.dynamic_update_slice(jnp.pad(image, (0, length)), tokens, (count,))
    at = jnp.clip(num_carried - 1, 0, length - 1)
    fresh_tokens, fresh_probs = _fresh(
        rng, kind, positions, count + num_carried - 1,
        jnp.where(num_carried > 0, probs[at], last_probs), image, history, context.target)
    forced = contracts.forced_tokens(context.target, positions)
    if forced is not None:
      fresh_tokens = jnp.where(forced < 0, fresh_tokens, forced)
      fresh_probs = jnp.where(
          (forced < 0)[:, None], fresh_probs, jax.nn.one_hot(forced, vocab, dtype=probs.dtype))
    tokens = jnp.where(is_fresh, fresh_tokens, tokens)
    probs = jnp.where(is_fresh[:, None], fresh_probs, probs)

  side = side_tokens(rng, tree, coupling, tokens, probs, positions, is_fresh)
  return JacobiState(tokens, probs if context.needs_probs else None, side, history)


def side_tokens(rng: Rng, tree: Tree, coupling: Coupling, tokens: jax.Array, probs: jax.Array,
                positions: jax.Array, is_fresh: jax.Array) -> jax.Array:
  """Draws `[N - L]` further candidates for the side nodes.

  All nodes of one depth and rank hold the same token, because only siblings must differ.
  """
  depths, ranks = tree.depth[tree.main_length + 1:], tree.rank[tree.main_length + 1:]
  if not depths.size:
    return jnp.zeros((0,), jnp.int32)
  deep, count = tree.side_depth, int(ranks.max())
  tokens, probs = tokens[:deep], probs[:deep]
  if coupling == 'gumbel':
    # A draft is itself the best token under its noise; a fresh token may not be.
    others = rng.best_at(positions[:deep], probs, count + 1)[:, 1:]
    others = jnp.where(is_fresh[:deep, None], -1, others)
  else:
    others = rng.draw_distinct(
        jnp.where(jnp.arange(probs.shape[-1]) == tokens[:, None], 0, probs), count)
  candidates = jnp.concatenate([tokens[:, None], others], axis=1)
  return candidates[depths - 1, ranks]


def _fresh(rng: Rng, kind: str, positions: jax.Array, last: jax.Array, last_probs: jax.Array,
           image: jax.Array, history: jax.Array | None, target: Target
           ) -> tuple[jax.Array, jax.Array]:
  """Fresh tokens for `positions` `[L]` of one row, and their true distributions `[L, V]`.

  A position without the neighbour that `kind` requires gets a uniform token. The last token that is
  not fresh is number `last` of `image`, drawn from `last_probs` `[V]`.
  """
  length, vocab_size = positions.shape[0], last_probs.shape[0]
  tokens = rng.integers(length, vocab_size)
  probs = jnp.full((length, vocab_size), 1 / vocab_size, last_probs.dtype)
  if kind == 'uniform':
    return tokens, probs

  how, neighbour = kind.split('-')
  if neighbour == 'left':
    has_neighbour = positions // target.row_width == last // target.row_width
    near_tokens = jnp.broadcast_to(image[last], (length,))
    near_probs = jnp.broadcast_to(last_probs, probs.shape)
  else:
    above = lambda positions: positions - target.row_width
    source = (target.small if neighbour == 'small' and target.small else above)(positions)
    has_neighbour = (source >= 0) & (source <= last)
    source = jnp.clip(source, 0, image.shape[0] - 1)
    near_tokens = image[source]
    near_probs = None if history is None else history[source]
  if how == 'repeat':
    near_probs = jax.nn.one_hot(near_tokens, vocab_size, dtype=probs.dtype)
  else:
    near_tokens = rng.draw(near_probs)
  return (jnp.where(has_neighbour, near_tokens, tokens),
          jnp.where(has_neighbour[:, None], near_probs, probs))
