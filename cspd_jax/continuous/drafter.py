"""Drafts by a draft model, one after the other."""

import jax
import jax.numpy as jnp

from cspd_jax.continuous import contract, head as head_lib
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.parts import Draft, Drafter, Env, Verifier
from cspd_jax.continuous.span import Span


def check_pair(target: Target, draft: Target) -> None:
  """Raises ValueError if the two models' tokens or guidance streams differ.

  Schedules cannot differ: a decoder runs both heads on its own.
  """
  for name, words in (('num_tokens', 'tokens per image'), ('token_dim', 'numbers per token'),
                      ('num_streams', 'guidance streams')):
    ours, theirs = getattr(target, name), getattr(draft, name)
    if ours != theirs:
      raise ValueError(f'draft has {theirs} {words}, the target {ours}; they must be equal.')


def propose(drafter: Drafter, verifier: Verifier, env: Env, span: Span, tokens: jax.Array) -> Draft:
  """Continues the image by the draft model's own sampler, each draft given those before it.

  Args:
    drafter: the draft model.
    verifier: samples with its head, and says what to record.
    env: models and condition.
    span: the places of the round; those of `verifier.bonus` get no drafts.
    tokens: `[B, T, C]` the image.
  """
  model, wanted = drafter.model, span.drafts(verifier.bonus)
  batch, length = span.at.shape[0], span.at.shape[1] - verifier.bonus

  def one(tokens, j):
    here = span.pick(jnp.full((batch, 1), j))
    z = contract.transform(
        model, env.draft_params, env.condition, tokens, span.place < (span.count + j)[:, None])
    here = here._replace(scale=here.draft_scale)
    token, record = verifier.record(
        model, env.schedule, env.draft_params, here.batch(head_lib.pick(z, here.positions)),
        drafter.aligned)
    # A place without a draft writes nowhere.
    position = jnp.where(j < wanted, here.positions[:, 0], tokens.shape[1])
    return tokens.at[jnp.arange(batch), position].set(token, mode='drop'), record

  def step(j, carry):
    tokens, records = carry
    tokens, record = one(tokens, j)
    return tokens, jax.tree.map(lambda old, new: old.at[:, j].set(new), records, record)

  # Ones where there is no draft, so that no standard deviation is 0 and no density infinite.
  records = jax.tree.map(
      lambda leaf: jnp.ones((batch, length, *leaf.shape[1:]), leaf.dtype),
      jax.eval_shape(one, tokens, jnp.int32(0))[1])
  return Draft(*jax.lax.fori_loop(0, jnp.max(wanted), step, (tokens, records)))
