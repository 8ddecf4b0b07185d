"""Generated images as a folder of files; an interrupted run can be resumed.

Features of the images may be computed while they are generated. Every image has one file of
features, by its number, until all are complete. Files that a killed process did not write are
computed from the images themselves, so that the joined file has every number exactly once.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cspd_jax.core import batches
from cspd_jax.core.progress import duration
from cspd_jax.core.spec import Spec
from cspd_jax.files import atomic, npz, paths, reading, run_folder
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import (
  defaults as defaults_lib,
  memory,
  results as results_lib,
  run as run_lib,
)
from cspd_jax.generation.model import Model
from cspd_jax.generation.request import prepare

NAME = 'features.npz'
_PROGRAM = 'cspd-generate'
# Rounds between two snapshots of unfinished images.
_ROUNDS = 8
# Bytes of a PNG file per number of its pixels, at the least: photographs need twice as many.
_PNG = 0.25


class Extractor(NamedTuple):
  """A function of images, `[batch_size, H, W, 3]` uint8, to arrays with that leading axis, by name.

  The identity is what determines them apart from the images, which is stored with them; a run is
  resumed only with the same.
  """

  compute: Callable[[np.ndarray], Mapping[str, np.ndarray]]
  identity: Mapping[str, str]
  batch_size: int = 32


class FeatureFiles:
  """The features of the images of an unfinished report."""

  def __init__(self, report: Report, images: Sequence[str], extractor: Extractor):
    """Stores the arguments; `images` are the names of all PNG files, in the order of their numbers.
    """
    self._report, self._images, self._extractor = report, images, extractor
    self._size = min(extractor.batch_size, len(images))
    self._waiting: dict[int, np.ndarray] = {}

  def add(self, numbers: Sequence[int], images: np.ndarray) -> None:
    """Adds images `[n, H, W, 3]` uint8, and computes features once enough of them wait."""
    for number, image in zip(numbers, images, strict=True):
      self._waiting[number] = image
      if len(self._waiting) == self._size:
        self.flush()

  def flush(self) -> None:
    """Computes and writes the features of the images that wait."""
    if not self._waiting:
      return
    # The last batch is filled up, so that one program suffices.
    full = batches.padded(np.stack(list(self._waiting.values())), self._size)
    values = {name: np.asarray(leaf) for name, leaf in self._extractor.compute(full).items()}
    for row, number in enumerate(self._waiting):
      atomic.write_arrays(self._report.path(_part(number)),
                          {name: leaf[row] for name, leaf in values.items()})
    self._waiting.clear()

  def join(self) -> None:
    """Writes the features of all images as one file, with the identity of the extractor.

    Computes those that are missing; a damaged file of features or image raises ValueError.
    """
    if not self._report.has(NAME):
      for number, name in enumerate(self._images):
        if not self._report.has(_part(number)):
          pixels, _ = reading.picture(self._report.path(name), atomic.REMAKE)
          self.add([number], pixels[None])
      self.flush()
      rows = [npz.arrays(self._report.path(_part(number)), atomic.REMAKE)
              for number in range(len(self._images))]
      joined = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
      atomic.write_arrays(self._report.path(NAME), joined | {
          name: np.asarray(text) for name, text in self._extractor.identity.items()})
    for number in range(len(self._images)):
      self._report.path(_part(number)).unlink(missing_ok=True)


def _part(number: int) -> str:
  return f'features_{number:07d}.npz'


class Gallery:
  """Images to be generated into a folder: one PNG each, and report.json.

  An interrupted run is resumed when the same images are requested again, and a finished one is
  complete at once.
  """

  def __init__(self, model: Model, prompts: Any, folder: str | os.PathLike, *, seed: Any = 0,
               decoder: str | Spec | None = None, prefix: Any = None, rows: int | None = None,
               batch_size: int | None = None, max_batch_size: int | None = None,
               overwrite: bool = False, process_index: int = 0, process_count: int = 1,
               features: Extractor | None = None, **options):
    """Checks all arguments; nothing is compiled yet.

    The arguments of `Model.generate`, and:

    Args:
      model: the model.
      folder: the output folder; it is created if necessary.
      batch_size: images decoded at once; None for as many as fit in memory, or as the interrupted
        run in `folder` has.
      max_batch_size: the most that None selects; None for no limit.
      overwrite: whether images of an earlier run in the folder are replaced.
      process_index: which of `process_count` processes this is, from 0. All write into one folder;
        image `i` is generated by process `i % process_count`.
      process_count: how many processes generate the images. Another number may resume the run.
      features: computes features while images are generated, for features.npz; None writes none.

    Raises:
      ValueError: for anything that is not supported, by the name of the argument.
    """
    if not 0 <= process_index < process_count:
      raise ValueError(f'process_index is {process_index} and process_count is {process_count}; '
                       'the index must be 0 to process_count - 1.')
    if overwrite and process_count > 1:
      raise ValueError(f'overwrite is True and process_count is {process_count}; several processes '
                       'cannot replace images, so remove the folder or use another.')
    if batch_size is None:
      batch_size = run_lib.batch_size_of(folder)
    self.request = prepare(
        model, prompts, options, seed=seed, decoder=decoder, prefix=prefix, rows=rows,
        batch_size=batch_size, max_batch_size=max_batch_size)
    self.names = [results_lib.file_name(i, title, image_seed)
                  for i, (title, (image_seed, _)) in enumerate(
                      zip(self.request.titles, self.request.seeds))]
    self._size = self.request.batch_size
    self._own = range(process_index, len(self.names), process_count)
    run = self._settings(self._size if batch_size is None else batch_size, features)
    others = [NAME] * (features is not None)
    self._report = run_folder.Report(
        folder, [*self.names, *others], program=_PROGRAM, overwrite=overwrite, run=run,
        shared=process_count > 1)
    self._is_shared = process_count > 1
    self._features = None if features is None else FeatureFiles(
        self._report, self.names, features)

  def _settings(self, batch_size: int, features: Extractor | None
                ) -> dict[str, Any]:
    """Everything that determines the images and their features."""
    request = self.request
    run = run_lib.settings(
        request.model, request.specification, request.condition, request.seeds, batch_size,
        request.sampling, request.prompts)
    if (tokenizer := request.model.tokenizer) is not None:
      run['tokenizer'] = run_lib.network_digest(tokenizer.config, tokenizer.params)
    if request.model.prefix_length:
      run['prefix'] = run_lib.fingerprint(request.condition.tokens, every=True)
    if features is not None:
      run['features'] = dict(features.identity)
    return run

  @property
  def is_complete(self) -> bool:
    """Whether an earlier run has generated all of these images, so that nothing is left to do."""
    return self._report.is_complete

  @property
  def headline(self) -> str:
    """One line that describes the request."""
    count = len(self.names)
    at_once = f', {self._size} at once' if self._size < count else ''
    return (f'{count} image{"s"[:count != 1]} with {self.request.specification}{at_once}; model '
            f'{self.request.model.name} on {self.request.model.where}')

  @property
  def estimate(self) -> str:
    """One line with the memory and, if it was measured by cspd-tune, the time that it needs."""
    model, needs = self.request.model, self.request.estimate()
    gigabytes = lambda count: f'{count / 1e9:.3g} GB'
    whole = 'memory' if needs.free is None else f'{gigabytes(needs.free)} of free memory'
    line = (f'needs about {gigabytes(needs.needed(self._size))} of {whole} for caches and rounds, '
            f'apart from the weights ({gigabytes(memory.size(model.params))}) and the program')
    seconds = defaults_lib.seconds(
        model.defaults.get('seconds'), model.device.device_kind, self._size,
        str(self.request.specification))
    if seconds is None:
      return line
    return f'{line}, and about {duration(len(self._own) * seconds)} as cspd-tune measured'

  @property
  def folder(self) -> str:
    """The folder of the images."""
    return str(self._report.folder)

  def generate(self, settings: Mapping[str, Any],
               progress: Callable[[int, int], None] = lambda done, total: None,
               watch: Callable[[np.ndarray], None] | None = None) -> bool:
    """Generates the images that an interrupted run has not finished, and completes the folder.

    Of several processes, the last one completes it.

    Args:
      settings: the user's settings, for the report.
      progress: called with the number of finished images and the number of all images.
      watch: called every few rounds with the images of a batch so far, `[n, H, W, 3]` uint8, grey
        where no token is committed.

    Returns:
      Whether the folder is complete. A disk that cannot hold the images raises ValueError.
    """
    if self.is_complete:
      return True
    missing = [i for i in self._own if not self._report.has(self.names[i])]
    self._check_space()
    done = len(self._own) - len(missing)
    progress(done, len(self._own))
    for numbers, images in self._generated(missing, watch):
      for row, i in enumerate(numbers):
        atomic.write(self._report.path(self.names[i]), images.png(row))
      if self._features is not None:
        self._features.add(numbers, images.images)
      done += len(numbers)
      progress(done, len(self._own))
    if self._features is not None:
      self._features.flush()
    if self._is_shared and not self._report.is_last(self.names):
      return False
    if self._features is not None:
      self._features.join()
    request = self.request
    self._report.write(
        settings=settings, model=request.model.name, decoder=str(request.specification),
        guarantee=request.model.engine.guarantee(request.decoder),
        sampling=request.sampling._asdict(), rows=self._rows())
    return True

  def _check_space(self) -> None:
    """Raises ValueError if the disk clearly cannot hold the images that all processes lack."""
    model = self.request.model
    tokens = jax.ShapeDtypeStruct((1, model.prefix_length + model.num_tokens), np.int32)
    if model.engine.name != 'discrete' or model.tokenizer is None:
      return
    pixels = jax.eval_shape(model.tokenizer.decode, model.tokenizer.params, tokens)
    missing = sum(not self._report.has(name) for name in self.names)
    paths.check_space(self._report.folder, int(pixels.size * missing * _PNG))

  def _generated(self, missing: list[int], watch: Callable[[np.ndarray], None] | None
                 ) -> Iterator[tuple[list[int], results_lib.Generated]]:
    """Generates the images of these numbers; yields numbers and images as images complete."""
    if watch is None:
      request = self.request.pick(missing)
      for index, decoded in run_lib.run(request):
        if len(index):
          yield [missing[i] for i in index], request.pick(index).result(decoded)
      return
    for index, num_new in batches.filled(len(missing), self._size):
      numbers = [missing[i] for i in index]
      for partial in run_lib.stream(self.request.pick(numbers), _ROUNDS):
        watch(partial.images[:num_new])
      yield numbers[:num_new], partial.result()

  def _rows(self) -> list[dict[str, Any]]:
    """One row per image. Rounds are read from the files, which an earlier run may have written."""
    rows = []
    for name, title, (seed, number) in zip(self.names, self.request.titles, self.request.seeds):
      _, texts = reading.picture(self._report.path(name), atomic.REMAKE, needed=('rounds',))
      rows.append(dict(file=name, prompt=title, seed=seed, number=number,
                       rounds=int(texts['rounds'])))
    return rows
