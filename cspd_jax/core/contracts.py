"""What a user's own target, drafter or verifier must return; violations raise `ContractError`.

The functions call one of theirs, or take what it returned, and check shapes, dtypes and caches
while a loop is traced, which costs nothing at run time: a wrong shape would fail far from its
cause, or not at all. `cspd_jax.testing.check_target` checks the values.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.core import rows

# The sizes that a draft model of the same images shares with the target.
SHARED_SIZES = ('vocab_size', 'num_tokens', 'row_width')
_WORDS = {jnp.floating: 'floating-point numbers', jnp.float32: 'float32 numbers',
          jnp.integer: 'integers', jnp.bool_: 'booleans, or None for all rows,',
          jnp.generic: 'an array'}
# Parts of a loaded model, by the names of their types.
_EXAMPLES = {'Target': 'model.target(guided=True)',
             'Network': "model.drafts['eagle'].build(guided=True)",
             'Heads': "model.drafts['medusa'].build(guided=True)"}


class ContractError(ValueError):
  """A function of a model, a drafter or a verifier returned a wrong result."""


def check_part(name: str, value: Any, kind: type, source: str | None = None) -> None:
  """Raises ValueError, saying what to pass, unless the argument `name` is a part of this kind.

  `source` is where such a part comes from, if that is not obvious, as advice.
  """
  if isinstance(value, kind):
    return
  own, words = type(value), f'{value!r:.60}'
  if own.__name__ == kind.__name__:  # Of tokens of the other kind.
    words = f'a {own.__module__}.{own.__name__}'
  elif isinstance(value, tuple):
    words = f'a {own.__name__}'
  example = _EXAMPLES.get(kind.__name__)
  raise ValueError(f'{name} is {words}; it must be a {kind.__module__}.{kind.__name__}'
                   + ('' if example is None else f', such as {example} of a loaded model')
                   + ('.' if source is None else f'; {source}.'))


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


def described(value: Any) -> str:
  """Describes a result by its dtype and shape, for errors."""
  if hasattr(value, 'shape') and hasattr(value, 'dtype'):
    return f'{jnp.dtype(value.dtype).name}{list(value.shape)}'
  if isinstance(value, tuple):
    return f'a tuple of {len(value)}'
  return 'None' if value is None else f'a {type(value).__name__}'


def _check_cache(function: str, before: Any, after: Any) -> None:
  """Raises ContractError unless a cache has the structure, shapes and dtypes of the one before."""
  if jax.tree.structure(before) != jax.tree.structure(after):
    raise ContractError(
        f'{function} returned a cache of structure {jax.tree.structure(after)}; it must return '
        f'the structure of its argument, {jax.tree.structure(before)}.')
  leaves = zip(jax.tree_util.tree_flatten_with_path(before)[0], jax.tree.leaves(after))
  for (path, leaf), result in leaves:
    if jnp.shape(leaf) != jnp.shape(result) or jnp.result_type(leaf) != jnp.result_type(result):
      raise ContractError(
          f'{function} returned a cache whose leaf cache{jax.tree_util.keystr(path)} is '
          f'{described(result)}; it must be {described(leaf)}, as in its argument.')


def _unpack(function: str, result: Any, names: tuple[str, ...]) -> Any:
  if not isinstance(result, tuple) or len(result) != len(names):
    raise ContractError(
        f'{function} returned {described(result)}; it must return ({", ".join(names)}).')
  return result


@contextlib.contextmanager
def _note(text: str) -> Iterator[None]:
  """Adds a note to an exception that a user's function raises, which names neither."""
  try:
    yield
  except Exception as error:
    error.add_note(text)
    raise


def supported_rows(model: Any, condition: Any, owner: str = 'target') -> jax.Array:
  """Returns which rows `[B]` a model, `owner` in errors, supports by its `check_condition`."""
  num_rows, supported = rows.count(condition), model.check_condition(condition)
  if supported is None:
    return jnp.ones(num_rows, bool)
  check(f'check_condition of the {owner}', 'supported rows', supported, (num_rows,), 'rows',
        jnp.bool_)
  return supported


# Discrete tokens.


