"""Selections along the first axes of arrays."""

from typing import Any

import jax
import jax.numpy as jnp


def take(leaf: jax.Array, index: jax.Array) -> jax.Array:
  """Returns the entries `[N, n, ...]` of `leaf` `[N, m, ...]` at `index` `[N, n]`."""
  return jnp.take_along_axis(
      leaf, index.reshape(*index.shape, *(1,) * (leaf.ndim - 2)), axis=1)


def where(condition: jax.Array, a: Any, b: Any) -> Any:
  """Selects between two trees of arrays by `condition`, which has their first axes."""
  return jax.tree.map(lambda a, b: jnp.where(
      condition.reshape(*condition.shape, *(1,) * (a.ndim - condition.ndim)), a, b), a, b)
