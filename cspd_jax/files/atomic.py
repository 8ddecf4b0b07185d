"""Files that are complete whenever they exist."""

import contextlib
import glob
import itertools
import json
import math
import os
import pathlib
import re
import secrets
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import jax
import numpy as np

from cspd_jax.core import progress
from cspd_jax.files import locks

# The remedy in messages about a damaged file that a run can create again.
REMAKE = 'remove it, and the run creates it again'
# What the name of a temporary file holds unless such a file is being written.
_FIRST = '000000'


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[BinaryIO]:
  """Yields a stream to a temporary file, which is renamed to `path` when the block ends.

  It replaces an older file; if the block raises, that one stays. A temporary file that a killed
  process left is removed.
  """
  locks.check_system()
  path = pathlib.Path(path)
  with naming(path):
    temporary, handle = _created(path)
    try:
      with os.fdopen(os.dup(handle), 'wb') as stream:
        yield stream
      temporary.replace(path)
    except BaseException:  # Otherwise another process may have its name by now.
      temporary.unlink(missing_ok=True)
      raise
    finally:
      os.close(handle)  # And so its lock.


def _created(path: pathlib.Path) -> tuple[pathlib.Path, int]:
  """Creates a temporary file for another one; returns its path and a handle that holds it.

  The first name is the same for all, so that what a killed process left is found without a list of
  the folder, which may have very many files.
  """
  if (created := _create(path, _FIRST)) is None:
    for left in leftovers(path):
      locks.remove_unlocked(left)
    created = _create(path, _FIRST)
  while created is None:  # Another process writes the file, or it is a link, which is not followed.
    created = _create(path, secrets.token_hex(3))
  return created


def _create(path: pathlib.Path, token: str) -> tuple[pathlib.Path, int] | None:
  """Creates the temporary file with this token, as `_created`; None if there is one."""
  temporary = path.with_name(f'.{path.name}.{token}.part')
  try:
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
  except FileExistsError:
    return None
  if locks.lock_file(handle, temporary):
    return temporary, handle
  os.close(handle)  # Another process took it for one that is left.
  return None


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
  """Adds the path to errors of the system, which omit it if a disk is full or read-only."""
  try:
    yield
  except OSError as error:
    error.filename = error.filename or str(path)
    raise


def leftovers(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the temporary files of `writing` for a file, or for all if its name is '*'."""
  name = path.name if path.name == '*' else glob.escape(path.name)
  return [other for other in path.parent.glob(f'.{name}.*') if is_left(other.name)]


def is_left(name: str) -> bool:
  """Returns whether a file has the name of a temporary one of `writing`."""
  return re.fullmatch(r'\..+\.[0-9a-f]{6}\.part', name) is not None


def write(path: str | os.PathLike, data: bytes) -> None:
  """Writes a file as `writing` does."""
  with writing(path) as stream:
    stream.write(data)


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes arrays by name as an .npz file, whose bytes depend on the arrays alone."""
  with writing(path) as stream, zipfile.ZipFile(stream, 'w') as archive:
    for name, array in arrays.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as part:
        np.lib.format.write_array(part, np.asarray(array), allow_pickle=False)


def write_stacked(path: str | os.PathLike, name: str, count: int, rows: Iterable[np.ndarray]
                  ) -> None:
  """Writes `count` equal arrays, each in its turn, as one array `[count, ...]` of an .npz file."""
  rows = iter(rows)
  first = next(rows)
  header = dict(descr=np.lib.format.dtype_to_descr(first.dtype), fortran_order=False,
                shape=(count, *first.shape))
  with (writing(path) as stream, zipfile.ZipFile(stream, 'w') as archive,
        archive.open(f'{name}.npy', 'w', force_zip64=True) as part):
    np.lib.format.write_array_header_1_0(part, header)
    for row in itertools.chain([first], rows):
      part.write(row.tobytes())


def arrays_of(tree: Any) -> dict[str, np.ndarray]:
  """Returns the arrays of a tree by their paths, in dtypes that NumPy has; `tree_of` inverts it."""
  return {name: _viewed(np.asarray(leaf)) for name, leaf in _named(tree).items()}


def tree_of(arrays: Mapping[str, np.ndarray], like: Any, path: pathlib.Path) -> Any:
  """Returns arrays of `arrays_of` in a file as a tree like `like`; ValueError if they differ."""
  expected = {name: _viewed(np.empty(leaf.shape, leaf.dtype))
              for name, leaf in _named(like).items()}
  for name in expected.keys() | arrays.keys():
    forms = [f'{group[name].dtype}{list(group[name].shape)}' if name in group else 'nothing'
             for group in (arrays, expected)]
    if forms[0] != forms[1]:
      raise ValueError(f'{path} holds {forms[0]} as {name!r} instead of {forms[1]}, the result of '
                       'another run; use another folder.')
  leaves, structure = jax.tree.flatten(like)
  return structure.unflatten([arrays[name].view(leaf.dtype)
                              for name, leaf in zip(expected, leaves, strict=True)])


def _named(tree: Any) -> dict[str, Any]:
  return {jax.tree_util.keystr(path, simple=True, separator='.'): leaf
          for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _viewed(leaf: np.ndarray) -> np.ndarray:
  """Views an array of a dtype that NumPy does not have as unsigned integers, for .npz files."""
  return leaf.view(f'u{leaf.dtype.itemsize}') if leaf.dtype.kind == 'V' else leaf


def write_json(path: str | os.PathLike, content: Any) -> None:
  """Writes indented JSON; raises ValueError or TypeError for what it cannot represent: NaN."""
  write(path, encoded(content))


def encoded(content: Any) -> bytes:
  """Returns the bytes of `write_json`, with its errors."""
  return (json.dumps(content, indent=2, allow_nan=False) + '\n').encode()


def plain(content: Any, name: str = 'value') -> Any:
  """Converts NumPy's numbers and arrays in `content` to plain ones for JSON, float32 0.9 to 0.9.

  Bytes that are no UTF-8, in names of files, are escaped: other programs refuse JSON with them.

  Raises ValueError if a number is not finite or a value is not JSON-serialisable, by its name.
  """
  if hasattr(content, 'dtype'):
    content = np.asarray(content)
    is_narrow = content.dtype in (np.float16, np.float32)
    content = (content.astype(str).astype(float) if is_narrow else content).tolist()
  if isinstance(content, Mapping):
    return {progress.unicode(str(key)): plain(value, f'{name}.{key}')
            for key, value in content.items()}
  if isinstance(content, (list, tuple)):
    return [plain(value, f'{name}[{i}]') for i, value in enumerate(content)]
  if isinstance(content, float) and not math.isfinite(content):
    raise ValueError(f'{name} is {content}; it must be finite, or None if it is unknown.')
  if isinstance(content, str):
    return progress.unicode(content)
  if content is None or isinstance(content, (bool, int, float)):
    return content
  raise ValueError(f'{name} is a {type(content).__name__}; it must be JSON-serialisable.')
