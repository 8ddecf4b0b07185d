"""Metrics read directly from a `Decoded`: rounds, accepted lengths, the bound on total variation.

Computed in NumPy.
"""

from typing import NamedTuple

import numpy as np

from cspd_jax.decoding.base import Decoded
from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric


class Acceptance(NamedTuple):
  """Summary statistics of parallel decoding.

  Attributes:
    rounds_mean: forward passes of the target per image, including the prefill.
    step_compression: tokens of an image per forward pass, `T / rounds`, averaged
      over the images; 1 for `vanilla`.
    accepted_length_mean: tokens committed by a round (the accepted drafts plus
      one), averaged over all rounds after the prefill; NaN if the prefill was
      the only round (`T = 1`).
    one_token_rounds: fraction of these rounds that accepted no draft and
      therefore committed one token; NaN in the same case.
  """

  rounds_mean: float
  step_compression: float
  accepted_length_mean: float
  one_token_rounds: float


def summarise(decoded: Decoded) -> Acceptance:
  """Computes the statistics over all images of a decode.

  Args:
    decoded: tokens `[B, T]`, rounds `[B]` and the histogram `[B, D + 2]`; JAX or
      NumPy arrays. Concatenate several decodes along `B` first.

  Raises:
    ValueError: if the shapes do not match, or the histogram does not account
      for all tokens and rounds.
  """
  tokens, rounds, accepted = (
      np.asarray(part) for part in (decoded.tokens, decoded.rounds, decoded.accepted))
  batch, length = tokens.shape if tokens.ndim == 2 else (0, 0)
  if not batch or rounds.shape != (batch,) or accepted.shape[:-1] != (batch,):
    raise ValueError(
        f'decoded has tokens {tokens.shape}, rounds {rounds.shape} and accepted '
        f'{accepted.shape}; they must be [B, T], [B] and [B, D + 2] with at least one image.')
  sizes = np.arange(accepted.shape[1])
  if np.any(accepted.sum(1) != rounds - 1) or np.any(accepted @ sizes != length - 1):
    raise ValueError(
        'decoded.accepted must count rounds - 1 rounds and T - 1 tokens for every image, but '
        f'counts {accepted.sum(1).tolist()} rounds of {(rounds - 1).tolist()} and '
        f'{(accepted @ sizes).tolist()} tokens of {length - 1}.')
  counts = accepted.sum(0)
  later_rounds = counts.sum() or np.nan
  return Acceptance(
      rounds_mean=float(rounds.mean()),
      step_compression=float(np.mean(length / rounds)),
      accepted_length_mean=float(counts @ sizes / later_rounds),
      one_token_rounds=float(counts[1] / later_rounds))


ROUNDS = Metric(
    'rounds', 'rounds', '{:.1f}', lambda sample, model: base.mean(sample.decoded.rounds),
    meaning='forward passes of the target per image, including the prefill',
    phrase='{:.1f} forward passes per image')
STEP_COMPRESSION = Metric(
    'step_compression', 'step compr.', '{:.2f}x',
    lambda sample, model: base.mean(sample.tokens.shape[1] / sample.decoded.rounds),
    meaning='tokens per forward pass of the target, over a whole image', better='higher')
ACCEPTED_LENGTH = Metric(
    'accepted_length', 'acc. length', '{:.2f}',
    # All rounds but the prefill.
    lambda sample, model: base.ratio(
        np.full(len(sample.tokens), sample.tokens.shape[1] - 1), sample.decoded.rounds - 1),
    meaning='tokens per round after the prefill: the accepted drafts plus one', better='higher')
ONE_TOKEN_ROUNDS = Metric(
    'one_token_rounds', 'one-token', '{:.0%}',
    lambda sample, model: base.ratio(sample.decoded.accepted[:, 1], sample.decoded.rounds - 1),
    meaning='fraction of the rounds after the prefill that accepted no draft')
TV_BOUND = Metric(
    'tv_bound', 'TV bound', '{:.2f}',
    lambda sample, model: base.mean(sample.decoded.tv_bound), group='bound',
    meaning="bound on the total variation between the distribution of the images and the target's; "
    'informative only below 1')
TV_BOUND_PER_TOKEN = Metric(
    'tv_bound_per_token', '/token', '{:.4f}',
    lambda sample, model: base.mean(sample.decoded.tv_bound / sample.tokens.shape[1]),
    group='bound', meaning='the same bound per token')
