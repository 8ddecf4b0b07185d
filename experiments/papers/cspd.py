"""The tables and figures of continuous speculative decoding (CSpD, arXiv 2411.11925).

  python -m experiments.papers.cspd
  python -m experiments.papers.cspd --suite=table1,table4 --num_images=64
  python -m experiments.papers.cspd --model=checkpoints/mar_h --parts=draft=checkpoints/mar_b/target

  table1    acceptance and speed over draft lengths and batch sizes, compared with the target
            alone with equally many passes (`parallel`)
  table3    acceptance with and without shared noise
  table4    acceptance, passes and speed with a larger share of tokens that the target alone
            generates
  figures   the points of Figures 8, 13, 14 and 15: acceptance over draft length, guidance scale and
            temperature, and draws per replaced token
  head      head calls per token of `exact_head`, with and without guidance, and its speed

Every decoder has its own table, and its own column `acceptance_<decoder>` in tables.csv, because
decoders test different things and their acceptance rates are not comparable. Every row states the
distribution that the decoder samples or approximates, the guarantee and the settings. Speeds are
wall-clock ratios to `mar` at the same batch size, without compilation. Writes tables.csv and
report.json to --workdir. Figures 11 and 16 are those of `cspd-compare`.

Next to the speed of `cspd_released` and `cspd_relaxed`, `expected` is the speed if only passes had
a cost: each pass of the target that of a step of `mar`, each pass of the draft model that of a step
of the draft model alone. The paper's `1/(c+1/gamma)` assumes the same costs and omits the prefix
and the last block. On a machine that one token already saturates, such as a CPU, the head's work
for a whole block costs more than for a token, and both columns are too optimistic.

The paper's batch of 128 requires an accelerator for `exact_path` and `cspd_paper`, which use
gamma + 1 contexts per image. Acceptance is always measured on `num_images`:

  python -m experiments.papers.cspd --suite=table1 --decoder=cspd_released,cspd_relaxed \\
      --batch_sizes=1,8,128
"""

import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax import cli
from cspd_jax.cli import groups
from cspd_jax.core import fields
from cspd_jax.core.sampling import is_guided
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.generation.parts import Kept
from cspd_jax.measure import measurements, tables, timing
from cspd_jax.measure.tables import Table
from cspd_jax.metrics.base import Sample
from experiments.measured import SampledImages


@dataclasses.dataclass(frozen=True)
class Config(SampledImages):
  """The measurements.

  Attributes:
    suite: parts of the paper: table1, table3, table4, figures; and head.
    decoder: decoders with a draft model.
    guidance: 'linear', growing to the guidance scale as the image fills up, or 'constant'.
    lengths: draft lengths, gamma.
    most_contexts: the longest draft length of cspd_paper and exact_path, a pass per draft.
    prefix_share: share of tokens that the target alone generates in Tables 1 and 3 and the figures.
    prefix_shares: these shares in Table 4.
    batch_sizes: batch sizes of the speeds in Table 1; the paper has 1, 8, 128 and 256.
    scales: guidance scales of Figure 13.
    temperatures: temperatures of Figure 14.
    kernels_per_call: parameters of exact_head.
    batch_size: images of a cell decoded together, and the batch size of the speeds in Table 4.
    repeats: timed runs, whose median is reported; only one if a run takes more than ten seconds.
  """

  loading: groups.LoadFlags = groups.LoadFlags('mar_demo')
  suite: tuple[str, ...] = ('table1', 'table3', 'table4', 'figures', 'head')
  decoder: tuple[str, ...] = ('cspd_released', 'cspd_relaxed', 'cspd_paper', 'exact_path')
  images: groups.Images = groups.Images(num_images=8)
  guidance: str = 'linear'
  lengths: tuple[int, ...] = (4, 8, 16, 32)
  most_contexts: int = 4
  prefix_share: float = 0.05
  prefix_shares: tuple[float, ...] = (0.0, 0.05, 0.15)
  batch_sizes: tuple[int, ...] = (1, 8)
  scales: tuple[float, ...] = (1.0, 2.0, 4.0)
  temperatures: tuple[float, ...] = (0.9, 1.0, 1.05)
  kernels_per_call: tuple[int, ...] = (4, 8, 16, 32)
  batch_size: int = 8
  repeats: int = 3
  workdir: str = 'runs/papers/cspd'

  def __post_init__(self):
    fields.check(self, prefix_share=fields.SHARES, prefix_shares=fields.SHARES,
                 scales=fields.FINITE, temperatures=fields.FINITE)


# Decoders with a draft model, and the name of their parameter for the number of drafts.
MODES = {'cspd_released': 'block_length', 'cspd_relaxed': 'block_length',
         'cspd_paper': 'draft_length', 'exact_path': 'draft_length'}
# Decoders whose number of passes does not depend on what is accepted.
BLOCK_MODES = ('cspd_released', 'cspd_relaxed')
_COSTS = ('rounds', 'target_passes', 'draft_passes', 'head_calls', 'head_rows')

