"""The rows of the papers' tables next to this library's numbers for the same methods.

  python -m experiments.papers.published
  python -m experiments.papers.published --config=configs/papers.py:published_demo
  python -m experiments.papers.published --config=configs/papers.py:published_cspd
  python -m experiments.papers.published --paper=sjd --model=checkpoints/lumina_mgpt_768 \\
      --prompts=captions.txt --dtype=bfloat16 --asked=false

A run measures the rows of one of the embedded models: of `emoji`, which has the layout of
Lumina-mGPT, Anole and Emu3, of `demo`, a LlamaGen, or of `mar_demo`, a MAR. Every row has the
paper's figures, measured on published models, and the metrics that correspond to the first of them,
measured with `--model`; or the reason why nothing is measured. What the decoder does to the images:

  NLL - entropy    has expectation 0 for every exact decoder, and is the price of a relaxed one
  asked            the share of what the captions ask for that the images show, for scenes of emoji;
                   and its difference to the images of one token at a time, of the same prompts and
                   seeds, with its standard error

The rows are those of rows.json. Figures are quoted from the papers, which measured published models
of 0.2 to 8 billion parameters on a GPU. Settings of a paper that are the same measurement here
share a row. The embedded models have 1024 codes: a `top_k` of 250 is the share of 2000 tokens of
8192, and 6, 19 and 62 neighbours of LANTERN those of 100, 300 and 1000 of 16384. Rows of this
library show what relaxing costs: windows of SJD draft, for which nothing is trained, and fresh
tokens repeat the left one, because LANTERN accepts most of the random ones.

Rows with the same decoder and sampling options are decoded once. Writes a table per paper and a
picture of some of its decoders to --workdir (rows.csv, report.json, strip_*.png). A stopped command
resumes when it is repeated: rows are kept while the networks that they need stay the same.
"""

import dataclasses
import functools
import pathlib
import sys
import time
from typing import Any, Literal

from cspd_jax import cli, metrics as metrics_lib
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields
from cspd_jax.files import atomic, reading
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import stored_run
from cspd_jax.measure import measurements, tables
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import paired, scenes
from cspd_jax.plots import grid
from experiments.measured import SampledImages

