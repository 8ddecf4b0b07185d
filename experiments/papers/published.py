"""The rows of the papers' tables next to this library's numbers for the same methods.

  python -m experiments.papers.published
  python -m experiments.papers.published --paper=sjd --model=checkpoints/lumina_mgpt_768 \\
      --prompts=captions.txt --dtype=bfloat16
  python -m experiments.papers.published --config=configs/papers/published_cspd.py

Every row has the paper's figures, measured on published models, and the metrics that correspond to
the first of them, measured with `--model`; or the reason why nothing is measured. `NLL - entropy`
has expectation 0 for every exact decoder and is the price of a relaxed one. Rows with the same
decoder and sampling options are decoded once. Writes a table per paper to --workdir (rows.csv,
report.json).
"""

import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Any

from cspd_jax import cli, metrics as metrics_lib
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import measurements, tables
from cspd_jax.measure.bench import Bench
from experiments.papers.published_rows import ROWS, Row


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    loading: the model, and how it is loaded.
    parts: networks that replace those of the model.
    paper: the papers; cspd requires a model of continuous tokens.
    images: the images, the same for every row.
    sampling: sampling options; a row overrides temperature and top_k.
    batch_size: images decoded together.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading()
  parts: groups.Parts = groups.Parts()
  paper: tuple[str, ...] = ('this_project', 'sjd', 'sjd_pac', 'lantern', 'cool_sd')
  images: groups.Images = groups.Images(num_images=16)
  sampling: groups.Sampling = groups.Sampling()
  batch_size: int = 16
  workdir: str = 'runs/papers/published'

  def __post_init__(self):
    fields.check(self)
    if unknown := [name for name in self.paper if name not in ROWS]:
      raise ValueError(f'paper holds {unknown[0]!r}; every name must be one of: '
                       f'{", ".join(ROWS)}.')


COLUMNS = {'in the paper': '{place}', 'setting': '{setting}', 'published': '{published}',
           'here': '{here}', 'decoder here': '{decoder}', 'NLL - entropy': '{price}'}


class Lab:
  """Measures rows; rows with equal decoders and sampling options share their images."""

  def __init__(self, config: Config):
    self._config = config
    self.model = inputs.model(config.loading, config.parts, one_group=inputs.MEASURED)
    self.prompts, self._seed = inputs.images(config.images, self.model)
    self._discrete = self.model.engine.name != 'continuous'
    self._benches: dict[tuple[float, int], Bench] = {}

  def bench(self, row: Row) -> Bench:
    """Returns the images with the sampling options of a row."""
    name = row.temperature, row.top_k
    if name not in self._benches:
      options = inputs.overrides(self._config.sampling) | dict(temperature=row.temperature)
      if self._discrete:
        options['top_k'] = row.top_k
      self._benches[name] = Bench(
          self.model, self.prompts, seed=self._seed, sampling=self.model.sampling(**options),
          batch_size=self._config.batch_size)
    return self._benches[name]

  def measure(self, row: Row) -> dict[str, Any]:
    """Measures a row."""
    # Without chance there is no entropy to compare with, and continuous tokens have densities.
    priced = self._discrete and row.temperature > 0
    # A row states its own metrics, those included that tables of several decoders omit.
    metrics = [metric._replace(tabled=True) for metric in measurements.choose(
        self.model.engine.name, [*row.metrics, *['nll_excess'] * priced])]
    bench = self.bench(row)
    reference = measurements.Reference(bench.sample(bench.baseline))
    measured = next(measurements.rows(bench, [row.decoder], metrics, reference))
    cells = {name: column.format(**measured.figures)
             for name, column in metrics_lib.columns(metrics, errors=True).items()}
    price = cells.popitem()[1] if priced else None
    return measured.figures | dict(
        here=', '.join(f'{name} {value}' for name, value in cells.items()), price=price)


def _check(lab: Lab, rows: list[Row]) -> None:
  """Raises ValueError if a decoder cannot run, before anything is compiled."""
  for row in rows:
    if row.decoder is not None:
      try:
        lab.bench(row).check(row.decoder)
      except ValueError as error:
        raise ValueError(f'{row.place}, {row.setting}: {row.decoder}: {error}') from error


def _entries(lab: Lab, paper: str) -> Iterator[dict[str, Any]]:
  """Yields the entries of a paper's table as they are measured."""
  for row in ROWS[paper]:
    entry = dict(paper=paper) | dataclasses.asdict(row)
    if row.decoder is None:
      entry['here'] = row.missing
    else:
      entry |= lab.measure(row)
    yield entry


def _table(paper: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
  """Returns a paper's table; without a column of prices if no row has one."""
  numbers = [number for number, entry in enumerate(entries) if entry['paper'] == paper]
  priced = any(entries[number].get('price') for number in numbers)
  columns = {name: column for name, column in COLUMNS.items() if priced or column != '{price}'}
  return dict(title=paper, columns=columns, rows=numbers)


def run(config: Config) -> None:
  """Measures, prints the rows and writes the report.

  Raises:
    ValueError: for invalid options, before anything is compiled.
  """
  if not config.paper:
    raise ValueError('paper is empty; give at least one.')
  lab = Lab(config)
  _check(lab, [row for paper in config.paper for row in ROWS[paper]])
  report, entries, start = Report(config.workdir, ['rows.csv']), [], time.perf_counter()
  for paper in config.paper:
    for entry in _entries(lab, paper):
      print('  '.join(tables.cells(COLUMNS, entry)), flush=True)
      entries.append(entry)
      atomic.write(report.path('rows.csv'), tables.csv(entries).encode())
  report.write(
      settings=dataclasses.asdict(config), rows=entries, prompts=lab.prompts,
      minutes=(time.perf_counter() - start) / 60,
      tables=[_table(paper, entries) for paper in config.paper])


@cli.command(Config)
def main(config: Config) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
