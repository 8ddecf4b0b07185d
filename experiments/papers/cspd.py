"""The tables and figures of continuous speculative decoding (CSpD, arXiv 2411.11925).

  python -m experiments.papers.cspd
  python -m experiments.papers.cspd --suite=table1,table4 --num_images=64
  python -m experiments.papers.cspd --model=checkpoints/mar_h --parts=draft=checkpoints/mar_b/target

  table1    acceptance and speed over draft lengths and batch sizes, compared with the target
            alone with equally many passes (`parallel`)
  table3    acceptance with and without shared noise
  table4    acceptance, passes and speed with a larger share of tokens that the target alone
            generates
  figures   Figures 8, 11, 13 to 16: acceptance over draft length, autoregressive step, guidance
            scale and temperature, draws per replaced token, and which tokens are replaced
  head      head calls per token of `exact_head`, with and without guidance, and its speed

Every decoder has its own table and panel, and its own column `acceptance_<decoder>` in tables.csv,
because decoders test different things and their acceptance rates are not comparable. Every row
states the distribution that the decoder samples or approximates, the guarantee and the settings.
Speeds are wall-clock ratios to `mar` at the same batch size, without compilation. Writes
tables.csv, report.json and the figures to --workdir.

Two columns accompany the speed of `cspd_released` and `cspd_relaxed`, whose schedule of passes is
fixed. `expected` is the speed if only passes had a cost: each pass of the target that of a step of
`mar`, each pass of the draft model that of a step of the draft model alone; it includes the prefix
and the last block. The paper's `1/(c+1/gamma)` assumes the same costs and omits the prefix and the
last block. On a machine that one token already saturates, such as a CPU, the head's work for a
whole block costs more than for a token, and both columns are too optimistic.

The paper's batch of 128 takes about a minute per decode on two CPU cores, sixteen times as long as
a batch of 8, which already saturates them. Each decoder and length is decoded twice, to warm up and
to be timed, so the two decoders below take about half an hour. `exact_path` and `cspd_paper` use
gamma + 1 contexts per image: a batch of 128 requires an accelerator. Acceptance is always measured
on `num_images`, as it does not depend on the batch.

  python -m experiments.papers.cspd --suite=table1 --decoder=cspd_released,cspd_relaxed \\
      --batch_sizes=1,8,128
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cspd_jax import cli
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import tables
from cspd_jax.measure.tables import Table
from cspd_jax.plots import charts as curves_lib, grid as grid_lib
from cspd_jax.plots.charts import Curve, Panel
from experiments.papers.cspd_cells import (
  BLOCK_MODES,
  Cell,
  Config,
  Lab,
  acceptance_by_step,
  draws_per_replaced_token,
  expected_speed,
)

_COSTS = {'target passes': '{target_passes:.1f}', 'draft passes': '{draft_passes:.1f}',
          'head calls': '{head_calls:.0f}'}


def accepted(mode: str, **first: str) -> dict[str, str]:
  """Returns the leading columns of a decoder's table."""
  return first | {'gamma': '{length}', 'accepted': f'{{acceptance_{mode}:.3f}}'}


def table1(lab: Lab, mode: str) -> Table:
  """Measures acceptance and speed over draft lengths and batch sizes."""
  columns = accepted(mode, batch='{batch}') | _COSTS | {'speed': '{speed:.2f}'}
  if mode in BLOCK_MODES:
    columns |= {'expected': '{expected_speed:.2f}',
                "paper's 1/(c+1/gamma)": '{paper_identity_speed:.2f}',
                'parallel': '{parallel_speed:.2f}'}
  return Table(f'Table 1, {mode}, prefix share {lab.config.prefix_share:.0%}', columns,
               [row for batch in lab.config.batch_sizes for row in _speed_rows(lab, mode, batch)])


def _speed_rows(lab: Lab, mode: str, batch: int) -> list[dict[str, Any]]:
  cells = lab.cells(mode)
  texts = [lab.text(cell) for cell in cells]
  if mode not in BLOCK_MODES:
    return [lab.row(cell, batch, speed=speed)
            for cell, speed in zip(cells, lab.speeds(texts, batch))]
  parallel = [lab.parallel(cell.length) for cell in cells]
  draft, *speeds = lab.speeds(['draft', *texts, *parallel], batch)
  return [lab.row(
      cell, batch, speed=speed, parallel_speed=parallel_speed, draft_step_cost=1 / draft,
      expected_speed=expected_speed(lab.images(cell).decoded, draft),
      paper_identity_speed=1 / (1 / draft + 1 / cell.length))
          for cell, speed, parallel_speed in zip(cells, speeds, speeds[len(cells):])]


