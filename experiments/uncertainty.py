"""Plots tokens per forward pass of decoders against the entropy of the target.

  python -m experiments.uncertainty
  python -m experiments.uncertainty --decoder='mc_sjd,corrected(passes=2)' --temperature=0.8,1

Every pair of a temperature and a guidance scale changes the entropy of the target: the mean entropy
of the distributions that the tokens of its images are drawn from. Writes the figure
(uncertainty.png), all points (rows.csv) and report.json to --workdir. Measures counts only; for
wall-clock times see `cspd-compare`.
"""

import dataclasses
import itertools
import sys
from typing import Any

import numpy as np

from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import measurements, tables
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import likelihood
from cspd_jax.plots import charts
from experiments.measured import check_lists, show, write


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    loading: the model, and how it is loaded.
    parts: networks that replace those of the model, such as eagle=runs/eagle.
    decoder: specifications of decoders, at most seven.
    temperature: temperatures, each combined with every guidance scale.
    guidance_scale: guidance scales.
    images: the images, the same for all settings and decoders.
    window: tokens per forward pass of decoders whose specification does not set it.
    batch_size: images decoded together.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading(model='demo')
  parts: tuple[str, ...] = ()
  decoder: tuple[str, ...] = (
      'sjd', 'mc_sjd', 'sjd_pac', 'eagle(tree=chain(12))+block', 'eagle(tree=EAGLE)', 'corrected',
      'corrected_seed_exact')
  temperature: tuple[float, ...] = (0.7, 1.0, 1.3)
  guidance_scale: tuple[float, ...] = (1.0, 3.0, 6.0)
  images: groups.Images = groups.Images(num_images=16, seed=12)
  window: int = 32
  batch_size: int = 16
  workdir: str = 'runs/uncertainty'

  def __post_init__(self):
    fields.check(self, temperature=fields.FINITE, guidance_scale=fields.FINITE)


_PICTURE = 'uncertainty.png'
# The number of distinguishable lines.
_MOST = 7
_COLUMNS = {
    'decoder': '{decoder}', 'temperature': '{temperature}', 'guidance': '{guidance_scale}',
    'entropy': '{entropy:.2f}', 'tokens per pass': '{step_compression:.2f}',
    '+-': '{step_compression_error:.2f}', 'one-token': '{one_token_rounds:.0%}'}


@cli.command(Config)
def main(config: Config) -> None:
  check_lists(config, 'decoder', 'temperature', 'guidance_scale')
  inputs.at_least(config.images, 2, 'num_images')
  model = inputs.model(config.loading, config.parts, engine='discrete',
                       one_group=inputs.MEASURED)
  inputs.tokens_at_most(config, model, 'window')
  if len(set(config.decoder)) > _MOST:
    raise ValueError(f'decoder has {len(set(config.decoder))} entries; it must have at most '
                     f'{_MOST}, the number of lines in a figure.')
  metrics = measurements.choose(model.engine.name, ('step_compression', 'one_token_rounds'))
  prompts, seed = inputs.images(config.images, model)
  settings = [dict(temperature=temperature, guidance_scale=scale) for temperature, scale in
              itertools.product(config.temperature, config.guidance_scale)]
  benches = [Bench(model, prompts, seed=seed, batch_size=config.batch_size,
                   sampling=model.sampling(**setting)) for setting in settings]
  texts = [str(model.engine.complete(text, window=config.window)) for text in config.decoder]
  for bench in benches:
    for text in texts:
      bench.check(text)
  report = Report(config.workdir, ['rows.csv', _PICTURE])
  points: list[dict[str, Any]] = []
  for setting, bench in zip(settings, benches):
    # Along the baseline's images; its expectation is the same for all exact decoders.
    entropy = float(np.mean(likelihood.of_sample(bench.sample(bench.baseline), model).entropy))
    for row in measurements.each(bench, texts, metrics):
      points.append(setting | dict(entropy=entropy) | row.figures)
      show(_COLUMNS, points[-1])
      atomic.write(report.path('rows.csv'), tables.csv(points).encode())
  _draw(report.path(_PICTURE), texts, points, model.name)
  write(report, config, [tables.Table('tokens per forward pass', _COLUMNS, points)],
        prompts=prompts)


def _draw(path: Any, texts: list[str], points: list[dict[str, Any]], name: str) -> None:
  """Draws a panel per guidance scale, with a line per decoder through its points by entropy."""
  panels = []
  for scale in dict.fromkeys(point['guidance_scale'] for point in points):
    lines = {}
    for text in texts:
      line = sorted((point for point in points
                     if (point['decoder'], point['guidance_scale']) == (text, scale)),
                    key=lambda point: point['entropy'])
      lines[text] = charts.Curve(
          [point['entropy'] for point in line], [point['step_compression'] for point in line],
          [point['step_compression_error'] for point in line])
    panels.append([charts.Panel(f'{name}, guidance scale {scale:g}',
                                'tokens per forward pass', lines)])
  charts.save_curves(path, panels, xlabel='entropy of the target, nats per token')


if __name__ == '__main__':
  sys.exit(main())
