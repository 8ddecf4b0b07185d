"""The class names of ImageNet, the training set of most class-conditional models."""

import functools
import importlib.resources
from typing import Any

_NUM_CLASSES = 1000


def metadata(num_classes: int) -> dict[str, Any]:
  """Returns the class names as metadata of a checkpoint, if it has 1000 classes."""
  return {'labels': list(names())} if num_classes == _NUM_CLASSES else {}


@functools.cache
def names() -> tuple[str, ...]:
  """Returns the 1000 names in the order of ILSVRC 2012; no two are equal in lower case."""
  text = importlib.resources.files('checkpoints_conversion').joinpath('imagenet_classes.txt')
  return tuple(text.read_text(encoding='utf-8').splitlines())
