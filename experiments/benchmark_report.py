"""What `experiments.benchmark` tells: figures, tables and pictures."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.decoding.base import Verifier
from cspd_jax.metrics import acceptance
from cspd_jax.metrics import frechet
from cspd_jax.metrics import likelihood
from cspd_jax.plots import curves as curves_plot
from experiments import benchmark_parts as parts_lib
from experiments.benchmark_plan import Bench
from experiments.benchmark_runs import Reference, Sample

# Heading and form of the columns on the console; the files hold everything.
_CONSOLE = {
    'drafter': '{drafter:<12}', 'verifier': '{verifier:<27}', 'guarantee': '{guarantee:<10}',
    'step compr.': '{step_compression:5.2f} +-{step_compression_error:5.2f}',
    'acc. length': '{accepted_length:5.2f} +-{accepted_length_error:5.2f}',
    'speed': '{speedup:4.2f}x', 'TV bound': '{tv_bound:6.2f}',
    '/token': '{tv_bound_per_token:6.4f}',
    'NLL - vanilla': '{nll_difference:+6.3f} +-{nll_difference_error:6.3f}',
    'NLL - entropy': '{nll_excess:+6.3f} +-{nll_excess_error:6.3f}',
    'Frechet': '{frechet:7.4f}'}


class Row(NamedTuple):
  """Attributes:
    drafter: its name.
    verifier: its name, or the method of a curve.
    value: the relaxation at a curve's point, or None.
    figures: what is written; None for what there is not.
    sample: the images.
  """

  drafter: str
  verifier: str
  value: float | None
  figures: dict[str, Any]
  sample: Sample


def figures(bench: Bench, verifier: Verifier, sample: Sample, reference: Reference,
            vanilla: Sample) -> dict[str, Any]:
  """The figures of one decoder; `_error` is a standard error over the images.

  Args:
    bench: what all decoders share.
    verifier: its verifier.
    sample: its images.
    reference: images of `vanilla` with other keys.
    vanilla: images of `vanilla` with the same keys.
  """
  decoded, count = sample.decoded, len(sample.nll)
  length = decoded.tokens.shape[1]
  summary = acceptance.summarise(decoded)
  later_rounds = decoded.rounds - 1
  # Each image against vanilla's of the same class.
  difference = sample.nll - reference.nll.mean(axis=0)
  equal = np.all(decoded.tokens == vanilla.decoded.tokens, axis=1)
  error = lambda x: float(np.std(x, ddof=1) / np.sqrt(count))
  return dict(
      guarantee='seed-exact' if verifier.seed_exact else 'exact' if verifier.exact else 'relaxed',
      step_compression=summary.step_compression,
      step_compression_error=error(length / decoded.rounds),
      accepted_length=summary.accepted_length_mean,
      # Of a quotient of means, to first order.
      accepted_length_error=(
          summary.accepted_length_mean * error(later_rounds) / float(later_rounds.mean())),
      tv_bound=float(decoded.tv_bound.mean()), tv_bound_error=error(decoded.tv_bound),
      tv_bound_per_token=float(decoded.tv_bound.mean()) / length,
      tv_bound_per_token_error=error(decoded.tv_bound / length),
      nll=float(sample.nll.mean()),
      nll_difference=float(difference.mean()), nll_difference_error=error(difference),
      nll_excess=float(np.mean(sample.nll - sample.entropy)),
      nll_excess_error=error(sample.nll - sample.entropy),
      frechet=frechet.distance(frechet.gaussian(sample.features), reference.features),
      unigram_distance=likelihood.unigram_distance(
          decoded.tokens, reference.tokens, bench.target.vocab_size),
      equal_to_vanilla=float(equal.mean()) if verifier.seed_exact else None)


def times(rounds: np.ndarray, seconds: np.ndarray) -> dict[str, float]:
  """Figures of `seconds` `[2, n]`, vanilla's first; the images took these rounds `[n]`."""
  vanilla, own = seconds.sum(axis=1)
  return dict(speedup=float(vanilla / own), ms_per_round=float(1e3 * own / rounds.sum()),
              seconds_per_image=float(seconds[1].mean()))


def entries(rows: Sequence[Row]) -> list[dict[str, Any]]:
  """The rows as dictionaries that JSON can hold; what is not finite is None."""
  finite = lambda x: None if isinstance(x, float) and not math.isfinite(x) else x
  return [dict(drafter=row.drafter, verifier=row.verifier, value=row.value,
               **{name: finite(x) for name, x in row.figures.items()}) for row in rows]


def heading() -> str:
  """The head of the console's table."""
  sample = dict.fromkeys(('drafter', 'verifier', 'guarantee'), '')
  widths = [len(form.format_map(_Zeros(sample))) for form in _CONSOLE.values()]
  line = '  '.join(
      name.ljust(width) if i < 3 else name.rjust(width)
      for i, (name, width) in enumerate(zip(_CONSOLE, widths)))
  return f'{line}\n{"-" * len(line)}'


def line(row: Row) -> str:
  """One row of the console's table."""
  label = row.verifier if row.value is None else f'{row.verifier} {row.value:g}'
  values = dict(row.figures, drafter=row.drafter, verifier=label)
  cells = []
  for form in _CONSOLE.values():
    try:
      cells.append(form.format_map(values))
    except KeyError:  # Not measured here.
      cells.append('-'.rjust(len(form.format_map(_Zeros()))))
  return '  '.join(cells)


class _Zeros(dict):
  """Stands in for a row, to see how wide its columns are."""

  def __missing__(self, name: str) -> float:
    return 0.0


def panels(points: Mapping[str, Sequence[Row]],
           reference: Reference) -> list[list[curves_plot.Panel]]:
  """Small multiples: a row per drafter, a column per measure.

  Args:
    points: by title, the rows of a drafter's curves.
    reference: tells what noise amounts to.
  """
  measures = (
      ('tv_bound_per_token', 'tv_bound_per_token_error', 'bound on total variation per token',
       None),
      ('nll_excess', 'nll_excess_error', 'NLL above the entropy, nats per token', None),
      ('frechet', '', 'Frechet distance to vanilla', sum(reference.frechet_noise)))
  result = []
  for title, rows in points.items():
    start = [row for row in rows if row.value is None]
    row_of_panels = []
    for measure, error, label, floor in measures:
      lines = {}
      for name, method in parts_lib.METHODS.items():
        mine = (start if method.from_exact else []) + [
            row for row in rows if row.verifier == name]
        values = [row.figures for row in mine if math.isfinite(row.figures[measure])]
        if values:
          lines[name] = curves_plot.Curve(
              [value['accepted_length'] for value in values], [value[measure] for value in values],
              [value[error] for value in values] if error else (), like=method.like)
      row_of_panels.append(curves_plot.Panel(title, label, lines, floor))
    result.append(row_of_panels)
  return result
