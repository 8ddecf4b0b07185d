"""Numbers that describe a decode and the images it made.

Every metric is `metric(sample, model) -> Value(mean, standard_error)`; see `base`. A new one
is a file and a line in the list below.
"""

from cspd_jax.metrics import acceptance, bound, frechet, likelihood, passes
from cspd_jax.metrics.base import Metric, Sample, Value, columns, entries, measure

METRICS = (
    acceptance.ROUNDS,
    acceptance.STEP_COMPRESSION,
    acceptance.ACCEPTED_LENGTH,
    acceptance.ONE_TOKEN_ROUNDS,
    passes.ROUNDS,
    passes.TARGET_PASSES,
    passes.DRAFT_PASSES,
    passes.HEAD_CALLS,
    passes.HEAD_ROWS,
    passes.DRAFT_HEAD_CALLS,
    passes.ACCEPTANCE,
    passes.RESIDUAL_TRIALS,
    passes.RESIDUAL_MISSED,
    passes.SQUARED_ERROR,
    passes.SQUARED_ERROR_BOUND,
    bound.TV_BOUND,
    bound.TV_BOUND_PER_TOKEN,
    likelihood.NLL,
    likelihood.NLL_DIFFERENCE,
    likelihood.NLL_EXCESS,
    likelihood.UNIGRAM_DISTANCE,
    frechet.FRECHET,
)

# By engine, what bars and curves show first.
MAIN = {'discrete': acceptance.STEP_COMPRESSION, 'continuous': passes.HEAD_CALLS}


def select(engine: str, *groups: str) -> tuple[Metric, ...]:
  """The metrics of an engine's decoders, 'discrete' or 'continuous', of some groups or all."""
  return tuple(metric for metric in METRICS
               if engine in metric.engines and (not groups or metric.group in groups))


__all__ = (
    'MAIN', 'METRICS', 'Metric', 'Sample', 'Value', 'columns', 'entries', 'measure', 'select')