_SLOW = 10.0  # A run of more seconds than this is timed only once.


class Cell(NamedTuple):
  """One setting of a decoder with a draft model; `length` is gamma, `mode` a key of `MODES`."""

  mode: str
  length: int
  prefix_share: float
  guidance_scale: float
  temperature: float
  aligned: bool = True


class Lab:
  """Decodes and times cells, and caches the results."""

  def __init__(self, config: Config):
    for name, supported in (('suite', Config.suite), ('decoder', tuple(MODES))):
      names = getattr(config, name)
      if not names or not set(names) <= set(supported):
        raise ValueError(f'{name} is {",".join(names)!r}; it must be a comma-separated list of '
                         f'{", ".join(supported)}.')
    fields.check_lists(config, 'lengths', 'prefix_shares', 'batch_sizes', 'scales', 'temperatures',
                'kernels_per_call')
    model = config.model('continuous')
    if 'model' not in model.drafts:
      raise ValueError(f'model is {config.loading.model!r}; give one with a draft model.')
    self.config, self.bench, draft = config, config.bench(model), model.drafts['model']
    self._draft = config.bench(dataclasses.replace(  # The draft model alone.
        model, build_target=draft.build, params=draft.params, drafts={}, kept=Kept()))
    self.model, self.mar = model, f'mar(guidance={config.guidance})'
    self._speeds: dict[tuple, float] = {}
    self._check()

  def _check(self) -> None:
    config = self.config
    for share, length, mode in itertools.product(
        {config.prefix_share, *config.prefix_shares}, config.lengths, config.decoder):
      self.bench.check(self.text(self.cell(mode, length, prefix_share=share)))
    for kernels in config.kernels_per_call:
      self.bench.check(self.exact_head(kernels))
    for options in itertools.product(config.scales, config.temperatures):
      self.bench.check(self.mar, self.sampling(*options))

  def exact_head(self, kernels: int) -> str:
    """Returns the specification of the decoder that speculates inside the head."""
    return f'exact_head(guidance={self.config.guidance}, kernels_per_call={kernels})'

  def parallel(self, length: int) -> str:
    """Returns the specification of the target alone with as many passes as one of `BLOCK_MODES`."""
    return (f'parallel(block_length={length}, guidance={self.config.guidance}, '
            f'prefix_share={self.config.prefix_share})')

  def text(self, cell: Cell) -> str:
    """Returns the specification of a cell's decoder."""
    return (f'{cell.mode}(aligned={cell.aligned}, {MODES[cell.mode]}={cell.length}, '
            f'guidance={self.config.guidance}, prefix_share={cell.prefix_share})')

  def sampling(self, scale: float | None = None, temperature: float | None = None) -> Any:
    """Returns sampling options; None selects the value of the configuration."""
    options = self.bench.sampling
    return self.model.sampling(
        guidance_scale=options.guidance_scale if scale is None else scale,
        temperature=options.temperature if temperature is None else temperature)

  def cell(self, mode: str, length: int, **changes: Any) -> Cell:
    """Returns the cell of a decoder and a draft length, with the settings of the configuration."""
    sampling = self.bench.sampling
    return Cell(mode, length, self.config.prefix_share, float(sampling.guidance_scale),
                float(sampling.temperature))._replace(**changes)

  def cells(self, mode: str, **changes: Any) -> list[Cell]:
    """Returns one cell per draft length."""
    return [self.cell(mode, length, **changes) for length in self.lengths(mode)]

  def lengths(self, mode: str) -> tuple[int, ...]:
    """Returns the draft lengths of a decoder: at least the shortest."""
    c = self.config
    if mode in BLOCK_MODES:
      return c.lengths
    short = tuple(length for length in c.lengths if length <= c.most_contexts)
    return short or (min(c.lengths),)

  def images(self, cell: Cell) -> Sample:
    """Returns the images of a cell."""
    return self.bench.sample(self.text(cell), self.sampling(cell.guidance_scale, cell.temperature))

  def speeds(self, texts: Sequence[str], batch_size: int, sampling: Any = None) -> list[float]:
    """Measures speed-ups over `mar`, without compilation, in alternating runs.

    The text 'draft' is the draft model alone; None are the sampling options of the configuration.
    """
    sampling = self.bench.sampling if sampling is None else sampling
    name = lambda text: (text, batch_size, is_guided(sampling))
    new = [text for text in dict.fromkeys(texts) if name(text) not in self._speeds]
    if new:
      runs = {text: (self._draft.run(self.mar, batch_size, sampling=sampling) if text == 'draft'
                     else self.bench.run(text, batch_size, sampling=sampling))
              for text in [self.mar, *new]}
      times = timing.measure(runs, self.config.repeats, warmup=0, enough=_SLOW)
      self._speeds |= {name(text): times[self.mar].median / times[text].median for text in new}
    return [self._speeds[name(text)] for text in texts]

  def row(self, cell: Cell, batch_size: int | None = None, **figures: Any) -> dict[str, Any]:
    """Returns a row of the tables; every mode has its own column `acceptance_<mode>`."""
    sample = self.images(cell)
    return cell._asdict() | self.statement(cell.mode, self.text(cell), sample, batch_size) | figures

  def statement(self, mode: str, text: str, sample: Sample,
                batch_size: int | None = None) -> dict[str, Any]:
    """Returns the settings, guarantees and costs of a row; `batch_size` is that of timed runs."""
    guided = is_guided(sample.sampling)
    decoder, tests = self.bench.decoder(text, guided), sample.decoded.tests
    replaced = int(tests.tested.sum() - tests.accepted.sum())
    means = {metric.name: metric(sample, self.model).mean
             for metric in measurements.choose('continuous', (*_COSTS, 'acceptance'))}
    return dict(
        decoder=text, guided=guided, distribution=decoder.distribution,
        guarantee=decoder.guarantee, num_iter=self.model.num_tokens,
        num_levels=decoder.schedule.num_levels, guidance=decoder.guidance if guided else 'none',
        dtype=jax.tree.leaves(self.model.params)[0].dtype.name, num_images=len(sample.tokens),
        batch=self.bench.batch_size if batch_size is None else batch_size,
        draws_per_replaced_token=float(tests.trials.sum() / replaced) if replaced else None,
        **{f'acceptance_{mode}': None if np.isnan(means['acceptance']) else means['acceptance']},
        **{name: means[name] for name in _COSTS})


