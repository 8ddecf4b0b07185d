"""MAR's sampler, and the decoders that keep its distribution, put together from parts.

`mar` is the published sampler of masked diffusion models, `parallel` its plain variant with
equal steps: the tokens of a step are independent given the visible ones. `exact_head` speculates
inside the diffusion head, `exact_path` over tokens, with a draft model.

Reference: Li et al., Autoregressive Image Generation without Vector Quantization, 2024
(arXiv:2406.11838), and its released code for what the paper leaves open.
"""

import math

import numpy as np

from cspd_jax.continuous import couple, head as head_lib, schedule as schedule_lib, speculative_head
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.compose import make_decoder
from cspd_jax.continuous.context import TRUE
from cspd_jax.continuous.head import Head
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.parts import Drafter, Verifier
from cspd_jax.continuous.schedule import DEFAULT_LEVELS, Schedule
from cspd_jax.continuous.verifiers.own import own
from cspd_jax.continuous.verifiers.path_test import DEFAULT_ETA, path_test

# Drafts per round where each of them takes a pass of the target, and where a block takes one.
DEFAULT_DRAFT_LENGTH = 2
DEFAULT_BLOCK_LENGTH = 8
# Share of the tokens that the target fixes alone before there are drafts.
DEFAULT_PREFIX_SHARE = 0.15


def mar(target: Target, num_iter: int | None = None, schedule: Schedule | int = DEFAULT_LEVELS, *,
        guidance: str = 'linear', last_noise: bool = False) -> Decoder:
  """MAR's own sampler: random orders, few tokens at first and many at the end.

  Args:
    target: the model.
    num_iter: autoregressive steps; one token per step by default.
    schedule: the levels of the head, or how many.
    guidance: 'linear', as in the paper's results, or 'constant', as in the released demo.
    last_noise: whether the last kernel adds its noise. It does not in MAR; the distribution with
      noise is the one that speculation over tokens can sample exactly.

  Raises:
    ValueError: for options out of range.
  """
  schedule = schedule_lib.of(schedule)
  return _steps(target, num_iter, schedule, head_lib.ancestral(target, schedule, last_noise),
                guidance, last_noise)


def exact_head(target: Target, kernels_per_call: int = speculative_head.DEFAULT_KERNELS,
               num_iter: int | None = None, schedule: Schedule | int = DEFAULT_LEVELS, *,
               rho: np.ndarray | None = None, eta: float = speculative_head.DEFAULT_ETA,
               max_trials: int = couple.DEFAULT_TRIALS, guidance: str = 'linear') -> Decoder:
  """Decodes as `mar` does, with a speculative head.

  Args:
    target: the model.
    kernels_per_call: states that the head is asked about together; 8 if calls are cheap, less if
      the head is busy.
    num_iter: as for `mar`.
    schedule: as for `mar`.
    rho: `[num_levels]` the blend of the head's drafter; see `blend.fit_rho`.
    eta: see `couple`.
    max_trials: proposals per residual draw at most; see `couple`.
    guidance: as for `mar`.

  Raises:
    ValueError: for options out of range.
  """
  schedule = schedule_lib.of(schedule)
  head = speculative_head.speculative(target, schedule, kernels_per_call, rho, eta, max_trials)
  return _steps(target, num_iter, schedule, head, guidance, last_noise=False)


def parallel(target: Target, block_length: int = DEFAULT_BLOCK_LENGTH,
             schedule: Schedule | int = DEFAULT_LEVELS, *,
             prefix_share: float | None = DEFAULT_PREFIX_SHARE, guidance: str = 'linear',
             last_noise: bool = False) -> Decoder:
  """The target alone with the same number of tokens in every step.

  What verification of whole blocks samples from, whatever the draft model, if its test
  is valid: so the baseline for any such decoder is this one, at the same number of
  target passes.

  Args:
    target: the model.
    block_length: tokens fixed by a step.
    schedule: as for `mar`.
    prefix_share: for the target passes of `cspd.cspd_released` with the same length and share:
      one token per step first, then its blocks. None for equal steps.
    guidance: as for `mar`.
    last_noise: as for `mar`.

  Raises:
    ValueError: for options out of range.
  """
  size, schedule = target.num_tokens, schedule_lib.of(schedule)
  if not 1 <= block_length <= size:
    raise ValueError(
        f'block_length is {block_length}; it must be from 1 to the number of tokens, {size}.')
  if prefix_share is None:
    first, stops = 0, (*range(block_length, size, block_length), size)
  else:
    (_, first), *blocks = schedule_lib.blocks(size, block_length, prefix_share)
    stops = (*range(1, first + 1), *(stop for _, stop in blocks))
  return make_decoder(
      target, schedule, own(head_lib.ancestral(target, schedule, last_noise)), stops,
      guidance=guidance, distribution=in_blocks(block_length, first, last_noise))


