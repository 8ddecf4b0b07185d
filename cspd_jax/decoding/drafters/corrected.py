"""Corrected windows: the target's stale predictions, corrected by a cheap model's visible error.

After a round the target has a prediction for every position of the window. After the first rejected
draft its predictions are stale: they come from the right model in a slightly wrong context. A cheap
model, the corrector, scores both contexts. Where its prediction is the same in both, the stale
prediction is used unchanged; where it differs, the difference is added to the stale prediction.

All positions are scored at once, in a few passes: a pass reads the tokens of the pass before, and
its tokens are maximally coupled with them. This is exact for the same reason as Jacobi windows: the
recorded distribution of a token is its true distribution given all that is attached to earlier
positions, in every pass, and nothing attached to a position influences an earlier one.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts, fields
from cspd_jax.core.contracts import check_part
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import DecodeContext, Draft, Drafter, Rng, RngState, RoundResult
from cspd_jax.decoding.drafters import jacobi as jacobi_lib
from cspd_jax.decoding.drafters.correctors import Corrector, Prediction
from cspd_jax.decoding.tree import Tree, chain, check_size

_SOURCE = ('fit one to your target with corrector, draft_params = '
           'cspd_jax.training.fit_corrector(target, params, condition, key), or, for a model of '
           'cspd_jax.load, pass model.drafts["neighbours"].build(guided=True)')
_ARRAYS = 6  # Arrays of the drafts' probabilities in one pass: stale and corrected, guided and cut.


class CorrectedState(NamedTuple):
  """The window between two rounds; its `L` positions are those right after the root."""

  tokens: jax.Array  # `[B, L]` carried tokens.
  probs: jax.Array  # `[B, L, V]` the distribution each was drawn from.
  stale: Prediction  # `[B, L, ...]` the target's predictions of the last round.
  # `[B, L]` which positions have such a prediction; the others repeat the last one.
  has_stale: jax.Array
  accepted: jax.Array  # `[B]` drafts accepted in the last round.
  corrector: Any  # The corrector's own state.


def corrected(corrector: Corrector | None, window: int = 16, iterations: int | None = None,
              tree: Tree | None = None, num_corrected: int | None = None) -> Drafter:
  """Drafts from the target's last forward pass, corrected by a cheap model.

  Raises ValueError for sizes below 1, or a tree that does not fit.

  Args:
    corrector: the cheap model; its parameters are the decoder's `draft_params`.
    window: `W`, tokens per forward pass: the last committed one and `W - 1` drafts.
    iterations: how often the corrector scores the window, at least 1. By default 4 for windows of
      32 or more and 2 for smaller ones: the more positions there are, the more iterations pay off.
    tree: topology of the `W - 1` drafts; side nodes are leaves next to the main chain and hold
      further candidates from the same distributions. A chain by default.
    num_corrected: number of positions that the corrector scores, by default the whole main chain.
      The positions after them keep the stale distributions.
  """
  check_size('window', window, 1)
  iterations = (4 if window >= 32 else 2) if iterations is None else iterations
  check_size('iterations', iterations, 1)
  tree = chain(window - 1) if tree is None else tree
  jacobi_lib.check_tree(window, tree)
  length = tree.main_length
  num_corrected = _checked_count(tree, num_corrected)
  check_part('corrector', corrector, Corrector, _SOURCE)
  assert corrector is not None

  def init(context, condition, rng, result):
    # First, because it refuses a target without features.
    corrector_state = corrector.init(context, condition, result, length)
    # All positions repeat token 0.
    tokens = jnp.repeat(result.tokens[:, :1], length, axis=1)
    stale = jax.tree.map(lambda x: jnp.repeat(x[:, -1:], length, axis=1),
                         corrector.target_prediction(result))
    return rng, CorrectedState(
        tokens, jax.nn.one_hot(tokens, context.target.vocab_size, dtype=result.probs.dtype), stale,
        jnp.zeros(tokens.shape, bool), jnp.zeros_like(result.count), corrector_state)

  def propose(context, state, rng, root, start):
    if length:
      rng, state = _correct_window(corrector, iterations, num_corrected, context, state, rng, start)
    positions = start[:, None] + 1 + jnp.arange(length)
    draw = lambda rng, *args: jacobi_lib.side_tokens(
        rng, tree, 'gumbel' if context.seed_exact else 'maximal', *args, np.zeros(length, bool))
    rng, side = context.rowwise(draw)(rng, state.tokens, state.probs, positions)
    return rng, state, Draft(
        jnp.concatenate([state.tokens, side], axis=1), state.probs if context.needs_probs else None)

  def update(context, state, rng, result):
    corrector_state = corrector.update(context, state.corrector, result)
    prediction = jax.tree.map(lambda x: x[:, :length + 1], corrector.target_prediction(result))
    rng, state = context.rowwise(functools.partial(_shift, context, length))(
        rng, state._replace(corrector=None), result._replace(features=None), prediction)
    return rng, state._replace(corrector=corrector_state)

  def check(target):
    jacobi_lib.check_length(window, tree, target)
    corrector.check(target)

  return Drafter(jacobi_lib.layout(tree), init, propose, update, check, num_arrays=_ARRAYS)


def _correct_window(corrector: Corrector, iterations: int, num_corrected: int,
                    context: DecodeContext, state: CorrectedState, rng: RngState, start: jax.Array
                    ) -> tuple[RngState, CorrectedState]:
  """Corrects the first `num_corrected` positions in a few passes and draws their tokens again."""
  positions = start[:, None] + 1 + jnp.arange(num_corrected)
  tokens, probs, stale, has_stale = jax.tree.map(
      lambda x: x[:, :num_corrected], (state.tokens, state.probs, state.stale, state.has_stale))
  prediction, old, corrector_state = corrector.begin(
      context, state.corrector, tokens, stale, start)
  # Of the positions after the old main nodes, the ones in the new window.
  last = state.tokens.shape[1] - 1
  index = jnp.minimum(state.accepted[:, None] + jnp.arange(num_corrected), last)
  old = jax.tree.map(lambda x: jax.vmap(lambda row, at: row[at])(x, index), old)
  estimate = stale
  for number in range(iterations):
    if number:
      prediction, corrector_state = corrector.score(
          context, corrector_state, tokens, estimate, start)
    new_probs, estimate = corrector.correct(context, prediction, old, stale, has_stale, positions)
    new_probs = _cut(context, new_probs, positions)
    rng, tokens = context.rowwise(functools.partial(_redraw, context))(
        rng, tokens, probs, new_probs, positions)
    probs = new_probs
  return rng, state._replace(
      tokens=jnp.concatenate([tokens, state.tokens[:, num_corrected:]], axis=1),
      probs=jnp.concatenate([probs, state.probs[:, num_corrected:]], axis=1),
      corrector=corrector_state)


def _checked_count(tree: Tree, num_corrected: int | None) -> int:
  """Returns the positions to be scored; raises ValueError if they or the side nodes do not fit."""
  length = tree.main_length
  if np.any(np.asarray(tree.parents) > length):
    raise ValueError(
        'tree has side nodes with children; in a corrected window they must be leaves next to the '
        'main chain, as in caterpillar(4, 6).')
  if num_corrected is None:
    return length
  fields.check_whole('num_corrected', num_corrected,
                     f'a whole number from 1 to {length}, the drafts of the main '
                     'chain, or None for all of them', 1, length)
  return num_corrected


def _cut(context: DecodeContext, probs: jax.Array, positions: jax.Array) -> jax.Array:
  """Applies the target's cuts and grammar to draft distributions."""
  sampling = context.sampling
  is_cut = any(getattr(sampling, name) is not None for name in warp_lib.CUTS)
  if context.target.forced is None and not is_cut:
    return probs  # The temperature is then never 0.
  greedy = warp_lib.is_greedy(jnp.asarray(sampling.temperature))
  cuts = SamplingParams(
      temperature=jnp.where(greedy, 0.0, 1.0), top_k=sampling.top_k, top_p=sampling.top_p,
      min_p=sampling.min_p)
  forced = contracts.forced_tokens(context.target, positions)
  return warp_lib.probabilities(jnp.log(probs)[None], cuts, positions, forced)


