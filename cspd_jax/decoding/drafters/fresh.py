"""Fresh tokens: what stands where a Jacobi window has no draft yet.

Any choice is exact as long as its true distribution is recorded. The names are those of
SJD (arXiv 2410.01699, section 3.3), whose neighbours are those in the image.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

KINDS = ('uniform', 'repeat-left', 'repeat-above', 'resample-left', 'resample-above')


class Known(NamedTuple):
  """What a row knows beside its fresh positions.

  Attributes:
    token: `[]` the token at the last known position (committed or draft).
    distribution: `[V]` the distribution it was last drawn from.
    position: `[]` that position; every later one is fresh.
    tokens: `[R]` tokens by position; valid up to `position`.
    probs: `[R, V]` distributions by position, or None (kept for 'resample-above' only).
  """

  token: jax.Array
  distribution: jax.Array
  position: jax.Array
  tokens: jax.Array
  probs: jax.Array | None


def tokens_and_probs(rng, kind: str, positions, known: Known, row_width: int, vocab_size: int):
  """Fresh tokens for `positions` `[L]` of one row, and their distributions.

  A position without the neighbour that `kind` asks for gets a uniform token.

  Returns:
    `([L] tokens, [L, V] probs)`; `probs` are the true distributions of the tokens: one-hot for a
    copy, the neighbour's for a resampled one.
  """
  length = positions.shape[0]
  tokens = rng.integers(length, vocab_size)
  probs = jnp.full((length, vocab_size), 1 / vocab_size, known.distribution.dtype)
  if kind == 'uniform':
    return tokens, probs

  if kind.endswith('left'):
    has_neighbour = positions // row_width == known.position // row_width
    near_tokens = jnp.broadcast_to(known.token, (length,))
    near_probs = jnp.broadcast_to(known.distribution, probs.shape)
  else:
    source = positions - row_width
    has_neighbour = (source >= 0) & (source <= known.position)
    source = jnp.clip(source, 0, known.tokens.shape[0] - 1)
    near_tokens = known.tokens[source]
    near_probs = None if known.probs is None else known.probs[source]
  if kind.startswith('repeat'):
    near_probs = jax.nn.one_hot(near_tokens, vocab_size, dtype=probs.dtype)
  else:
    near_tokens = rng.draw(near_probs)
  return (jnp.where(has_neighbour, near_tokens, tokens),
          jnp.where(has_neighbour[:, None], near_probs, probs))