def exact_path(target: Target, draft: Target, draft_length: int = DEFAULT_DRAFT_LENGTH,
               schedule: Schedule | int = DEFAULT_LEVELS, *, split: int | None = None,
               eta: float = DEFAULT_ETA, max_trials: int = couple.DEFAULT_TRIALS,
               bonus: bool = True, prefix_share: float = DEFAULT_PREFIX_SHARE,
               aligned: bool = True, guidance: str = 'linear') -> Decoder:
  """Speculative sampling with a draft model, one token per autoregressive step.

  Args:
    target: the model whose distribution is sampled: that of `mar` with `last_noise`.
    draft: the draft model; it has the same tokens and reads the same condition.
    draft_length: `gamma`, drafts per round.
    schedule: the levels of both heads, or how many.
    split: first kernel of the tested path, a fifth of the way up by default. Above it the
      noise is shared. Low values accept less; high ones suffer where heads disagree at
      the first kernels, which magnify errors most. The distribution is the same for all.
    eta: see `couple`.
    max_trials: proposals per residual draw at most; see `couple`.
    bonus: whether a round with all drafts accepted adds a token of the target. Without,
      every token goes through the same draft and test whatever `draft_length` is, so the images
      of a key do not depend on it.
    prefix_share: share of the tokens that the target fixes alone.
    aligned: whether the draft model uses the target's noise above `split`.
    guidance: as for `mar`.

  Raises:
    ValueError: for options out of range or models that do not fit together.
  """
  schedule = schedule_lib.of(schedule)
  split = schedule.num_levels // 5 if split is None else split
  if not 0 <= split < schedule.num_levels:
    raise ValueError(f'split is {split}; it must be from 0 to the last of the '
                     f'{schedule.num_levels} levels, {schedule.num_levels - 1}.')
  verifier = path_test(split, eta, max_trials, bonus)
  return by_path(target, draft, draft_length, schedule, verifier, prefix_share, aligned, guidance)


def by_path(target: Target, draft: Target, draft_length: int, schedule: Schedule,
            verifier: Verifier, prefix_share: float, aligned: bool, guidance: str) -> Decoder:
  """A decoder with `verifiers.path_test`; the other arguments are those of `exact_path`."""
  size = target.num_tokens
  schedule_lib.check_length('draft_length', draft_length, size)
  schedule_lib.check_prefix_share(prefix_share)
  prefix = math.floor(prefix_share * size)
  return make_decoder(
      target, schedule, verifier, (size,) if prefix < size else (), drafter=Drafter(draft, aligned),
      context=TRUE, width=draft_length + verifier.bonus, prefix=prefix,
      prefix_head=head_lib.ancestral(target, schedule, last_noise=True), guidance=guidance,
      guidance_of_last=False, distribution=in_steps(size, last_noise=True))


def in_steps(num_iter: int, last_noise: bool) -> str:
  """The distribution of `mar` in words."""
  return f'masked generation in {num_iter} steps' + _last_kernel(last_noise)


def in_blocks(block_length: int, first: int, last_noise: bool) -> str:
  """The distribution of `parallel` in words, with `first` tokens one by one; 0 for equal steps."""
  after = f' after the first {first}' if first else ''
  return f'parallel generation, {block_length} tokens per step{after}' + _last_kernel(last_noise)


def _last_kernel(noise: bool) -> str:
  return ', last kernel with noise' if noise else ', last kernel without noise'


def _steps(target: Target, num_iter: int | None, schedule: Schedule, head: Head, guidance: str,
           last_noise: bool) -> Decoder:
  """MAR's steps with a head sampler."""
  num_iter = target.num_tokens if num_iter is None else num_iter
  hidden = schedule_lib.mask_lengths(target.num_tokens, num_iter)
  return make_decoder(
      target, schedule, own(head), [target.num_tokens - after for after in hidden],
      guidance=guidance, distribution=in_steps(num_iter, last_noise))
