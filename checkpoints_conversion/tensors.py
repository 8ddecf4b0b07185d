"""Published tensors that are read when they are used, and those of several files, joined."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# The axis that is divided over the files.
_AXES = {'rows': 0, 'columns': 1}


class Tensor:
  """A tensor that becomes an array by `np.asarray`, which reads it again every time."""

  def __init__(self, shape: Sequence[int], dtype: np.dtype, read: Callable[[], np.ndarray]):
    self.shape, self.dtype, self._read = tuple(shape), dtype, read
    self.nbytes = math.prod(shape) * dtype.itemsize

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    del copy  # Always a new array.
    array = self._read()
    return array if dtype is None else array.astype(dtype)


class Unusable:
  """A tensor that is no array of numbers here; `dtype` is a text, and `nbytes` 0."""

  def __init__(self, shape: Sequence[int], dtype: str):
    self.shape, self.dtype, self.nbytes = tuple(shape), dtype, 0

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    raise ValueError(f'a tensor is {self.dtype}, which cannot be read as numbers; {REMEDY}.')


# Everything that has a shape, a dtype and a size, and that `np.asarray` turns into an array.
AnyTensor = np.ndarray | Tensor | Unusable
# What to do with weights of another dtype than `weights.FLOATING`.
REMEDY = ('save weights as float16, bfloat16, float32 or float64, multiplied by their scales if '
          'they are quantised')


def join(files: Sequence[Mapping[str, AnyTensor]], shares: Mapping[str, str]
         ) -> dict[str, AnyTensor]:
  """Joins the tensors of a model-parallel checkpoint, whose files each hold one device's share.

  Files are in the order of the devices. `shares` is what each holds of a tensor, by a regular
  expression for its name: 'rows' or 'columns' of a matrix, one 'row', or 'all' of it. Raises
  ValueError if the files hold different names, parts do not fit together, or a name has no share.
  """
  joined: dict[str, AnyTensor] = {}
  for name in dict.fromkeys(name for file in files for name in file):
    parts = [file[name] for file in files if name in file]
    share = next((share for pattern, share in shares.items() if re.fullmatch(pattern, name)), None)
    if share is None:
      raise ValueError(f'{name} is not a tensor that is divided over several files')
    if len(parts) < len(files):
      raise ValueError(f'{name} is in {len(parts)} of {len(files)} files')
    axis = _AXES.get(share)
    others = {(part.dtype, len(part.shape), *np.delete(part.shape, [] if axis is None else axis))
              for part in parts if axis is None or axis < len(part.shape)}
    if len(others) != 1:
      raise ValueError(f'{name} has parts {", ".join(str(part.shape) for part in parts)}, which do '
                       'not form one tensor')
    joined[name] = _joined(parts, share)
  return joined


def _joined(parts: Sequence[AnyTensor], share: str) -> AnyTensor:
  shape, dtype = list(parts[0].shape), parts[0].dtype
  if isinstance(dtype, str):
    return Unusable(shape, dtype)
  if share == 'row':
    return Tensor([len(parts), *shape], dtype, lambda: np.stack(list(map(np.asarray, parts))))
  if share == 'all':
    # Copies that differ in rounding are averaged, as transformers does.
    return Tensor(shape, dtype, lambda: np.mean(
        list(map(np.asarray, parts)), axis=0, dtype=np.float32).astype(dtype))
  axis = _AXES[share]
  shape[axis] = sum(part.shape[axis] for part in parts)
  return Tensor(shape, dtype, lambda: np.concatenate(list(map(np.asarray, parts)), axis=axis))
