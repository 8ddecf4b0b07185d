"""The control flow of CSpD's released code: drafts are verified in whole blocks.

The target fixes the first tokens alone (pre-filling). Then the draft model goes on token
by token, and at every step number divisible by `gamma`, and at the last, one pass of the
target verifies all tokens since the last verification. That pass does not see the
drafts: it is the target's parallel law of the block. Every draft is kept or replaced by
itself, none is discarded, so the number of passes, and with it the speed, does not
depend on acceptance. With a valid test the law would be that of `sample.parallel`,
which needs no draft model; the tests here are not valid, see `cspd`.

Tests look at the two heads' means at kernel 0, the tokens that each would emit under the
shared noise of the position.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import head as head_lib
from cspd_jax.continuous import path
from cspd_jax.continuous import sampling as sampling_lib
from cspd_jax.continuous.base import Condition, Params, Target
from cspd_jax.continuous.head import Batch
from cspd_jax.continuous.result import Generated, empty_result
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.decoding.random import row_keys


class Ends(NamedTuple):
  """How a model's chains end, leaves `[N, ...]` or `[B, T, ...]` by place in the order.

  Attributes:
    mean: `[..., C]` mean of kernel 0: the token it would emit.
    std: `[..., C]` standard deviation of kernel 0.
    log_std: `[...]` sum of the logarithms of the standard deviations of all kernels above.
  """

  mean: jax.Array
  std: jax.Array
  log_std: jax.Array


# `(Batch [N], draft's Ends, target's Ends, pending [N]) -> (tokens [N, C], accepted [N],
# trials [N])`: keeps the draft's token or replaces it.
Rule = Callable[[Batch, Ends, Ends, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


def ends(target: Target, schedule: Schedule, params: Params, batch: Batch) -> Ends:
  """Runs the whole chain; `num_levels` head calls."""
  shared = path.shared(target, schedule, params, batch, 0)
  level = jnp.zeros(shared.log_std.shape, jnp.int32)
  k = head_lib.kernel(target, schedule, params, batch, shared.x, level)
  return Ends(k.mean, k.std, shared.log_std)


def blocks(num_tokens: int, length: int, prefill: float) -> tuple[tuple[int, int], ...]:
  """The places `(first, stop)` of every block, the first one fixed by the target alone.

  Args:
    num_tokens: `T`.
    length: `gamma`.
    prefill: share of the tokens; one more than this share is fixed by the target, so at
      least one.

  Raises:
    ValueError: if `length` is below 1 or `prefill` not from 0 to 1.
  """
  if length < 1:
    raise ValueError(f'length is {length}; at least 1 token must be drafted per round.')
  if not 0 <= prefill <= 1:
    raise ValueError(f'prefill is {prefill}; it must be from 0 to 1.')
  first = min(math.floor(prefill * num_tokens) + 1, num_tokens)
  stops = [k + 1 for k in range(first, num_tokens) if k % length == 0 or k == num_tokens - 1]
  return tuple(zip([0, first, *stops[:-1]], [first, *stops]))


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
  """Block verification: `decoder(params, condition, key, draft_params=...)`.

  A pure function of arrays, to be jitted whole.

  Attributes:
    target: verifies.
    draft: the draft model.
    schedule: the levels of both heads.
    blocks: see the function of this name.
    rule: keeps or replaces drafts.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
    guidance_of_last: whether a block is verified with the guidance scale of its last token.
    orders: as for `sample.Decoder`.
    law: what the samples come near to, in words.
    guarantee: how near, in words.
  """

  target: Target
  draft: Target
  schedule: Schedule
  blocks: tuple[tuple[int, int], ...]
  rule: Rule
  guidance: str
  guidance_of_last: bool
  orders: Callable
  law: str
  guarantee: str

  def check(self, condition: Condition, sampling: Sampling = Sampling()) -> None:
    """Raises ValueError for a condition or options that cannot work; for concrete values."""
    sampling_lib.check(sampling, self.target)
    self.target.check_condition(condition)
    self.draft.check_condition(condition)

  def __call__(self, params: Params, condition: Condition, key: jax.Array,
               sampling: Sampling = Sampling(), draft_params: Params = None) -> Generated:
    """Generates one image's tokens per row; arguments and result as for `exact_path`.

    A round of the result is a target pass: one token of the pre-fill, or a block.
    """
    if sampling_lib.is_concrete(condition, sampling):
      self.check(condition, sampling)
    target, draft, schedule = self.target, self.draft, self.schedule
    size, num_rows = target.num_tokens, jax.tree.leaves(condition)[0].shape[0]
    rows = row_keys(key, num_rows)
    order = self.orders(rows, size)
    place = jnp.argsort(order, axis=1)
    (_, prefill), *verified = self.blocks
    width = max([stop - first for first, stop in verified], default=1)
    order_padded = jnp.pad(order, [(0, 0), (0, width)])

    def batch(z, first, num, scale_at):
      """Tokens at places `first .. first + num - 1`, and their positions."""
      positions = jax.lax.dynamic_slice_in_dim(order_padded, first, num, axis=1)
      scale = sampling_lib.scale(
          sampling, self.guidance, size, jnp.broadcast_to(size - 1 - scale_at, positions.shape))
      return positions, head_lib.batch(
          rows, head_lib.pick(z, positions), positions, scale, sampling.temperature,
          jnp.ones(positions.shape, bool))

    def one_token(model, params, k, tokens):
      """The model's own token number `k`."""
      z = model.transform(params, condition, tokens, place < k)
      positions, b = batch(z, k, 1, k)
      end = ends(model, schedule, params, b)
      return tokens.at[jnp.arange(num_rows), positions[:, 0]].set(end.mean), end

    def draft_step(k, carry):
      tokens, drafted = carry
      tokens, end = one_token(draft, draft_params, k, tokens)
      return tokens, jax.tree.map(lambda old, new: old.at[:, k].set(new), drafted, end)

    def block_step(index, carry):
      tokens, drafted, generated = carry
      first, stop = (jnp.asarray(bounds)[index] for bounds in np.array(verified).T)
      known = tokens
      tokens, drafted = jax.lax.fori_loop(first, stop, draft_step, (tokens, drafted))
      z = target.transform(params, condition, known, place < first)
      at = first + jnp.arange(width)
      positions, b = batch(z, first, width, stop - 1 if self.guidance_of_last else at)
      own = ends(target, schedule, params, b)
      theirs = jax.tree.map(lambda leaf: _window(leaf, first, width), drafted)
      wanted = jnp.broadcast_to(at < stop, (num_rows, width))
      fixed, accepted, trials = self.rule(b, theirs, own, wanted.reshape(-1))
      shape = lambda leaf: leaf.reshape(num_rows, width, *leaf.shape[1:])
      tokens = tokens.at[jnp.arange(num_rows)[:, None], jnp.where(wanted, positions, size)].set(
          shape(fixed), mode='drop')
      add = lambda old, new: old.at[:, at].add(
          jnp.where(wanted, new, 0).astype(jnp.int32), mode='drop')
      return tokens, drafted, generated._replace(
          tested=add(generated.tested, wanted), accepted=add(generated.accepted, shape(accepted)),
          trials=generated.trials + jnp.sum(jnp.where(wanted, shape(trials), 0), axis=1))

    generated = empty_result(target, order, prefill + len(verified), size)
    tokens = jax.lax.fori_loop(
        0, prefill, lambda k, tokens: one_token(target, params, k, tokens)[0], generated.tokens)
    zeros = jnp.zeros((num_rows, size, target.token_dim), jnp.float32)
    if verified:
      tokens, _, generated = jax.lax.fori_loop(
          0, len(verified), block_step, (tokens, Ends(zeros, zeros + 1, zeros[..., 0]), generated))
    return self._count(generated._replace(tokens=tokens), place, prefill, verified)

  def _count(self, generated, place, prefill, verified):
    """Fills in what does not depend on the samples."""
    size, levels = self.target.num_tokens, self.schedule.num_levels
    passes = prefill + len(verified)
    number = lambda value: jnp.full_like(generated.rounds, value)
    round_of_place = np.concatenate([np.arange(prefill)] + [
        np.full(stop - first, prefill + i) for i, (first, stop) in enumerate(verified)])
    return generated._replace(
        round_of_token=jnp.asarray(round_of_place, jnp.int32)[place],
        rounds=number(passes), target_passes=number(passes), draft_passes=number(size - prefill),
        head_calls=jnp.full_like(generated.head_calls, levels),
        head_rows=number(self.target.num_streams * size * levels),
        draft_head_calls=number((size - prefill) * levels))


def _window(leaf, first, width):
  """`[B width, ...]` the places `first .. first + width - 1` of `leaf` `[B, T, ...]`."""
  padded = jnp.pad(leaf, [(0, 0), (0, width)] + [(0, 0)] * (leaf.ndim - 2), constant_values=1)
  window = jax.lax.dynamic_slice_in_dim(padded, first, width, axis=1)
  return window.reshape(-1, *leaf.shape[2:])
