"""Compiled programs that a model keeps."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

Kept = TypeVar('Kept')

# Every program holds memory maps, up to two thousand on a CPU, of which Linux grants a process
# 65530.
MOST = 16


def kept(model: Any, name: Hashable, make: Callable[[], Kept]) -> Kept:
  """What a model keeps under a name, made when it is first asked for; the oldest go.

  Args:
    model: has a dictionary `programs`.
    name: of the program: all that it was made from.
    make: makes it.
  """
  programs = model.programs
  programs[name] = programs.pop(name) if name in programs else make()
  while len(programs) > MOST:
    del programs[next(iter(programs))]
  return programs[name]


def is_guided(sampling: Any) -> bool:
  """Whether an image is drawn with guidance, so that the program runs the null condition."""
  return bool(np.any(np.asarray(sampling.guidance_scale) != 1))
