"""Statistical tests that a sampler is exact: jitted, with the joint distribution, in batches."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.warp import Warp
from cspd_jax.testing import statistics
from cspd_jax.testing.tabular import Tabular

# Probability that a correct sampler fails, over all tests of a check together.
FALSE_ALARM = 1e-6


class Report(NamedTuple):
  """The outcome of a check, with the numbers of `statistics.Fit`.

  Attributes:
    tv: total variation to the distribution, over whole sequences and classes.
    tv_expected: its mean for an exact sampler.
    p_value: the smallest p-value of the tests, corrected for their number.
    samples: number of sequences.
    passed: whether `p_value` is at least the allowed false-alarm rate.
  """

  tv: float
  tv_expected: float
  p_value: float
  samples: int
  passed: bool


def check_sampler(sample: Callable[[jax.Array, jax.Array], jax.Array], probs: np.ndarray,
                  vocab_size: int, *, samples: int = 2**19, batch_size: int = 2**14,
                  seed: int = 0, false_alarm: float = FALSE_ALARM) -> Report:
  """Tests any sampler of sequences against their enumerated distributions.

  Rows of a batch have different classes, so that they advance at different speeds. Tests the joint
  distribution of the whole sequence and its class, and the independence of neighbouring rows.

  Args:
    sample: `(key, labels [B]) -> tokens [B, T]`; jit it yourself.
    probs: `[C, V**T]` distribution of a sequence for every class, in lexicographic order.
    vocab_size: `V`.
    samples: number of sequences, rounded up to whole batches.
    batch_size: `B`, even.
    seed: seed of the keys.
    false_alarm: accepted probability that a correct sampler fails.
  """
  probs = np.asarray(probs, np.float64)
  num_classes, cells = probs.shape
  length = int(round(np.log(cells) / np.log(vocab_size)))
  radix_powers = vocab_size ** np.arange(length - 1, -1, -1)
  labels = np.arange(batch_size) % num_classes
  counts = np.zeros((num_classes, cells))
  pairs = np.zeros((vocab_size, vocab_size))
  batches = -(-samples // batch_size)
  for key in jax.random.split(jax.random.key(seed), batches):
    tokens = np.asarray(sample(key, jnp.asarray(labels)))
    np.add.at(counts, (labels, tokens @ radix_powers), 1)
    # Rows 2i and 2i + 1 of classes 0 and 1 (or 0 and 0): their last tokens.
    first = labels[::2] == 0
    np.add.at(pairs, (tokens[::2, -1][first], tokens[1::2, -1][first]), 1)

  whole = statistics.fit(counts.ravel(), (probs / probs.sum() * (
      counts.sum(axis=1, keepdims=True) * num_classes / counts.sum())).ravel())
  last = probs.reshape(num_classes, -1, vocab_size).sum(axis=1)
  other = last[1 % num_classes]
  pair = statistics.fit(pairs.ravel(), np.outer(last[0], other).ravel())
  p_value = min(1.0, 2 * min(whole.p_value, pair.p_value))
  return Report(whole.tv, whole.tv_expected, p_value, whole.samples, p_value >= false_alarm)


def check_decoder(decoder: Decoder, tabular: Tabular, probs: np.ndarray, warp: Warp = Warp(), *,
                  draft_params=None, **kwargs) -> Report:
  """Tests a decoder, built on `tabular.target`, through its jitted path.

  `probs` `[C, V**T]` are the expected distributions, `class_probs(tabular, warp)`; `draft_params`
  those of the drafter, if any. Other arguments are those of `check_sampler`.
  """
  decode = jax.jit(decoder)
  sample = lambda key, labels: decode(tabular.params, labels, key, warp, draft_params).tokens
  return check_sampler(sample, probs, tabular.vocab_size, **kwargs)


def class_probs(tabular: Tabular, warp: Warp = Warp()) -> np.ndarray:
  """Returns the distribution of whole sequences for every class of a tabular model, `[C, V**T]`."""
  return np.stack([tabular.distribution(warp, label) for label in range(tabular.params.shape[0])])