def table3(lab: Lab, mode: str) -> Table:
  """Measures acceptance with and without shared noise."""
  rate = f'acceptance_{mode}'
  with_noise, without = ([lab.row(cell) for cell in lab.cells(mode, aligned=aligned)]
                         for aligned in (True, False))
  rows = [row | {'unaligned': other[rate]} for row, other in zip(with_noise, without)]
  return Table(f'Table 3, {mode}', {'gamma': '{length}', 'unaligned': '{unaligned:.3f}',
                                    'aligned': f'{{{rate}:.3f}}'}, rows + without)


def table4(lab: Lab, mode: str) -> Table:
  """Measures acceptance, passes and speed over the share of tokens that the target generates."""
  cells = [cell for share in lab.config.prefix_shares
           for cell in lab.cells(mode, prefix_share=share)]
  batch = lab.bench.batch_size
  speeds = lab.speeds([lab.text(cell) for cell in cells], batch)
  return Table(
      f'Table 4, {mode}, batch {batch}',
      {'prefix share': '{prefix_share:.0%}'} | accepted(mode) | _COSTS | {'speed': '{speed:.2f}'},
      [lab.row(cell, speed=speed) for cell, speed in zip(cells, speeds)])


def head(lab: Lab, guided: bool) -> Table:
  """Measures head calls per token of `exact_head`, and its speed."""
  sampling = lab.sampling(scale=None if guided else 1.0)
  texts, rows = list(map(lab.exact_head, lab.config.kernels_per_call)), []
  for kernels, text, speed in zip(
      lab.config.kernels_per_call, texts, lab.speeds(texts, 1, sampling)):
    sample = lab.bench.sample(text, sampling)
    costs, tests = sample.decoded.costs, sample.decoded.tests
    tokens = sample.decoded.order.size
    rows.append(dict(
        mode='exact_head', length=kernels, guidance_scale=float(sampling.guidance_scale),
        temperature=float(sampling.temperature), **lab.statement('exact_head', text, sample, 1),
        calls_per_token=float(costs.head_calls.sum() / tokens),
        rows_per_token=float(costs.head_rows.sum() / tokens),
        draws_per_test=float(tests.trials.sum() / tests.tested.sum()), speed=speed))
  return Table(
      f'exact_head {"with" if guided else "without"} guidance; mar uses '
      f'{rows[0]["num_levels"]} calls per token',
      {'L': '{length}', 'calls/token': '{calls_per_token:.1f}',
       'rows/token': '{rows_per_token:.0f}', 'kernels accepted': '{acceptance_exact_head:.3f}',
       'speed, batch 1': '{speed:.2f}'}, rows)


_TABLES = dict(table1=table1, table3=table3, table4=table4)
# Number of images in Figure 16.
_SHOWN = 4


