"""Checks of what a model and a verifier return.

Shapes and dtypes are checked while the loop is traced, which costs nothing at run time. Errors name
the function and what it should have returned.
"""

from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.continuous.base import Condition, Params, Target, Verdict
from cspd_jax.core import rows


def check_condition(target: Target, condition: Condition) -> jax.Array:
  """Returns which rows the model supports, `[B]` bool.

  Raises:
    ValueError: see `base.Target`; also if `check_condition` does not return what it specifies.
  """
  num_rows, supported = rows.count(condition), target.check_condition(condition)
  if supported is None:
    return jnp.ones(num_rows, bool)
  _check('check_condition of the model', 'supported rows', supported, (num_rows,), jnp.bool_,
         'rows')
  return supported


def transform(target: Target, params: Params, condition: Condition, tokens: jax.Array,
              visible: jax.Array) -> jax.Array:
  """Calls `target.transform` and checks what it returns.

  Raises:
    ValueError: if it does not return what `base.Target` specifies; all functions here likewise.
  """
  assert target.transform is not None, 'make_decoder refuses a causal model then'
  z = target.transform(params, condition, tokens, visible)
  _check('transform of the model', 'z', z, (target.num_streams, *visible.shape, None),
         jnp.floating, 'num_streams, rows, tokens, size')
  return z


def prefill(target: Target, params: Params, condition: Condition, num_slots: int
            ) -> tuple[jax.Array, Any]:
  """Calls `prefill` of a causal target and checks what it returns."""
  assert target.cached is not None
  z, cache = target.cached.prefill(params, condition, num_slots)
  rows = jax.tree.leaves(condition)[0].shape[0]
  _check('prefill of the model', 'z', z, (target.num_streams, rows, None), jnp.floating,
         'num_streams, rows, size')
  return z, cache


def score(target: Target, params: Params, cache: Any, tokens: jax.Array, start: jax.Array
          ) -> tuple[jax.Array, Any]:
  """Calls `score` of a causal target and checks what it returns."""
  assert target.cached is not None
  z, after = target.cached.score(params, cache, tokens, start)
  _check('score of the model', 'z', z, (target.num_streams, *tokens.shape[:2], None),
         jnp.floating, 'num_streams, rows, tokens, size')
  describe = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
  if describe(after) != describe(cache):
    raise ValueError('score of the model returned a cache of other shapes or dtypes than it was '
                     f'called with: {describe(after)}; it must return {describe(cache)}.')
  return z, after


def check_head(states: jax.Array, eps: jax.Array, v: jax.Array) -> None:
  """Checks what a diffusion head returned for `states` `[N, C]`."""
  for name, value in (('eps', eps), ('v', v)):
    _check("denoise of the model", name, value, states.shape, jnp.float32, 'states, token_dim')


def check_verdict(verdict: Verdict, shape: tuple[int, int, int]) -> None:
  """Checks what a verifier's `verify` returned; `shape` is rows, tokens of a round, token_dim."""
  batch, width, _ = shape
  function = 'verify of the verifier'
  _check(function, 'tokens', verdict.tokens, shape, jnp.floating, 'rows, tokens, token_dim')
  _check(function, 'length', verdict.length, (batch,), jnp.integer, 'rows')
  for name in ('tested', 'accepted'):
    _check(function, name, getattr(verdict, name), (batch, width), None, 'rows, tokens')
  for name in ('trials', 'missed'):
    _check(function, name, getattr(verdict, name), (batch,), jnp.integer, 'rows')


def _check(function: str, name: str, value: Any, shape: tuple[int | None, ...], kind: Any,
           axes: str) -> None:
  """Checks an array; `shape` has None for a size of any value, `kind` is None for any dtype."""
  actual = getattr(value, 'shape', None)
  fits = actual is not None and len(actual) == len(shape) and all(
      expected in (None, size) for size, expected in zip(actual, shape))
  if not fits or (kind is not None and not jnp.issubdtype(value.dtype, kind)):
    shown = type(value).__name__ if actual is None else f'{value.dtype.name}{list(actual)}'
    sizes = ', '.join('any' if size is None else str(size) for size in shape)
    words = '' if kind is None else f'{kind.__name__} numbers of '
    raise ValueError(
        f'{function} returned {name} {shown}; it must return {words}shape ({sizes}): {axes}.')
