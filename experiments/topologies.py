"""Compares draft trees, couplings and fresh tokens at equal numbers of tokens per round.

  python -m experiments.topologies
  python -m experiments.topologies --window=16,64 --num_images=32
  python -m experiments.topologies --decoder='sjd,sjd_pac(tree=kary(3, 3))' --window=24

Counts only; wall-clock is the business of `cspd-compare`. Decoders that do not fit a
window, such as larger trees, are left out there. Into --workdir go all rows (rows.csv,
report.json).
"""

import dataclasses
import sys
from typing import Any

from configs import topologies as default
from cspd_jax import cli
from cspd_jax.checkpoints import files
from cspd_jax.cli import inputs
from cspd_jax.generation.report import Report
from cspd_jax.measure import rows as rows_lib, tables
from cspd_jax.measure.bench import Bench
from experiments.benchmark import Printer


def run(config: Any) -> None:
  """Measures all that a configuration asks for, shows it and writes the report.

  Raises:
    ValueError: for anything that cannot work, before anything is compiled.
  """
  for name in ('window', 'decoder'):
    if not getattr(config, name):
      raise ValueError(f'{name} is empty; give at least one.')
  model = inputs.model(config)
  metrics = rows_lib.choose(model.engine.name, config.metrics)
  prompts, seed = inputs.images(config.images, model)
  bench = Bench(model, prompts, seed=seed, batch_size=config.batch_size,
                sampling=model.sampling(**inputs.overrides(config.sampling)))
  chosen, left_out = {}, {}
  for window in config.window:
    chosen[window], refused = rows_lib.able(
        bench, [model.engine.complete(text, window=window) for text in config.decoder])
    left_out |= refused
  if not any(chosen.values()):
    raise ValueError('nothing can run; ' + '; '.join(f'{k}: {v}' for k, v in left_out.items()))
  report = Report(config.workdir, ['rows.csv'])
  printer, rows = Printer(metrics, [text for texts in chosen.values() for text in texts]), []
  for window, texts in chosen.items():
    for row in rows_lib.rows(bench, texts, metrics):
      printer.show(row)
      rows.append(dict(window=window) | row.figures)
      files.write(report.path('rows.csv'), tables.csv(rows).encode())
  report.write(
      settings=dataclasses.asdict(config), rows=rows, left_out=left_out, prompts=prompts,
      tables=[dict(title=f'window {window}', columns=printer.columns, rows=[
          i for i, row in enumerate(rows) if row['window'] == window]) for window in chosen])


@cli.command(default.Config, config='configs/topologies.py')
def main(config: Any) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
