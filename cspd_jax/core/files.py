"""Files that are complete whenever they are there."""

import glob
import json
import os
import pathlib
from typing import Any

import numpy as np


def write(path: str | os.PathLike, data: bytes) -> None:
  """Writes a file beside its place and renames it, replacing an older one.

  What processes left beside it that were killed while they wrote it is removed.
  """
  path = pathlib.Path(path)
  for left in leftovers(path):
    left.unlink(missing_ok=True)
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    temporary.write_bytes(data)
    temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


def leftovers(path: pathlib.Path) -> list[pathlib.Path]:
  """What `write` left beside a file in processes that were killed."""
  return [other for other in path.parent.glob(f'.{glob.escape(path.name)}.*')
          if (number := other.suffix[1:]).isdecimal() and not _runs(int(number))]


def _runs(process: int) -> bool:
  """Whether there is a process of this number."""
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except (OSError, OverflowError):  # Another user's.
    return True
  return True


def write_json(path: str | os.PathLike, content: Any) -> None:
  """Writes `content` as indented JSON.

  Raises:
    ValueError: if a number is not finite, which JSON has no word for.
    TypeError: if `content` holds what JSON cannot.
  """
  write(path, (json.dumps(content, indent=2, allow_nan=False) + '\n').encode())


def plain(value: Any) -> Any:
  """A number or an array as JSON holds it, which reads as it was given: 0.9, not its float32."""
  value = np.asarray(value)
  narrow = value.dtype in (np.float16, np.float32)
  return (value.astype(str).astype(float) if narrow else value).tolist()
