"""Shared by programs that measure decoders: a model and its images, rows, and their report."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import cspd_jax
from cspd_jax.cli import groups, inputs
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench


@dataclasses.dataclass(frozen=True)
class ModelImages:
  """The model and its images.

  Attributes:
    loading: the model, and how it is loaded.
    parts: networks that replace those of the model, such as eagle=runs/eagle.
    images: the images, the same for every decoder.
    sampling: sampling options.
  """

  loading: groups.Loading = groups.Loading(model='demo')
  parts: tuple[str, ...] = ()
  images: groups.Images = groups.Images(num_images=16)
  sampling: groups.Sampling = groups.Sampling()

  def model(self, engine: str | None = None) -> cspd_jax.Model:
    """Loads the model, whose engine must be this one."""
    return inputs.model(self.loading, self.parts, engine=engine, one_group=inputs.MEASURED)

  def bench(self, model: cspd_jax.Model, batch_size: int, num_images: int = 4) -> Bench:
    """Returns the images of the model; `num_images` of them if their number is not specified."""
    prompts, seed = inputs.images(self.images, model, default=num_images)
    return Bench(model, prompts, seed=seed, batch_size=batch_size,
                 sampling=model.sampling(**inputs.overrides(self.sampling)))


def check_lists(config: Any, *names: str) -> None:
  """Raises ValueError for a field that is an empty list."""
  for name in names:
    if not getattr(config, name):
      raise ValueError(f'{name} is empty; give at least one.')


def show(columns: Mapping[str, str], row: Mapping[str, Any]) -> None:
  """Prints a row as soon as it is measured: every heading with its cell."""
  print('  '.join(f'{name} {cell}' for name, cell in zip(columns, tables.cells(columns, row))),
        flush=True)


def write(report: Report, config: Any, shown: Sequence[tables.Table], **more: Any) -> None:
  """Prints tables, and writes them with the settings of a program and further entries."""
  for table in shown:
    if table.rows:
      print(f'\n{table.title}\n\n{tables.text(table.columns, table.rows, left=1)}')
  report.write(settings=dataclasses.asdict(config), **tables.entries(shown), **more)
  print(f'\nreport.json is in {report.folder}.')
