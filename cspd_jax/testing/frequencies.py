"""Frequencies of tokens against the distributions from which they are said to be drawn.

Every token has a distribution of its own, and the tokens are independent. Let each of `n` tokens be
`v` with mean probability `p`. Then `n f` or more of them are `v` with a probability of at most
`exp(-n KL(f, p))` (Hoeffding, 1963): half of the G statistic is the logarithm of a p-value, for any
`n`. The union bound over the cells of a test yields its false-alarm rate.
"""

from typing import NamedTuple

import numpy as np

# Groups with fewer tokens refute nothing.
_LEAST = 8
# Odd numbers by which `digest` mixes columns.
_MULTIPLIERS = np.random.default_rng(0).integers(1, 2**62, 4096, dtype=np.uint64) * 2 + 1


class Misfit(NamedTuple):
  """The cell that refutes a distribution most clearly."""

  members: np.ndarray  # `[n]` bool: which tokens its group has.
  token: int  # The token that is too frequent or too rare.
  frequency: float  # Its frequency in the group.
  probability: float  # Its mean probability there.

  def __str__(self) -> str:
    return (f'token {self.token} has frequency {self.frequency:.3g} in {self.members.sum()} drafts '
            f'and recorded probability {self.probability:.3g}')


def misfit(tokens: np.ndarray, probs: np.ndarray, groups: np.ndarray, log_alarm: float
           ) -> Misfit | None:
  """Tests whether `tokens` `[n]` follow their distributions `probs` `[n, V]` in every group.

  Tokens of one group have one number in `groups` `[n]`, determined before they are drawn.
  `log_alarm` is the logarithm of the probability that tokens which follow `probs` are refuted.
  Returns the worst of the cells that refute; None if no cell does.
  """
  if not tokens.size:
    return None
  _, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
  vocab_size = probs.shape[-1]
  counts = np.zeros((len(sizes), vocab_size))
  np.add.at(counts, (index, tokens), 1)
  order = np.argsort(index, kind='stable')
  starts = np.cumsum(sizes) - sizes
  expected = np.add.reduceat(probs[order], starts, axis=0)
  large = sizes >= _LEAST
  if not large.any():
    return None
  size = sizes[large, None]
  frequency, probability = counts[large] / size, np.clip(expected[large] / size, 0, 1)
  cells = 2 * large.sum() * vocab_size
  log_p = np.log(cells) - size * _divergence(frequency, probability)
  worst = np.unravel_index(np.argmin(log_p), log_p.shape)
  if log_p[worst] >= log_alarm:
    return None
  group = np.flatnonzero(large)[worst[0]]
  return Misfit(index == group, int(worst[1]), float(frequency[worst]), float(probability[worst]))


def _divergence(f: np.ndarray, p: np.ndarray) -> np.ndarray:
  """Kullback-Leibler divergence of two Bernoulli distributions; `p` may be off by rounding."""
  with np.errstate(divide='ignore', invalid='ignore'):
    # A frequency of 1 of a token whose float32 probability is 1 - 1e-7 refutes nothing.
    p = np.where(np.abs(f - p) < 1e-5, f, p)
    term = lambda f, p: np.where(f > 0, f * np.log(f / p), 0)
    return term(f, p) + term(1 - f, 1 - p)


def digest(*columns: np.ndarray) -> np.ndarray:
  """Maps each row of integers `[n, ...]` to one number; equal rows have equal numbers."""
  flat = [column.reshape(len(column), int(np.prod(column.shape[1:]))) for column in columns]
  words = np.concatenate(flat, axis=1).astype(np.int64).astype(np.uint64)
  with np.errstate(over='ignore'):
    mixed = (words + np.uint64(1)) * np.resize(_MULTIPLIERS, words.shape[1])
    mixed ^= mixed >> np.uint64(29)
    return (mixed * np.uint64(0xBF58476D1CE4E5B9)).sum(axis=1)


def rounded(probs: np.ndarray) -> np.ndarray:
  """Distributions as integers, to compare them."""
  return np.rint(np.nan_to_num(probs) * 1e5).astype(np.int64)
