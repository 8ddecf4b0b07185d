"""Fresh tokens: drafts for positions that enter a Jacobi window.

Any choice is exact as long as its true distribution is recorded. The names are those of SJD (arXiv
2410.01699, section 3.3); left and above refer to the image.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding.base import Rng

KINDS = ('uniform', 'repeat-left', 'repeat-above', 'resample-left', 'resample-above')


class Preceding(NamedTuple):
  """One row's tokens before its fresh positions.

  Attributes:
    token: `[]` the last token, committed or draft.
    distribution: `[V]` the distribution it was last drawn from.
    position: `[]` its position; every later one is fresh.
    tokens: `[R]` tokens by position; valid up to `position`.
    probs: `[R, V]` distributions by position; stored for 'resample-above' only, else None.
  """

  token: jax.Array
  distribution: jax.Array
  position: jax.Array
  tokens: jax.Array
  probs: jax.Array | None


def tokens_and_probs(rng: Rng, kind: str, positions: jax.Array, preceding: Preceding,
                     row_width: int, vocab_size: int) -> tuple[jax.Array, jax.Array]:
  """Fresh tokens for `positions` `[L]` of one row, and their distributions.

  A position without the neighbour that `kind` requires gets a uniform token.

  Args:
    rng: the row's random numbers.
    kind: one of `KINDS`.
    positions: `[L]`.
    preceding: the tokens before the fresh positions.
    row_width: tokens of an image row.
    vocab_size: `V`.

  Returns:
    `([L] tokens, [L, V] probs)`; `probs` are the true distributions of the tokens: one-hot for a
    repeated token, the neighbour's for a resampled one.
  """
  length = positions.shape[0]
  tokens = rng.integers(length, vocab_size)
  probs = jnp.full((length, vocab_size), 1 / vocab_size, preceding.distribution.dtype)
  if kind == 'uniform':
    return tokens, probs

  if kind.endswith('left'):
    has_neighbour = positions // row_width == preceding.position // row_width
    near_tokens = jnp.broadcast_to(preceding.token, (length,))
    near_probs = jnp.broadcast_to(preceding.distribution, probs.shape)
  else:
    source = positions - row_width
    has_neighbour = (source >= 0) & (source <= preceding.position)
    source = jnp.clip(source, 0, preceding.tokens.shape[0] - 1)
    near_tokens = preceding.tokens[source]
    near_probs = None if preceding.probs is None else preceding.probs[source]
  if kind.startswith('repeat'):
    near_probs = jax.nn.one_hot(near_tokens, vocab_size, dtype=probs.dtype)
  else:
    near_tokens = rng.draw(near_probs)
  return (jnp.where(has_neighbour, near_tokens, tokens),
          jnp.where(has_neighbour[:, None], near_probs, probs))
