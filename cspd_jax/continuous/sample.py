"""The published sampler of masked diffusion models, and parallel decoding.

One program: a loop over autoregressive steps, and in it the head's loop over kernels.
The tokens of a step are independent given the visible ones, so a step is one forward
pass of the transformer, over all rows with hidden positions masked out, and one run of
the head over only the tokens the step fixes.

Reference: Li et al., Autoregressive Image Generation without Vector Quantization, 2024
(arXiv:2406.11838), and its released code for what the paper leaves open.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import head as head_lib
from cspd_jax.continuous import random as random_lib
from cspd_jax.continuous import sampling as sampling_lib
from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.base import Condition, Params, Target
from cspd_jax.continuous.head import Head
from cspd_jax.continuous.result import Generated, empty_result
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.decoding.random import RowKeys, row_keys


class Steps(NamedTuple):
  """Autoregressive steps of the target alone.

  Attributes:
    target: the model.
    hidden: how many tokens are hidden after each step.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
    head: samples the tokens of a step.
  """

  target: Target
  hidden: tuple[int, ...]
  guidance: str
  head: Head

  def run(self, params: Params, condition: Condition, rows: RowKeys, order: jax.Array,
          sampling: Sampling, generated: Generated) -> Generated:
    """Adds the steps to a result in which nothing is fixed yet.

    Args:
      params: of the target.
      condition: leading axis `B`.
      rows: `[B]` random state.
      order: `[B, T]` in which positions are fixed.
      sampling: guidance and temperature.
      generated: with room for the steps; others may follow.
    """
    target = self.target
    batch, size = order.shape
    place = jnp.argsort(order, axis=1)
    # Places `first[k] .. stop[k] - 1` of the order are fixed in step `k`.
    stop = size - np.array(self.hidden)
    first = np.append(0, stop)[:-1]
    order_padded = jnp.pad(order, [(0, 0), (0, int(np.max(stop - first, initial=0)))])

    def step(width, k, generated):
      start, end = jnp.asarray(first)[k], jnp.asarray(stop)[k]
      z = target.transform(params, condition, generated.tokens, place < start)
      active = jnp.broadcast_to(start + jnp.arange(width) < end, (batch, width))
      positions = jax.lax.dynamic_slice_in_dim(order_padded, start, width, axis=1)
      scale = sampling_lib.scale(
          sampling, self.guidance, size, jnp.full((batch, width), size - end))
      sampled = self.head.sample(params, head_lib.batch(
          rows, head_lib.pick(z, positions), positions, scale, sampling.temperature, active))
      generated = _add(generated, k, sampled, jnp.where(active, positions, size))
      return generated._replace(round_of_token=jnp.where(
          (place >= start) & (place < end), k, generated.round_of_token))

    # Steps of one token at the start do not pay for the width of the others.
    single = int(np.argmax(np.append(stop - first, 2) > 1))
    for begin, end in ((0, single), (single, len(self.hidden))):
      if begin < end:
        width = int(np.max((stop - first)[begin:end]))
        generated = jax.lax.fori_loop(begin, end, functools.partial(step, width), generated)
    return generated


@dataclasses.dataclass(frozen=True, eq=False)
class Decoder:
  """A masked model with a head sampler: `decoder(params, condition, key)`.

  A pure function of arrays, to be jitted whole: `jax.jit(decoder)`.

  Attributes:
    target: the model whose distribution is sampled.
    schedule: the levels of the head.
    hidden: how many tokens are hidden after each autoregressive step; the last is 0.
    guidance: one of `schedule.GUIDANCE_SCHEDULES`.
    head: samples the tokens of a step.
    orders: `(RowKeys [B], T) -> [B, T]` the order in which a row's positions are fixed.
    distribution: the distribution that is sampled, in words.
    guarantee: how close the samples are to it, in words.
  """

  target: Target
  schedule: Schedule
  hidden: tuple[int, ...]
  guidance: str
  head: Head
  orders: Callable
  distribution: str
  guarantee: str

  def check(self, condition: Condition, sampling: Sampling = Sampling()) -> None:
    """Raises ValueError for a condition or options that cannot work; for concrete values."""
    sampling_lib.check(condition, sampling, self.target)

  def __call__(self, params: Params, condition: Condition, key: jax.Array,
               sampling: Sampling = Sampling(), draft_params: Params = None) -> Generated:
    """Generates one image's tokens per row of `condition`.

    Args:
      params: the target's parameters.
      condition: what the target's `transform` takes, with leading axis `B`.
      key: one random key, or one per row `[B]`. A row's result depends on its own key
        and condition only.
      sampling: guidance and temperature; run-time values.
      draft_params: not used: there is no draft model.

    Returns:
      A `Generated`.
    """
    del draft_params
    if sampling_lib.is_concrete(condition, sampling):
      self.check(condition, sampling)
    rows = row_keys(key, jax.tree.leaves(condition)[0].shape[0])
    order = self.orders(rows, self.target.num_tokens)
    steps = Steps(self.target, self.hidden, self.guidance, self.head)
    return steps.run(params, condition, rows, order, sampling, empty_result(
        self.target, order, len(self.hidden), self.head.columns))


def mar(target: Target, num_iter: int | None = None, schedule: Schedule | None = None, *,
        guidance: str = 'linear', last_noise: bool = False,
        orders: Callable = random_lib.random_orders) -> Decoder:
  """MAR's own sampler: random orders, few tokens at first and many at the end.

  Args:
    target: the model.
    num_iter: autoregressive steps; one token per step by default.
    schedule: the levels of the head; 100 by default.
    guidance: 'linear', as in the paper's results, or 'constant', as in the released demo.
    last_noise: whether the last kernel adds its noise. It does not in MAR; the distribution with
      noise is the one that speculation over tokens can sample exactly.
    orders: `random_orders`, or `raster_orders`.

  Raises:
    ValueError: for options out of range.
  """
  num_iter = target.num_tokens if num_iter is None else num_iter
  hidden = schedule_lib.mask_lengths(target.num_tokens, num_iter)
  return _ancestral(target, hidden, schedule, guidance, last_noise, orders,
                    f'masked generation in {num_iter} steps')


def parallel(target: Target, tokens_per_step: int, schedule: Schedule | None = None, *,
             prefix_share: float | None = None, guidance: str = 'linear', last_noise: bool = False,
             orders: Callable = random_lib.random_orders) -> Decoder:
  """The target alone with the same number of tokens in every step.

  What verification of whole blocks samples from, whatever the draft model, if its test
  is valid: so the baseline for any such decoder is this one, at the same number of
  target passes.

  Args:
    target: the model.
    tokens_per_step: tokens fixed by a step.
    schedule: the levels of the head; 100 by default.
    prefix_share: if given, the target's passes are those of `cspd.cspd_released` with
      `tokens_per_step` drafts and this prefix share: one token per step first, then its blocks.
      None for equal steps.
    guidance: as for `mar`.
    last_noise: as for `mar`.
    orders: as for `mar`.

  Raises:
    ValueError: for options out of range.
  """
  size = target.num_tokens
  if not 1 <= tokens_per_step <= size:
    raise ValueError(
        f'tokens_per_step is {tokens_per_step}; it must be from 1 to the number of tokens, {size}.')
  distribution = f'parallel generation, {tokens_per_step} tokens per step'
  if prefix_share is None:
    stops = (*range(tokens_per_step, size, tokens_per_step), size)
  else:
    (_, first), *blocks = schedule_lib.blocks(size, tokens_per_step, prefix_share)
    stops = (*range(1, first + 1), *(stop for _, stop in blocks))
    distribution += f' after the first {first}'
  return _ancestral(target, tuple(size - stop for stop in stops), schedule, guidance, last_noise,
                    orders, distribution)


def first_tokens(target: Target, num_tokens: int, schedule: Schedule, guidance: str,
                 last_noise: bool) -> Steps:
  """The first `num_tokens` of an image, one per step; the arguments are those of `mar`."""
  hidden = tuple(target.num_tokens - 1 - k for k in range(num_tokens))
  return Steps(target, hidden, guidance, head_lib.ancestral(target, schedule, last_noise))


def _ancestral(target, hidden, schedule, guidance, last_noise, orders, distribution):
  sampling_lib.check_guidance(guidance)
  schedule = schedule_lib.make() if schedule is None else schedule
  distribution += ', last kernel with noise' if last_noise else ', last kernel without noise'
  return Decoder(target, schedule, hidden, guidance,
                 head_lib.ancestral(target, schedule, last_noise), orders, distribution,
                 'exact: this is the sampler that defines the distribution')


def _add(generated, k, sampled, positions):
  """The result after step `k`, which sampled tokens for `positions` `[B, n]`; `T` is none."""
  batch, size = generated.order.shape
  wanted = positions < size
  sampled = jax.tree.map(
      lambda leaf: leaf.reshape(*positions.shape, *leaf.shape[1:]), sampled)
  count = lambda leaf: jnp.where(
      wanted.reshape(wanted.shape + (1,) * (leaf.ndim - 2)), leaf, 0)
  write = lambda leaf, value: leaf.at[jnp.arange(batch)[:, None], positions].set(
      value, mode='drop')
  return generated._replace(
      tokens=write(generated.tokens, sampled.tokens),
      rounds=generated.rounds + 1,
      target_passes=generated.target_passes + 1,
      head_calls=generated.head_calls.at[:, k].set(count(sampled.calls).max(axis=1)),
      head_rows=generated.head_rows + count(sampled.rows).sum(axis=1),
      tested=write(generated.tested, sampled.tested.sum(axis=-1)),
      accepted=write(generated.accepted, sampled.accepted.sum(axis=-1)),
      tested_kernels=generated.tested_kernels + count(sampled.tested).sum(axis=1),
      accepted_kernels=generated.accepted_kernels + count(sampled.accepted).sum(axis=1),
      trials=generated.trials + count(sampled.trials).sum(axis=1),
      missed=generated.missed + count(sampled.missed).sum(axis=1))
