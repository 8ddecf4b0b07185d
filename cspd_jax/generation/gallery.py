"""Generated images as a folder of files, to be stopped and continued."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cspd_jax.checkpoints import files, reading
from cspd_jax.generation import (
  batches,
  generate as generate_lib,
  prompts as prompts_lib,
  report as report_lib,
  results as images_lib,
  shards,
)

_NPZ = 'images.npz'
# Rounds between two looks at images that come about.
_ROUNDS = 8


class Gallery:
  """Images that are to be in a folder: one PNG each, and report.json.

  A stopped run goes on when the same images are asked for again.
  """

  def __init__(self, model: Any, prompts: Sequence[Any] | None, folder: Any, *, seed: Any = 0,
               batch_size: int = 16, npz: bool = False, overwrite: bool = False, **options):
    """Checks everything; nothing is compiled yet.

    Args:
      model: a `generation.Model`.
      prompts: as for `model.generate`, and so are `seed` and `options`.
      folder: where to; it is made if necessary.
      seed: see `prompts`.
      batch_size: images decoded at once.
      npz: also writes images.npz, all images as one uint8 array `[N, H, W, 3]` named `arr_0`, as
        tools for the FID read it.
      overwrite: whether images of an earlier run in the folder are replaced.
      **options: see `prompts`.

    Raises:
      ValueError: for anything that cannot work, by the name of the argument.
    """
    self.task = generate_lib.prepare(model, prompts, seed=seed, batch_size=batch_size, **options)
    self.names = [images_lib.file_name(i, caption, one[0])
                  for i, (caption, one) in enumerate(zip(self.task.captions, self.task.seeds))]
    self._size = self.task.batch_size
    self._npz = npz
    run = shards.settings(
        model, self.task.specification, self.task.condition, self.task.seeds, batch_size,
        self.task.sampling, prompts_lib.listed(prompts))
    if self.task.given:
      run['given'] = shards.fingerprint(self.task.condition.tokens, every=True)
    self._report = report_lib.Report(
        folder, [*self.names, *[_NPZ] * npz], overwrite=overwrite, run=run)

  @property
  def headline(self) -> str:
    """What is about to be done, in a line."""
    count = len(self.names)
    return (f'{count} image{"s"[:count != 1]} with {self.task.specification}; model '
            f'{self.task.model.name}')

  @property
  def folder(self) -> str:
    """Where the images are."""
    return str(self._report.folder)

  def generate(self, settings: Mapping[str, Any],
               progress: Callable[[int, int], None] = lambda done, total: None,
               watch: Callable[[np.ndarray], None] | None = None) -> None:
    """Generates the images that a stopped run has not left, and finishes the folder.

    Args:
      settings: what was asked for, for the report.
      progress: called with the number of finished images and of all.
      watch: called every few rounds with the images of a batch so far, `[n, H, W, 3]` uint8, grey
        where nothing is committed.
    """
    missing = [i for i, name in enumerate(self.names) if not self._report.has(name)]
    done = len(self.names) - len(missing)
    progress(done, len(self.names))
    for numbers, out in self._made(missing, watch):
      for row, i in enumerate(numbers):
        files.write(self._report.path(self.names[i]), out.png(row))
      done += len(numbers)
      progress(done, len(self.names))
    if self._npz:
      self._write_npz()
    task = self.task
    self._report.write(
        settings=settings, model=task.model.name, decoder=str(task.specification),
        guarantee=task.model.engine.guarantee(task.decoder), sampling=task.sampling._asdict(),
        rows=self._rows())

  def _made(self, missing: list[int], watch: Callable[[np.ndarray], None] | None
            ) -> Iterator[tuple[list[int], images_lib.Generated]]:
    """Generates the images of these numbers; yields complete ones as rows, with their numbers."""
    if watch is None:
      task = self.task.pick(missing)
      for index, decoded in generate_lib.finished(task):
        if len(index):
          yield [missing[i] for i in index], task.pick(index).result(decoded)
      return
    for index, kept in batches.filled(len(missing), self._size):
      numbers = [missing[i] for i in index]
      for look in generate_lib.looks(self.task.pick(numbers), _ROUNDS):
        watch(look.images[:kept])
      yield numbers[:kept], look.result()

  def _rows(self) -> list[dict[str, Any]]:
    """A row per image; rounds are in the files, which an earlier run may have left."""
    rows = []
    for name, caption, (seed, number) in zip(self.names, self.task.captions, self.task.seeds):
      _, texts = reading.picture(self._report.path(name), files.REMAKE, needed=('rounds',))
      rows.append(dict(file=name, prompt=caption, seed=seed, number=number,
                       rounds=int(texts['rounds'])))
    return rows

  def _write_npz(self) -> None:
    """Writes all images as one array."""
    read = lambda name: reading.picture(self._report.path(name), files.REMAKE)[0]
    images = np.zeros((len(self.names), *read(self.names[0]).shape), np.uint8)
    for i, name in enumerate(self.names):
      images[i] = read(name)
    files.write_arrays(self._report.path(_NPZ), dict(arr_0=images))
