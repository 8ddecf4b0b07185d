"""Measures decoders, and what relaxation costs in fidelity.

  python -m experiments.benchmark
  python -m experiments.benchmark --drafter='eagle(tree=EAGLE)' --verifier='exact,lantern_pp(lam=3)'
  python -m experiments.benchmark --config=configs/papers/cool_sd.py --num_images=128
  python -m experiments.benchmark --model=checkpoints/c2i_b_256 --prompts=207,360 \\
      --dtype=bfloat16 --workdir=runs/llamagen_benchmark

Rows are specifications of decoders: every drafter with every verifier, and whatever else is asked
for. Those that cannot work are listed with the reason. Columns are metrics (`cspd_jax.metrics`),
and

  speed          wall-clock of the baseline over its own, one image at a time, without compilation
  = baseline     share of images that equal the baseline's, for decoders that promise it; where
                 rounding makes some differ, rows.csv has the share of those of vanilla(window=N)

The baseline is `vanilla`, for continuous tokens `mar`. Trade-off curves follow relaxed verifiers
from mild to strong on a chain and on a tree. Errors are standard errors over images.

Into --workdir go all rows (rows.csv), a picture of the curves (curves.png, curves.svg) and all of
it with what can be concluded (report.json). While it runs, the rows that are finished are in
unfinished_report/rows.csv there.
"""

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from configs import benchmark as default
from cspd_jax import cli
from cspd_jax.checkpoints import files
from cspd_jax.cli import inputs
from cspd_jax.core import spec as spec_lib
from cspd_jax.generation.report import Report
from cspd_jax.measure import conclusions, rows as rows_lib, tables, tradeoff
from cspd_jax.measure.bench import Bench
from cspd_jax.measure.rows import Row
from cspd_jax.metrics import base as metrics_lib
from cspd_jax.metrics.base import Metric
from cspd_jax.plots import curves as curves_plot

_NAMES = ('rows.csv', 'curves.png', 'curves.svg')


class Plan(NamedTuple):
  """What is measured, checked.

  Attributes:
    bench: the model and the images.
    rows: specifications of decoders, the baseline first.
    points: by drafter, specifications of the points of its curves; see `tradeoff.specifications`.
    left_out: specifications that cannot work, with the reason.
    metrics: all that are measured.
  """

  bench: Bench
  rows: list[str]
  points: dict[str, dict[tuple, str]]
  left_out: dict[str, str]
  metrics: tuple[Metric, ...]

  def all(self) -> list[str]:
    """All specifications that are run."""
    return self.rows + [text for texts in self.points.values() for text in texts.values()]


def prepare(config: Any) -> Plan:
  """Loads the model and checks everything.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  model = inputs.model(config)
  metrics = rows_lib.choose(model.engine.name, config.metrics)
  rows_lib.choose(model.engine.name, config.columns)
  prompts, seed = inputs.images(config.images, model)
  if len(prompts) < 2:
    raise ValueError(f'num_images is {len(prompts)}; it must be at least 2, for a standard error.')
  sampling = model.sampling(**inputs.overrides(config.sampling))
  if np.any(sampling.temperature <= 0):
    raise ValueError(f'temperature is {sampling.temperature}; it must be above 0, where decoders '
                     'differ.')
  complete = lambda text: str(model.engine.complete(text, **inputs.overrides(config.sizes)))
  asked = [f'{drafter}+{verifier}' for drafter in config.drafter for verifier in config.verifier]
  asked = list(map(complete, [model.engine.baseline, *asked, *config.decoder]))
  bench = Bench(model, prompts, seed=seed, batch_size=config.batch_size, sampling=sampling)
  rows, left_out = rows_lib.able(bench, asked)
  points = {}
  for drafter in config.curve_drafter:
    texts = {name: complete(text) for name, text in
             tradeoff.specifications(drafter, config.curves).items()}
    known, refused = rows_lib.able(bench, list(texts.values()))
    if why := refused.get(texts[None, None]):
      raise ValueError(f'curve_drafter {drafter} cannot run: {why}')
    points[complete(drafter)] = {name: text for name, text in texts.items() if text in known}
    left_out |= refused
  if len(rows) == 1 and not points:
    reasons = '; '.join(f'{text}: {why}' for text, why in left_out.items())
    raise ValueError(f'nothing can run besides {rows[0]}; {reasons or "give decoder or drafter."}')
  plan = Plan(bench, rows, points, left_out, metrics)
  bench.programs.share(plan.all())
  return plan


class Printer:
  """Shows rows as they come about, in columns that were fixed by the first of them."""

  def __init__(self, metrics: Sequence[Metric], decoders: Sequence[str]):
    self._metrics, self._drafter, self.columns = metrics, None, {}
    self._labels = [_label(text)[1] for text in decoders]
    self._widths: list[int] = []

  def show(self, row: Row) -> None:
    """Prints a row, and above it what is new: the head of the table, the drafter."""
    drafter, label = _label(row.decoder)
    if not self._widths:
      self.columns = columns(self._metrics, row)
      self._widths = [max(len(name), len(cell)) + 1 for name, cell in zip(
          self.columns, tables.cells(self.columns, row.figures))]
      self._widths[0] = max(map(len, self._labels))
      print(f'\n{tables.heading(self.columns, self._widths)}')
    if drafter and drafter != self._drafter:
      print(drafter)
    self._drafter = drafter
    print(tables.line(
        self.columns, row.figures | {'decoder': label}, self._widths), flush=True)


def _label(text: str) -> tuple[str | None, str]:
  """A decoder's drafter, if it is in two parts, and what stands in its row."""
  first, *second = spec_lib.parse(text).parts
  return (str(first), f'  {second[0]}') if second else (None, text)