def _redraw(context: DecodeContext, rng: Rng, tokens: jax.Array, probs: jax.Array,
            new_probs: jax.Array, positions: jax.Array) -> jax.Array:
  """Draws `[L]` tokens from `new_probs`; they differ from `tokens` as rarely as possible."""
  if context.seed_exact:
    return rng.draw_at(positions, new_probs)
  return jacobi_lib.coupled(rng, tokens, probs, new_probs)


def _shift(context: DecodeContext, length: int, rng: Rng, state: CorrectedState,
           result: RoundResult, prediction: Prediction) -> CorrectedState:
  """One row's state after its new root: the target's predictions and tokens drawn from them."""
  if not length:
    return state
  probs = result.probs[:length + 1]
  first = result.root + 1  # The position after the old root.
  tokens = _redraw(context, rng, state.tokens, state.probs, probs, first + jnp.arange(length + 1))
  at = result.accepted + 1 + jnp.arange(length)
  has_stale = at <= length
  shifted = lambda x: x[jnp.minimum(at, length)]
  # Positions without a prediction repeat the last token before them until the corrector fills them.
  filler = jnp.where(has_stale[0], tokens[-1], result.tokens[result.count - 1])
  tokens = jnp.where(has_stale, shifted(tokens), filler)
  one_hot = jax.nn.one_hot(tokens, probs.shape[-1], dtype=probs.dtype)
  return state._replace(
      tokens=tokens, probs=jnp.where(has_stale[:, None], shifted(probs), one_hot),
      stale=jax.tree.map(shifted, prediction), has_stale=has_stale, accepted=result.accepted)
