"""Correctors: cheap models of the target's tokens that score a whole window at once.

A corrector does not draft on its own. `drafters.corrected` has it score positions in their old and
in their new context, and correct the target's stale predictions by the difference.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import Condition, Env, Outcome, Target

# The corrector's own state between calls: any pytree whose leaves have a leading `B`.
State = Any
# Predictions for positions: any pytree of arrays `[B, n, ...]` that determines their distributions.
Prediction = Any

# Below this a probability does not matter, but its logarithm would.
_TINY = 1e-20


class Corrector(NamedTuple):
  """A cheap causal model of the target's tokens.

  In a round, `start` is the number of the root, the last committed token, and entry `i` of a window
  is for token number `start + 1 + i`. `tokens` `[B, L]` are the drafts, `estimate` is an estimate
  of the target's prediction for each of them. Entries past the end of the image must be finite.

  Attributes:
    init: `(env, condition, outcome, length) -> state`: the state after the target's prefill, with
      room for windows of `L = length` drafts.
    begin: `(env, state, tokens, estimate, start [B]) -> (prediction, old, state)`: reads the tokens
      that the last round committed, scores the window of the last round and the new one.
      `prediction` `[B, L, ...]`: entry `i` predicts `tokens[:, i]` and depends on the committed
      tokens, `tokens[:, :i]` and `estimate[:, :i]` only. `old` `[B, L, ...]`: entry `i` predicts
      the token after node `i + 1` of the last round's main chain, and depends on what is attached
      to that node and to earlier positions only.
    score: `(env, state, tokens, estimate, start) -> (prediction, state)`: scores the new window
      again. Here and in `begin`, `tokens` and `estimate` may be those of the first `n` of the `L`
      positions; `prediction` is then `[B, n, ...]` with the same dependencies.
    update: `(env, state, outcome) -> state` after a round of the target.
    target_prediction: `outcome -> ` the target's prediction after every node, `[B, N + 1, ...]`.
    correct: `(env, prediction, old, stale, has_stale, positions) -> (probs, estimate)`: the
      corrected distributions `[B, n, V]` of positions, before cuts, and the corrected predictions
      they are computed from. `stale` are predictions of the target, `old` are the corrector's in
      the same context; both are meaningful where `has_stale` `[B, n]`. Works entry by entry.
    check: `target -> None`; raises ValueError if the corrector does not fit this target.
  """

  init: Callable[[Env, Condition, Outcome, int], State]
  begin: Callable[[Env, State, jax.Array, Prediction, jax.Array],
                  tuple[Prediction, Prediction, State]]
  score: Callable[[Env, State, jax.Array, Prediction, jax.Array], tuple[Prediction, State]]
  update: Callable[[Env, State, Outcome], State]
  target_prediction: Callable[[Outcome], Prediction]
  correct: Callable[[Env, Prediction, Prediction, Prediction, jax.Array, jax.Array],
                    tuple[jax.Array, Prediction]]
  check: Callable[[Target], None] = lambda target: None


def distributions(
    init: Callable[[Env, Condition, Outcome, int], State],
    begin: Callable[[Env, State, jax.Array, jax.Array],
                    tuple[jax.Array, jax.Array, jax.Array, State]],
    score: Callable[[Env, State, jax.Array, jax.Array], tuple[jax.Array, State]],
    update: Callable[[Env, State, Outcome], State],
    check: Callable[[Target], None]) -> Corrector:
  """Builds a corrector that corrects distributions and does not read estimates.

  Its predictions are logits `[S, B, L, V]`; `S` is 1 if the model has no null condition.

  Args:
    init: as in `Corrector`.
    begin: `(env, state, tokens, start) -> (prediction, old, first [B], state)`; `first` is the
      number of the last round's root.
    score: `(env, state, tokens, start) -> (prediction, state)`.
    update: as in `Corrector`.
    check: as in `Corrector`.
  """

  def begin_uncut(env: Env, state: State, tokens: jax.Array, estimate: Prediction,
                  start: jax.Array) -> tuple[Prediction, Prediction, State]:
    del estimate
    logits, old, first, state = begin(env, state, tokens, start)
    return (uncut(env, logits, _positions(start, logits)),
            uncut(env, old, _positions(first + 1, old)), state)

  def score_uncut(env: Env, state: State, tokens: jax.Array, estimate: Prediction,
                  start: jax.Array) -> tuple[Prediction, State]:
    del estimate
    logits, state = score(env, state, tokens, start)
    return uncut(env, logits, _positions(start, logits)), state

  return Corrector(
      init, begin_uncut, score_uncut, update, lambda outcome: outcome.uncut,
      _correct_distributions, check)


def _correct_distributions(
    env: Env, prediction: Prediction, old: Prediction, stale: Prediction, has_stale: jax.Array,
    positions: jax.Array) -> tuple[jax.Array, Prediction]:
  del env, positions
  probs = corrected_probs(prediction, old, stale, has_stale)
  return probs, probs


def corrected_probs(new: jax.Array, old: jax.Array, stale: jax.Array,
                    has_stale: jax.Array) -> jax.Array:
  """Corrected distributions `[..., V]`: `log q = log new + g (log stale - log old)`.

  Args:
    new: `[..., V]` the corrector's distributions in the new context.
    old: `[..., V]` its distributions in the context of `stale`; `g = sum_x min(new(x), old(x))`.
    stale: `[..., V]` the target's distributions in the old context.
    has_stale: `[...]` whether `stale` is available; elsewhere the result is `new`.
  """
  agreement = jnp.sum(jnp.minimum(new, old), axis=-1, keepdims=True)
  log = lambda probs: jnp.log(jnp.maximum(probs, _TINY))
  corrected = jax.nn.softmax(log(new) + agreement * (log(stale) - log(old)))
  return jnp.where(has_stale[..., None], corrected, new)


def uncut(env: Env, logits: jax.Array, positions: jax.Array) -> jax.Array:
  """Guided distributions `[B, n, V]` before cuts, at temperature 1 if the decode is greedy."""
  return warp_lib.probabilities(logits, warp_lib.uncut(env.warp), positions)


def _positions(start: jax.Array, logits: jax.Array) -> jax.Array:
  """Numbers `[B, n]` of the tokens after token number `start`."""
  return start[:, None] + 1 + jnp.arange(logits.shape[2])
