"""No drafts: the target samples all places of a round side by side, given what came before."""

import jax
import jax.numpy as jnp

from cspd_jax.continuous.head import Head
from cspd_jax.continuous.parts import Cost, Draft, Env, Verdict, Verifier
from cspd_jax.continuous.result import Kernels
from cspd_jax.continuous.span import Span


def own(head: Head) -> Verifier:
  """The target's own tokens.

  Args:
    head: samples them; `head.ancestral` or `speculative.speculative`.
  """
  def judge(env: Env, span: Span, draft: Draft | None, z: jax.Array) -> Verdict:
    del draft
    wanted = span.wanted
    sampled = head.sample(env.params, span.batch(z))
    sampled = jax.tree.map(lambda leaf: leaf.reshape(*wanted.shape, *leaf.shape[1:]), sampled)
    count = lambda leaf: jnp.where(
        wanted.reshape(wanted.shape + (1,) * (leaf.ndim - 2)), leaf, 0)
    total = lambda leaf: count(leaf).sum(axis=1)
    none = jnp.zeros_like(span.size)
    return Verdict(
        tokens=sampled.tokens, length=span.size,
        tested=sampled.tested.sum(axis=-1), accepted=sampled.accepted.sum(axis=-1),
        trials=total(sampled.trials), missed=total(sampled.missed),
        cost=Cost(head_calls=count(sampled.calls).max(axis=1), head_rows=total(sampled.rows),
                  draft_head_calls=none),
        kernels=Kernels(total(sampled.tested), total(sampled.accepted)) if head.levels else None)

  return Verifier(judge, None, head.guarantee, context='block', whole=True, levels=head.levels,
              exact=True)
