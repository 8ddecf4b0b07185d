"""Acceptance by the mass of tokens with similar probability (Grouped Speculative Decoding).

Candidate `x` represents a cluster `C` of tokens with similar probability under the target, and is
accepted with probability `f = min(1, p(C) / q(C))` (GSD, arXiv 2508.07747). The residual
distribution after a rejection is `[p - q]+`, normalised.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.decoding import accept, row_random
from cspd_jax.decoding.base import Drafter, Verifier
from cspd_jax.decoding.verifiers.rejection import AcceptanceRule, tree_rejection


def grouped(group: int = 10, p_threshold: float = 0.15, *, embeddings: np.ndarray | None = None,
            d_threshold: float | None = None, clamp: bool = True) -> Verifier:
  """Accepts by clusters: tokens in a window of ranks around the candidate.

  The tokens of positive probability are ranked by the target's distribution after the rejections of
  earlier siblings. The window has the `group // 2` tokens next below `x`, the `(group - 1) // 2`
  next above, and `x`. The cluster has its tokens whose probability differs from `p(x)`
  by less than `p_threshold` and, with `embeddings`, whose squared distance to `x` is below
  `d_threshold`.

  A cluster can lower the probability of its candidate: `p(C) / q(C)` may be below `p(x) / q(x)`.
  `clamp` uses the larger of the two. That accepts more and adds nothing to the bound on total
  variation; it also makes `[p - q]+` the residual distribution with the smallest bound. False is
  the test of the released code, which tests the seven least probable tokens of the vocabulary
  exactly instead; top-k excludes these. Raises ValueError for options outside their range.

  Args:
    group: size of the window, at least 1 (exact). The released code uses 14.
    p_threshold: as above, above 0.
    embeddings: `[V, D]` rows of the codebook or of the model's input table. The released code uses
      the latter, with `d_threshold` 0.5.
    d_threshold: as above, above 0; requires `embeddings`.
    clamp: never accept less than the exact test.
  """
  embeddings = None if embeddings is None else np.asarray(embeddings)
  test = _GroupedTest(group, p_threshold, embeddings, d_threshold, clamp)
  node_test = AcceptanceRule(
      mass=test.mass, residual=lambda p, q, token, depth: accept.residual(p, q), gap=test.gap)
  return tree_rejection(lambda max_depth: node_test, exact=False, bounded=True, check=test.check)


@dataclasses.dataclass(frozen=True, eq=False)
class _GroupedTest:
  """The functions of an `AcceptanceRule`; for the fields see `grouped`."""

  group: int
  p_threshold: float
  embeddings: np.ndarray | None
  d_threshold: float | None
  clamp: bool

  def __post_init__(self):
    group, embeddings, d_threshold = self.group, self.embeddings, self.d_threshold
    fields.require(group >= 1, 'group', group, 'at least 1 (1 is exact)')
    fields.require(self.p_threshold > 0, 'p_threshold', self.p_threshold, 'above 0')
    if (embeddings is None) != (d_threshold is None):
      raise ValueError(
          f'd_threshold is {d_threshold} and embeddings are '
          f'{"missing" if embeddings is None else "present"}; pass both or neither.')
    if embeddings is not None and embeddings.ndim != 2:
      raise ValueError(f'embeddings have shape {embeddings.shape}; they must be [V, D].')
    fields.require(d_threshold is None or d_threshold > 0, 'd_threshold', d_threshold, 'above 0')

  def check(self, drafter: Drafter, vocab_size: int) -> None:
    if self.group > vocab_size:
      raise ValueError(f'group is {self.group}, but the target has {vocab_size} tokens; it must be '
                       'at most that.')
    if self.embeddings is not None and len(self.embeddings) != vocab_size:
      raise ValueError(f'embeddings have {len(self.embeddings)} rows, but the target has '
                       f'{vocab_size} tokens; pass one row per token.')

  def mass(self, p: jax.Array, q: jax.Array, token: jax.Array, depth: jax.Array) -> jax.Array:
    cluster, p_token = _window(p, token, self.group), accept.take(p, token)
    members = jnp.maximum(cluster, 0)
    p_members, q_members = (jnp.take_along_axis(x, members, axis=-1) for x in (p, q))
    is_member = (cluster >= 0) & (jnp.abs(p_members - p_token[..., None]) < self.p_threshold)
    if self.embeddings is not None:
      rows = jnp.asarray(self.embeddings, p.dtype)
      distance = jnp.sum((rows[members] - rows[token][..., None, :])**2, axis=-1)
      is_member &= distance < self.d_threshold
    q_token = accept.take(q, token)
    p_sum, q_sum = (own + jnp.sum(jnp.where(is_member, others, 0), axis=-1)
                    for own, others in ((p_token, p_members), (q_token, q_members)))
    mass = jnp.where(p_token > 0, q_token * p_sum / jnp.where(q_sum > 0, q_sum, 1), 0)
    return jnp.maximum(mass, p_token) if self.clamp else mass

  def gap(self, p: jax.Array, q: jax.Array, token: jax.Array, depth: jax.Array) -> jax.Array:
    """`|f - g|` at the token, where `g` is the exact test's probability.

    Its mean bounds the total variation of the test together with `[p - q]+`, of which the exact
    test has none. If `f >= g` it is the sum over the vocabulary, which needs every token's cluster.
    """
    q_token = accept.take(q, token)
    share = lambda mass: jnp.minimum(1, mass / jnp.where(q_token > 0, q_token, 1))
    return jnp.abs(share(self.mass(p, q, token, depth)) - share(accept.take(p, token)))


def _window(p: jax.Array, token: jax.Array, group: int) -> jax.Array:
  """`[..., group - 1]` the tokens next to `token` in the order of `p` `[..., V]`, or -1."""
  # Two short searches instead of a sort of the vocabulary.
  tokens, p_token = jnp.arange(p.shape[-1]), accept.take(p, token)[..., None]
  token = token[..., None]
  is_above = (p > p_token) | ((p == p_token) & (tokens < token))
  # The smallest of those above; all scores are positive, and 0 excludes a token.
  above = row_random.winners(jnp.where(is_above, 1 / jnp.where(p > 0, p, 1), 0), (group - 1) // 2)
  below = row_random.winners(jnp.where(is_above | (tokens == token), 0, p), group // 2)
  return jnp.concatenate([above, below], axis=-1)