_COLUMNS = {'target passes': '{target_passes:.1f}', 'draft passes': '{draft_passes:.1f}',
            'head calls': '{head_calls:.0f}'}


def accepted(mode: str, **first: str) -> dict[str, str]:
  """Returns the leading columns of a decoder's table."""
  return first | {'gamma': '{length}', 'accepted': f'{{acceptance_{mode}:.3f}}'}


def table1(lab: Lab, mode: str) -> Table:
  """Measures acceptance and speed over draft lengths and batch sizes."""
  columns = accepted(mode, batch='{batch}') | _COLUMNS | {'speed': '{speed:.2f}'}
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
  costs = [lab.images(cell).decoded.costs for cell in cells]
  return [lab.row(
      cell, batch, speed=speed, parallel_speed=parallel_speed, draft_step_cost=1 / draft,
      # If only passes had a cost, the prefix included.
      expected_speed=float(
          lab.model.num_tokens / np.mean(cost.target_passes + cost.draft_passes / draft)),
      paper_identity_speed=1 / (1 / draft + 1 / cell.length))
          for cell, cost, speed, parallel_speed in zip(cells, costs, speeds, speeds[len(cells):])]


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
      {'prefix share': '{prefix_share:.0%}'} | accepted(mode) | _COLUMNS | {'speed': '{speed:.2f}'},
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


def figures(lab: Lab) -> list[dict[str, Any]]:
  """Measures the points of Figures 8 and 15, 13, and 14."""
  c, rows = lab.config, []
  scales = float(lab.bench.sampling.guidance_scale), 1.0
  for mode in c.decoder:
    lengths = lab.lengths(mode)
    middle = lengths[(len(lengths) - 1) // 2]
    rows += map(lab.row, (
        *lab.cells(mode),
        *(lab.cell(mode, length, guidance_scale=scale) for length in lengths for scale in c.scales),
        *(lab.cell(mode, middle, temperature=value, guidance_scale=scale)
          for scale in scales for value in c.temperatures)))
  return rows


@cli.command(Config)
def main(config: Config) -> None:
  lab = Lab(config)
  report, start = Report(config.workdir, ['tables.csv']), time.perf_counter()
  rows: list[dict[str, Any]] = []
  shown: list[dict[str, Any]] = []

  def add(suite: str, added: Sequence[dict[str, Any]]) -> range:
    rows.extend(dict(suite=suite, **row) for row in added)
    atomic.write(report.path('tables.csv'), tables.csv(rows).encode())
    return range(len(rows) - len(added), len(rows))

  measured = {name: [functools.partial(table, lab, mode) for mode in config.decoder]
              for name, table in dict(table1=table1, table3=table3, table4=table4).items()}
  measured['head'] = [functools.partial(head, lab, guided) for guided in (False, True)]
  for suite in config.suite:
    if suite == 'figures':
      add(suite, figures(lab))
      continue
    for title, columns, own in (measure() for measure in measured[suite]):
      numbers = [i for i in add(suite, own) if suite != 'table3' or 'unaligned' in rows[i]]
      shown.append(dict(title=title, columns=columns, rows=numbers))
      print(f'\n{title}\n{tables.text(columns, [rows[i] for i in numbers])}', flush=True)
  minutes = (time.perf_counter() - start) / 60
  report.write(settings=dataclasses.asdict(config), rows=rows, tables=shown, minutes=minutes)
  print(f'\n{minutes:.1f} minutes; tables.csv and report.json are in {config.workdir}.')


if __name__ == '__main__':
  sys.exit(main())
