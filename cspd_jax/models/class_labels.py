"""The condition of class-conditional models."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from cspd_jax.core.tracing import is_concrete


def check(condition: Any, num_classes: int) -> Any:
  """Which entries of `condition`, integers `[B]`, are class labels, `[B]` bool.

  Raises:
    ValueError: if it has another form, or a value that is known is no label.
  """
  labels = np.asarray(condition) if is_concrete(condition) else jnp.asarray(condition)
  if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
    raise ValueError(
        f'condition has shape {labels.shape} and dtype {labels.dtype}; '
        'this model takes one integer class label per image, shape [B].')
  known = (labels >= 0) & (labels < num_classes)
  if is_concrete(labels) and not known.all():
    raise ValueError(
        f'condition holds the class labels {np.unique(labels[~known]).tolist()}; '
        f'this model knows 0 to {num_classes - 1}.')
  return known
