"""What a relaxed decoder may do to the distribution at most, as it ran."""

from cspd_jax.metrics import base
from cspd_jax.metrics.base import Metric


def _tv_bound(sample: base.Sample, model) -> base.Value:
  del model
  return base.mean(sample.decoded.tv_bound)


def _per_token(sample: base.Sample, model) -> base.Value:
  del model
  return base.mean(sample.decoded.tv_bound / sample.tokens.shape[1])


TV_BOUND = Metric(
    'tv_bound', 'TV bound', '{:.2f}', _tv_bound, group='bound',
    meaning="bound on the total variation between the distribution of the images and the target's; "
    'it says something below 1 only')
TV_BOUND_PER_TOKEN = Metric(
    'tv_bound_per_token', '/token', '{:.4f}', _per_token, group='bound',
    meaning='the same bound per token')