def draw_figures(lab: Lab, report: Report) -> list[dict[str, Any]]:
  """Draws Figures 8, 11, 13, 14, 15 and 16; returns the rows of their points."""
  c, result = lab.config, []

  def middle(mode: str) -> int:
    lengths = lab.lengths(mode)
    return lengths[(len(lengths) - 1) // 2]

  def acceptance(cells: list[Cell]) -> list[float]:
    rows = [lab.row(cell) for cell in cells]
    result.extend(rows)
    return [np.nan if (rate := row[f'acceptance_{row["mode"]}']) is None else rate for row in rows]

  def figure(number: int, xlabel: str, title: str, lines: Callable[[str], Mapping[str, Curve]],
             ylabel: str = 'share of drafts accepted') -> None:
    panels = [Panel(mode, ylabel, drawn) for mode in c.decoder if (drawn := lines(mode))]
    if panels:
      for form in ('png', 'svg'):
        curves_lib.save_curves(
            report.path(f'figure_{number}.{form}'), [panels], xlabel=xlabel, title=title)
      print(f'figure {number}: {title}', flush=True)

  figure(8, 'draft length', 'Acceptance over the draft length', lambda mode: _curves({
      'all images': (lab.lengths(mode), acceptance(lab.cells(mode)))}))
  figure(11, 'token, in the order of generation',
         'Acceptance over the image', lambda mode: _curves({
             f'prefix share {share:.0%}': _smooth(acceptance_by_step(
                 lab.images(lab.cell(mode, middle(mode), prefix_share=share)).decoded))
             for share in c.prefix_shares}))
  figure(13, 'guidance scale', 'Acceptance over the guidance scale', lambda mode: _curves({
      f'draft length {length}': (c.scales, acceptance(
          [lab.cell(mode, length, guidance_scale=scale) for scale in c.scales]))
      for length in lab.lengths(mode)}))
  guidance_scale = float(lab.bench.sampling.guidance_scale)
  figure(14, 'temperature', 'Acceptance over the temperature',
         lambda mode: _curves({
             name: (c.temperatures, acceptance(
                 [lab.cell(mode, middle(mode), temperature=value, guidance_scale=scale)
                  for value in c.temperatures]))
             for name, scale in (('guided', guidance_scale), ('without guidance', 1.0))}))
  figure(15, 'draft length', 'Draws from the target until one replaces a draft',
         lambda mode: _curves({'mean': (lab.lengths(mode), [
             draws_per_replaced_token(lab.images(cell).decoded) or np.nan
             for cell in lab.cells(mode)])}) if mode != 'cspd_relaxed' else {},
         'draws per replaced token')
  _replaced(lab, report, {mode: middle(mode) for mode in c.decoder})
  return result


def _replaced(lab: Lab, report: Report, lengths: Mapping[str, int]) -> None:
  """Draws Figure 16: which drafts are accepted."""
  decoded = {mode: lab.images(lab.cell(mode, length)).decoded
             for mode, length in lengths.items()}
  grid = lambda leaf: leaf[:_SHOWN].reshape(-1, *lab.model.grid)
  grid_lib.save_replaced_map(
      report.path('figure_16.png'),
      {mode: np.asarray(lab.model.pixels(images.tokens[:_SHOWN]))
       for mode, images in decoded.items()},
      {mode: grid(images.tests.tested) for mode, images in decoded.items()},
      {mode: grid(images.tests.accepted) for mode, images in decoded.items()},
      captions=lab.model.conditions.titles(lab.bench.prompts[:_SHOWN]),
      title='Accepted drafts, draft length ' + ', '.join(
          f'{length} with {mode}' for mode, length in lengths.items()))
  print('figure 16: accepted drafts', flush=True)


def _curves(lines: Mapping[str, tuple]) -> dict[str, Curve]:
  """Builds curves from the finite points."""
  result = {}
  for name, (x, y) in lines.items():
    points = [(float(a), float(b)) for a, b in zip(x, y) if np.isfinite(b)]
    if points:
      result[name] = Curve(*zip(*points))
  return result


def _smooth(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns means over eighths of the image, because single positions are too noisy."""
  parts = np.array_split(np.arange(len(shares)), min(8, len(shares)))
  means = [np.mean(shares[part][np.isfinite(shares[part])]) if np.isfinite(shares[part]).any()
           else np.nan for part in parts]
  return np.array([part.mean() for part in parts]), np.array(means)


@cli.command(Config)
def main(config: Config) -> None:
  lab = Lab(config)
  names = [f'figure_{number}.{ending}' for number in (8, 11, 13, 14, 15, 16)
           for ending in ('png', 'svg')]
  report, start = Report(config.workdir, ['tables.csv', *names]), time.perf_counter()
  rows: list[dict[str, Any]] = []
  shown: list[dict[str, Any]] = []

  def add(suite: str, added: Sequence[Mapping[str, Any]]) -> list[int]:
    rows.extend(dict(suite=suite, **row) for row in added)
    atomic.write(report.path('tables.csv'), tables.csv(rows).encode())
    return list(range(len(rows) - len(added), len(rows)))

  def show(suite: str, table: Table) -> None:
    numbers = [number for number, row in zip(add(suite, table.rows), table.rows)
               if suite != 'table3' or 'unaligned' in row]
    shown.append(dict(title=table.title, columns=table.columns, rows=numbers))
    print(f'\n{table.title}\n{tables.text(table.columns, [rows[i] for i in numbers])}', flush=True)

  for suite in config.suite:
    if suite == 'figures':
      add(suite, draw_figures(lab, report))
    elif suite == 'head':
      for guided in (False, True):
        show(suite, head(lab, guided))
    else:
      for mode in config.decoder:
        show(suite, _TABLES[suite](lab, mode))
  minutes = (time.perf_counter() - start) / 60
  report.write(settings=dataclasses.asdict(config), rows=rows, tables=shown, minutes=minutes)
  print(f'\n{minutes:.1f} minutes; tables.csv, report.json, figures are in {config.workdir}.')


if __name__ == '__main__':
  sys.exit(main())
