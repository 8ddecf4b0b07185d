"""Whether the decoders of the papers' tables draw the images that one token at a time draws.

  python -m experiments.papers.fidelity
  python -m experiments.papers.fidelity --config=configs/papers.py:fidelity_demo

A run measures the rows of one of the embedded models of discrete tokens for which the paper has a
FID, and those of this library. At temperature 0 the images of a prompt are equal, so those rows are
left out. Every decoder's images are compared with as many of one token at a time with another seed,
on the features of the tokenizer's encoder, which tell whether two decoders draw from the same
distribution:

  Frechet            the distance; for an exact decoder that of two random sets of images
  precision, recall  the share of either set within the manifold of the other

Writes --workdir/rows.csv and report.json. A stopped command resumes when it is repeated.
"""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import Sample, image_scores
from experiments import measured
from experiments.papers import published
from experiments.papers.published import ROWS, Model, Row

_HERE = 'this library, `emoji`'  # The place of rows that show what relaxing costs.


@dataclasses.dataclass(frozen=True)
class Config(measured.SampledImages):
  """The measurements.

  Attributes:
    rows: which rows: those of papers' models with the layout of this embedded model.
    decoder: decoders of the rows to measure; empty for all.
    sampling: sampling options; a row overrides temperature and top_k.
  """

  rows: Model = 'emoji'
  decoder: tuple[str, ...] = ()
  loading: groups.LoadFlags = groups.LoadFlags('emoji')
  images: groups.Images = groups.Images(prompts='configs/held_out.txt', num_images=2048)
  batch_size: int | None = 512
  workdir: str = 'runs/papers/fidelity'

  def __post_init__(self):
    fields.check(self)
    if (count := self.images.num_images) is not None and count < image_scores.LEAST_IMAGES:
      raise ValueError(f'num_images is {count}; it must be at least {image_scores.LEAST_IMAGES}, '
                       'and thousands for a distance that means something.')
    measurable = [row.decoder for row in distinct(self.rows)]
    if not measurable:
      raise ValueError(f'rows is {self.rows!r}, whose papers have no FID that can be compared; '
                       "it must be 'emoji' or 'demo'.")
    if unknown := [text for text in self.decoder if text not in measurable]:
      raise ValueError(f'decoder holds {unknown[0]!r}; every decoder must be one of: '
                       f'{", ".join(map(str, measurable))}.')


COLUMNS = {'decoder': '{decoder}', 'Frechet': '{frechet:.5f}', 'precision': '{precision:.3f}',
           'recall': '{recall:.3f}', 'on': '{device}'}


def setting(row: Row) -> tuple[str | None, float, int | None]:
  """Returns the decoder and the sampling options of a row, which determine what is measured."""
  return row.decoder, row.temperature, row.top_k


def distinct(rows: Model) -> list[Row]:
  """Returns the rows that are measured with a model, the first one of each setting."""
  rows_of: dict[tuple, Row] = {}
  for row in (row for several in ROWS.values() for row in several if row.model == rows):
    # Rows for which the paper has a FID, and those of this library that show what relaxing costs.
    if row.decoder is not None and row.temperature > 0 and rows != 'mar_demo' and (
        'FID' in row.published or row.place == _HERE):
      rows_of.setdefault(setting(row), row)
  return list(rows_of.values())


def score(bench: Bench, reference: Callable[[Bench], Sample], decoder: str) -> dict[str, Any]:
  """Compares the images of a decoder with those that `reference` returns."""
  values, expected = (image_scores.sample_features(sample, bench.model)
                      for sample in (bench.sample(decoder), reference(bench)))
  precision, recall = image_scores.precision_recall(values, expected)
  return dict(frechet=image_scores.distance(*map(image_scores.gaussian, (values, expected))),
              precision=precision, recall=recall, device=bench.model.devices[0].platform)


@cli.command(Config, kept='measured rows are kept')
def main(config: Config) -> None:
  rows = [row for row in distinct(config.rows)
          if not config.decoder or row.decoder in config.decoder]
  lab, start = published.Lab(config), time.perf_counter()
  inputs.check_tokens(config.loading.model, lab.model, 'discrete')
  if lab.model.tokenizer is None or lab.model.tokenizer.features is None:
    raise ValueError(f'model is {lab.model.name!r}, whose tokenizer has no features to compare; '
                     'use one with a VQ tokenizer.')
  if lacking := [row for row in rows if lab.lacks(row)]:
    raise ValueError(f'decoder holds {lacking[0].decoder!r}, which {lab.lacks(lacking[0])}; give '
                     'decoders that this model has.')
  published.check(lab, rows)
  reference = functools.cache(lambda bench: bench.redrawn())
  # Rows that are measured stay measured if decoders or other networks are added.
  report = Report(config.workdir, ['rows.csv'], run=lab.settings())
  resumes, entries = bool(report.names('row')), list[dict[str, Any]]()
  for row in rows:
    entries.append(dict(zip(('decoder', 'temperature', 'top_k'), setting(row))) | report.measured(
        'row', lab.name(row), functools.partial(score, lab.bench(row), reference, row.decoder)))
    measured.show(COLUMNS, entries[-1])
    atomic.write(report.path('rows.csv'), tables.csv(entries).encode())
  measured.write(report, config, [tables.Table(config.rows, COLUMNS, entries)],
                 num_images=len(lab.prompts), weights=lab.weights,
                 minutes=None if resumes else (time.perf_counter() - start) / 60)


if __name__ == '__main__':
  sys.exit(main())
