"""The condition of class-conditional models."""

from typing import Any

import numpy as np


def check(condition: Any, num_classes: int) -> None:
  """Raises ValueError unless `condition` is class labels `[B]`, integers from 0."""
  labels = np.asarray(condition)
  if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
    raise ValueError(
        f'condition has shape {labels.shape} and dtype {labels.dtype}; '
        'this model takes one integer class label per image, shape [B].')
  wrong = labels[(labels < 0) | (labels >= num_classes)]
  if wrong.size:
    raise ValueError(
        f'condition holds the class labels {np.unique(wrong).tolist()}; '
        f'this model knows 0 to {num_classes - 1}.')
