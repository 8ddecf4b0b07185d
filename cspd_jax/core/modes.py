"""Modes of JAX that a caller may have chosen for code of their own."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Arguments = ParamSpec('Arguments')
Result = TypeVar('Result')


def usual_promotion(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
  """Runs a function under JAX's usual rules for mixed dtypes and ranks.

  `jax_numpy_dtype_promotion='strict'` and `jax_numpy_rank_promotion='raise'` are checks of a
  caller's own code, not of the library's.
  """
  @functools.wraps(function)
  def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    with jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):
      return function(*args, **kwargs)
  return run
