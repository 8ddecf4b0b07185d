"""Shared by programs that measure decoders: a model and its images, rows, and their report."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cspd_jax
from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench


@dataclasses.dataclass(frozen=True)
class ModelImages:
  """The model, its images and the results.

  Attributes:
    loading: the model, and how it is loaded.
    images: the images, the same for every decoder.
    batch_size: images decoded together.
    workdir: folder of the results.
  """

  loading: groups.LoadFlags = groups.LoadFlags(model='demo')
  images: groups.Images = groups.Images(num_images=16)
  batch_size: int | None = 16
  workdir: str | None = None

  def __post_init__(self):
    fields.check(self)

  def model(self, tokens: str | None = None) -> cspd_jax.Model:
    """Loads the model, whose tokens must be of this kind, if it is not None."""
    return inputs.model(self.loading, tokens=tokens, one_group=inputs.MEASURED)

  def bench(self, model: cspd_jax.Model, *, batch_size: int = 16, num_images: int = 4,
            captions: Sequence[str] | None = None, **sampling: Any) -> Bench:
    """Returns the images of the model; the numbers are for fields that are None."""
    prompts, seed = inputs.images(self.images, model, default=num_images)
    return Bench(model, prompts, seed=seed, batch_size=self.batch_size or batch_size,
                 sampling=model.sampling(**sampling), captions=captions)


@dataclasses.dataclass(frozen=True)
class SampledImages(ModelImages):
  """The model, its images with sampling options, and the results.

  Attributes:
    sampling: sampling options.
  """

  sampling: groups.SamplingFlags = groups.SamplingFlags()

  def bench(self, model: cspd_jax.Model, **options: Any) -> Bench:
    """As that of `ModelImages`, with these sampling options unless `options` has others."""
    return super().bench(model, **(inputs.overrides(self.sampling) | options))


def show(columns: Mapping[str, str], row: Mapping[str, Any]) -> None:
  """Prints a row as soon as it is measured: every heading with its cell."""
  print('  '.join(f'{name} {cell}' for name, cell in zip(columns, tables.cells(columns, row))),
        flush=True)


def listed(columns: Mapping[str, str], rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
  """Returns the rows, each printed as soon as it is measured."""
  result: list[dict[str, Any]] = []
  for row in rows:
    show(columns, row)
    result.append(row)
  return result


def write(report: Report, config: Any, shown: Sequence[tables.Table], **more: Any) -> None:
  """Prints tables, and writes them with the settings of a program and further entries."""
  for table in shown:
    if table.rows:
      print(f'\n{table.title}\n\n{tables.text(table.columns, table.rows, left=1)}')
  tables.write(report, cli.line(), shown, settings=dataclasses.asdict(config), **more)
  print(f'\nreport.json and report.md are in {report.folder}.')
