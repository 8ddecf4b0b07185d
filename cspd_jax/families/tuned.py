"""Stores a choice of default decoders with the model, in `model.json`."""

import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from cspd_jax.families import folder as folder_lib, model_file
from cspd_jax.files import paths
from cspd_jax.generation import defaults as defaults_lib


class Place(NamedTuple):
  """The folder of a model of a family, which may not exist yet, for a choice of decoders.

  It gets the networks `parts`, by role, that it does not have yet; a new one gets `defaults`.
  """

  folder: pathlib.Path
  family: str
  parts: Mapping[str, str]
  defaults: Mapping[str, Any]

  def store(self, kind: str, decoders: Mapping[int, str], seconds: Mapping[int, float] = {}
            ) -> None:
    """Writes a choice of decoders for a kind of device, as JAX reports it.

    Specifications and seconds per image are by number of images that are decoded together; see
    `generation.defaults`.
    """
    is_model = (self.folder / model_file.FILE).exists()
    # Read again: a choice for another device may have been stored in the meantime.
    defaults = model_file.read(self.folder)['defaults'] if is_model else self.defaults
    choice = defaults_lib.joined(defaults.get('decoder'), kind, decoders)
    measured = defaults_lib.with_seconds(defaults.get('seconds'), kind, {
        size: (decoders[size], value) for size, value in seconds.items()})
    model_file.save(self.folder, self.family, self.parts, {
        **defaults, 'decoder': choice, **({'seconds': measured} if seconds else {})})


def place(name_or_folder: str | os.PathLike, store: str | os.PathLike | None = None) -> Place:
  """Finds the folder in which the choice for a model is stored; nothing is written.

  `store` is that folder, the model's own if it is None. If it holds no model, it becomes one that
  refers to the networks of `name_or_folder`.

  Raises:
    CheckpointError: if the model does not exist.
    ValueError: if the model's own folder must not be changed, `store` holds a model with other
      networks, or the folder is not writable.
  """
  source = folder_lib.find(name_or_folder)
  description = model_file.read(source)
  networks = _networks(source, description)
  if store is None:
    if str(name_or_folder) in folder_lib.shipped():
      raise ValueError(f'model is {str(name_or_folder)!r}, which is part of the package and cannot '
                       'be changed; pass store=FOLDER, which becomes a model of the same networks.')
    if '.' in description['parts'].values():
      raise ValueError(f'model is {str(name_or_folder)!r}, the folder of a network alone; pass '
                       'store=FOLDER, which becomes a model of this network.')
  folder = source if store is None else paths.find('store', store)
  _check_writable(folder)
  if not (folder / model_file.FILE).exists():
    return Place(folder, description['family'], networks, description['defaults'])
  present = model_file.read(folder)
  if _networks(folder, present) != networks or '.' in present['parts'].values():
    raise ValueError(f'store is {str(store)!r}, which holds other networks than model '
                     f'{str(name_or_folder)!r}; use another folder.')
  return Place(folder, present['family'], {}, present['defaults'])


def _networks(folder: pathlib.Path, description: Mapping[str, Any]) -> dict[str, str]:
  """Returns the networks of a model by role, as absolute paths."""
  return {role: str((folder / part).resolve()) for role, part in description['parts'].items()}


def _check_writable(folder: pathlib.Path) -> None:
  """Raises ValueError unless a folder is writable or can be created."""
  existing = next(path for path in (folder, *folder.parents) if path.exists())
  try:
    with tempfile.TemporaryFile(dir=existing):
      pass
  except OSError as error:
    raise ValueError(f'the choice cannot be stored in {str(folder)!r}, where files cannot be '
                     f'written ({error.strerror}); pass store=FOLDER.') from error
