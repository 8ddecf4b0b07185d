"""Rounds without drafts: the target samples all tokens of a round in parallel."""

import jax
import jax.numpy as jnp

from cspd_jax.continuous.base import Cost, Draft, Env, Verdict, Verifier
from cspd_jax.continuous.head import HeadSampler
from cspd_jax.continuous.result import Kernels
from cspd_jax.continuous.span import Span


def no_drafts(sampler: HeadSampler) -> Verifier:
  """Commits tokens that the target samples itself, conditioned on those committed before.

  Args:
    sampler: samples the tokens; `head.ancestral` or `speculative_head.speculative`.
  """
  def verify(env: Env, span: Span, draft: Draft | None, z: jax.Array) -> Verdict:
    del draft
    in_round = span.in_round
    sampled = sampler.sample(env.params, span.batch(z))
    sampled = jax.tree.map(lambda leaf: leaf.reshape(*in_round.shape, *leaf.shape[1:]), sampled)
    count = lambda leaf: jnp.where(
        in_round.reshape(in_round.shape + (1,) * (leaf.ndim - 2)), leaf, 0)
    total = lambda leaf: count(leaf).sum(axis=1)
    kernels = Kernels(total(sampled.tested), total(sampled.accepted)) if sampler.levels else None
    return Verdict(
        tokens=sampled.tokens, length=span.size,
        tested=sampled.tested.sum(axis=-1), accepted=sampled.accepted.sum(axis=-1),
        trials=total(sampled.trials), missed=total(sampled.missed),
        cost=Cost(head_calls=count(sampled.calls).max(axis=1), head_rows=total(sampled.rows),
                  draft_head_calls=jnp.zeros_like(span.size)),
        kernels=kernels)

  return Verifier(verify, None, sampler.guarantee, context='block', commits_all=True,
                  levels=sampler.levels, exact=True,
                  head_states=lambda width: width * sampler.states)
