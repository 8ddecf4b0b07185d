"""Drafts from a smaller autoregressive model (Leviathan et al., arXiv 2211.17192)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import contract
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import Draft, Drafter, Layout, Target
from cspd_jax.decoding.tree import chain, check_size


class ModelState(NamedTuple):
  """Attributes:
    cache: the draft model's cache; holds tokens `0 .. start - 1` or more.
    previous: `[B]` the committed token before the root.
  """

  cache: Any
  previous: jax.Array


def model(draft_target: Target, length: int = 4) -> Drafter:
  """`length` tokens sampled one by one from `draft_target`, a chain.

  The draft distribution goes through the same warp as the target's. After a refusal the
  draft model's cache needs no repair: slots are overwritten. When all drafts
  were accepted the last of them is not in the cache yet, so a round begins by
  reading the last two committed tokens.

  For a seed-exact verifier drafts are drawn with the noise that belongs to their
  position, which makes most of them agree with the target's tokens.

  Args:
    draft_target: the draft model, over the target's vocabulary and grid.
    length: drafts per round, at least 1.

  Raises:
    ValueError: if `length` is out of range.
  """
  check_size('length', length, 1)

  def check(target: Target) -> None:
    for name in ('vocab_size', 'num_tokens', 'row_width'):
      ours, theirs = getattr(draft_target, name), getattr(target, name)
      if ours != theirs:
        raise ValueError(
            f'{name} of the draft model is {ours}, of the target {theirs}; they must be equal.')

  def score(env, *args):
    return contract.score(draft_target, env.params, *args, 'draft model')

  def init(env, condition, rng, outcome):
    _, _, cache = contract.prefill(
        draft_target, env.params, condition, env.target.num_tokens + length + 1, 'draft model')
    return rng, ModelState(cache, outcome.tokens[:, 0])

  def propose(env, state, rng, root, start):
    def distribution_of(logits, positions):
      forced = contract.forced_tokens(env.target, positions[:, None])
      return warp_lib.probabilities(logits[:, :, None], _streams(env.warp, draft_target), forced)

    def draw(rng, positions, distribution):
      drawn = (rng.draw_at(positions[None], distribution) if env.seed_exact
               else rng.draw(distribution))
      return drawn[0]

    # The last two tokens; in the first round there is one, and a filler after it.
    first = start == 0
    pair = jnp.stack([jnp.where(first, root, state.previous),
                      jnp.where(first, 0, root)], axis=1)
    logits, _, cache = score(env, state.cache, pair, jnp.maximum(start - 1, 0), chain(1))
    logits = jnp.where(first[:, None], logits[:, :, 0], logits[:, :, 1])

    def step(carry, _):
      rng, cache, logits, at = carry
      distribution = distribution_of(logits, at)
      rng, token = env.rowwise(draw)(rng, at, distribution)
      logits, _, cache = score(env, cache, token[:, None], at, chain(0))
      return (rng, cache, logits[:, :, 0], at + 1), (token, distribution[:, 0])

    # The last token needs no forward pass of its own.
    carry = (rng, cache, logits, start + 1)
    carry, (tokens, probs) = jax.lax.scan(step, carry, length=length - 1)
    rng, cache, logits, at = carry
    distribution = distribution_of(logits, at)
    rng, token = env.rowwise(draw)(rng, at, distribution)
    tokens = jnp.concatenate([tokens, token[None]]).swapaxes(0, 1)
    probs = jnp.concatenate([probs, distribution.swapaxes(0, 1)]).swapaxes(0, 1)
    return rng, state._replace(cache=cache), Draft(tokens, probs if env.needs_probs else None)

  def update(env, state, rng, outcome):
    del env
    before = jnp.maximum(outcome.count - 2, 0)[:, None]
    previous = jnp.take_along_axis(outcome.tokens, before, axis=1)[:, 0]
    return rng, state._replace(previous=previous)

  return Drafter(
      layout=Layout(chain(length), (0,) + tuple(range(length)), (-1,) * (length + 1)),
      init=init, propose=propose, update=update, check=check)


def _streams(warp, draft_target):
  """A draft model without a null condition drafts without guidance."""
  return warp if draft_target.num_streams == 2 else warp._replace(guidance_scale=1.0)
