"""Compares draft trees, couplings and fresh tokens at equal numbers of tokens per round.

  python -m experiments.topologies
  python -m experiments.topologies --window=16,64 --num_images=32
  python -m experiments.topologies --decoder='sjd,sjd_pac(tree=kary(3, 3))' --window=24

Measures counts only; for wall-clock times see `cspd-compare`. Decoders that do not fit a
window, such as larger trees, are left out for that window. Writes all rows to --workdir (rows.csv,
report.json).
"""

import dataclasses
import sys
import time
from typing import Any

from cspd_jax import cli
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import run as run_lib
from cspd_jax.measure import measurements, tables
from cspd_jax.metrics import ground, scenes
from experiments.benchmark import columns_of
from experiments.measured import ModelImages, check_lists, show, write

COUPLINGS = (
    'jacobi(coupling=redraw)+exact', 'jacobi(coupling=maximal)+exact',
    'jacobi(coupling=noise)+exact', 'jacobi(coupling=noise)+match')
FRESH = tuple(
    f'jacobi(coupling={coupling}, fresh={fresh})+{verifier}'
    for fresh in ('repeat-left', 'repeat-above', 'resample-left', 'resample-above')
    for coupling, verifier in (('maximal', 'exact'), ('noise', 'match')))
# Trees larger than a window are left out.
TREES = tuple(
    f'{decoder}(tree={tree})'
    for decoder in ('sjd_pac', 'seed_exact')
    for tree in ('paths(2, 3)', 'paths(3, 3)', 'paths(4, 3)', 'caterpillar(2, 3)',
                 'caterpillar(4, 1)', 'caterpillar(4, 3)', 'kary(2, 3)', 'kary(2, 4)',
                 'kary(3, 3)', 'kary(4, 3)'))


@dataclasses.dataclass(frozen=True)
class Config(ModelImages):
  """The measurements.

  Attributes:
    decoder: specifications of decoders that do not set the window.
    window: tokens per forward pass; every decoder runs with each of them.
    metrics: names of the metrics.
    ground: whether tokens per forward pass inside things and on plain ground are measured too, for
      models of scenes of emoji.
  """

  decoder: tuple[str, ...] = COUPLINGS + FRESH + TREES
  window: tuple[int, ...] = (16, 64)
  metrics: tuple[str, ...] = ('step_compression', 'one_token_rounds')
  ground: bool = False
  workdir: str = 'runs/topologies'


@cli.command(Config)
def main(config: Config) -> None:
  check_lists(config, 'window', 'decoder')
  model = config.model()
  metrics = measurements.choose(model.engine.name, config.metrics)
  bench = config.bench(model)
  if config.ground:
    scenes.captions(model, bench.prompts)  # Checks that the images are scenes.
    metrics += ground.INSIDE, ground.ON_GROUND, ground.SHARE
  texts_of_windows: dict[int, list[str]] = {}
  left_out: dict[str, str] = {}
  for window in config.window:
    texts_of_windows[window], refused = measurements.able(
        bench, [model.engine.complete(text, window=window) for text in config.decoder])
    left_out |= refused
  if not any(texts_of_windows.values()):
    raise ValueError('no decoder can run; ' + '; '.join(f'{k}: {v}' for k, v in left_out.items()))
  report, start = Report(config.workdir, ['rows.csv']), time.perf_counter()
  columns: dict[str, str] = {}
  rows: list[dict[str, Any]] = []
  for window, texts in texts_of_windows.items():
    for row in measurements.each(bench, texts, metrics):
      columns = columns or columns_of(metrics, row)
      rows.append(dict(window=window) | row.figures)
      show(columns, rows[-1])
      atomic.write(report.path('rows.csv'), tables.csv(rows).encode())
  write(report, config, [
      tables.Table(f'window {window}', columns, [row for row in rows if row['window'] == window])
      for window in texts_of_windows],
        left_out=left_out, prompts=bench.prompts, weights=run_lib.weights(model),
        minutes=(time.perf_counter() - start) / 60)


if __name__ == '__main__':
  sys.exit(main())
