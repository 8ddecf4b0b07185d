"""Compares draft trees, couplings and fresh tokens at equal numbers of tokens per round.

  python -m experiments.topologies
  python -m experiments.topologies --window=16,64 --num_images=32
  python -m experiments.topologies --decoder='sjd,sjd_pac(tree=kary(3, 3))' --window=24

Measures counts only; for wall-clock times see `cspd-compare`. Decoders that do not fit a window,
such as larger trees, are left out for that window. Writes all rows to --workdir (rows.csv,
report.json); with --entropy a figure of the step compression at several temperatures and guidance
scales, against the entropy of the target that they lead to (uncertainty.png).
"""

import dataclasses
import itertools
import pathlib
import sys
import time
from typing import Any

import numpy as np

from cspd_jax import cli
from cspd_jax.core import fields
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import stored_run
from cspd_jax.measure import measurements, tables
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import likelihood, scenes
from cspd_jax.plots import charts
from experiments.benchmark import columns_of
from experiments.measured import SampledImages, show, write

_PICTURE, _MOST_LINES = 'uncertainty.png', 7
_SETTING = 'temperature', 'guidance_scale'
COUPLINGS = (
    'jacobi(coupling=independent)+rejection', 'jacobi(coupling=maximal)+rejection',
    'jacobi(coupling=gumbel)+rejection', 'jacobi(coupling=gumbel)+match')
FRESH = tuple(
    f'jacobi(coupling={coupling}, initialization={fresh})+{verifier}'
    for fresh in ('repeat-left', 'repeat-above', 'resample-left', 'resample-above')
    for coupling, verifier in (('maximal', 'rejection'), ('gumbel', 'match')))
# Trees larger than a window are left out.
TREES = tuple(
    f'{decoder}(tree={tree})'
    for decoder in ('sjd_pac', 'seed_exact')
    for tree in ('paths(2, 3)', 'paths(3, 3)', 'paths(4, 3)', 'caterpillar(2, 3)',
                 'caterpillar(4, 1)', 'caterpillar(4, 3)', 'kary(2, 3)', 'kary(2, 4)',
                 'kary(3, 3)', 'kary(4, 3)'))


@dataclasses.dataclass(frozen=True)
class Config(SampledImages):
  """The measurements.

  Attributes:
    decoder: specifications of decoders that do not set the window.
    window: tokens per forward pass; every decoder runs with each of them.
    temperatures: temperatures in place of the one of all images, with every one of `scales`.
    scales: guidance scales in place of the one of all images.
    metrics: names of the metrics.
    ground: whether tokens per forward pass inside things and on plain ground are measured too.
    entropy: whether to draw step compression against the entropy of the target: the mean entropy of
      the distributions that the tokens of its images are drawn from.
  """

  decoder: tuple[str, ...] = COUPLINGS + FRESH + TREES
  window: tuple[int, ...] = (16, 64)
  temperatures: tuple[float, ...] = ()
  scales: tuple[float, ...] = ()
  metrics: tuple[str, ...] = ('step_compression', 'one_token_rounds')
  ground: bool = False
  entropy: bool = False
  workdir: str = 'runs/topologies'

  def __post_init__(self):
    fields.check(self, temperatures=fields.FINITE, scales=fields.FINITE)
    if self.entropy and ('step_compression' not in self.metrics or self.images.num_images == 1):
      raise ValueError(f'entropy is True, metrics is {",".join(self.metrics)!r} and num_images is '
                       f'{self.images.num_images}; the figure needs step_compression, and an error '
                       'of at least two images.')


def prepare(config: Config) -> tuple[list[Bench], dict[int, list[str]], dict[str, str]]:
  """Returns a bench per temperature and scale, decoders by window, and why others are left out."""
  fields.check_lists(config, 'window', 'decoder')
  model = config.model('discrete' if config.entropy else None)
  options = {name: values for name, values in (
      ('temperature', config.temperatures), ('guidance_scale', config.scales)) if values}
  benches = [config.bench(model, **dict(zip(options, values)))
             for values in itertools.product(*options.values())]
  if config.ground:
    scenes.captions(model, benches[0].prompts)  # Checks that the images are scenes.
  texts: dict[int, list[str]] = {}
  left_out: dict[str, str] = {}
  for window in config.window:
    texts[window], refused = measurements.supported_decoders(
        benches[0], [model.table.complete(text, window=window) for text in config.decoder])
    left_out |= refused
  every = [text for several in texts.values() for text in several]
  if not every:
    raise ValueError('no decoder can run; ' + '; '.join(f'{k}: {v}' for k, v in left_out.items()))
  if config.entropy and len(every) > _MOST_LINES:
    raise ValueError(f'decoder has {len(every)} entries that can run; it must have at most '
                     f'{_MOST_LINES}, the number of lines in a figure.')
  for bench, text in itertools.product(benches, every):
    bench.check(text)
  return benches, texts, left_out


@cli.command(Config)
def main(config: Config) -> None:
  benches, texts, left_out = prepare(config)
  model = benches[0].model
  metrics = measurements.choose(model.table.tokens, config.metrics)
  if config.ground:
    metrics += scenes.INSIDE, scenes.ON_GROUND, scenes.GROUND_SHARE
  report, start = Report(config.workdir, ['rows.csv', _PICTURE]), time.perf_counter()
  columns: dict[str, str] = {}
  rows: list[dict[str, Any]] = []
  for bench in benches:
    setting = dict[str, float]()
    if len(benches) > 1 or config.entropy:
      setting |= {name: float(getattr(bench.sampling, name)) for name in _SETTING}
    if config.entropy:
      # Along the baseline's images; its expectation is the same for all exact decoders.
      setting |= dict(entropy=float(np.mean(likelihood.measured(
          bench.sample(bench.baseline), model).entropy)))
    for window, row in ((window, row) for window, several in texts.items()
                        for row in measurements.each(bench, several, metrics)):
      columns = columns or columns_of(metrics, row) | {name: f'{{{name}:.3g}}' for name in setting}
      rows.append(dict(window=window) | setting | row.figures)
      show(columns, rows[-1])
      atomic.write(report.path('rows.csv'), tables.csv(rows).encode())
  if config.entropy:
    _draw(report.path(_PICTURE), rows, model.name)
  write(report, config, [
      tables.Table(f'window {window}', columns, [row for row in rows if row['window'] == window])
      for window in texts],
        left_out=left_out, prompts=benches[0].prompts, weights=stored_run.weights(model),
        minutes=(time.perf_counter() - start) / 60)


def _draw(path: pathlib.Path, rows: list[dict[str, Any]], name: str) -> None:
  """Draws a panel per guidance scale, with a line per decoder through its points by entropy."""
  values = lambda key: dict.fromkeys(row[key] for row in rows)
  line = lambda *names: sorted(
      (row for row in rows if (row['decoder'], row['guidance_scale']) == names),
      key=lambda row: row['entropy'])
  axes = 'entropy', 'step_compression', 'step_compression_error'
  charts.save_curves(path, [[charts.Panel(
      f'{name}, guidance scale {scale:g}', 'step compression',
      {text: charts.Curve(*([row[axis] for row in line(text, scale)] for axis in axes))
       for text in values('decoder')})] for scale in values('guidance_scale')],
                     xlabel='entropy of the target, nats per token')


if __name__ == '__main__':
  sys.exit(main())
