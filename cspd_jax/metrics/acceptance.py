"""Metrics read directly from a `Decoded`: rounds, accepted lengths, the bound on total variation.

Computed in NumPy.
"""

import numpy as np

from cspd_jax.decoding.base import Decoded
from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric


def step_compression(decoded: Decoded) -> base.Value:
  """Returns the tokens of an image per forward pass, `T / rounds`; 1 for `vanilla`."""
  return base.mean(decoded.tokens.shape[1] / decoded.rounds)


def accepted_length(decoded: Decoded) -> base.Value:
  """Returns the tokens per round after the prefill; NaN if there was no such round."""
  return base.ratio(np.full(len(decoded.tokens), decoded.tokens.shape[1] - 1), decoded.rounds - 1)


STEP_COMPRESSION = Metric(
    'step_compression', 'step compr.', '{:.2f}x',
    lambda sample, model: step_compression(sample.decoded),
    meaning='tokens per forward pass of the target, over a whole image', better='higher')

METRICS = (
    Metric('rounds', 'rounds', '{:.1f}', lambda sample, model: base.mean(sample.decoded.rounds),
           meaning='forward passes of the target per image, including the prefill',
           phrase='{:.1f} forward passes per image'),
    STEP_COMPRESSION,
    Metric('accepted_length', 'acc. length', '{:.2f}',
           lambda sample, model: accepted_length(sample.decoded),
           meaning='tokens per round after the prefill: the accepted drafts plus one',
           better='higher'),
    Metric('one_token_rounds', 'one-token', '{:.0%}', lambda sample, model: base.ratio(
               sample.decoded.accepted[:, 1], sample.decoded.rounds - 1),
           meaning='fraction of the rounds after the prefill that accepted no draft'),
    Metric('tv_bound', 'TV bound', '{:.2f}',
           lambda sample, model: base.mean(sample.decoded.tv_bound), group='bound',
           meaning='bound on the total variation between the distribution of the images and the '
           "target's; informative only below 1"),
    Metric('tv_bound_per_token', '/token', '{:.4f}', lambda sample, model: base.mean(
               sample.decoded.tv_bound / sample.tokens.shape[1]),
           group='bound', meaning='the same bound per token'))
