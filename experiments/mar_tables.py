"""The tables and figures of continuous speculative decoding (CSpD, arXiv 2411.11925).

  python -m experiments.mar_tables
  python -m experiments.mar_tables --suite=table1 --config.batch_sizes=1,8,128
  python -m experiments.mar_tables --config.model=checkpoints/mar_h \\
      --config.draft_model=checkpoints/mar_b --config.tokenizer=checkpoints/kl16

Uses the MAR pair that comes with the package, or converted checkpoints.

  table1    acceptance and speed over draft lengths and batch sizes, next to the target alone
            with as many passes (`parallel`) and to speculation inside its head
  table3    acceptance with and without shared noise
  table4    acceptance and passes with more of the image pre-filled
  figures   Figures 8, 11, 13 to 16: acceptance over draft length, autoregressive step, guidance
            scale and temperature, draws per replaced token, and where tokens are replaced
  head      head calls per token of `exact_head`, with and without guidance, and its speed

Every decoder is a table and a panel of its own: what is accepted is not the same thing in any two
of them. Speeds are wall-clock ratios to `mar` at the same batch size, without compilation. Into
--workdir go tables.csv, report.json and the figures.
"""

import dataclasses
import time
from typing import Any

from absl import app
from absl import flags
import jax

from cspd_jax.continuous.cspd import expected_speedup
from configs import mar_tables as default
from experiments import config_flags
from experiments import json_file
from experiments import mar_tables_figures as figures_lib
from experiments import mar_tables_runs as runs_lib
from experiments import options
from experiments import text_table
from experiments.mar_tables_runs import Cell

_CONFIG = config_flags.DEFINE_config(default='configs/mar_tables.py')

flags.declare_key_flag('config')

_OPTIONS = {holder.name: holder for holder in (
    flags.DEFINE_string(
        'suite', None, f'Parts separated by commas, or all: {", ".join(runs_lib.SUITES)}.'),
    flags.DEFINE_string(
        'decoder', None, f'Decoders separated by commas, or all: {", ".join(runs_lib.MODES)}.'),
    flags.DEFINE_integer('num_images', None, 'Images per cell; the classes take turns.'),
    flags.DEFINE_float('guidance_scale', None, 'Classifier-free guidance.'),
    flags.DEFINE_string('workdir', None, 'Folder of the results.'),
)}


def main(argv: list[str]) -> int:
  begun = options.begin(
      argv, _CONFIG, _OPTIONS, [options.Family(default.Config, 'configs/mar_tables.py')],
      lambda config, _: runs_lib.prepare(config))
  config, bench, workdir = begun.config, begun.prepared, begun.workdir
  start = time.perf_counter()
  runner, rows = runs_lib.Runner(bench), []
  parts = dict(table1=_table1, table3=_table3, table4=_table4, figures=figures_lib.write,
               head=_head)
  for suite in bench.suites:
    rows += [dict(suite=suite, **row) for row in parts[suite](bench, runner, workdir)]
    text_table.write_csv(workdir / 'tables.csv', rows)
  report = dict(
      rows=rows, settings=dataclasses.asdict(config), minutes=(time.perf_counter() - start) / 60,
      device=jax.devices()[0].device_kind, jax_version=jax.__version__)
  json_file.write(workdir / 'report.json', report)
  print(f'\n{report["minutes"]:.1f} minutes; tables.csv, report.json, pictures are in {workdir}.')
  return 0


