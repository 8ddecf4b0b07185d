"""Generated images as a folder of files; an interrupted run can be resumed."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from cspd_jax.checkpoints import files, reading
from cspd_jax.generation import (
  batches,
  generate as generate_lib,
  prompts as prompts_lib,
  report as report_lib,
  results as results_lib,
  shards,
)
from cspd_jax.generation.model import Model

_NPZ = 'images.npz'
# Rounds between two snapshots of unfinished images.
_ROUNDS = 8


class Gallery:
  """Images to be generated into a folder: one PNG each, and report.json.

  An interrupted run is resumed when the same images are requested again.
  """

  def __init__(self, model: Model, prompts: Any, folder: str | os.PathLike, *, seed: Any = 0,
               batch_size: int | None = None, npz: bool = False, overwrite: bool = False,
               **options):
    """Checks all arguments; nothing is compiled yet.

    Args:
      model: the model.
      prompts: as for `generate.prepare`, and so are `seed` and `options`.
      folder: the output folder; it is created if necessary.
      seed: see `prompts`.
      batch_size: images decoded at once; None for as many as fit in memory, or as the interrupted
        run in `folder` has.
      npz: also writes images.npz, all images as one uint8 array `[N, H, W, 3]` named `arr_0`, the
        format that FID tools read.
      overwrite: whether images of an earlier run in the folder are replaced.
      **options: see `prompts`.

    Raises:
      ValueError: for anything that is not supported, by the name of the argument.
    """
    if batch_size is None:
      batch_size = shards.size_of_run(report_lib.unfinished_run(folder))
    self.task = generate_lib.prepare(model, prompts, seed=seed, batch_size=batch_size, **options)
    self.names = [results_lib.file_name(i, title, image_seed)
                  for i, (title, (image_seed, _)) in enumerate(
                      zip(self.task.titles, self.task.seeds))]
    self._size = self.task.batch_size
    self._npz = npz
    run = shards.settings(
        model, self.task.specification, self.task.condition, self.task.seeds,
        self._size if batch_size is None else batch_size,
        self.task.sampling, prompts_lib.listed(prompts))
    if self.task.prefix_length:
      # The key under which interrupted runs have stored it.
      run['given'] = shards.fingerprint(self.task.condition.tokens, every=True)
    self._report = report_lib.Report(
        folder, [*self.names, *[_NPZ] * npz], overwrite=overwrite, run=run)

  @property
  def headline(self) -> str:
    """One line that describes the task."""
    count = len(self.names)
    at_once = f', {self._size} at once' if self._size < count else ''
    return (f'{count} image{"s"[:count != 1]} with {self.task.specification}{at_once}; model '
            f'{self.task.model.name}')

  @property
  def folder(self) -> str:
    """The folder of the images."""
    return str(self._report.folder)

  def generate(self, settings: Mapping[str, Any],
               progress: Callable[[int, int], None] = lambda done, total: None,
               watch: Callable[[np.ndarray], None] | None = None) -> None:
    """Generates the images that an interrupted run has not finished, and completes the folder.

    Args:
      settings: the user's settings, for the report.
      progress: called with the number of finished images and the number of all images.
      watch: called every few rounds with the images of a batch so far, `[n, H, W, 3]` uint8, grey
        where no token is committed.
    """
    missing = [i for i, name in enumerate(self.names) if not self._report.has(name)]
    done = len(self.names) - len(missing)
    progress(done, len(self.names))
    for numbers, images in self._generated(missing, watch):
      for row, i in enumerate(numbers):
        files.write(self._report.path(self.names[i]), images.png(row))
      done += len(numbers)
      progress(done, len(self.names))
    if self._npz:
      self._write_npz()
    task = self.task
    self._report.write(
        settings=settings, model=task.model.name, decoder=str(task.specification),
        guarantee=task.model.engine.guarantee(task.decoder), sampling=task.sampling._asdict(),
        rows=self._rows())

  def _generated(self, missing: list[int], watch: Callable[[np.ndarray], None] | None
                 ) -> Iterator[tuple[list[int], results_lib.Generated]]:
    """Generates the images of these numbers; yields numbers and images as images complete."""
    if watch is None:
      task = self.task.pick(missing)
      for index, decoded in generate_lib.finished(task):
        if len(index):
          yield [missing[i] for i in index], task.pick(index).result(decoded)
      return
    for index, num_new in batches.filled(len(missing), self._size):
      numbers = [missing[i] for i in index]
      for partial in generate_lib.snapshots(self.task.pick(numbers), _ROUNDS):
        watch(partial.images[:num_new])
      yield numbers[:num_new], partial.result()

  def _rows(self) -> list[dict[str, Any]]:
    """One row per image. Rounds are read from the files, which an earlier run may have written."""
    rows = []
    for name, title, (seed, number) in zip(self.names, self.task.titles, self.task.seeds):
      _, texts = reading.picture(self._report.path(name), files.REMAKE, needed=('rounds',))
      rows.append(dict(file=name, prompt=title, seed=seed, number=number,
                       rounds=int(texts['rounds'])))
    return rows

  def _write_npz(self) -> None:
    """Writes all images as one array."""
    read = lambda name: reading.picture(self._report.path(name), files.REMAKE)[0]
    images = np.zeros((len(self.names), *read(self.names[0]).shape), np.uint8)
    for i, name in enumerate(self.names):
      images[i] = read(name)
    files.write_arrays(self._report.path(_NPZ), dict(arr_0=images))
