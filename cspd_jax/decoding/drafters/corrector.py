"""Correctors: cheap models of the target's tokens, read over a whole window at once.

A corrector drafts nothing by itself. `drafters.corrected` asks it what it says of places in their
old and in their new context, and has it correct the target's stale answers by the difference.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import Env, Outcome, Target

Memory = Any
# What is said of places: arrays `[B, n, ...]`, whatever tells of a distribution.
Said = Any

# Below this a probability does not matter, and its logarithm would.
_TINY = 1e-20


class Corrector(NamedTuple):
  """A cheap causal model of the same tokens.

  In a round `start` is the number of the root, the last committed token, and place `i` that of
  token number `start + 1 + i`. `tokens` `[B, L]` are drafts for the places, `hints` what the
  target is thought to say of them. What lies past the end of the image must be finite.

  Attributes:
    init: `(env, condition, outcome, length) -> memory`: what it remembers after the prefill of the
      target, with room for windows of `L = length` drafts.
    open: `(env, memory, tokens, hints, start [B]) -> (said, old, memory)`: reads the tokens that
      the last round committed, the last round's window and the new one. `said` `[B, L, ...]`:
      entry `i` is for place `i` and depends on the committed tokens, `tokens[:, :i]` and
      `hints[:, :i]` only. `old` `[B, L, ...]`: entry `i` is for the token behind node `i + 1` of
      the last round's main chain, and depends on what is attached to that node or comes before it.
    read: `(env, memory, tokens, hints, start) -> (said, memory)`: the new window once more. Here
      and in `open`, `tokens` and `hints` may be those of the first `n` of the `L` places, and
      `said` is then `[B, n, ...]`; its entries depend on the same things.
    took: `(env, memory, outcome) -> memory` after a round of the target.
    answers: `outcome -> ` what the target said behind every node, `[B, N + 1, ...]`.
    correct: `(env, said, old, stale, known, positions) -> (probs, hints)`: the corrected
      distributions of places, `[B, n, V]` before cuts, and what they are computed from. `stale` are
      answers of the target, `old` is what the corrector said in their context; both mean something
      where `known` `[B, n]`. Entry by entry.
    check: `target -> None`; raises ValueError if it cannot correct for this target.
  """

  init: Callable[[Env, Any, Outcome, int], Memory]
  open: Callable[[Env, Memory, jax.Array, Said, jax.Array], tuple[Said, Said, Memory]]
  read: Callable[[Env, Memory, jax.Array, Said, jax.Array], tuple[Said, Memory]]
  took: Callable[[Env, Memory, Outcome], Memory]
  answers: Callable[[Outcome], Said]
  correct: Callable[..., tuple[jax.Array, Said]]
  check: Callable[[Target], None] = lambda target: None


def distributions(init: Callable, open_: Callable, read: Callable, took: Callable,
                  check: Callable[[Target], None]) -> Corrector:
  """A corrector that corrects distributions.

  There are no hints, and what it says are logits `[S, B, L, V]`, `S` 1 if it has no null condition.

  Args:
    init: as in `Corrector`.
    open_: `(env, memory, tokens, start) -> (said, old, first [B], memory)`; `first` is the number
      of the last round's root.
    read: `(env, memory, tokens, start) -> (said, memory)`.
    took: as in `Corrector`.
    check: as in `Corrector`.
  """

  def opened(env, memory, tokens, hints, start):
    del hints
    said, old, first, memory = open_(env, memory, tokens, start)
    return (uncut(env, said, _places(start, said)), uncut(env, old, _places(first + 1, old)),
            memory)

  def reread(env, memory, tokens, hints, start):
    del hints
    said, memory = read(env, memory, tokens, start)
    return uncut(env, said, _places(start, said)), memory

  def correct(env, said, old, stale, known, positions):
    del env, positions
    probs = corrected_probs(said, old, stale, known)
    return probs, probs

  return Corrector(
      init, opened, reread, took, lambda outcome: outcome.uncut, correct, check)


def corrected_probs(new: jax.Array, old: jax.Array, stale: jax.Array,
                    known: jax.Array) -> jax.Array:
  """Corrected distributions `[..., V]`: `log q = log new + g (log stale - log old)`.

  Args:
    new: `[..., V]` what the corrector says in the new context.
    old: `[..., V]` what it said in the context of `stale`; `g = sum_x min(new(x), old(x))`.
    stale: `[..., V]` what the target said there.
    known: `[...]` whether it did; `new` is the answer elsewhere.
  """
  agreement = jnp.sum(jnp.minimum(new, old), axis=-1, keepdims=True)
  log = lambda probs: jnp.log(jnp.maximum(probs, _TINY))
  corrected = jax.nn.softmax(log(new) + agreement * (log(stale) - log(old)))
  return jnp.where(known[..., None], corrected, new)


def uncut(env: Env, logits: jax.Array, positions: jax.Array) -> jax.Array:
  """Guided distributions `[B, n, V]`, at temperature 1 if the decode is greedy."""
  return warp_lib.probabilities(logits, warp_lib.uncut(env.warp), positions)


def _places(start: jax.Array, logits: jax.Array) -> jax.Array:
  """Numbers `[B, n]` of the tokens behind token number `start`."""
  return start[:, None] + 1 + jnp.arange(logits.shape[2])
