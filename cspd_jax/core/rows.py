"""Rows of a decode: their number, selections of them, and options that may have a value per row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.core.tracing import is_concrete

# Which values of an option are valid: a function, which may trace, and a description.
Limit = tuple[Callable[[Any], Any], str]


def count(condition: Any) -> int:
  """Returns the number of rows `B` of a condition; raises ValueError unless all leaves have it."""
  if any(isinstance(leaf, str) for leaf in jax.tree.leaves(condition)):
    raise ValueError(f'condition is {condition!r:.80}; it must be arrays: pass '
                     'model.condition(prompts) of a loaded model.')
  sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(condition)}
  if len(sizes) != 1 or () in sizes or (0,) in sizes:
    raise ValueError(
        f'condition has leaves of the shapes '
        f'{[jnp.shape(leaf) for leaf in jax.tree.leaves(condition)][:8]}; all must be arrays with '
        'one leading axis for the rows, at least 1 row; convert lists to arrays.')
  return sizes.pop()[0]


def check_options(options: Mapping[str, Any], limits: Mapping[str, Sequence[Limit]],
                  num_rows: int | None = None) -> jax.Array:
  """Checks the options of `limits`; returns `[B]` bool, whether all values of a row are valid.

  There are `num_rows`, by default as many as an option has values.
  A concrete value that is not a number or one number per row, or is not valid, raises ValueError.
  """
  if num_rows is None:
    num_rows = max((np.size(value) for value in options.values() if np.ndim(value) == 1), default=1)
  valid = np.ones(num_rows, bool)
  for name, limits_of_option in limits.items():
    value = _numbers(name, options[name], num_rows)
    for is_valid, words in limits_of_option:
      holds = is_valid(value)
      if is_concrete(value) and not np.all(holds):
        raise ValueError(f'{name} is {value}; it must be {words}.')
      valid = valid & holds
  return jnp.asarray(valid)


def _numbers(name: str, value: Any, num_rows: int) -> Any:
  """Converts an option to an array, a scalar or `[num_rows]`; to NumPy if it is concrete."""
  try:
    array = fields.array(value) if is_concrete(value) else jnp.asarray(value)
  except (TypeError, ValueError):  # Lists of different lengths, objects.
    array = np.asarray('')
  is_real = jnp.issubdtype(array.dtype, jnp.floating)
  fields.require(is_real or jnp.issubdtype(array.dtype, jnp.integer), name, value,
                 'a number, or one number per row')
  if array.shape not in ((), (num_rows,)):
    raise ValueError(f'{name} has shape {array.shape}; it must be a number or, for these '
                     f'{num_rows} rows, have shape ({num_rows},).')
  # float16 would round the numbers that limits compare with to 0 and infinity.
  return array.astype(jnp.promote_types(array.dtype, jnp.float32)) if is_real else array


def take(leaf: jax.Array, index: jax.Array) -> jax.Array:
  """Returns the entries `[N, n, ...]` of `leaf` `[N, m, ...]` at `index` `[N, n]`."""
  return jnp.take_along_axis(leaf, index.reshape(*index.shape, *(1,) * (leaf.ndim - 2)), axis=1)


def where(condition: jax.Array, a: Any, b: Any) -> Any:
  """Selects between two trees of arrays by `condition`, which has their first axes."""
  return jax.tree.map(lambda a, b: jnp.where(
      condition.reshape(*condition.shape, *(1,) * (a.ndim - condition.ndim)), a, b), a, b)
