"""The tables and figures of continuous speculative decoding (CSpD, arXiv 2411.11925).

  python -m experiments.mar_tables
  python -m experiments.mar_tables --suite=table1,table4 --config.num_images=64
  python -m experiments.mar_tables --config.model=checkpoints/mar_h \\
      --config.draft_model=checkpoints/mar_b --config.tokenizer=checkpoints/kl16

Uses the MAR pair that comes with the package, or converted checkpoints.

  table1    acceptance and speed over draft lengths and batch sizes, next to the target alone
            with as many passes (`parallel`)
  table3    acceptance with and without shared noise
  table4    acceptance, passes and speed with a larger share of tokens that the target fixes alone
  figures   Figures 8, 11, 13 to 16: acceptance over draft length, autoregressive step, guidance
            scale and temperature, draws per replaced token, and where tokens are replaced
  head      head calls per token of `exact_head`, with and without guidance, and its speed

Every decoder is a table and a panel of its own, and has a column `acceptance_<decoder>` of its own
in tables.csv: what is accepted is not the same thing in any two of them. Every row says which
distribution its images come near to, under which guarantee, and with which settings. Speeds are
wall-clock ratios to `mar` at the same batch size, without compilation. Into --workdir go
tables.csv, report.json and the figures.

Two columns stand beside the speed of `cspd_released` and `cspd_relaxed`, which keep to a schedule
of passes: `expected` counts the passes that were made, with the prefix and the last block, as if
those of the target cost a step of `mar` each and those of the draft model a step of it alone. The
paper's `1/(c+1/gamma)` has the same costs and leaves out the prefix and the last block. Where the
machine is busy at one token already, as a CPU is, the head's work for a whole block costs more than
that for a token, and both columns promise too much.

The paper's batch of 128 takes roughly a minute per decode on two CPU cores, sixteen times a batch
of 8, which keeps them busy already. Each decoder and length is decoded twice, to warm up and to be
timed, so the two decoders below take about half an hour. With `exact_path` and `cspd_paper` every
image is gamma + 1 contexts: at 128 these are for accelerators. Acceptance stays that of
`num_images`, as it does not depend on the batch.

  python -m experiments.mar_tables --suite=table1 --decoder=cspd_released,cspd_relaxed \\
      --config.batch_sizes=1,8,128
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
  return [Cell(mode, length, c.prefix_share, c.guidance_scale, c.temperature)._replace(**changes)
          for length in c.lengths]


_COSTS = {'target passes': '{target_passes:.1f}', 'draft passes': '{draft_passes:.1f}',
          'head calls': '{head_calls:.0f}'}


def _accepted(mode: str, **more: str) -> dict[str, str]:
  return more | {'gamma': '{length}', 'accepted': f'{{acceptance_{mode}:.3f}}'}


def _table1(bench: runs_lib.Bench, runner: runs_lib.Runner, workdir) -> list[dict[str, Any]]:
  del workdir
  config, found = bench.config, []
  for mode in bench.modes:
    rows = [row for batch in config.batch_sizes for row in _speed_rows(bench, runner, mode, batch)]
    columns = _accepted(mode, batch='{batch}') | _COSTS | {'speed': '{speed:.2f}'}
    if mode in runs_lib.BLOCK_MODES:
      columns |= {'expected': '{expected_speed:.2f}',
                  "paper's 1/(c+1/gamma)": '{paper_identity_speed:.2f}',
                  'parallel': '{parallel_speed:.2f}'}
    _show(f'Table 1, {mode}, prefix share {config.prefix_share:.0%}', columns, rows)
    found += rows
  return found


def _speed_rows(bench: runs_lib.Bench, runner: runs_lib.Runner, mode: str,
                batch: int) -> list[dict[str, Any]]:
  """Rows of Table 1 at one batch size."""
  cells = _cells(bench, mode)
  if mode not in runs_lib.BLOCK_MODES:
    speeds = runner.speeds([cell.what for cell in cells], batch)
    return [runs_lib.row(bench, cell, runner.cell(cell), batch, speed=speed)
            for cell, speed in zip(cells, speeds)]
  draft, *speeds = runner.speeds([('draft', True)] + [
      what for cell in cells for what in (
          cell.what, ('parallel', cell.length, cell.prefix_share, True))], batch)
  return [runs_lib.row(
      bench, cell, runner.cell(cell), batch, speed=speed, parallel_speed=parallel,
      draft_step_cost=1 / draft, expected_speed=runs_lib.expected_speed(runner.cell(cell), draft),
      paper_identity_speed=expected_speedup(1 / draft, cell.length))
          for cell, speed, parallel in zip(cells, speeds[::2], speeds[1::2])]


def _table3(bench: runs_lib.Bench, runner: runs_lib.Runner, workdir) -> list[dict[str, Any]]:
  del workdir
  found = []
  for mode in bench.modes:
    rows, others = ([runs_lib.row(bench, cell, runner.cell(cell), runner.batch_size)
                     for cell in _cells(bench, mode, aligned=aligned)] for aligned in (True, False))
    rate = f'acceptance_{mode}'
    _show(f'Table 3, {mode}',
          {'gamma': '{length}', 'unaligned': '{unaligned:.3f}', 'aligned': f'{{{rate}:.3f}}'},
          [row | {'unaligned': other[rate]} for row, other in zip(rows, others)])
    found += rows + others
  return found


def _table4(bench: runs_lib.Bench, runner: runs_lib.Runner, workdir) -> list[dict[str, Any]]:
  del workdir
  found, batch = [], runner.batch_size
  for mode in bench.modes:
    cells = [cell for prefix_share in bench.config.prefix_shares
             for cell in _cells(bench, mode, prefix_share=prefix_share)]
    generated = [runner.cell(cell) for cell in cells]
    speeds = runner.speeds([cell.what for cell in cells], batch)
    rows = [runs_lib.row(bench, cell, images, batch, speed=speed)
            for cell, images, speed in zip(cells, generated, speeds)]
    columns = {'prefix share': '{prefix_share:.0%}'} | _accepted(mode) | _COSTS
    _show(f'Table 4, {mode}, batch {batch}', columns | {'speed': '{speed:.2f}'}, rows)
    found += rows
  return found


def _head(bench: runs_lib.Bench, runner: runs_lib.Runner, workdir) -> list[dict[str, Any]]:
  del workdir
  config, found = bench.config, []
  for guided in (False, True):
    decoders = [('exact_head', length, guided) for length in config.head_lengths]
    rows = []
    for what, speed in zip(decoders, runner.speeds(decoders, 1)):
      generated = runner.head(what[1], guided)
      tokens = generated.order.size
      rows.append(dict(
          mode='exact_head', length=what[1], guided=guided,
          guidance_scale=config.guidance_scale if guided else 1.0,
          temperature=config.temperature, **runs_lib.statement(bench, what, 1),
          acceptance_exact_head=runs_lib.acceptance(generated), **runs_lib.costs(generated),
          calls_per_token=float(generated.costs.head_calls.sum() / tokens),
          rows_per_token=float(generated.costs.head_rows.sum() / tokens),
          draws_per_test=float(generated.tests.trials.sum() / generated.tests.tested.sum()),
          speed=speed))
    _show(f'exact_head {"with" if guided else "without"} guidance; mar takes '
          f'{rows[0]["num_levels"]} calls per token',
          {'L': '{length}', 'calls/token': '{calls_per_token:.1f}',
           'rows/token': '{rows_per_token:.0f}', 'kernels accepted': '{acceptance_exact_head:.3f}',
           'speed, batch 1': '{speed:.2f}'}, rows)
    found += rows
  return found


if __name__ == '__main__':
  app.run(main, flags_parser=config_flags.parse)