def check_params(params: Any) -> None:
  """Raises ValueError if the parameters of a draft model or network are missing."""
  if params is None:
    raise ValueError(
        'draft_params is None, but the decoder drafts with a separate model or network; pass its '
        'parameters, for a model of cspd_jax.load those of model.draft_params(specification).')


def check_sizes(part: Any, role: str, names: tuple[str, ...], target: Any) -> None:
  """Raises ValueError unless the sizes `names` of a part, in its `role`, are the target's."""
  for name in names:
    size, target_size = getattr(part, name), getattr(target, name)
    if size != target_size:
      raise ValueError(
          f'{name} of the {role} is {size}, of the target {target_size}; they must be equal.')


def check_features(features: jax.Array | None, params: Any) -> jax.Array:
  """Returns the target's features; raises ValueError if a drafter lacks them, or parameters."""
  check_params(params)
  if features is None:
    raise ValueError("The target returns no features; this drafter reads the target's features.")
  return features


def prefill(target: Any, params: Any, condition: Any, num_slots: int, owner: str = 'target'
            ) -> tuple[jax.Array, jax.Array | None, Any]:
  """Calls `target.prefill`; `owner` names the target in errors."""
  if owner != 'target':
    check_params(params)
  function, streams = f'prefill of the {owner}', target.num_streams
  batch = jax.tree.leaves(condition)[0].shape[0]
  with _note(f'{function} was called for {batch} rows and {num_slots} slots; it must return '
             f'(logits {[streams, batch, target.vocab_size]}, features or None, cache).'):
    result = target.prefill(params, condition, num_slots)
  logits, features, cache = _unpack(function, result, _TRIPLE)
  check(function, 'logits', logits, (streams, batch, target.vocab_size),
        'num_streams, rows, vocab_size')
  if features is not None:
    check(function, 'features', features, (streams, batch, None, None),
          'num_streams, rows, condition tokens, size')
  return logits, features, cache


_TRIPLE = ('logits', 'features or None', 'cache')


def score(target: Any, params: Any, cache: Any, tokens: jax.Array, start: jax.Array, tree: Any,
          owner: str = 'target') -> tuple[jax.Array, jax.Array | None, Any]:
  """Calls `target.score`."""
  function, streams = f'score of the {owner}', target.num_streams
  shape = [streams, *tokens.shape, target.vocab_size]
  kind = 'chain' if tree.is_chain else type(tree).__name__
  with _note(f'{function} was called with tokens {described(tokens)}, start {described(start)} '
             f'and a {kind} of {tree.num_nodes} drafts; it must return (logits {shape}, features '
             'or None, cache).'):
    result = target.score(params, cache, tokens, start, tree)
  logits, features, after = _unpack(function, result, _TRIPLE)
  check(function, 'logits', logits, tuple(shape), 'num_streams, rows, tokens, vocab_size')
  if features is not None:
    check(function, 'features', features, (streams, *tokens.shape, None),
          'num_streams, rows, tokens, size')
  _check_cache(function, cache, after)
  return logits, features, after


def commit(target: Any, cache: Any, start: jax.Array, path: jax.Array) -> Any:
  """Calls `target.commit`."""
  with _note(f'commit of the target was called with start {described(start)} and path '
             f'{described(path)}; it must return the cache.'):
    after = target.commit(cache, start, path)
  _check_cache('commit of the target', cache, after)
  return after


def forced_tokens(target: Any, positions: jax.Array) -> jax.Array | None:
  """Returns tokens that `target.forced` forces at `positions`, -1 if free; None without grammar."""
  if target.forced is None:
    return None
  tokens = target.forced(positions.astype(jnp.int32))
  check('forced of the target', 'tokens', tokens, positions.shape, 'as the positions', jnp.integer)
  return tokens.astype(jnp.int32)


def step(network: Any, params: Any, cache: Any, tokens: jax.Array, features: jax.Array,
         start: jax.Array, depth: Any, visible: Any) -> tuple[jax.Array, Any]:
  """Calls `step` of a drafting network (`feature_network.Network`)."""
  function = 'step of the drafting network'
  predicted, after = _unpack(
      function, network.step(params, cache, tokens, features, start, depth, visible),
      ('features', 'cache'))
  check(function, 'features', predicted, (features.shape[0], *tokens.shape, features.shape[-1]),
        'num_streams, rows, tokens, size')
  _check_cache(function, cache, after)
  return predicted, after