Model = Literal['emoji', 'demo', 'mar_demo']


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a paper's table, and the decoder of this library that it corresponds to.

  Attributes:
    place: where it is printed.
    setting: the paper's method, and the models and data if there are several.
    published: the paper's figures.
    decoder: specification of the same method here, or None.
    model: the embedded model with the layout of the paper's: `emoji` for Lumina-mGPT, Anole, Emu3
      and Janus-Pro, `demo` for LlamaGen, `mar_demo` for MAR.
    metrics: the metrics that correspond to the paper's first figures.
    temperature: temperature here.
    top_k: number of most probable tokens to sample from here; 0 is off, None the model's default.
    shown: whether the picture of the page has its images.
    missing: the reason why nothing is measured; None if it is.
  """

  place: str
  setting: str
  published: str
  decoder: str | None = None
  model: Model = 'emoji'
  metrics: tuple[str, ...] = ('step_compression',)
  temperature: float = 1.0
  top_k: int | None = None
  shown: bool = False
  missing: str | None = None

  def __post_init__(self):
    if (self.decoder is None) == (self.missing is None):
      raise ValueError(f'{self.place}, {self.setting}: one of decoder and missing is required.')


def _rows() -> dict[str, tuple[Row, ...]]:
  """Reads the rows of every paper; what an entry lacks is the default."""
  content = reading.json(pathlib.Path(__file__).with_name('rows.json'), 'use the one of a clone')
  return {paper: tuple(Row(**entry | {'metrics': tuple(entry.get('metrics', Row.metrics))})
                       for entry in entries) for paper, entries in content.items()}


ROWS = _rows()


@dataclasses.dataclass(frozen=True)
class Config(SampledImages):
  """The measurements.

  Attributes:
    rows: which rows: those of papers' models with the layout of this embedded model.
    paper: the papers.
    sampling: sampling options; a row overrides temperature and top_k.
    asked: whether to score what the images show of their captions, for models of scenes of emoji.
  """

  rows: Model = 'emoji'
  loading: groups.LoadFlags = groups.LoadFlags('emoji')
  paper: tuple[str, ...] = ('this_project', 'sjd', 'sjd_pac', 'lantern', 'cool_sd')
  images: groups.Images = groups.Images(prompts='configs/held_out.txt', num_images=64)
  asked: bool = True
  workdir: str = 'runs/papers/published'

  def __post_init__(self):
    fields.check(self)
    if unknown := [name for name in self.paper if name not in ROWS]:
      raise ValueError(f'paper holds {unknown[0]!r}; every name must be one of: '
                       f'{", ".join(ROWS)}.')
    if not self.paper:
      raise ValueError('paper is empty; give at least one.')
    if empty := [name for name in self.paper if not self.rows_of(name)]:
      raise ValueError(f'paper holds {empty[0]!r}, which has no rows of {self.rows}; leave it out, '
                       'or give other rows.')

  def rows_of(self, paper: str) -> list[Row]:
    """Returns the rows of a paper that are measured."""
    return [row for row in ROWS[paper] if row.model == self.rows]


COLUMNS = {'in the paper': '{place}', 'setting': '{setting}', 'published': '{published}',
           'here': '{here}', 'decoder here': '{decoder}', 'NLL - entropy': '{price}',
           'asked': '{asked:.2f}',
           'minus one token at a time': '{asked_change:+.3f} +- {asked_change_error:.3f}'}
# Columns of a table only if one of its rows has this entry.
_OPTIONAL = {'NLL - entropy': 'price', 'asked': 'asked', 'minus one token at a time': 'asked'}
_SHOWN = 6  # Images of a decoder in a picture.


class Lab:
  """Measures rows; rows with equal decoders and sampling options share their images."""

  def __init__(self, config: SampledImages, asked: bool = False):
    self._config = config
    self.model = config.model()
    self.prompts, _ = inputs.images(config.images, self.model)
    if len(self.prompts) < 2:
      raise ValueError('num_images is 1; it must be at least 2, for a standard error.')
    self.titles = list(self.model.prompt_kind.titles(self.prompts))
    self._captions = scenes.captions(self.model, self.prompts) if asked else None
    self.weights = stored_run.weights(self.model)
    self._benches: dict[tuple, Bench] = {}

  def bench(self, row: Row) -> Bench:
    """Returns the images with the sampling options of a row."""
    name = row.temperature, row.top_k
    if name not in self._benches:
      has_top_k = 'top_k' in self.model.table.options and row.top_k is not None
      top_k = dict(top_k=row.top_k) if has_top_k else {}
      self._benches[name] = self._config.bench(
          self.model, captions=self._captions, temperature=row.temperature, **top_k)
    return self._benches[name]

  def lacks(self, row: Row) -> str | None:
    """Returns why a decoder does not fit the model at all, such as a network that it lacks."""
    table = self.model.table
    needed = table.needs(row.decoder)
    if needed not in (None, *self.model.drafts):
      return f'needs {table.networks[needed]}, which {self.model.name} does not have'
    return table.refuses(row.decoder, self.model.target(guided=False))

  def settings(self) -> dict[str, Any]:
    """Returns what determines the measurement of every row."""
    settings = dataclasses.asdict(self._config)
    for name in ('rows', 'paper', 'decoder', 'workdir'):
      settings.pop(name, None)
    del settings['loading']['parts']
    networks = {name: self.weights[name] for name in ('target', 'tokenizer')
                if name in self.weights}
    return settings | dict(networks=networks, prompts=list(self.titles))

  def name(self, row: Row) -> str:
    """Identifies the measurement of a row among those with the same settings."""
    draft = self.model.table.needs(row.decoder)
    return repr((self.bench(row).text(row.decoder), row.temperature, row.top_k, row.metrics,
                 draft and self.weights[draft]))

  def measure(self, row: Row) -> dict[str, Any]:
    """Measures a row."""
    # Without chance there is no entropy to compare with, and continuous tokens have densities.
    tokens = self.model.table.tokens
    priced = self.model.table.seed_exact and row.temperature > 0
    # A row states its own metrics, those included that tables of several decoders omit.
    stated = [metric._replace(tabled=True) for metric in measurements.choose(tokens, row.metrics)]
    price = measurements.choose(tokens, ['nll_excess'] * priced)
    bench = self.bench(row)
    baseline = bench.sample(bench.baseline)
    measured = next(measurements.each(
        bench, [row.decoder], [*metrics_lib.select(tokens, 'work'), *stated, *price],
        measurements.Reference(baseline)))
    figures, sample = measured.figures, measured.sample
    if sample.captions is not None:
      figures |= metrics_lib.entries(scenes.sample_scores(sample, self.model))
      figures |= paired.entries(paired.differences(sample, baseline, self.model, ('asked',)))
    cells = lambda metrics: tables.cells(metrics_lib.columns(metrics, errors=True), figures)
    return figures | dict(
        here=', '.join(f'{metric.heading} {cell}' for metric, cell in zip(stated, cells(stated))),
        # It has none if a relaxed decoder draws tokens that the sampling options exclude.
        price=next(iter(cells(price)), None))

  def draw(self, path: Any, entries: list[dict[str, Any]], rows: list[Row]) -> None:
    """Writes images of the decoders of rows, the same prompts and seeds in every column."""
    phrased = [metric for metric in metrics_lib.select(self.model.table.tokens, 'work')
               if metric.phrase]
    images, notes = {}, {}
    for entry, row in zip(entries, rows, strict=True):
      bench = self.bench(row)
      sample = bench.sample(row.decoder)
      images[row.setting] = sample.images(self.model)[:_SHOWN]
      notes[row.setting] = ', '.join(metric.phrase.format(entry[metric.name]) for metric in phrased)
      if 'asked' in entry:
        notes[row.setting] += f'; asked {entry["asked"]:.2f}'
    grid.save_rows(path, images, captions=self.titles[:_SHOWN], notes=notes)


def check(lab: Lab, rows: list[Row]) -> None:
  """Raises ValueError for a decoder that the model cannot run, unless it lacks a network."""
  decoders: dict[Bench, list[str]] = {}
  for row in rows:
    if row.decoder is not None:
      try:
        if lab.lacks(row) is None:
          lab.bench(row).check(row.decoder)
          decoders.setdefault(lab.bench(row), []).append(row.decoder)
      except ValueError as error:
        raise ValueError(f'{row.place}, {row.setting}: {row.decoder}: {error}') from error
  for bench, specifications in decoders.items():
    bench.share(specifications)


def _table(paper: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
  """Returns a paper's table, without columns that no row has."""
  numbers = [number for number, entry in enumerate(entries) if entry['paper'] == paper]
  has = lambda name: any(entries[number].get(name) is not None for number in numbers)
  columns = {name: column for name, column in COLUMNS.items()
             if name not in _OPTIONAL or has(_OPTIONAL[name])}
  return dict(title=paper, columns=columns, rows=numbers)


