"""Whether a forward pass computes a token alike in every place of a window and in every row.

A seed-exact decoder scores a token wherever it stands in a window, and `vanilla(window=N)` scores
it in the first place of one. Their tokens are equal bit for bit if a place computes a function of
its token and of what it attends to, with the same sums in the same order: it must not depend on the
place, nor on what the other places and rows hold. Matrix products do not all keep to that: some
libraries sum the rows that do not fill one of their tiles in another order.

`digests` runs the target on the device, in the shapes of a decode, and `compare` says what it
shows: one sequence of tokens is scored from starts that move by one and more tokens, in rows that
are apart by one to three. So a token is scored in several places and rows, among different tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.decoding import base
from cspd_jax.decoding.tree import chain

# Tokens of the image before those that are compared, so that sums of attention have many terms.
_BEFORE = 48
# By how many tokens rows are behind the first one, in turns.
_BEHIND = 0, 1, 3, 2


class Comparison(NamedTuple):
  """How many tokens have logits that differ in a bit.

  Attributes:
    places: tokens whose logits differ between places of the window, in one row.
    rows: tokens whose logits differ between rows, in one place.
    compared: all tokens.
  """

  places: int
  rows: int
  compared: int

  @property
  def is_equal(self) -> bool:
    """Whether all logits of a token are equal."""
    return not self.places and not self.rows

  def __str__(self) -> str:
    return (f'of {self.compared} tokens, the logits of {self.places} depend on the place in the '
            f'window, and those of {self.rows} on the row of the batch')


def passes(window: int, num_tokens: int, count: int) -> np.ndarray:
  """Returns passes that show a difference: the first token of each, `[count, P]` int32.

  It is at most `window` tokens after the one of the pass before, and rows are up to 3 tokens apart.
  """
  before = np.arange(0, min(_BEFORE, num_tokens // 2), window)
  # By one and two tokens, by half a window, and so far that the last place becomes the first.
  steps = np.cumsum(np.clip([window, 1, 1, 2, window // 2, window - 1], 1, window))
  first = np.minimum(np.concatenate([before, before[-1] + steps]), num_tokens - 1)
  behind = np.resize(_BEHIND, (count, 1))
  return np.maximum(first - behind, 0).astype(np.int32)


@usual_promotion
def digests(target: base.Target, window: int, params: base.Params, condition: base.Condition,
            begins: jax.Array) -> jax.Array:
  """Scores a sequence of tokens in several places and rows; returns digests of the logits.

  Args:
    target: the model.
    window: `N`, the tokens of a pass, a chain.
    params: the target's parameters.
    condition: of `B` equal rows.
    begins: `[B, P]` int32, the first token of every pass, of every row; see `passes`.

  Returns:
    `[B, P, S, N]` uint32: a digest of the logits in every place of a pass, for `S` streams.
  """
  size = target.num_tokens + window - 1
  tokens = jnp.asarray(
      np.random.default_rng(0).integers(0, target.vocab_size, size), jnp.int32)
  windows = jax.vmap(lambda first: jax.lax.dynamic_slice_in_dim(tokens, first, window))

  def score(cache, first):
    logits, _, cache = contracts.score(
        target, params, cache, windows(first), first, chain(window - 1))
    return cache, jnp.moveaxis(_digest(logits), 1, 0)

  _, _, cache = contracts.prefill(target, params, condition, size)
  # A loop, as in decoders.
  return jnp.moveaxis(jax.lax.scan(score, cache, begins.T)[1], 0, 1)


def compare(begins: np.ndarray, digests: np.ndarray) -> Comparison:
  """Counts the tokens for which the `digests` of passes are not all equal."""
  token = begins[:, :, None, None] + np.arange(digests.shape[-1])
  row, _, stream, place = np.indices(digests.shape)
  token = np.broadcast_to(token, digests.shape) * digests.shape[2] + stream
  differing = lambda group: len(np.unique(_with_several(token, group, digests)))
  return Comparison(differing(row), differing(place), len(np.unique(token)))


def _with_several(token: np.ndarray, group: np.ndarray, digests: np.ndarray) -> np.ndarray:
  """Returns the tokens that have several digests within a group."""
  found = np.unique(np.stack([token.ravel(), group.ravel(), digests.ravel()]), axis=1)[:2]
  pairs, counts = np.unique(found, axis=1, return_counts=True)
  return pairs[0, counts > 1]


def _digest(logits: jax.Array) -> jax.Array:
  """Returns a number `[...]` uint32 of the bits of `[..., V]`."""
  bits = jax.lax.bitcast_convert_type(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)),
                                      jnp.uint32).reshape(*logits.shape[:-1], -1)
  # Odd weights that differ, so that no single change is lost.
  weights = 2 * jnp.arange(bits.shape[-1], dtype=jnp.uint32) * np.uint32(0x9E3779B1) + 1
  return jnp.sum(bits * weights, axis=-1, dtype=jnp.uint32)
