"""Block verification: the drafts of a chain are accepted jointly (exact)."""

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Drafter, Layout, Rng, Verdict, Verifier


def block() -> Verifier:
  """Accepts the longest draft prefix that passes, testing every length (arXiv 2403.10444).

  With `w_0 = 1`, `w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i))` and the distributions `p`, `q` of
  token `i + 1`, length `i` passes with probability `s / (s + 1 - w_i)`, `s = sum_x [w_i p - q]+`,
  and the token after the longest passing prefix follows `[w_i p - q]+`, normalised.
  Lossless, and on average never shorter than testing token by token (Sun et al.). For chains of
  drafts that are new in every round and have recorded distributions.
  """
  return Verifier(_verify, exact=True, needs_probs=True, check=_check)


def _verify(rng: Rng, layout: Layout, tokens: jax.Array, probs: jax.Array | None,
            target_probs: jax.Array, positions: jax.Array) -> Verdict:
  assert probs is not None  # The verifier has needs_probs.
  p, nodes = target_probs, jnp.arange(tokens.shape[0])
  is_candidate, token = tokens[1:] >= 0, jnp.maximum(tokens[1:], 0)
  q = probs[np.asarray(layout.probs_rows[1:], int)]
  drawn = accept.take(q, token)
  ratio = jnp.where(is_candidate & (drawn > 0),
                    accept.take(p[:-1], token) / jnp.where(drawn > 0, drawn, 1), 0)
  # Where no draft follows (after the last node or a missing draft), `q = 0` ends the chain.
  q = jnp.append(jnp.where(is_candidate[:, None], q, 0), jnp.zeros_like(p[:1]), axis=0)
  step = lambda weight, ratio: (jnp.minimum(1, weight * ratio),) * 2
  one = jnp.ones((), p.dtype)
  weights = jnp.append(one, jax.lax.scan(step, one, ratio)[1])
  excess = jnp.sum(jnp.maximum(weights[:, None] * p - q, 0), axis=-1)
  passed = rng.accept(excess, excess + 1 - weights)
  node = jnp.max(jnp.where(passed, nodes, 0)).astype(jnp.int32)
  distribution = accept.residual(weights[node] * p[node], q[node])
  return Verdict(node, rng.draw(distribution[None])[0])


def _check(drafter: Drafter, vocab_size: int) -> None:
  if not drafter.tree.is_chain:
    raise ValueError(
        f'block verification is for chains, but the drafter has the tree {drafter.tree}; use '
        'rejection() for trees.')
  if drafter.layout.draws == 'fixed':
    raise ValueError(
        "block verification needs the distributions the drafts were drawn from, but draws is "
        "'fixed': the drafter records none; use rejection().")
  if drafter.reuses_drafts:
    raise ValueError(
        'block verification cannot follow a drafter that keeps drafts from round to round: whether '
        'an early draft is accepted depends on later ones, so the drafts that remain no longer '
        'follow their recorded distributions; use rejection(), or set reuses_drafts=False of a '
        'drafter whose drafts are new in every round.')
