"""The denoising chains of a window's tokens, and their coupling with the chains of the last round.

A token is the last state of a chain of Gaussian kernels. When the context of a token changes, so do
the means of its kernels, and a new chain must be drawn. It is drawn kernel by kernel with
`coupling.move` from the old one: where the kernels of both are close, the new state is the old
state. Chains that part stay close, and may meet again at a later kernel; only the last state is the
token. Everything about the new chain is that of a chain drawn from scratch: given the states before
it, every new state has exactly the distribution of the kernel.

The head is called at all old states at once, which answers all kernels before which the chains
agree. Where they have parted, the next states are drafted: kernels as `head_drafter` predicts them
from the head's answer at the old state of the same level, moved from the old chain. A call of the
head at the drafts verifies several kernels at once: a draft is moved from the predicted to the true
kernel, and the first one that is not kept ends the drafts of the call.

A token without an old chain is drafted from the head's answers of the last call, as in
`speculative_head`. Such tokens come first in every call, and have as many states of it as the other
tokens of their row leave them on average, whatever the other rows need: what is drawn for them
depends on where calls end.

In the shape descriptions, `N` is the number of tokens, `K` of kernels and `L` of drafts per call.
Kernels are numbered in the order in which they run: kernel `i` is that of level `K - 1 - i`.

References: the reflection coupling of denoising kernels is in De Bortoli et al., Accelerated
Diffusion Models via Speculative Sampling, 2025 (arXiv:2501.05370), for drafts of a single chain.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import (
  coupling,
  head as head_lib,
  head_drafter,
  noise as noise_lib,
  schedule as schedule_lib,
)
from cspd_jax.continuous.base import Params, Target
from cspd_jax.continuous.chains import Chains
from cspd_jax.continuous.coupling import Gaussian, Moved
from cspd_jax.continuous.head_drafter import Frozen
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import TokenBatch

# Drafts of a chain per call of the head, as a multiple of the average.
DRAFTS = 4


class Walked(NamedTuple):
  """New chains and their costs.

  Attributes:
    chains: `[N]` the chains.
    kept: `[N, K]` whether the state after a kernel is that of the old chain.
    calls: `[N]` head calls until the chain was complete.
    rows: `[N]` states that the head was evaluated at.
  """

  chains: Chains
  kept: jax.Array
  calls: jax.Array
  rows: jax.Array


class Noise(NamedTuple):
  """The random numbers of new chains, by kernel.

  Attributes:
    fresh: `[N, K, C]` of states that are not moved from an old chain.
    split: `[N, K, C]` and
    log_uniform: `[N, K]` of the moves from old chains; see `coupling.move`.
    draft_split: `[N, K, C]` and
    draft_log_uniform: `[N, K]` of the moves from predicted kernels.
  """

  fresh: jax.Array
  split: jax.Array
  log_uniform: jax.Array
  draft_split: jax.Array
  draft_log_uniform: jax.Array


class Drafts(NamedTuple):
  """Drafted transitions of parted chains, `[N, L]`.

  Attributes:
    index: number of the kernel; `K` past the end of the chain.
    x: `[N, L, C]` the state before it.
    next: `[N, L, C]` the state after it.
    predicted: the kernel that `next` was drawn from, `[N, L, C]`.
    kept: whether `next` is the state of the old chain.
  """

  index: jax.Array
  x: jax.Array
  next: jax.Array
  predicted: Gaussian
  kept: jax.Array


class Position(NamedTuple):
  """How far chains are that have parted from the old ones.

  Attributes:
    index: `[N]` number of the next kernel; `K` for complete chains.
    x: `[N, C]` the state before it.
  """

  index: jax.Array
  x: jax.Array


class State(NamedTuple):
  """The state of the loop over head calls.

  Attributes:
    position: how far the chains are.
    frozen: `[N, K, C]` answers of the head, inputs of the drafter: at the old states, or for tokens
      without an old chain those of the last call.
    written: `[N, K]` the kernels before which the chains had parted; the others follow from
      `Answers`.
    walked: the new chains so far, at the kernels `written`.
  """

  position: Position
  frozen: Frozen
  written: jax.Array
  walked: Walked


class Answers(NamedTuple):
  """The head's answers at the old states, and the new states if the chains agree until there.

  Attributes:
    moved: `[N, K, C]` the new state after the kernel.
    parting: `[N, K + 1]` number of the first kernel from here on at which the chains part, or `K`.
  """

  moved: Moved
  parting: jax.Array


def draw_noise(schedule: Schedule, batch: TokenBatch, token_dim: int, trial: jax.Array) -> Noise:
  """Draws the random numbers of a round.

  Args:
    schedule: the levels.
    batch: the tokens `[N]`.
    token_dim: `C`.
    trial: `[N]` a number that differs between the rounds of a row.
  """
  levels = schedule.num_levels
  normal = lambda purpose: noise_lib.chain_normal(
      batch.keys, purpose, levels, token_dim, trial)
  uniform = lambda purpose: noise_lib.chain_log_uniform(batch.keys, purpose, levels, trial)
  # Where all deviations are those of the schedule, old and new ones are equal.
  split = lambda purpose: normal(purpose) if schedule_lib.learned(schedule) else jnp.zeros(
      (1, levels, token_dim), jnp.float32)
  return Noise(normal(noise_lib.STEP), split(noise_lib.DRAFT), uniform(noise_lib.ACCEPT),
               split(noise_lib.PROPOSE), uniform(noise_lib.RESIDUAL))


def walk(target: Target, schedule: Schedule, kernels_per_call: int, rho: np.ndarray,
         params: Params, batch: TokenBatch, old: Chains, trial: jax.Array, width: int) -> Walked:
  """Draws new chains of tokens, coupled with old ones.

  Args:
    target: the model.
    schedule: the levels; the last kernel must have noise.
    kernels_per_call: `L`.
    rho: see `head_drafter`.
    params: the model's parameters.
    batch: the tokens `[N]` with their new `z`.
    old: the old chains `[N]`.
    trial: see `draw_noise`.
    width: tokens of a row; those of a row follow each other.
  """
  levels = schedule.num_levels
  batch = head_lib.modulated(target, schedule, params, batch)
  noise = draw_noise(schedule, batch, target.token_dim, trial)
  state, answers = _follow(target, schedule, params, batch, old, noise)
  # Long chains use the share of those that are complete.
  num, length = batch.active.shape[0], DRAFTS * kernels_per_call
  fresh = batch.active & ~old.exist
  share = _share(kernels_per_call, fresh, width)

  def one_call(state):
    drafts, after = _draft(schedule, rho, length, batch, old, noise, answers, state)
    real = drafts.index < levels
    first = real & fresh[:, None] & (jnp.arange(length) < share[:, None])
    # The first drafts of every chain, then the second ones, as many as there is space for.
    in_order = jnp.concatenate([first.T, (real & ~fresh[:, None]).T]).reshape(-1)
    none = len(in_order)
    chosen = jnp.nonzero(in_order, size=num * kernels_per_call, fill_value=none)[0]
    token, number = chosen % num, chosen // num % length
    pick = lambda leaf: leaf[token, number]
    kernel = head_lib.kernel(target, schedule, params, batch, pick(drafts.x),
                             _level(schedule, pick(drafts.index)), token)
    number = jnp.where(chosen < none, number, length)
    unpack = lambda leaf: jnp.ones((num, length, *leaf.shape[1:]), leaf.dtype).at[
        token, number].set(leaf, mode='drop')
    called = jnp.zeros((num, length), bool).at[token, number].set(True, mode='drop')
    return _verify(schedule, target, noise, fresh, state, drafts, called, after,
                   jax.tree.map(unpack, kernel))

  state = jax.lax.while_loop(
      lambda state: jnp.any(state.position.index < levels), one_call, state)
  return _completed(answers, state)


def _share(kernels_per_call: int, fresh: jax.Array, width: int) -> jax.Array:
  """Returns how many states of a call each `fresh` `[N]` token may have, `[N]`.

  It is at least `kernels_per_call`. Together those of a row have at most half of its states if half
  of its tokens or fewer are fresh, so the sum never exceeds the states of the call.
  """
  num_fresh = jnp.sum(fresh.reshape(-1, width), axis=1)
  half = width * kernels_per_call // 2 // jnp.maximum(num_fresh, 1)
  return jnp.repeat(jnp.maximum(half, kernels_per_call), width)


def _level(schedule: Schedule, index: jax.Array) -> jax.Array:
  """Returns the level of kernels, 0 past the end of the chain."""
  return jnp.maximum(schedule.num_levels - 1 - index, 0)


def _follow(target: Target, schedule: Schedule, params: Params, batch: TokenBatch, old: Chains,
            noise: Noise) -> tuple[State, Answers]:
  """Calls the head at all old states and follows the old chains until they part."""
  num, levels = batch.active.shape[0], schedule.num_levels
  first = head_lib.start(batch, target)
  before = jnp.concatenate([first[:, None], old.states[:, :-1]], axis=1)
  level = jnp.broadcast_to(levels - 1 - jnp.arange(levels), (num, levels))
  kernel = head_lib.kernel(target, schedule, params, batch, before, level)
  new = Gaussian(kernel.mean, kernel.std)
  compared = coupling.compare(old.states, old.kernels, new, noise.split)
  moved = coupling.move(old.states, compared, noise.log_uniform)
  moved = moved._replace(kept=moved.kept & old.exist[:, None])
  index = jnp.where(moved.kept, levels, jnp.arange(levels))
  parting = jnp.pad(jax.lax.cummin(index, axis=1, reverse=True), ((0, 0), (0, 1)),
                    constant_values=levels)
  x0 = schedule_lib.predict_x0(schedule, level, before, kernel.eps)
  answers = Answers(moved, parting)
  frozen = jax.tree.map(
      lambda leaf: jnp.broadcast_to(leaf[:, None], before.shape), head_drafter.frozen_start(first))
  start = Position(jnp.zeros(num, jnp.int32), first)
  position = _where(old.exist, _jump(answers, start.index), start)
  position = position._replace(index=jnp.where(batch.active, position.index, levels))
  called = (batch.active & old.exist).astype(jnp.int32)
  nothing = jnp.zeros((num, levels), bool)
  frozen = _where(old.exist, Frozen(kernel.eps, x0, kernel.v), frozen)
  return State(position, frozen, nothing, Walked(
      Chains(jnp.zeros_like(old.states), new, batch.active), nothing, called,
      called * target.num_streams * levels)), answers


def _jump(answers: Answers, index: jax.Array) -> Position:
  """Follows chains that agree before kernel `index` `[N]` until after they have parted."""
  levels = answers.moved.x.shape[1]
  parting = jnp.take_along_axis(answers.parting, index[:, None], axis=1)[:, 0]
  x = _at(answers.moved.x, jnp.minimum(parting, levels - 1))
  return Position(jnp.minimum(parting + 1, levels), x)


def _completed(answers: Answers, state: State) -> Walked:
  """Adds the states before which the chains agree."""
  walked, written = state.walked, state.written
  states = jnp.where(written[..., None], walked.chains.states, answers.moved.x)
  return walked._replace(chains=walked.chains._replace(states=states),
                         kept=jnp.where(written, walked.kept, answers.moved.kept))


def _where(condition: jax.Array, a: Any, b: Any) -> Any:
  """Selects between two trees of leaves `[N, ...]` by `condition` `[N]`."""
  return jax.tree.map(lambda a, b: jnp.where(
      condition.reshape(-1, *(1,) * (a.ndim - 1)), a, b), a, b)


def _at(leaf: jax.Array, index: jax.Array) -> jax.Array:
  """Returns entry `index` `[N]` of `leaf` `[N, K, ...]`; `leaf` may have one row for all."""
  leaf = jnp.broadcast_to(leaf, (index.shape[0], *leaf.shape[1:]))
  return jax.vmap(lambda row, i: row[i])(leaf, index)


def _draft(schedule: Schedule, rho: np.ndarray, length: int, batch: TokenBatch, old: Chains,
           noise: Noise, answers: Answers, state: State) -> tuple[Drafts, Position]:
  """Drafts `length` transitions of parted chains; returns them and what follows the last one."""
  levels = schedule.num_levels

  def step(position, _):
    index, x = position
    at = lambda tree: jax.tree.map(lambda leaf: _at(leaf, jnp.minimum(index, levels - 1)), tree)
    mean, std = head_drafter.draft_kernel(
        schedule, rho, at(state.frozen), x, _level(schedule, index))
    predicted = Gaussian(mean, batch.temperature[:, None] * std)
    # Without an old chain the state is a draw from the predicted kernel, which `move` keeps.
    plain = predicted.mean + predicted.std * at(noise.fresh)
    source, kernel = _where(old.exist, at((old.states, old.kernels)), (plain, predicted))
    compared = coupling.compare(source, kernel, predicted, at(noise.split))
    moved = coupling.move(source, compared, at(noise.log_uniform))
    kept, following = moved.kept & old.exist, jnp.minimum(index + 1, levels)
    after = _where(kept, _jump(answers, following), Position(following, moved.x))
    return after, Drafts(index, x, moved.x, predicted, kept)

  after, drafts = jax.lax.scan(step, state.position, length=length)
  return jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), drafts), after


def _verify(schedule: Schedule, target: Target, noise: Noise, fresh: jax.Array, state: State,
            drafts: Drafts, called: jax.Array, after: Position, kernel: head_lib.Kernel) -> State:
  """Moves drafts from the predicted to the true kernels, up to the first that is not kept.

  Args:
    schedule: the levels.
    target: the model.
    noise: the random numbers.
    fresh: `[N]` which tokens have no old chain.
    state: the state before the drafts.
    drafts: the drafts.
    called: `[N, L]` whether the head was evaluated at a draft: the first ones of every chain.
    after: what follows the last draft.
    kernel: the true kernels, `[N, L, C]`; meaningless where not `called`.
  """
  levels, length = schedule.num_levels, drafts.index.shape[1]
  here = jnp.minimum(drafts.index, levels - 1)
  at = lambda leaf: jnp.take_along_axis(
      jnp.broadcast_to(leaf, (here.shape[0], *leaf.shape[1:])),
      here.reshape(*here.shape, *(1,) * (leaf.ndim - 2)), axis=1)
  true = Gaussian(kernel.mean, kernel.std)
  compared = coupling.compare(drafts.next, drafts.predicted, true, at(noise.draft_split))
  moved = coupling.move(drafts.next, compared, at(noise.draft_log_uniform))
  accepted = coupling.accepted_length(moved.kept & called)
  num_called = jnp.sum(called, axis=1, dtype=jnp.int32)
  pick = lambda leaf: _at(leaf, jnp.minimum(accepted, length - 1))
  # The chain continues after the transition that failed, or at the first draft without a call.
  waiting = Position(pick(drafts.index), pick(drafts.x))
  failed = Position(waiting.index + 1, pick(moved.x))
  position = _where(accepted < num_called, failed, _where(accepted < length, waiting, after))

  # Transitions beyond the first that failed write out of range, which drops them.
  decided = called & (jnp.arange(length) <= accepted[:, None])
  index = jnp.where(decided, drafts.index, levels)
  row = jnp.arange(index.shape[0])[:, None]
  write = lambda leaf, new: leaf.at[row, index].set(new, mode='drop')
  walked = state.walked
  chains = walked.chains._replace(
      states=write(walked.chains.states, moved.x),
      kernels=jax.tree.map(write, walked.chains.kernels, true))
  # The answer to a kernel or, past the end of the call, to the last one before it: at a state that
  # depends on the noise of earlier kernels only.
  nearest = jnp.clip(jnp.arange(levels) - state.position.index[:, None], 0,
                     jnp.maximum(num_called - 1, 0)[:, None])
  x0 = schedule_lib.predict_x0(schedule, _level(schedule, drafts.index), drafts.x, kernel.eps)
  answers = jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, nearest[..., None], axis=1),
                         Frozen(kernel.eps, x0, kernel.v))
  active = state.position.index < levels
  return State(
      position, _where(fresh, answers, state.frozen),
      write(state.written, True), Walked(
          chains, write(walked.kept, drafts.kept & moved.kept), walked.calls + active,
          walked.rows + target.num_streams * num_called))