def feature_logits(network: Any, params: Any, features: jax.Array) -> jax.Array:
  """Calls `logits` of a drafting network."""
  logits = network.logits(params, features)
  check('logits of the drafting network', 'logits', logits,
        (*features.shape[:-1], network.vocab_size), 'num_streams, rows, tokens, vocab_size')
  return logits


def head_logits(heads: Any, params: Any, features: jax.Array) -> jax.Array:
  """Calls `logits` of drafting heads (`drafters.medusa.Heads`)."""
  logits = heads.logits(params, features)
  check('logits of the drafting heads', 'logits', logits,
        (*features.shape[:2], heads.num_heads, heads.vocab_size),
        'num_streams, rows, num_heads, vocab_size')
  return logits


def check_draft(draft: Any, layout: Any, needs_probs: bool, batch: int, vocab_size: int) -> None:
  """Checks the result of a drafter's `propose`."""
  function, nodes = 'propose of the drafter', layout.tree.num_nodes
  check(function, 'tokens', draft.tokens, (batch, nodes), 'rows, draft nodes', jnp.integer)
  if needs_probs and layout.draws != 'fixed':
    held = max(layout.probs_rows) + 1 if nodes else 0
    check(function, 'probs', draft.probs, (batch, held, vocab_size),
          'rows, 1 + the largest of layout.probs_rows, vocab_size')


def check_verdict(verdict: Any, batch: int, nodes: int) -> None:
  """Checks the results of `verify` for all rows."""
  function = 'verify of the verifier'
  check(function, 'node', verdict.node, (batch,), 'rows', jnp.integer)
  check(function, 'token', verdict.token, (batch,), 'rows', jnp.integer)
  if verdict.samples is not None:
    check(function, 'samples', verdict.samples, (batch, nodes), 'rows, nodes', jnp.integer)
  if verdict.tv_bound is not None:
    check(function, 'tv_bound', verdict.tv_bound, (batch, nodes), 'rows, nodes')


# Continuous tokens.


def transform(target: Any, params: Any, condition: Any, tokens: jax.Array, visible: jax.Array
              ) -> jax.Array:
  """Calls `transform` of a masked target."""
  z = target.transform(params, condition, tokens, visible)
  check('transform of the model', 'z', z, (target.num_streams, *visible.shape, None),
        'num_streams, rows, tokens, size')
  return z


def cached_prefill(target: Any, params: Any, condition: Any, num_slots: int
                   ) -> tuple[jax.Array, Any]:
  """Calls `prefill` of a causal target."""
  z, cache = target.cached.prefill(params, condition, num_slots)
  check('prefill of the model', 'z', z, (target.num_streams, rows.count(condition), None),
        'num_streams, rows, size')
  return z, cache


def cached_score(target: Any, params: Any, cache: Any, tokens: jax.Array, start: jax.Array
                 ) -> tuple[jax.Array, Any]:
  """Calls `score` of a causal target."""
  z, after = target.cached.score(params, cache, tokens, start)
  check('score of the model', 'z', z, (target.num_streams, *tokens.shape[:2], None),
        'num_streams, rows, tokens, size')
  _check_cache('score of the model', cache, after)
  return z, after


def check_head(states: jax.Array, eps: jax.Array, v: jax.Array) -> None:
  """Checks what a diffusion head returned for `states` `[N, C]`."""
  for name, value in (('eps', eps), ('v', v)):
    check('denoise of the model', name, value, states.shape, 'states, token_dim', jnp.float32)


def check_tokens(verdict: Any, shape: tuple[int, int, int]) -> None:
  """Checks what `verify` returned; `shape` is rows, tokens of a round, token_dim."""
  batch, width, _ = shape
  function = 'verify of the verifier'
  check(function, 'tokens', verdict.tokens, shape, 'rows, tokens, token_dim')
  for name in ('tested', 'accepted'):
    check(function, name, getattr(verdict, name), (batch, width), 'rows, tokens', jnp.generic)
  for name in ('length', 'trials', 'missed'):
    check(function, name, getattr(verdict, name), (batch,), 'rows', jnp.integer)