def columns(metrics: Sequence[Metric], row: Row) -> dict[str, str]:
  """The columns of a table with rows like this one; standard errors where there are any."""
  found = {'decoder': '{decoder}', 'guarantee': '{guarantee}'}
  if 'speedup' in row.figures:
    found['speed'] = '{speedup:.2f}x'
  for metric in metrics:
    has_error = row.figures[f'{metric.name}_error'] is not None
    found |= metrics_lib.columns([metric], errors=has_error)
  return found


def run(config: Any) -> None:
  """Measures all that a configuration asks for, shows it and writes the report.

  Raises:
    ValueError: for anything that cannot work, before anything is compiled.
  """
  plan = prepare(config)
  report, bench, start = Report(config.workdir, _NAMES), plan.bench, time.perf_counter()
  print(f'{len(bench.prompts)} images of {bench.model.num_tokens} tokens per decoder; model '
        f'{config.model}, ' + ', '.join(f'{name.replace("_", " ")} {value:g}' for name, value in
                                        bench.sampling._asdict().items()), flush=True)
  reference = rows_lib.reference(bench, plan.metrics, config.reference_sets)
  for name, (mean, deviation) in reference.noise.items():
    print(f'noise of {name}: {mean:.4f} +- {deviation:.4f} (standard deviation)')
  shown = rows_lib.choose(bench.model.engine.name, config.columns)
  printer = Printer([metric for metric in shown if metric in plan.metrics], plan.all())
  found: list[dict[str, Any]] = []

  def measure(texts: Sequence[str], timed_images: int | None, curves: Sequence[tuple]) -> list[Row]:
    rows = []
    measured = rows_lib.rows(bench, texts, plan.metrics, reference, timed_images)
    for row, (curve, value) in zip(measured, curves):
      printer.show(row)
      rows.append(row)
      found.append(row.figures | dict(curve=curve, value=value))
      files.write(report.path('rows.csv'), tables.csv(found).encode())
    return rows

  rows = measure(plan.rows, config.timed_images, [(None, None)] * len(plan.rows))
  points = {drafter: [tradeoff.Point(*name, row) for name, row in zip(
      texts, measure(list(texts.values()), None, list(texts)))]
            for drafter, texts in plan.points.items()}
  for text, why in plan.left_out.items():
    print(f'{text} is left out: {why}')
  answers = conclusions.of_guarantees(rows) + conclusions.of_rows(rows, config.claims) + (
      conclusions.of_curves(points, config.curves, config.claims))
  if answers:
    print('\nDoes it hold here?')
  for one in answers:
    print(f'  {one.answer:<8} {one.claim}: {one.numbers}')
  if points:
    draw(report, points, config.curves, bench.baseline, reference)
  minutes = (time.perf_counter() - start) / 60
  report.write(
      settings=dataclasses.asdict(config), rows=found, conclusions=[
          one._asdict() for one in answers], left_out=plan.left_out, noise=reference.noise,
      prompts=bench.prompts, minutes=minutes, compile_seconds=bench.programs.seconds,
      tables=[dict(title='decoders', columns=printer.columns, rows=list(range(len(rows)))),
              dict(title='curves', columns=printer.columns,
                   rows=list(range(len(rows), len(found))))])
  print(f'\n{minutes:.1f} minutes; tables, pictures and report.json are in {config.workdir}.')


def draw(report: Report, points: Mapping[str, Sequence[tradeoff.Point]],
         curves: Sequence[tradeoff.Curve], baseline: str, reference: rows_lib.Reference) -> None:
  """Draws the trade-off curves."""
  panels = tradeoff.panels(points, curves, baseline, reference.noise)
  for ending in ('png', 'svg'):
    curves_plot.save_curves(report.path(f'curves.{ending}'), panels,
                            xlabel='accepted length, tokens per round')


@cli.command(default.Config, config='configs/benchmark.py')
def main(config: Any) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
