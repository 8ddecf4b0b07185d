"""Names of the classes of ImageNet, which most class-conditional models were trained on."""

import functools
import importlib.resources
from typing import Any

_NUM_CLASSES = 1000


def metadata(num_classes: int) -> dict[str, Any]:
  """Returns what a checkpoint stores about its classes: their names if there are 1000 of them."""
  return {'labels': list(names())} if num_classes == _NUM_CLASSES else {}


@functools.cache
def names() -> tuple[str, ...]:
  """Returns the 1000 names in the order of ILSVRC 2012; no two are equal in lower case."""
  text = importlib.resources.files('checkpoints_conversion').joinpath('imagenet_classes.txt')
  return tuple(text.read_text(encoding='utf-8').splitlines())