def picture(paper: str) -> str:
  """Returns the name of the picture of a paper."""
  return f'strip_{paper}.png'


@cli.command(Config, kept='measured rows are kept')
def main(config: Config) -> None:
  lab = Lab(config, config.asked)
  rows = {paper: config.rows_of(paper) for paper in config.paper}
  check(lab, [row for several in rows.values() for row in several])
  report = Report(config.workdir, ['rows.csv', *map(picture, config.paper)], run=lab.settings())
  resumes = bool(report.names('row'))
  entries, start = list[dict[str, Any]](), time.perf_counter()
  for paper in config.paper:
    shown = []
    for row in rows[paper]:
      if reason := row.missing or lab.lacks(row):
        measured = dict(here=reason)
      else:
        measured = report.measured('row', lab.name(row), functools.partial(lab.measure, row))
      entry = dict(paper=paper) | dataclasses.asdict(row) | measured
      print('  '.join(tables.cells(COLUMNS, entry)), flush=True)
      entries.append(entry)
      atomic.write(report.path('rows.csv'), tables.csv(entries).encode())
      if row.shown and 'rounds' in entry:
        shown.append((entry, row))
    if shown:
      lab.draw(report.path(picture(paper)), *map(list, zip(*shown)))
  report.write(
      settings=dataclasses.asdict(config), rows=entries, prompts=lab.prompts,
      weights=lab.weights, minutes=None if resumes else (time.perf_counter() - start) / 60,
      tables=[_table(paper, entries) for paper in config.paper])


if __name__ == '__main__':
  sys.exit(main())
