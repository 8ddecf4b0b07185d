"""Tensors of model-parallel checkpoints, whose files each hold what one device has of a model."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# The axis that is divided over the files.
_AXES = {'rows': 0, 'columns': 1}


class Joined:
  """A tensor in parts, which is one array when it is asked for.

  Attributes:
    shape: of the whole.
    dtype: of all parts.
    nbytes: of the whole.
  """

  def __init__(self, parts: Sequence[np.ndarray], share: str):
    self._parts, self._share = parts, share
    self.dtype = parts[0].dtype
    shape = list(parts[0].shape)
    if share == 'row':
      shape = [len(parts), *shape]
    elif share in _AXES:
      shape[_AXES[share]] = sum(part.shape[_AXES[share]] for part in parts)
    self.shape = tuple(shape)
    self.nbytes = math.prod(shape) * self.dtype.itemsize

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    del copy  # Always a new array.
    if self._share == 'row':
      whole = np.stack(self._parts)
    elif self._share == 'all':
      # Copies that differ in rounding are averaged, as transformers does.
      whole = np.mean(self._parts, axis=0, dtype=np.float32).astype(self.dtype)
    else:
      whole = np.concatenate(self._parts, axis=_AXES[self._share])
    return whole if dtype is None else whole.astype(dtype)


# What the numbers of a tensor are read from.
Tensor = np.ndarray | Joined


def join(files: Sequence[Mapping[str, Any]], shares: Mapping[str, str]) -> dict[str, Tensor]:
  """Joins the tensors of the files of one checkpoint.

  Args:
    files: tensors of every file by name, in the order of the devices.
    shares: what each holds, by a regular expression for the name: some 'rows' or 'columns' of a
      matrix, a 'row' of its own, or 'all' of the tensor.

  Raises:
    ValueError: if the files do not hold the same names, parts do not fit, or nothing tells how a
      tensor is divided.
  """
  joined: dict[str, Tensor] = {}
  for name in dict.fromkeys(name for file in files for name in file):
    found = [file[name] for file in files if name in file]
    share = next((share for pattern, share in shares.items() if re.fullmatch(pattern, name)), None)
    if share is None:
      raise ValueError(f'{name} is not known to be divided over several files')
    if len(found) < len(files):
      raise ValueError(f'{name} is in {len(found)} of {len(files)} files')
    axis = _AXES.get(share)
    rest = {(part.dtype, part.ndim, *np.delete(part.shape, [] if axis is None else axis))
            for part in found if axis is None or axis < part.ndim}
    if len(rest) != 1:
      raise ValueError(f'{name} has parts {", ".join(str(part.shape) for part in found)}, which do '
                       'not make one tensor')
    joined[name] = Joined(found, share)
  return joined