def _show(title: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
  print(f'\n{title}\n{text_table.render(columns, rows)}', flush=True)


def _cells(bench: runs_lib.Bench, mode: str, **changes: Any) -> list[Cell]:
  """One cell per draft length."""
  c = bench.config
  return [Cell(mode, length, c.prefill, c.guidance_scale, c.temperature)._replace(**changes)
          for length in c.lengths]


_COSTS = {'target passes': '{target_passes:.1f}', 'draft passes': '{draft_passes:.1f}'}


def _table1(bench: runs_lib.Bench, runner: runs_lib.Runner, workdir) -> list[dict[str, Any]]:
  del workdir
  config, found = bench.config, []
  for mode in bench.modes:
    cells = _cells(bench, mode)
    rows = [runs_lib.row(cell, runner.cell(cell)) for cell in cells]
    columns = {'gamma': '{length}', 'accepted': '{acceptance:.3f}', **_COSTS}
    for batch in config.batch_sizes:
      what = {'mar': ('mar', True), 'draft': ('draft', True)}
      for cell in cells:
        what |= {f'own {cell.length}': cell.what,
                 f'parallel {cell.length}': ('parallel', cell.length, cell.prefill, True)}
      seconds = runner.seconds(what, batch)
      cost = seconds['draft'] / seconds['mar']
      for row in rows:
        row |= {f'speed_{batch}': seconds['mar'] / seconds[f'own {row["length"]}'],
                f'parallel_speed_{batch}': seconds['mar'] / seconds[f'parallel {row["length"]}'],
                f'schedule_speed_{batch}': expected_speedup(cost, row['length'])}
      columns |= {f'speed, batch {batch}': f'{{speed_{batch}:.2f}}',
                  f'1/(c+1/gamma), {batch}': f'{{schedule_speed_{batch}:.2f}}',
                  f'parallel, {batch}': f'{{parallel_speed_{batch}:.2f}}'}
    _show(f'Table 1, {mode}, pre-fill {config.prefill:.0%}', columns, rows)
    found += rows
  return found


def _table3(bench: runs_lib.Bench, runner: runs_lib.Runner, workdir) -> list[dict[str, Any]]:
  del workdir
  found = []
  for mode in bench.modes:
    rows = []
    for cell, other in zip(_cells(bench, mode), _cells(bench, mode, aligned=False)):
      rows.append(runs_lib.row(cell, runner.cell(cell)))
      rows[-1]['acceptance_unaligned'] = runs_lib.figures(runner.cell(other))['acceptance']
    _show(f'Table 3, {mode}', {'gamma': '{length}', 'unaligned': '{acceptance_unaligned:.3f}',
                               'aligned': '{acceptance:.3f}'}, rows)
    found += rows
  return found


def _table4(bench: runs_lib.Bench, runner: runs_lib.Runner, workdir) -> list[dict[str, Any]]:
  del workdir
  found = []
  for mode in bench.modes:
    rows = [runs_lib.row(cell, runner.cell(cell)) for prefill in bench.config.prefills
            for cell in _cells(bench, mode, prefill=prefill)]
    _show(f'Table 4, {mode}', {'pre-fill': '{prefill:.0%}', 'gamma': '{length}',
                               'accepted': '{acceptance:.3f}', **_COSTS}, rows)
    found += rows
  return found


def _head(bench: runs_lib.Bench, runner: runs_lib.Runner, workdir) -> list[dict[str, Any]]:
  del workdir
  config, found = bench.config, []
  for guided in (False, True):
    seconds = runner.seconds(
        {'mar': ('mar', guided)} |
        {str(length): ('exact_head', length, guided) for length in config.head_lengths}, 1)
    rows = []
    for length in config.head_lengths:
      generated = runner.head(length, guided)
      tokens = generated.order.size
      rows.append(dict(
          mode='exact_head', length=length, guided=guided,
          guidance_scale=config.guidance_scale if guided else 1.0,
          temperature=config.temperature,
          calls_per_token=float(generated.head_calls.sum() / tokens),
          rows_per_token=float(generated.head_rows.sum() / tokens),
          draws_per_test=float(generated.trials.sum() / generated.tested.sum()),
          acceptance=float(generated.accepted.sum() / generated.tested.sum()),
          speed_1=seconds['mar'] / seconds[str(length)]))
    _show(f'exact_head {"with" if guided else "without"} guidance; mar takes 100 calls per token',
          {'L': '{length}', 'calls/token': '{calls_per_token:.1f}',
           'rows/token': '{rows_per_token:.0f}', 'kernels accepted': '{acceptance:.3f}',
           'speed, batch 1': '{speed_1:.2f}'}, rows)
    found += rows
  return found


if __name__ == '__main__':
  app.run(main, flags_parser=config_flags.parse)
