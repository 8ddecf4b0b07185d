"""Where a choice of decoders is stored: with the model, in `model.json`."""

import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from cspd_jax.checkpoints import paths
from cspd_jax.families import folder as folder_lib
from cspd_jax.generation import defaults as defaults_lib


class Place(NamedTuple):
  """A model folder that a choice goes to.

  Attributes:
    folder: of the model; it may not exist yet.
    family: name of its family.
    parts: networks by role that it does not have yet.
    defaults: see `Model.defaults`; a new folder gets them.
  """

  folder: pathlib.Path
  family: str
  parts: Mapping[str, str]
  defaults: Mapping[str, Any]

  def store(self, kind: str, decoders: Mapping[int, str]) -> None:
    """Writes a choice.

    Args:
      kind: of the device that it holds for, as JAX calls it.
      decoders: specifications by number of images that are decoded together; see
        `generation.defaults`.
    """
    is_model = (self.folder / folder_lib.FILE).exists()
    # Read anew: a choice for another device may have come in the meantime.
    defaults = folder_lib.read(self.folder)['defaults'] if is_model else self.defaults
    chosen = defaults_lib.joined(defaults.get('decoder'), kind, decoders)
    folder_lib.save(self.folder, self.family, self.parts, {**defaults, 'decoder': chosen})


def place(name_or_folder: str | os.PathLike, store: str | os.PathLike | None = None) -> Place:
  """Finds the folder for the choice of a model; nothing is written.

  Args:
    name_or_folder: the model that decoders are chosen for; see `families.load`.
    store: the folder for the choice; None takes the model's own. If there is no model, it becomes
      one with the networks of the other, which stay where they are.

  Raises:
    CheckpointError: if there is no such model.
    ValueError: if the model's own folder is not to be changed, `store` holds a model of other
      networks, or files cannot be written there.
  """
  source = folder_lib.find(name_or_folder)
  description = folder_lib.read(source)
  networks = _networks(source, description)
  if store is None:
    if str(name_or_folder) in folder_lib.shipped():
      raise ValueError(f'model is {str(name_or_folder)!r}, which comes with the package and is not '
                       'changed; give store=FOLDER, which becomes a model of the same networks.')
    if '.' in description['parts'].values():
      raise ValueError(f'model is {str(name_or_folder)!r}, the folder of a network alone; give '
                       'store=FOLDER, which becomes a model of this network.')
  folder = source if store is None else paths.find('store', store)
  _check_writable(folder)
  if not (folder / folder_lib.FILE).exists():
    return Place(folder, description['family'], networks, description['defaults'])
  there = folder_lib.read(folder)
  if _networks(folder, there) != networks or '.' in there['parts'].values():
    raise ValueError(f'store is {str(store)!r}, which holds other networks than model '
                     f'{str(name_or_folder)!r}; give another folder.')
  return Place(folder, there['family'], {}, there['defaults'])


def _networks(folder: pathlib.Path, description: Mapping[str, Any]) -> dict[str, str]:
  """The networks of a model by role, with absolute paths."""
  return {role: str((folder / part).resolve()) for role, part in description['parts'].items()}


def _check_writable(folder: pathlib.Path) -> None:
  """Raises ValueError unless files can be written into a folder, or the folder be made."""
  there = next(path for path in (folder, *folder.parents) if path.exists())
  try:
    with tempfile.TemporaryFile(dir=there):
      pass
  except OSError as error:
    raise ValueError(f'a choice cannot be stored in {str(folder)!r}, where files cannot be written '
                     f'({error.strerror}); give store=FOLDER.') from error
