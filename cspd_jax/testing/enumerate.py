"""Enumerates every outcome of a decoder's randomness, without sampling.

A decoder uses randomness through a few methods only (`decoding/row_random.py`). Here every such
call is answered from a list of digits, one list per row of the batch, and the probabilities of the
answers are multiplied. The sum over the rows is the decoder's exact output distribution, computed
by the same code that runs in production.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import row_random
from cspd_jax.decoding.loop import Decoder
from cspd_jax.testing.tabular import Tabular, first_prefix, prefix_number


class _Answers(NamedTuple):
  """The answers to the calls so far of one row."""

  index: jax.Array  # `[]` the number of this list of answers, in mixed radix.
  weight: jax.Array  # `[]` product of the probabilities of the answers so far.


class _Enumerated:
  """Replaces `row_random.RowRandom` and has its methods; every outcome is one row."""

  def __init__(self, radices: list[int], state: _Answers):
    self._radices = radices  # Number of answers to every call so far, equal for all rows.
    self.state = state

  def _digits(self, count: int, radix: int) -> jax.Array:
    strides = np.prod(self._radices, dtype=np.int64) * radix ** np.arange(count)
    self._radices.extend([radix] * count)
    return ((self.state.index // strides) % radix).astype(jnp.int32)

  def _weigh(self, probability: jax.Array) -> None:
    self.state = self.state._replace(weight=self.state.weight * jnp.prod(probability))

  def accept(self, p: jax.Array, q: jax.Array) -> jax.Array:
    accepted = self._digits(p.shape[0], 2) == 1
    # A test that cannot be reached may be 0 / 0; it fails, as `u q < p` does.
    ratio = jnp.where(p <= 0, 0, jnp.minimum(1, p / jnp.where(q > 0, q, 1)))
    ratio = jnp.where((q <= 0) & (p > 0), 1, ratio)
    self._weigh(jnp.where(accepted, ratio, 1 - ratio))
    return accepted

  def integers(self, count: int, bound: int) -> jax.Array:
    self._weigh(jnp.full((count,), 1 / bound))
    return self._digits(count, bound)

  def draw(self, weights: jax.Array) -> jax.Array:
    return self.draw_distinct(weights, 1)[:, 0]

  def draw_distinct(self, weights: jax.Array, count: int, greedy: jax.typing.ArrayLike = False
                    ) -> jax.Array:
    tokens, best = [], row_random.winners(weights, count)
    for _ in range(count):
      token = self._digits(weights.shape[0], weights.shape[1])
      mass = weights.sum(axis=-1)
      chosen = jnp.arange(weights.shape[1]) == token[:, None]
      # Where no mass remains, the only answer is -1.
      share = jnp.where(mass[:, None] > 0, weights / jnp.where(mass > 0, mass, 1)[:, None],
                        jnp.arange(weights.shape[1]) == 0)
      # The last token has what the others leave. XLA may round a residual that is zero but for
      # rounding, whose draw is not used, once for each use; its shares then do not sum to 1.
      share = share.at[:, -1].set(1 - jnp.sum(share[:, :-1], axis=-1))
      self._weigh(jnp.sum(jnp.where(chosen, share, 0), axis=-1))
      tokens.append(jnp.where(mass > 0, token, -1))
      weights = jnp.where(chosen, 0, weights)
    return jnp.where(greedy, best, jnp.stack(tokens, axis=1))

  def draw_at(self, positions: jax.Array, weights: jax.Array) -> jax.Array:
    return self.draw(weights)

  def best_at(self, positions: jax.Array, weights: jax.Array, count: int,
              greedy: jax.typing.ArrayLike = False) -> jax.Array:
    raise ValueError(
        'Runners-up under the noise of a position cannot be enumerated; compare a seed-exact '
        'decoder with vanilla, token for token, instead.')


def outcome(radices: list[int], index: jax.Array, dtype: Any) -> Any:
  """Returns random numbers whose outcomes have an index each; `.state.weight` is its probability.

  Tracing fills `radices` with the numbers of answers; their product is the number of outcomes.
  """
  return _Enumerated(radices, _Answers(index, jnp.ones((), dtype)))


class Rounds(NamedTuple):
  """The exact result of a prefill and some rounds.

  Attributes:
    distribution: `[V**T]` distribution of the sequence, in the order of `tabular.sequences()`;
      tokens not committed by then are completed with the target's own distributions.
    tv_bound: mean of the decoder's bound on total variation.
    length: mean number of committed tokens, including the prefill's.
  """

  distribution: np.ndarray
  tv_bound: float
  length: float


def enumerate_rounds(decoder: Decoder, tabular: Tabular,
                     sampling: SamplingParams = SamplingParams(), *, rounds: int = 1,
                     draft_params=None, max_outcomes: int = 2**24, chunk: int = 2**16) -> Rounds:
  """Enumerates all outcomes of a prefill and `rounds` rounds of a decoder.

  Tokens not committed by then are completed with the target's own distributions, so the
  distribution equals `tabular.distribution(sampling)` if and only if the rounds are exact. Two
  rounds also prove that the drafter records the true distributions of its drafts. Noise of
  positions is treated as new in every use, so this does not prove anything about a verifier or
  drafter that uses the noise of a position twice in these rounds. Randomness inside a `lax` loop
  that runs more than once is used once, while tracing, so the sum would not be 1: draft at most two
  tokens with a draft model. Raises ValueError if there are more than `max_outcomes` outcomes.

  The decoder is built on `tabular.target`, and its random numbers are replaced; use float64 logits
  for an accurate comparison. There is at least 1 round; `draft_params` are the drafter's, if
  any. Outcomes are enumerated in batches of `chunk`.
  """
  radices: list[int] = []
  last = dataclasses.replace(decoder, drafter=decoder.drafter._replace(
      update=lambda env, state, rng, outcome: (rng, state)))  # Its result is not used.

  def run(index):
    radices.clear()
    open_rng = lambda state: _Enumerated(radices, state)
    first, final = (dataclasses.replace(d, open_rng=open_rng) for d in (decoder, last))
    condition = jnp.zeros(index.shape, jnp.int32)
    rng = _Answers(index, jnp.ones(index.shape, tabular.params.dtype))
    state = first.start(tabular.params, condition, rng, sampling, draft_params)
    for number in range(rounds):
      step = (final if number == rounds - 1 else first).round
      state = step(tabular.params, state, sampling, draft_params)
    return state.tokens, state.count, state.rng.weight, state.tv_bound

  jax.eval_shape(run, jax.ShapeDtypeStruct((1,), jnp.arange(1).dtype))  # Fills `radices`.
  total = int(np.prod([float(radix) for radix in radices]))
  if total > max_outcomes:
    raise ValueError(
        f'There are {total} outcomes, more than max_outcomes = {max_outcomes}; use a smaller '
        'vocabulary, window or number of rounds.')
  options = programs.UNOPTIMISED if total <= chunk else {}
  run = programs.jit(run, options=options, short_sums=True)
  return _accumulate(run, total, min(chunk, total), tabular, sampling)


def _accumulate(run: Callable, total: int, chunk: int, tabular: Tabular,
                sampling: SamplingParams) -> Rounds:
  """Sums the outcomes by their committed tokens, then completes the sequences."""
  vocab, length, sequences = tabular.vocab_size, tabular.length, tabular.sequences()
  target = tabular.distribution(sampling)
  committed = [np.zeros(vocab**k) for k in range(length + 1)]
  mean_tv_bound = 0.0
  for begin in range(0, total, chunk):
    tokens, count, weight, tv_bound = map(np.asarray, run(begin + jnp.arange(chunk)))
    weight = np.where(begin + np.arange(chunk) < total, weight, 0)
    mean_tv_bound += float(weight @ tv_bound)
    for k in range(1, length + 1):
      rows = count == k
      index = prefix_number(tokens[rows, :k], vocab) - first_prefix(k, vocab)
      np.add.at(committed[k], index, weight[rows])

  distribution = np.zeros(len(sequences))
  for k in range(1, length + 1):
    prefix_probs = target.reshape(vocab**k, -1).sum(axis=1)
    prefix = np.arange(len(sequences)) // vocab ** (length - k)
    share = np.divide(
        committed[k], prefix_probs, out=np.zeros_like(prefix_probs), where=prefix_probs > 0)
    distribution += share[prefix] * target
    # A prefix of probability 0 has no completion; its mass is counted at its first sequence.
    impossible = np.where(prefix_probs > 0, 0, committed[k])
    np.add.at(distribution, np.arange(vocab**k) * vocab ** (length - k), impossible)
  mean_length = sum(k * float(mass.sum()) for k, mass in enumerate(committed))
  return Rounds(distribution, mean_tv_bound, mean_length)
