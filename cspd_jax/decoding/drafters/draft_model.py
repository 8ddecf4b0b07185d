"""Drafts from a smaller autoregressive model (Leviathan et al., arXiv 2211.17192)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import contract, warp as warp_lib
from cspd_jax.decoding.base import Cache, Draft, Drafter, Env, Layout, Rng, Target
from cspd_jax.decoding.tree import chain, check_size


class ModelState(NamedTuple):
  """The state between two rounds."""

  cache: Cache  # The draft model's cache; holds tokens `0 .. start - 1` or more.
  previous: jax.Array  # `[B]` the committed token before the root.


def model(draft_target: Target, length: int = 4) -> Drafter:
  """Drafts a chain of `length` tokens, at least 1, sampled one by one from `draft_target`.

  The draft model is over the target's vocabulary and grid, and the same warp is applied to its
  distributions. After a rejected draft its cache needs no repair, because slots are overwritten. If
  all drafts were accepted, the last of them is not in the cache yet, so a round begins by reading
  the last two committed tokens.

  For a seed-exact verifier, drafts are drawn with the noise of their position, so most of them
  equal the target's tokens.

  Raises:
    ValueError: if `length` is out of range.
  """
  check_size('length', length, 1)

  def init(env, condition, rng, outcome):
    _, _, cache = contract.prefill(
        draft_target, env.params, condition, env.target.num_tokens + length + 1, 'draft model')
    return rng, ModelState(cache, outcome.tokens[:, 0])

  def propose(env, state, rng, root, start):
    draw_rows = env.rowwise(functools.partial(_draw, env))

    def draw(rng, logits, at):
      probs = _distribution(draft_target, env, logits, at)
      rng, token = draw_rows(rng, at, probs)
      return rng, (token, probs[:, 0])

    def step(carry, _):
      rng, cache, logits, at = carry
      rng, drawn = draw(rng, logits, at)
      logits, cache = _score(draft_target, env, cache, drawn[0][:, None], at)
      return (rng, cache, logits[:, :, 0], at + 1), drawn

    logits, cache = _catch_up(draft_target, env, state, root, start)
    carry = (rng, cache, logits, start + 1)
    (rng, cache, logits, at), drawn = jax.lax.scan(step, carry, length=length - 1)
    rng, last = draw(rng, logits, at)  # No forward pass follows the last token.
    tokens, probs = (jnp.concatenate([first, final[None]]).swapaxes(0, 1)
                     for first, final in zip(drawn, last))
    return rng, state._replace(cache=cache), Draft(tokens, probs if env.needs_probs else None)

  return Drafter(
      layout=Layout(chain(length), (0,) + tuple(range(length)), (-1,) * (length + 1)),
      init=init, propose=propose, update=_update,
      check=functools.partial(contract.check_sizes, draft_target, 'draft model', contract.GRID),
      reuses_drafts=False)


def _score(draft_target: Target, env: Env, cache: Cache, tokens: jax.Array, start: jax.Array
           ) -> tuple[jax.Array, Cache]:
  tree = chain(tokens.shape[1] - 1)
  logits, _, cache = contract.score(
      draft_target, env.params, cache, tokens, start, tree, 'draft model')
  return logits, cache


def _catch_up(draft_target: Target, env: Env, state: ModelState, root: jax.Array, start: jax.Array
              ) -> tuple[jax.Array, Cache]:
  """Reads the last two committed tokens; returns the logits `[S, B, V]` after them, and the cache.

  In the first round only one token is committed; a filler follows it.
  """
  first = start == 0
  pair = jnp.stack([jnp.where(first, root, state.previous),
                    jnp.where(first, 0, root)], axis=1)
  logits, cache = _score(draft_target, env, state.cache, pair, jnp.maximum(start - 1, 0))
  return jnp.where(first[:, None], logits[:, :, 0], logits[:, :, 1]), cache


def _distribution(draft_target: Target, env: Env, logits: jax.Array,
                  positions: jax.Array) -> jax.Array:
  """Returns the draft distributions `[B, 1, V]` at `positions` `[B]`."""
  positions, warp = positions[:, None], env.warp
  if draft_target.num_streams == 1:  # Without a null condition there is no guidance.
    warp = warp._replace(guidance_scale=1.0)
  forced = contract.forced_tokens(env.target, positions)
  return warp_lib.probabilities(logits[:, :, None], warp, positions, forced)


def _draw(env: Env, rng: Rng, position: jax.Array, distribution: jax.Array) -> jax.Array:
  """Draws the token of one row from its `distribution` `[1, V]`."""
  drawn = (rng.draw_at(position[None], distribution) if env.seed_exact
           else rng.draw(distribution))
  return drawn[0]


def _update(env, state, rng, outcome):
  del env
  before = jnp.maximum(outcome.count - 2, 0)[:, None]
  previous = jnp.take_along_axis(outcome.tokens, before, axis=1)[:, 0]
  return rng, state._replace(previous=previous)
