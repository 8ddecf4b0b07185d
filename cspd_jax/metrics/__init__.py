"""Metrics of a decode and of the images it generated.

Every metric is a function `metric(sample, model) -> Value(mean, standard_error)`; see `base`. To
add one, write a file with a `Metric` and list it in `METRICS` below.
"""

from cspd_jax.metrics import acceptance, image_scores, likelihood
from cspd_jax.metrics.base import Metric, Sample, Value, columns, entries, measure

METRICS = (
    *acceptance.DISCRETE, *acceptance.CONTINUOUS, likelihood.NLL, likelihood.NLL_DIFFERENCE,
    likelihood.NLL_EXCESS, likelihood.UNIGRAM_DISTANCE, image_scores.FRECHET)

# The main metric of each kind of tokens, which bar charts and curves show.
MAIN = {'discrete': acceptance.STEP_COMPRESSION, 'continuous': acceptance.HEAD_CALLS}


def select(tokens: str, *groups: str) -> tuple[Metric, ...]:
  """Returns the metrics of decoders of 'discrete' or 'continuous' tokens, of some groups or all."""
  return tuple(metric for metric in METRICS
               if tokens in metric.tokens and (not groups or metric.group in groups))


__all__ = (
    'MAIN', 'METRICS', 'Metric', 'Sample', 'Value', 'columns', 'entries', 'measure', 'select')
