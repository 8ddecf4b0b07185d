"""Measures the speed of decoders, and the fidelity of relaxed ones.

  python -m experiments.benchmark
  python -m experiments.benchmark --drafter='eagle(tree=EAGLE)' \\
      --verifier='rejection,lantern_pp(lam=3)'
  python -m experiments.benchmark --config=configs/papers.py:cool_sd --num_images=128
  python -m experiments.benchmark --model=checkpoints/c2i_b_256 --prompt=207,360 \\
      --dtype=bfloat16 --workdir=runs/llamagen_benchmark

Rows are specifications of decoders: every drafter with every verifier, and the further decoders of
`--decoder`. Invalid ones are listed with the reason. Columns are metrics (`cspd_jax.metrics`), and
in addition

  speed              wall-clock speed-up over the baseline, one image at a time, without compilation
  equal_to_baseline  in rows.csv, for seed-exact decoders: fraction of images equal to the
                     baseline's; if rounding changes some, equal_in_window is the fraction equal to
                     those of vanilla(window=N)

The baseline is `vanilla`, for continuous tokens `mar`. Trade-off curves show verifiers with
increasing relaxation, on a chain and on a tree. Errors are standard errors over images.

Writes all rows (rows.csv), a figure of the curves (curves.png, curves.svg) and all of it with
tested claims (report.json) to --workdir. While it runs, the finished rows are in
.unfinished/rows.csv there.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax import cli
from cspd_jax.core import fields, spec as spec_lib
from cspd_jax.decoding import specification
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import options as options_lib
from cspd_jax.measure import measurements, tables, tradeoff
from cspd_jax.measure.bench import Bench
from cspd_jax.measure.tradeoff import Claim, TradeoffCurve
from cspd_jax.metrics import base as metrics_lib
from cspd_jax.plots import charts as curves_plot
from experiments.measured import SampledImages, show, write

# EAGLE-2 has the number of drafts and the depth of EAGLE-1's tree, to compare the two.
DRAFTERS = (
    'model', 'jacobi(coupling=independent)', 'jacobi(coupling=maximal)', 'eagle(tree=chain(5))',
    'eagle(tree=EAGLE)', 'eagle2(num_nodes=25, width=10, depth=5)', 'medusa',
    'medusa(tree=branching("4 0:3 1:2 2:2 3:1 00:3 01:2 02:2 10:1 000:3"))')

# The settings are those of the papers' tables. Cool-SD distributes its relaxation over the depths
# of EAGLE's tree, also in Jacobi windows, which are longer than their accepted lengths.
VERIFIERS = (
    'rejection', 'match', 'block', 'kseq', 'uniform(delta=1.1)', 'cool(delta=1.1, length=5)',
    'cool(delta=1.1, length=5, clamp=False)', 'cool_linear(delta=1.1, length=5)',
    'lantern(delta=0.1)', 'lantern_pp(lam=2)', 'lantern_pp(lam=2, residual=released_llamagen)',
    'lantern_pp(lam=2, residual=released_dynamic)', 'grouped(group=10)', 'typical')

# For static trees and chains. With a linear schedule from 5 / 3 on no factor is below 1.
CURVES = (
    TradeoffCurve('uniform', 'uniform(delta={})', (1.3, 1.8, 3.0)),
    TradeoffCurve('Cool-SD', 'cool(delta={}, length=5)', (0.7, 1.1, 1.8, 3.0)),
    TradeoffCurve('Cool-SD, printed', 'cool(delta={}, length=5, clamp=False)', (0.9, 1.3, 2.0, 3.0),
          from_exact=False, like='Cool-SD'),
    TradeoffCurve('Cool-SD linear', 'cool_linear(delta={}, length=5)', (1.3, 1.8, 3.0)),
    TradeoffCurve('Cool-SD linear, printed', 'cool_linear(delta={}, length=5, clamp=False)',
          (0.9, 1.1, 1.3), from_exact=False, like='Cool-SD linear'),
    TradeoffCurve('LANTERN++, G*', 'lantern_pp(lam={})', (1.5, 2.0, 3.0, 5.0)),
    TradeoffCurve('LANTERN++, released', 'lantern_pp(lam={}, residual=released_llamagen)',
          (1.5, 2.0, 3.0, 5.0), like='LANTERN++, G*'),
    TradeoffCurve('GSD', 'grouped(group={})', (3, 8, 24)))
CURVE_DRAFTERS = ('eagle(tree=chain(5))', 'eagle(tree=EAGLE)')

CLAIMS = (
    Claim('clamped Cool-SD is closer to the target than uniform relaxation', 'Cool-SD', 'uniform'),
    Claim('clamped Cool-SD is closer to the target than the printed one', 'Cool-SD',
          'Cool-SD, printed'),
    Claim('LANTERN++ is closer to the target with G* than with the released residual',
          'LANTERN++, G*', 'LANTERN++, released'),
    Claim("EAGLE-1's tree accepts more than one of EAGLE-2 with as many drafts",
          'eagle(tree=EAGLE)+rejection', 'eagle2(num_nodes=25, width=10, depth=5)+rejection',
          'accepted_length'))


@dataclasses.dataclass(frozen=True)
class Config(SampledImages):
  """The measurements.

  Attributes:
    drafter: drafters; every one is paired with every verifier.
    verifier: verifiers; invalid pairs are left out, with the reason.
    decoder: specifications of further decoders.
    curve_drafter: drafters whose trade-off curves are drawn.
    curves: trade-off curves: verifiers with increasing relaxation.
    claims: published claims to test with the results.
    metrics: names of the metrics; none for all.
    columns: the metrics that the console shows; the files contain all.
    window: tokens per forward pass of Jacobi decoders without one; by default 8 on a CPU, else 64.
    length: tokens drafted per round by other decoders whose specification does not set them.
    reference_sets: number of sets of reference images, each as large as `images`, generated by the
      baseline with each of two other seeds; none omits metrics that require them.
    timed_images: images decoded one at a time to measure times; none measures no times.
  """

  drafter: tuple[str, ...] = DRAFTERS
  verifier: tuple[str, ...] = VERIFIERS
  decoder: tuple[str, ...] = ()
  curve_drafter: tuple[str, ...] = CURVE_DRAFTERS
  curves: tuple[TradeoffCurve, ...] = CURVES
  claims: tuple[Claim, ...] = CLAIMS
  metrics: tuple[str, ...] | None = None
  columns: tuple[str, ...] = (
      'step_compression', 'accepted_length', 'tv_bound', 'tv_bound_per_token', 'nll_difference',
      'nll_excess', 'frechet')
  # On a CPU the time of a pass grows with every token of a window, on an accelerator hardly.
  window: int = dataclasses.field(
      default_factory=lambda: 8 if jax.default_backend() == 'cpu' else 64)
  length: int = 5
  reference_sets: int | None = 8
  timed_images: int | None = 2
  workdir: str = 'runs/benchmark'

  def __post_init__(self):
    fields.check(self, reference_sets=(2, fields.MOST))


_NAMES = ('rows.csv', 'curves.png', 'curves.svg')


class Plan(NamedTuple):
  """The checked measurements."""

  bench: Bench  # The model and the images.
  rows: list[str]  # Specifications of decoders, the baseline first.
  points: dict[str, dict[tuple, str]]  # By drafter, specifications of the points of its curves.
  left_out: dict[str, str]  # Invalid specifications, with the reason.
  metrics: tuple[metrics_lib.Metric, ...]  # The metrics to measure.


def _pair(drafter: str, verifier: str) -> spec_lib.Spec:
  """Joins a drafter and a verifier; `kseq` gets the independent drafts that it verifies."""
  spec = spec_lib.parse(f'{drafter}+{verifier}')
  entry = specification.DRAFTERS.get(spec.parts[0].name)
  if verifier != 'kseq' or entry is None or 'draws' not in entry.parameters:
    return spec
  return spec.add({'draws': 'iid'})


def prepare(config: Config) -> Plan:
  """Loads the model and checks all options."""
  model = config.model()
  metrics = measurements.choose(model.table.tokens, config.metrics)
  measurements.choose(model.table.tokens, config.columns)
  bench = config.bench(model)
  if (count := len(bench.prompts)) < 2:
    raise ValueError(f'num_images is {count}; it must be at least 2, for a standard error.')
  if np.any(bench.sampling.temperature <= 0):
    raise ValueError(f'temperature is {bench.sampling.temperature}; it must be above 0, because '
                     'decoders do not differ at 0.')
  complete = lambda text: str(
      model.table.complete(text, window=config.window, length=config.length))
  pairs = [_pair(drafter, verifier) for drafter in config.drafter for verifier in config.verifier]
  rows, left_out = measurements.supported_decoders(
      bench, list(map(complete, [model.table.baseline, *pairs, *config.decoder])))
  points = {}
  for drafter in config.curve_drafter:
    texts = {name: complete(text) for name, text in
             tradeoff.specifications(drafter, config.curves).items()}
    runnable, refused = measurements.supported_decoders(bench, list(texts.values()))
    if reason := refused.get(texts[None, None]):
      raise ValueError(f'curve_drafter {drafter} cannot run: {reason}')
    completed = str(spec_lib.parse(texts[None, None]).parts[0])
    points[completed] = {name: text for name, text in texts.items() if text in runnable}
    left_out |= refused
  if len(rows) == 1 and not points:
    reasons = '; '.join(f'{text}: {reason}' for text, reason in left_out.items())
    raise ValueError(
        f'no decoder can run besides {rows[0]}; {reasons or "give decoder or drafter."}')
  bench.share([*rows, *(text for texts in points.values() for text in texts.values())])
  return Plan(bench, rows, points, left_out, metrics)


def columns_of(metrics: Sequence[metrics_lib.Metric], row: measurements.Measurement
               ) -> dict[str, str]:
  """Returns the columns of a table with rows like `row`, with standard errors where it has them."""
  result = {'decoder': '{decoder}', 'guarantee': '{guarantee}'}
  if 'speedup' in row.figures:
    result['speed'] = '{speedup:.2f}x'
  for metric in metrics:
    has_error = row.figures[f'{metric.name}_error'] is not None
    result |= metrics_lib.columns([metric], errors=has_error)
  return result


@cli.command(Config)
def main(config: Config) -> None:
  plan = prepare(config)
  report, bench, start = Report(config.workdir, _NAMES), plan.bench, time.perf_counter()
  options = options_lib.named(bench.model.table, bench.sampling)
  print(f'{len(bench.prompts)} images of {bench.model.num_tokens} tokens per decoder; model '
        f'{bench.model.name}, ' + ', '.join(
            f'{name.replace("_", " ")} {value:g}' for name, value in options.items()), flush=True)
  reference = measurements.reference(bench, plan.metrics, config.reference_sets)
  for name, (mean, deviation) in reference.noise.items():
    print(f'noise of {name}: {mean:.4f} +- {deviation:.4f} (standard deviation)')
  chosen = measurements.choose(bench.model.table.tokens, config.columns)
  chosen = tuple(metric for metric in chosen if metric in plan.metrics)
  results: list[dict[str, Any]] = []

  def measure(texts: Sequence[str], timed_images: int | None, curves: Sequence[tuple]
              ) -> list[measurements.Measurement]:
    rows = []
    measured = measurements.each(bench, texts, plan.metrics, reference, timed_images)
    for row, (curve, value) in zip(measured, curves):
      show(columns_of(chosen, row), row.figures)
      rows.append(row)
      results.append(row.figures | dict(curve=curve, value=value))
      atomic.write(report.path('rows.csv'), tables.csv(results).encode())
    return rows

  rows = measure(plan.rows, config.timed_images, [(None, None)] * len(plan.rows))
  points = {drafter: [tradeoff.Point(*name, row) for name, row in zip(
      texts, measure(list(texts.values()), None, list(texts)))]
            for drafter, texts in plan.points.items()}
  for text, reason in plan.left_out.items():
    print(f'{text} is left out: {reason}')
  answers = [*tradeoff.guarantee_conclusions(rows),
             *tradeoff.claim_conclusions(rows, config.claims),
             *tradeoff.curve_conclusions(points, config.curves, config.claims)]
  if answers:
    print('\nTested claims')
  for tested in answers:
    print(f'  {tested.answer:<8} {tested.claim}: {tested.numbers}')
  if points:
    panels = tradeoff.panels(points, config.curves, bench.baseline, reference.noise)
    for ending in ('png', 'svg'):
      curves_plot.save_curves(report.path(f'curves.{ending}'), panels,
                              xlabel='accepted length, tokens per round')
  minutes = (time.perf_counter() - start) / 60
  columns = columns_of(chosen, rows[0])
  write(report, config, [tables.Table('decoders', columns, results[:len(rows)]),
                         tables.Table('curves', columns, results[len(rows):])],
        conclusions=[tested._asdict() for tested in answers], left_out=plan.left_out,
        noise=reference.noise, prompts=bench.prompts, minutes=minutes,
        compile_seconds=bench.seconds)


if __name__ == '__main__':
  sys.exit(main())
