"""Helpers for functions that JAX traces: concrete values, and the usual dtype promotion."""

import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

Arguments = ParamSpec('Arguments')
Result = TypeVar('Result')


def is_concrete(*trees: Any) -> bool:
  """Returns whether every leaf has a concrete value, that is, none is a tracer."""
  return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def untraced(function: Callable[..., Result], *args: Any) -> Result:
  """Calls a function outside of any trace: JAX's tracing state is local to a thread."""
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    return pool.submit(function, *args).result()


def usual_promotion(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
  """Runs a function under JAX's default rules for mixed dtypes and ranks.

  `jax_numpy_dtype_promotion='strict'` and `jax_numpy_rank_promotion='raise'` are checks of a
  caller's own code, not of the library's.
  """
  @functools.wraps(function)
  def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    with jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):
      return function(*args, **kwargs)
  return run
