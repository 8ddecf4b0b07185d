"""Calls functions of a model or a verifier; raises ContractError for results of a wrong form."""

from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.continuous.base import Condition, Params, Target, Verdict
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core import rows
from cspd_jax.core.returned import check, check_part, check_same


def as_schedule(target: Target, schedule: Schedule | int | None) -> Schedule:
  """Returns `target.as_schedule(schedule)`; raises ValueError for what is no target, too."""
  check_part('target', target, Target)
  return target.as_schedule(schedule)


def transform(target: Target, params: Params, condition: Condition, tokens: jax.Array,
              visible: jax.Array) -> jax.Array:
  """Calls `target.transform` and checks what it returns."""
  assert target.transform is not None, 'make_decoder refuses a causal model then'
  z = target.transform(params, condition, tokens, visible)
  check('transform of the model', 'z', z, (target.num_streams, *visible.shape, None),
        'num_streams, rows, tokens, size')
  return z


def prefill(target: Target, params: Params, condition: Condition, num_slots: int
            ) -> tuple[jax.Array, Any]:
  """Calls `prefill` of a causal target and checks what it returns."""
  assert target.cached is not None
  z, cache = target.cached.prefill(params, condition, num_slots)
  check('prefill of the model', 'z', z, (target.num_streams, rows.count(condition), None),
        'num_streams, rows, size')
  return z, cache


def score(target: Target, params: Params, cache: Any, tokens: jax.Array, start: jax.Array
          ) -> tuple[jax.Array, Any]:
  """Calls `score` of a causal target and checks what it returns."""
  assert target.cached is not None
  z, after = target.cached.score(params, cache, tokens, start)
  check('score of the model', 'z', z, (target.num_streams, *tokens.shape[:2], None),
        'num_streams, rows, tokens, size')
  check_same('score of the model', cache, after)
  return z, after


def check_head(states: jax.Array, eps: jax.Array, v: jax.Array) -> None:
  """Checks what a diffusion head returned for `states` `[N, C]`."""
  for name, value in (('eps', eps), ('v', v)):
    check('denoise of the model', name, value, states.shape, 'states, token_dim', jnp.float32)


def check_verdict(verdict: Verdict, shape: tuple[int, int, int]) -> None:
  """Checks what a verifier's `verify` returned; `shape` is rows, tokens of a round, token_dim."""
  batch, width, _ = shape
  function = 'verify of the verifier'
  check(function, 'tokens', verdict.tokens, shape, 'rows, tokens, token_dim')
  for name in ('tested', 'accepted'):
    check(function, name, getattr(verdict, name), (batch, width), 'rows, tokens', jnp.generic)
  for name in ('length', 'trials', 'missed'):
    check(function, name, getattr(verdict, name), (batch,), 'rows', jnp.integer)
