"""The drafter that decodes token by token with a draft model."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from cspd_jax.continuous import contract, head as head_lib
from cspd_jax.continuous.base import Draft, Drafter, Env, Target
from cspd_jax.continuous.span import Span


def model(draft: Target, aligned: bool = True, guided_as_verified: bool = False) -> Drafter:
  """Returns a drafter that decodes token by token with a draft model and its own true contexts.

  Args:
    draft: the draft model. It has the same tokens as the target and reads the same condition.
    aligned: whether its head uses the noise of the positions, which the target's head uses too.
    guided_as_verified: whether a draft has the guidance scale that it is verified with; else that
      of its own rank.
  """
  return Drafter(functools.partial(_propose, draft, aligned), draft,
                 functools.partial(_check_pair, draft), guided_as_verified)


def _check_pair(draft: Target, target: Target) -> None:
  """Raises ValueError if the tokens or the guidance streams of the two models differ.

  Schedules cannot differ: a decoder runs both heads with the same one.
  """
  if target.cached is not None or draft.cached is not None:
    raise ValueError('the target or the draft model is causal; a draft model requires masked models'
                     ' on both sides. Decode a causal model with windows.')
  for name, words in (('num_tokens', 'tokens per image'), ('token_dim', 'numbers per token'),
                      ('num_streams', 'guidance streams')):
    of_target, of_draft = getattr(target, name), getattr(draft, name)
    if of_target != of_draft:
      raise ValueError(
          f'draft has {of_draft} {words}, the target {of_target}; they must be equal.')


def _propose(model: Target, aligned: bool, env: Env, span: Span, tokens: jax.Array, memory: Any
             ) -> Draft:
  """Continues the image with the draft model, each draft conditioned on those before it."""
  del memory
  verifier = env.verifier
  sample_draft = verifier.sample_draft
  assert sample_draft is not None, 'make_decoder refuses a drafter then'
  head = head_lib.Head(model, env.schedule, env.draft_params)
  num_drafts = span.num_drafts(verifier.bonus)
  batch, length = span.ranks.shape[0], span.ranks.shape[1] - verifier.bonus

  def draft_token(tokens, j):
    token_span = span.select(jnp.full((batch, 1), j))
    z = contract.transform(
        model, env.draft_params, env.condition, tokens,
        span.rank_of_position < (span.count + j)[:, None])
    token_span = token_span._replace(scale=token_span.draft_scale)
    token, record = sample_draft(
        head, token_span.batch(head_lib.pick(z, token_span.positions)), aligned)
    # Rows without a draft number `j` write out of range, which drops the token.
    position = jnp.where(j < num_drafts, token_span.positions[:, 0], tokens.shape[1])
    return tokens.at[jnp.arange(batch), position].set(token, mode='drop'), record

  def step(j, carry):
    tokens, records = carry
    tokens, record = draft_token(tokens, j)
    return tokens, jax.tree.map(lambda old, new: old.at[:, j].set(new), records, record)

  # Ones where there is no draft, so that no standard deviation is 0 and no density infinite.
  records = jax.tree.map(
      lambda leaf: jnp.ones((batch, length, *leaf.shape[1:]), leaf.dtype),
      jax.eval_shape(draft_token, tokens, jnp.int32(0))[1])
  return Draft(*jax.lax.fori_loop(0, jnp.max(num_drafts), step, (tokens, records)))
