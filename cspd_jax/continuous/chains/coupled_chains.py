"""Windows of tokens whose denoising chains are coupled with those of the last round.

A round draws the chains of all tokens of the window anew, each given the tokens of the last round
before it, and keeps what it can of the old chains (see `chain_walk`). The first token had its true
context, so it is final. While a token is unchanged, the context of the next one was true, so that
one is final too.

The tokens are exact by the two invariants of Jacobi windows. Given all that belongs to earlier
tokens and to earlier kernels of its own chain, a state has the distribution of its kernel, because
`coupling.move` preserves it; and nothing that belongs to a token influences an earlier token, or an
earlier kernel. So a token has the target's distribution given the tokens before it as soon as it
was drawn under its true context, whatever the contexts of earlier rounds were.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous.base import Cost, Draft, Drafter, Env, Target, Verdict, Verifier
from cspd_jax.continuous.chains import chain_walk
from cspd_jax.continuous.chains.chain_walk import Memory
from cspd_jax.continuous.result import Kernels
from cspd_jax.continuous.span import Span


def coupled_chains(num_levels: int, window: int, kernels_per_call: int, rho: np.ndarray
                   ) -> Verifier:
  """Commits the tokens whose context was true, up to the first that changed.

  Args:
    num_levels: levels of the decoder's schedule, whose last kernel must have noise.
    window: the first tokens of a round, which may be final; the others are drawn ahead.
    kernels_per_call: drafts of every chain that the head is evaluated at together, at most all.
    rho: `[num_levels]` the blend of the head's drafter.
  """
  def start(target: Target, num_rows: int, width: int) -> Memory:
    return Memory(chain_walk.empty(num_levels, target.token_dim, num_rows, width),
                  jnp.zeros(num_rows, jnp.int32))

  def verify(env: Env, span: Span, draft: Draft | None, z: jax.Array) -> Verdict:
    assert draft is not None, 'make_decoder refuses this verifier without a drafter'
    rows, width = span.ranks.shape
    flat = lambda leaf: leaf.reshape(rows * width, *leaf.shape[2:])
    walked = chain_walk.walk(
        env.target, env.schedule, kernels_per_call, rho, env.params,
        span.batch(z), jax.tree.map(flat, draft.record), jnp.repeat(span.count, width))
    walked = jax.tree.map(lambda leaf: leaf.reshape(rows, width, *leaf.shape[1:]), walked)

    unchanged = walked.kept[..., -1] & span.in_round
    first = jnp.sum(jnp.cumprod(unchanged, axis=1), axis=1, dtype=jnp.int32)
    # The tokens of a step do not see each other: all that are in the round are final.
    end = jnp.take_along_axis(span.end, jnp.minimum(first, width - 1)[:, None], axis=1)[:, 0]
    end = jnp.minimum(end, jnp.minimum(span.stop, span.count + window))
    length = jnp.where(span.active, end - span.count, 0)
    committed = jnp.arange(width) < length[:, None]
    tested = draft.record.exist & span.in_round
    by_level = lambda kept: jnp.sum(
        kept & tested[..., None], axis=1, dtype=jnp.int32)[:, ::-1]
    return Verdict(
        tokens=walked.chains.tokens, length=length, tested=(tested & committed).astype(jnp.int32),
        accepted=(unchanged & committed).astype(jnp.int32), trials=jnp.zeros_like(length),
        missed=jnp.zeros_like(length),
        cost=Cost(jnp.max(walked.calls, axis=1), jnp.sum(walked.rows, axis=1),
                  jnp.zeros_like(length)),
        kernels=Kernels(by_level(jnp.ones_like(walked.kept)), by_level(walked.kept)),
        memory=Memory(walked.chains, length))

  return Verifier(
      verify, None, 'exact up to rounding', levels=num_levels, start=start, exact=True,
      # The head is called at all old states at once.
      head_states=lambda width: width * num_levels)


def old_chains() -> Drafter:
  """Returns a drafter whose drafts are the tokens of the verifier's `chain_walk.Memory`.

  They are those that the last round has drawn and not committed. Tokens of the window without a
  draft are missing; a causal model reads the last draft in their place.
  """
  def propose(env: Env, span: Span, tokens: jax.Array, memory: Memory) -> Draft:
    _check_memory(env, span, memory)
    old = memory.left()
    row, size = jnp.arange(tokens.shape[0])[:, None], tokens.shape[1]
    inside = span.in_round
    number = jnp.sum(old.exist & inside, axis=1)[:, None]
    last = jnp.take_along_axis(old.tokens, jnp.maximum(number - 1, 0)[..., None], axis=1)
    drafts = jnp.where(old.exist[..., None], old.tokens, last)
    positions = jnp.where(inside, span.positions, size)
    missing = jnp.zeros(tokens.shape[:2], bool).at[row, positions].set(
        ~old.exist, mode='drop')
    return Draft(tokens.at[row, positions].set(drafts, mode='drop'), old, missing)

  return Drafter(propose, None)


def _check_memory(env: Env, span: Span, memory: Any) -> None:
  """Raises ValueError if a state between rounds is that of another decoder."""
  expected = span.ranks.shape[1], env.schedule.num_levels
  actual = memory.chains.states.shape[1:3] if isinstance(memory, Memory) else None
  if actual != expected:
    has = 'no chains' if actual is None else f'chains of {actual[0]} tokens and {actual[1]} levels'
    raise ValueError(f'state has {has}; this decoder requires {expected[0]} tokens and '
                     f'{expected[1]} levels. Pass a state of its own `start`.')
