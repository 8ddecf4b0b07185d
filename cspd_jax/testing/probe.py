"""Calls a target's functions outside a decode, for `check_target`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import programs
from cspd_jax.decoding.base import Cache, Condition, Features, Params, Target, TreeLike
from cspd_jax.decoding.tree import RuntimeTree, chain

ROWS = 4  # Number of rows checked together, enough for several starts and accepted nodes.
SPARE = 8  # Slots in addition to the image's.
# Total variation that rounding may cause, by the number of bits of the least precise dtype.
_TOLERANCE = {16: 0.15, 32: 2e-3, 64: 1e-6}


@dataclasses.dataclass(frozen=True)
class Probe:
  """A target with a condition and tokens to check it with; `R` is the number of rows."""

  target: Target  # The target.
  params: Params  # Its parameters.
  condition: Condition  # Of `R` rows: the rows passed by the caller, repeated or cut.
  tokens: np.ndarray  # `[R, L]` image tokens, random where the grammar does not force them.
  tolerance: float  # Total variation below which two distributions count as equal.
  start: int  # Token number at which windows and trees begin.

  @functools.cached_property
  def prefill(self) -> Callable[[Params, Condition], tuple[jax.Array, Features, Cache]]:
    """The prefill, `(params, condition) -> (logits, features, cache)`, jitted anew per probe."""
    slots = self.target.num_tokens + SPARE
    return programs.jit(lambda params, condition: self.target.prefill(params, condition, slots))

  @functools.cached_property
  def _scores(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The target's score with the tree first, jitted for static trees and for run-time ones."""
    score = lambda tree, params, cache, tokens, start: self.target.score(
        params, cache, tokens, start, tree)
    return programs.jit(score, static_argnums=0), programs.jit(score)

  @functools.cached_property
  def commit(self) -> Callable[[Cache, jax.Array, jax.Array], Cache]:
    """The target's commit, jitted."""
    return programs.jit(lambda *args: self.target.commit(*args))

  def new_cache(self) -> Cache:
    """The cache after a prefill."""
    return self.prefill(self.params, self.condition)[2]

  def score(self, cache: Cache, tokens: Any, start: Any,
            tree: TreeLike | None = None) -> tuple[np.ndarray, Any, Cache]:
    """Scores tokens `[R, n]` from number `start` on, a number or `[R]`, in one pass.

    Returns logits `[S, R, n, V]`, features and the cache; `tree` is a chain by default.
    """
    tokens = jnp.asarray(tokens, jnp.int32)
    tree = chain(tokens.shape[1] - 1) if tree is None else tree
    start = jnp.broadcast_to(jnp.asarray(start, jnp.int32), tokens.shape[:1])
    run = self._scores[isinstance(tree, RuntimeTree)]
    logits, features, cache = run(tree, self.params, cache, tokens, start)
    return np.asarray(logits, np.float64), features, cache

  def score_singly(self, tokens: np.ndarray, cache: Cache | None = None, start: int = 0
                   ) -> tuple[np.ndarray, list, Cache]:
    """Scores tokens `[R, n]` one by one: logits `[S, R, n, V]`, features and the cache."""
    cache = self.new_cache() if cache is None else cache
    logits, features = [], []
    for number in range(tokens.shape[1]):
      out, feature, cache = self.score(cache, tokens[:, number:number + 1], start + number)
      logits.append(out[:, :, 0])
      features.append(feature)
    shape = (self.target.num_streams, len(tokens), 0, self.target.vocab_size)
    return np.stack(logits, axis=2) if logits else np.zeros(shape), features, cache

  @functools.cached_property
  def singly(self) -> tuple[np.ndarray, list, Cache]:
    """The result of `score_singly` for `tokens`."""
    return self.score_singly(self.tokens)

  @functools.cached_property
  def cache_at_start(self) -> Cache:
    """The cache after the tokens before `start`."""
    return self.score_singly(self.tokens[:, :self.start])[2]

  def different(self, tokens: np.ndarray) -> np.ndarray:
    """Tokens that differ from `tokens` everywhere."""
    return (tokens + 1 + tokens % (self.target.vocab_size - 1)) % self.target.vocab_size

  def is_inside(self, number: Any) -> Any:
    """Whether token `number` is inside the image; logits of other tokens are ignored."""
    return np.asarray(number) < self.target.num_tokens


def make(target: Target, params: Params, condition: Condition, key: jax.Array) -> Probe:
  """Builds a probe with random tokens."""
  batch = jax.tree.leaves(condition)[0].shape[0]
  rows = np.arange(ROWS) % batch
  condition = jax.tree.map(lambda x: jnp.asarray(x)[rows], condition)
  # Windows and trees cross the end of the first row, where positions and grammars change.
  start = max(0, min(max(2, target.row_width - 2), target.num_tokens - 6))
  length = min(target.num_tokens, start + 6)
  tokens = jax.random.randint(key, (ROWS, length), 0, target.vocab_size)
  if target.forced is not None:
    forced = target.forced(jnp.broadcast_to(jnp.arange(length), tokens.shape))
    tokens = jnp.where(forced < 0, tokens, forced)
  logits = jax.eval_shape(lambda: target.prefill(params, condition, 1))[0]
  return Probe(target, params, condition, np.asarray(tokens), tolerance((params, logits)), start)


def tolerance(arrays: Any) -> float:
  """Returns the total variation that rounding may cause in what is computed from these arrays."""
  dtypes = map(jnp.result_type, jax.tree.leaves(arrays))
  bits = [max(16, jnp.finfo(dtype).bits) for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
  return _TOLERANCE[min(bits)]


def distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Total variation `[...]` by logits `[S, ..., V]`, of the worst stream; 1 for invalid ones."""
  def probs(logits: np.ndarray) -> np.ndarray:
    with np.errstate(invalid='ignore', over='ignore'):
      weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
      return weights / weights.sum(axis=-1, keepdims=True)

  first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
  apart = 0.5 * np.abs(probs(first) - probs(second)).sum(axis=-1)
  return np.where(np.isfinite(apart), apart, 1.0).max(axis=0)
