"""The denoising chains of a window's tokens, and their coupling with the chains of the last round.

A token is the last state of a chain of Gaussian kernels. When the context of a token changes, so do
the means of its kernels, and a new chain must be drawn. It is drawn kernel by kernel with
`coupling.move` from the old one: where the kernels of both are close, the new state is the old
state. Chains that part stay close, and may meet again at a later kernel. Given the states before
it, every new state has exactly the distribution of the kernel, as if drawn from scratch.

The head is called at all old states at once, which answers all kernels before which the chains
agree. Where they have parted, the next states are drafts, moved from the old chain to kernels that
`prediction` predicts. A call of the head at the next `L` drafts of every chain verifies them: a
draft is moved from the predicted to the true kernel, and the first one that is not kept ends the
drafts of the call. A token without an old chain is drafted from the head's last answer to it, as in
`speculative_head`. How far a chain comes in a call depends on the chain alone: else a token would
depend on the later ones, and on the other rows.

In the shape descriptions, `N` is the number of tokens, `K` of kernels and `L` of drafts per call.
Kernels are numbered in the order in which they run: kernel `i` belongs to level `K - 1 - i`.

Windows are exact by the two invariants of Jacobi windows. Given all that belongs to earlier
tokens and to earlier kernels of its own chain, a state has the distribution of its kernel, because
`coupling.move` preserves it; and nothing that belongs to a token influences an earlier token, or an
earlier kernel. So a token has the target's distribution given the tokens before it as soon as it
was drawn under its true context. The first token had its true context, so it is final; while a
token is unchanged, so is the context of the next one.

Reference for the reflection coupling of kernels, of drafts of a single chain: De Bortoli et al.,
Accelerated Diffusion Models via Speculative Sampling, 2025 (arXiv:2501.05370).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import coupling, noise as noise_lib, schedule as schedule_lib
from cspd_jax.continuous.base import Cost, DecodeContext, Draft, Drafter, Target, Verdict, Verifier
from cspd_jax.continuous.chains import draft_loop, prediction
from cspd_jax.continuous.chains.prediction import Predicted
from cspd_jax.continuous.coupling import Gaussian, Moved
from cspd_jax.continuous.head import Head
from cspd_jax.continuous.result import Kernels
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import Span, TokenBatch
from cspd_jax.core import rows


class Chains(NamedTuple):
  """Chains of tokens."""

  states: jax.Array  # `[..., K, C]` the state after every kernel; the last is the token.
  kernels: Gaussian  # The Gaussians that they were drawn from, `[..., K, C]`.
  exist: jax.Array  # `[...]` bool; the other leaves are meaningless where it is False.

  @property
  def tokens(self) -> jax.Array:
    """The tokens `[..., C]`."""
    return self.states[..., -1, :]


class Memory(NamedTuple):
  """The chains of a round, for the next one."""

  chains: Chains  # `[B, W]` the chains of the round, by rank.
  committed: jax.Array  # `[B]` how many of them, the first ones, the round has committed.

  def left(self) -> Chains:
    """Returns the chains `[B, W]` from the first that is not committed; the last do not exist."""
    width = self.chains.exist.shape[1]
    index = self.committed[:, None] + jnp.arange(width)
    moved = jax.tree.map(lambda leaf: rows.take(leaf, jnp.minimum(index, width - 1)), self.chains)
    return moved._replace(exist=moved.exist & (index < width))


def empty(num_levels: int, token_dim: int, *shape: int) -> Chains:
  """Returns chains of `shape` that do not exist."""
  states = jnp.zeros((*shape, num_levels, token_dim), jnp.float32)
  return Chains(states, Gaussian(states, jnp.ones_like(states)), jnp.zeros(shape, bool))


class Walked(NamedTuple):
  """New chains and their costs."""

  chains: Chains  # `[N]` the chains.
  kept: jax.Array  # `[N, K]` whether the state after a kernel is the old chain's.
  calls: jax.Array  # `[N]` head calls until the chain was complete.
  rows: jax.Array  # `[N]` states that the head was evaluated at.


class ChainNoise(NamedTuple):
  """The random numbers of new chains, by kernel."""

  fresh: jax.Array  # `[N, K, C]` of states that are not moved from an old chain.
  # `[N, K, C]` of the moves from old chains, None if no deviations are learned, and
  split: jax.Array | None
  log_uniform: jax.Array  # `[N, K]` the logarithms of uniform numbers, for `coupling.move`.
  draft_split: jax.Array | None  # `[N, K, C]` or None and
  draft_log_uniform: jax.Array  # `[N, K]` of the moves from predicted kernels.


class ChainDrafts(NamedTuple):
  """Chains that go on as drafts where they have parted from the old ones."""

  chains: Chains  # `[N]` the chains: final states, old states moved to true kernels, and drafts.
  kept: jax.Array  # `[N, K]` whether the state after a kernel is the old chain's.
  parted: jax.Array  # `[N, K]` whether it is a draft.


class ChainState(NamedTuple):
  """The state of the loop over head calls."""

  index: jax.Array  # `[N]` the first kernel that is not final; `K` for complete chains.
  predicted: Predicted  # The drafter's kernels.
  walked: Walked  # The new chains, final before `index`.


def draw_noise(schedule: Schedule, batch: TokenBatch, token_dim: int,
               trial: jax.Array) -> ChainNoise:
  """Draws the random numbers of a round; `trial` `[N]` differs between the rounds of a row."""
  levels = schedule.num_levels
  normal = lambda purpose: noise_lib.chain_normal(batch.keys, purpose, levels, token_dim, trial)
  uniform = lambda purpose: noise_lib.chain_log_uniform(batch.keys, purpose, levels, trial)
  # Where the schedule sets all deviations, old and new ones are equal.
  split = lambda purpose: normal(purpose) if schedule_lib.learned(schedule) else None
  return ChainNoise(
      normal(noise_lib.STEP), split(noise_lib.DRAFT), uniform(noise_lib.ACCEPT),
      split(noise_lib.PROPOSE), uniform(noise_lib.RESIDUAL))


def walk(head: Head, length: int, rho: np.ndarray, batch: TokenBatch, old: Chains,
         trial: jax.Array) -> Walked:
  """Draws new chains of the tokens `[N]` of `batch`, which have their new `z`, from old ones.

  The last kernel of the head's schedule must have noise. `length` is `L`, at most `K`; `rho` is the
  blend of the head's drafter; `trial` `[N]` differs between the rounds of a row.
  """
  schedule, levels = head.schedule, head.schedule.num_levels
  batch = head.modulated(batch)
  noise = draw_noise(schedule, batch, head.target.token_dim, trial)
  first = head.start(batch)
  start = _follow(head, rho, batch, first, old, noise)

  def one_call(state):
    drafts = _draft(first, old, noise, start.walked, state)
    order = jnp.cumsum(drafts.parted, axis=1)
    called = drafts.parted & (order <= length)
    # The kernels `[N, L]` of the drafts to be called; `K` past the last one.
    index = jnp.sum(order[:, None] <= jnp.arange(length)[:, None], axis=2)
    here = jnp.minimum(index, levels - 1)
    before = _before(first, drafts.chains)
    x = rows.take(before, here)
    kernel = head.kernel(batch, x, levels - 1 - here)
    by_kernel = lambda leaf: rows.take(leaf, jnp.clip(order, 1, length) - 1)
    true = Gaussian(by_kernel(kernel.mean), by_kernel(kernel.std))
    last = prediction.Last(
        index[:, -1], x[:, -1], rows.take(drafts.chains.kernels.mean, here[:, -1:])[:, 0],
        jax.tree.map(lambda leaf: leaf[:, -1], kernel))
    predicted = prediction.learn(schedule, rho, batch.temperature, state.predicted, old.exist,
                                 called, before, true, last)
    state = _verify(head.target, noise, state, drafts, called, true)
    return state._replace(predicted=predicted)

  return jax.lax.while_loop(lambda state: jnp.any(state.index < levels), one_call, start).walked


def _before(first: jax.Array, chains: Chains) -> jax.Array:
  """Returns the states `[N, K, C]` before the kernels; `first` `[N, C]` is that of the first."""
  return jnp.concatenate([first[:, None], chains.states[:, :-1]], axis=1)


def _follow(head: Head, rho: np.ndarray, batch: TokenBatch, first: jax.Array, old: Chains,
            noise: ChainNoise) -> ChainState:
  """Calls the head at all old states, and moves them to the true kernels."""
  levels, before = head.schedule.num_levels, _before(first, old)
  answer = head.kernel(batch, before, levels - 1 - jnp.arange(levels))
  kernels = Gaussian(answer.mean, answer.std)
  compared = coupling.compare(old.states, old.kernels, kernels, noise.split)
  moved = coupling.move(old.states, compared, noise.log_uniform)
  moved = moved._replace(kept=moved.kept & old.exist[:, None])
  # The last state may be another: no kernel follows.
  complete = ~batch.active | jnp.all(moved.kept[:, :-1], axis=1)
  called = (batch.active & old.exist).astype(jnp.int32)
  walked = Walked(Chains(moved.x, kernels, batch.active), moved.kept, called,
                  called * head.target.num_streams * levels)
  predicted = prediction.start(
      head.schedule, rho, batch.temperature, first, before, kernels, old.exist)
  return ChainState(jnp.where(complete, levels, 0), predicted, walked)


def _draft(first: jax.Array, old: Chains, noise: ChainNoise, follow: Walked,
           state: ChainState) -> ChainDrafts:
  """Continues all chains to their ends, as old ones moved to true kernels, or as drafts."""
  shape = old.states.shape
  final = jnp.arange(shape[1]) < state.index[:, None]
  choose = lambda a, b: rows.where(final, a, b)
  settled = Moved(choose(state.walked.chains.states, follow.chains.states),
                  choose(state.walked.kept, follow.kept))
  followed = draft_loop.follow(first, draft_loop.Steps(
      jnp.broadcast_to(old.exist[:, None], shape[:2]), final, settled, state.predicted, old.states,
      old.kernels, noise.fresh, noise.split, noise.log_uniform))
  chains = follow.chains._replace(states=followed.x)
  predicted = prediction.kernel(state.predicted, _before(first, chains))
  kernels = choose(state.walked.chains.kernels,
                   rows.where(followed.parted, predicted, follow.chains.kernels))
  return ChainDrafts(chains._replace(kernels=kernels), followed.kept, followed.parted)


def _verify(target: Target, noise: ChainNoise, state: ChainState, drafts: ChainDrafts,
            called: jax.Array, true: Gaussian) -> ChainState:
  """Moves the drafts `called` `[N, K]` to their true kernels, up to the first that is not kept."""
  levels, chains = called.shape[1], drafts.chains
  first = lambda mask: jnp.min(jnp.where(mask, jnp.arange(levels), levels), axis=1)
  compared = coupling.compare(chains.states, chains.kernels, true, noise.draft_split)
  moved = coupling.move(chains.states, compared, noise.draft_log_uniform)
  failed = first(called & ~moved.kept)
  index = jnp.where(failed < levels, failed + 1, first(drafts.parted & ~called))
  # Beyond `index` nothing is final, and the next drafts replace it.
  chains = chains._replace(states=rows.where(called, moved.x, chains.states),
                           kernels=rows.where(called, true, chains.kernels))
  return ChainState(index, state.predicted, Walked(
      chains, drafts.kept & (moved.kept | ~called),
      state.walked.calls + jnp.any(called, axis=1),
      state.walked.rows + target.num_streams * jnp.sum(called, axis=1, dtype=jnp.int32)))


def coupled_chains(num_levels: int, window: int, kernels_per_call: int, rho: np.ndarray
                   ) -> Verifier:
  """Commits tokens whose context was true, up to the first that changed; see `decoders.windows`."""
  def start(target: Target, num_rows: int, width: int) -> Memory:
    return Memory(empty(num_levels, target.token_dim, num_rows, width),
                  jnp.zeros(num_rows, jnp.int32))

  def verify(context: DecodeContext, span: Span, draft: Draft | None, z: jax.Array) -> Verdict:
    assert draft is not None, 'make_decoder refuses this verifier without a drafter'
    rows, width = span.ranks.shape
    flat = lambda leaf: leaf.reshape(rows * width, *leaf.shape[2:])
    walked = walk(
        Head(context.target, context.schedule, context.params), kernels_per_call, rho,
        span.batch(z),
        jax.tree.map(flat, draft.record), jnp.repeat(span.count, width))
    walked = jax.tree.map(lambda leaf: leaf.reshape(rows, width, *leaf.shape[1:]), walked)

    unchanged = walked.kept[..., -1] & span.in_round
    first = jnp.sum(jnp.cumprod(unchanged, axis=1), axis=1, dtype=jnp.int32)
    # The tokens of a step do not see each other: all that are in the round are final.
    end = jnp.take_along_axis(span.end, jnp.minimum(first, width - 1)[:, None], axis=1)[:, 0]
    end = jnp.minimum(end, jnp.minimum(span.stop, span.count + window))
    length = jnp.where(span.active, end - span.count, 0)
    committed = jnp.arange(width) < length[:, None]
    tested = draft.record.exist & span.in_round
    by_level = lambda kept: jnp.sum(kept & tested[..., None], axis=1, dtype=jnp.int32)[:, ::-1]
    return Verdict(
        tokens=walked.chains.tokens, length=length, tested=(tested & committed).astype(jnp.int32),
        accepted=(unchanged & committed).astype(jnp.int32), trials=jnp.zeros_like(length),
        missed=jnp.zeros_like(length),
        cost=Cost(jnp.max(walked.calls, axis=1), jnp.sum(walked.rows, axis=1)),
        kernels=Kernels(by_level(jnp.ones_like(walked.kept)), by_level(walked.kept)),
        memory=Memory(walked.chains, length))

  return Verifier(
      verify, None, 'exact up to rounding', levels=num_levels, start=start, exact=True,
      # The head is called at all old states at once.
      head_states=lambda width: width * num_levels)


def old_chains() -> Drafter:
  """Returns a drafter of the chains in the verifier's `Memory` that are not committed.

  Tokens of the window without a draft are missing; a causal model reads the last draft instead.
  """
  def propose(context: DecodeContext, span: Span, tokens: jax.Array, memory: Memory) -> Draft:
    _check_memory(context, span, memory)
    old = memory.left()
    row, size = jnp.arange(tokens.shape[0])[:, None], tokens.shape[1]
    inside = span.in_round
    number = jnp.sum(old.exist & inside, axis=1)[:, None]
    last = jnp.take_along_axis(old.tokens, jnp.maximum(number - 1, 0)[..., None], axis=1)
    drafts = jnp.where(old.exist[..., None], old.tokens, last)
    positions = jnp.where(inside, span.positions, size)
    missing = jnp.zeros(tokens.shape[:2], bool).at[row, positions].set(~old.exist, mode='drop')
    return Draft(tokens.at[row, positions].set(drafts, mode='drop'), old, missing)

  return Drafter(propose, None)


def _check_memory(context: DecodeContext, span: Span, memory: Any) -> None:
  expected = span.ranks.shape[1], context.schedule.num_levels
  actual = memory.chains.states.shape[1:3] if isinstance(memory, Memory) else None
  if actual != expected:
    has = 'no chains' if actual is None else f'chains of {actual[0]} tokens and {actual[1]} levels'
    raise ValueError(f'state has {has}; this decoder requires {expected[0]} tokens and '
                     f'{expected[1]} levels; pass a state of its own `start`.')
