"""Checks of what a user's functions return: shapes, dtypes and caches.

They run while a loop is traced, which costs nothing at run time. An error names the function and
the expected result; without the checks, a wrong shape fails far from its cause, or not at all.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import rows, tracing

_WORDS = {jnp.floating: 'floating-point numbers', jnp.float32: 'float32 numbers',
          jnp.integer: 'integers', jnp.bool_: 'booleans, or None for all rows,',
          jnp.generic: 'an array'}

# The most rows whose rounds are printed.
_MOST_SHOWN = 16


class ContractError(ValueError):
  """A function of a model, a drafter or a verifier returned a wrong result."""


def check_part(name: str, value: Any, kind: type, source: str | None = None) -> None:
  """Raises ValueError, saying what to pass, unless the argument `name` is a part of this kind.

  `source` is where such a part comes from, if that is not obvious, as advice.
  """
  if isinstance(value, kind):
    return
  words, remedy = f'a {type(value).__name__}', f'it must be a {kind.__module__}.{kind.__name__}'
  if source is not None:
    remedy = f'{remedy}; {source}'
  if value is None or isinstance(value, str | int | float):
    words = f'{value!r:.60}'
  elif hasattr(value, 'target') and hasattr(value, 'params'):
    words, remedy = f'{value!r:.60}, a loaded model', 'pass model.target(guided=True)'
  elif hasattr(value, 'build') and hasattr(value, 'params'):
    remedy = 'pass what it builds for the target, as in model.drafts["eagle"].build(guided=True)'
  elif callable(value):
    remedy = 'call it, as in model.target(guided=True)'
  elif type(value).__name__ == kind.__name__:  # Of the other engine.
    words = f'a {type(value).__module__}.{kind.__name__}'
  raise ValueError(f'{name} is {words}; {remedy}.')


def summary(decoded: Any) -> str:
  """Returns the result of a decoder in a line: tokens, rounds if they are few, other fields."""
  rounds = decoded.rounds
  is_short = tracing.is_concrete(rounds) and 0 < getattr(rounds, 'size', 0) <= _MOST_SHOWN
  shown = ' '.join(str(np.asarray(rounds)).split()) if is_short else described(rounds)
  others = [name for name, value in decoded._asdict().items()
            if value is not None and name not in ('tokens', 'rounds')]
  return (f'{type(decoded).__name__}(tokens: {described(decoded.tokens)}, rounds: {shown}, '
          f'and {", ".join(others)})')


def check(function: str, name: str, value: Any, shape: tuple[int | None, ...], axes: str,
          kind: Any = jnp.floating) -> None:
  """Raises ContractError unless what `function` returned as `name` has a shape and a kind of dtype.

  None in `shape`, whose axes `axes` describes, allows any size; `kind` is a dtype or an abstract
  one, `jnp.generic` for any.
  """
  actual = getattr(value, 'shape', None)
  fits = actual is not None and len(actual) == len(shape) and all(
      expected in (None, size) for size, expected in zip(actual, shape))
  if not fits or not jnp.issubdtype(value.dtype, kind):
    sizes = ', '.join('any' if size is None else str(size) for size in shape)
    raise ContractError(
        f'{function} returned {name} {described(value)}; it must return {_WORDS[kind]} of shape '
        f'({sizes}): {axes}.')


def check_same(function: str, before: Any, after: Any) -> None:
  """Raises ContractError unless a cache has the structure, shapes and dtypes of the one before."""
  old, new = (jax.tree_util.tree_flatten_with_path(cache)[0] for cache in (before, after))
  if jax.tree.structure(before) != jax.tree.structure(after):
    raise ContractError(
        f'{function} returned a cache of structure {jax.tree.structure(after)}; it must return '
        f'the structure of its argument, {jax.tree.structure(before)}.')
  for (path, leaf), (_, result) in zip(old, new):
    if jnp.shape(leaf) != jnp.shape(result) or jnp.result_type(leaf) != jnp.result_type(result):
      raise ContractError(
          f'{function} returned a cache whose leaf cache{jax.tree_util.keystr(path)} is '
          f'{described(result)}; it must be {described(leaf)}, as in its argument.')


def supported_rows(model: Any, condition: Any, owner: str = 'target') -> jax.Array:
  """Returns which rows `[B]` a model, `owner` in errors, supports by its `check_condition`."""
  num_rows, supported = rows.count(condition), model.check_condition(condition)
  if supported is None:
    return jnp.ones(num_rows, bool)
  check(f'check_condition of the {owner}', 'supported rows', supported, (num_rows,), 'rows',
        jnp.bool_)
  return supported


def described(value: Any) -> str:
  """Describes a result by its dtype and shape, for errors."""
  if hasattr(value, 'shape') and hasattr(value, 'dtype'):
    return f'{jnp.dtype(value.dtype).name}{list(value.shape)}'
  if isinstance(value, tuple):
    return f'a tuple of {len(value)}'
  return 'None' if value is None else f'a {type(value).__name__}'
