"""Drafts from a smaller autoregressive model (Leviathan et al., arXiv 2211.17192)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.core import contracts
from cspd_jax.core.contracts import check_part
from cspd_jax.decoding import warp as warp_lib
from cspd_jax.decoding.base import Cache, DecodeContext, Draft, Drafter, Layout, Target
from cspd_jax.decoding.tree import chain, check_size


class ModelState(NamedTuple):
  """The state between two rounds."""

  cache: Cache  # The draft model's cache; holds tokens `0 .. start - 1` or more.
  previous: jax.Array  # `[B]` the committed token before the root.


def model(draft_target: Target, length: int = 4) -> Drafter:
  """Drafts a chain of tokens, sampled one by one from a smaller model.

  The same sampling options are applied to its distributions as to the target's. After a rejected
  draft its cache needs no repair, because slots are overwritten. If all drafts were accepted, the
  last of them is not in the cache yet, so a round begins by reading the last two committed tokens.

  For a seed-exact verifier, drafts are drawn with the noise of their position, so most of them
  equal the target's tokens. Raises ValueError if `length` is out of range.

  Args:
    draft_target: the draft model, over the target's vocabulary and grid; its parameters are the
      decoder's `draft_params`.
    length: tokens per round, at least 1, in a forward pass of the draft model each.
  """
  check_part('draft_target', draft_target, Target)
  check_size('length', length, 1)

  def init(context, condition, rng, result):
    _, _, cache = contracts.prefill(
        draft_target, context.params, condition, context.target.num_tokens + length + 1,
        'draft model')
    return rng, ModelState(cache, result.tokens[:, 0])

  def propose(context, state, rng, root, start):
    draw_rows = context.rowwise(lambda rng, position, probs: (
        rng.draw_at(position[None], probs) if context.seed_exact else rng.draw(probs))[0])

    sampling = context.sampling
    if draft_target.num_streams == 1:  # Without a null condition there is no guidance.
      sampling = sampling._replace(guidance_scale=1.0)

    def draw(rng, logits, at):
      forced = contracts.forced_tokens(context.target, at[:, None])
      probs = warp_lib.probabilities(logits[:, :, None], sampling, at[:, None], forced)
      rng, token = draw_rows(rng, at, probs)
      return rng, (token, probs[:, 0])

    def step(carry, _):
      rng, cache, logits, at = carry
      rng, drawn = draw(rng, logits, at)
      logits, _, cache = contracts.score(
          draft_target, context.params, cache, drawn[0][:, None], at, chain(0), 'draft model')
      return (rng, cache, logits[:, :, 0], at + 1), drawn

    logits, cache = score_with_previous(draft_target, context, state.cache, state.previous,
                                        root[:, None], start, 'draft model')
    carry = (rng, cache, logits[:, :, 0], start + 1)
    (rng, cache, logits, at), drawn = jax.lax.scan(step, carry, length=length - 1)
    rng, last = draw(rng, logits, at)  # No forward pass follows the last token.
    tokens, probs = (jnp.concatenate([first, final[None]]).swapaxes(0, 1)
                     for first, final in zip(drawn, last))
    return rng, state._replace(cache=cache), Draft(tokens, probs if context.needs_probs else None)

  return Drafter(
      layout=Layout(chain(length), (0,) + tuple(range(length)), (-1,) * (length + 1)),
      init=init, propose=propose, update=_update,
      check=functools.partial(contracts.check_sizes, draft_target, 'draft model',
                              contracts.SHARED_SIZES),
      reuses_drafts=False)


def score_with_previous(small: Target, context: DecodeContext, cache: Cache, previous: jax.Array,
                        nodes: jax.Array, start: jax.Array, owner: str) -> tuple[jax.Array, Cache]:
  """Scores a chain `[B, n]`, the root first, and the committed token `previous` `[B]` before it.

  The cache may hold a rejected draft in its slot. In the first round a filler follows the chain
  instead. Returns the logits `[S, B, n, V]` after the chain's tokens, and the cache.
  """
  first = (start == 0)[:, None]
  tokens = jnp.where(first, jnp.pad(nodes, ((0, 0), (0, 1))),
                     jnp.concatenate([previous[:, None], nodes], axis=1))
  logits, _, cache = contracts.score(
      small, context.params, cache, tokens, jnp.maximum(start - 1, 0), chain(nodes.shape[1]), owner)
  return jnp.where(first[..., None], logits[:, :, :-1], logits[:, :, 1:]), cache


def _update(context, state, rng, result):
  before = jnp.maximum(result.count - 2, 0)[:, None]
  previous = jnp.take_along_axis(result.tokens, before, axis=1)[:, 0]
  return rng, state._replace(previous=previous)
