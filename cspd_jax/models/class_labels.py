"""Checks of the class labels that condition a model."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from cspd_jax.core.values import is_concrete


def check(condition: Any, num_classes: int) -> Any:
  """Checks class labels, integers `[B]`; returns which of them are valid, `[B]` bool.

  Raises:
    ValueError: for another shape or dtype, or if the values are concrete and one is out of range.
  """
  labels = np.asarray(condition) if is_concrete(condition) else jnp.asarray(condition)
  if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
    raise ValueError(
        f'condition has shape {labels.shape} and dtype {labels.dtype}; '
        'this model requires one integer class label per image, shape [B].')
  valid = (labels >= 0) & (labels < num_classes)
  if is_concrete(labels) and not valid.all():
    raise ValueError(
        f'condition holds the class labels {np.unique(labels[~valid]).tolist()}; '
        f'this model supports 0 to {num_classes - 1}.')
  return valid
