"""Named decoders: MAR's sampler, and decoders that sample exactly.

`mar` is the published sampler of masked diffusion models, `parallel` its variant with equal steps:
the tokens of a step are independent given the visible ones. `exact_head` speculates inside the
diffusion head, `exact_path` over tokens, with a draft model. All raise ValueError for options out
of range, and for models that do not fit together.

Reference: Li et al., Autoregressive Image Generation without Vector Quantization, 2024
(arXiv:2406.11838), and its released code for details that the paper leaves open.
"""

import math

import numpy as np

from cspd_jax.continuous import coupling, path, schedule as schedule_lib, speculative_head
from cspd_jax.continuous.base import Target, Verifier, as_schedule
from cspd_jax.continuous.chains.chain_walk import coupled_chains, old_chains
from cspd_jax.continuous.head import HeadSampler, ancestral, no_drafts
from cspd_jax.continuous.loop import Decoder, make_decoder
from cspd_jax.continuous.noise import MAX_TRIALS
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.visibility import CACHED, TRUE, true_window
from cspd_jax.core import fields

# Drafts per round where each requires a pass of the target, and where a block requires one.
DEFAULT_DRAFT_LENGTH = 2
DEFAULT_BLOCK_LENGTH = 8
DEFAULT_WINDOW = 8
_LEVELS_PER_DRAFT = 12  # Levels per draft of a chain that `windows` verifies in a call of the head.
# Share of the tokens that the target decodes alone before there are drafts.
DEFAULT_PREFIX_SHARE = 0.15


def mar(target: Target, num_iter: int | None = None, schedule: Schedule | int | None = None, *,
        guidance: str | None = None, last_noise: bool = False) -> Decoder:
  """Decodes as MAR does (arXiv 2406.11838): the published sampler, and the baseline.

  In random order, few tokens per step at first and many at the end; a causal model one by one.
  Exact: this distribution is what other decoders refer to.

  Args:
    target: the model whose distribution is sampled, `cspd_jax.continuous.Target`.
    num_iter: autoregressive steps; one token per step by default.
    schedule: the levels of the head, or their number; by default the model's.
    guidance: 'linear', as in MAR's published results, or 'constant', as in its demo and in
      NextStep-1; by default the model's.
    last_noise: whether the last kernel adds its noise, as in `exact_path`; it does not in MAR.

  Example:
    decode = cspd_jax.jit(cspd_jax.continuous.mar(target))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(guidance_scale=1.5))
  """
  schedule = as_schedule(target, schedule)
  return _mar_steps(target, num_iter, schedule, ancestral(target, schedule, last_noise), guidance,
                    last_noise)


def exact_head(target: Target, kernels_per_call: int | None = None,
               num_iter: int | None = None, schedule: Schedule | int | None = None, *,
               rho: np.ndarray | None = None, guidance: str | None = None) -> Decoder:
  """Decodes as `mar` does, with speculation inside the diffusion head.

  A cheap predictor drafts states of a token's denoising chain, and one call of the head verifies
  several of them. Exact: it samples the distribution of `mar`. Nothing is trained.

  Args:
    target: the model whose distribution is sampled, `cspd_jax.continuous.Target`.
    kernels_per_call: states that the head is evaluated at together; by default 16, or all levels if
      there are fewer. More if the time of a call is its latency, less if it is arithmetic.
    num_iter: autoregressive steps; one token per step by default.
    schedule: the levels of the head, or their number; by default the model's.
    rho: `[num_levels]` the blend of the head's drafter, see `head_drafter.fit_rho`; by default the
      target's.
    guidance: 'linear', as in MAR's published results, or 'constant', as in its demo and in
      NextStep-1; by default the model's.

  Example:
    decode = cspd_jax.jit(cspd_jax.continuous.exact_head(target))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(guidance_scale=1.5))
  """
  schedule = as_schedule(target, schedule)
  rho = target.rho(schedule) if rho is None else rho
  sampler = speculative_head.speculative(target, schedule, kernels_per_call, rho)
  return _mar_steps(target, num_iter, schedule, sampler, guidance, last_noise=False)


def parallel(target: Target, block_length: int = DEFAULT_BLOCK_LENGTH,
             schedule: Schedule | int | None = None, *,
             prefix_share: float | None = DEFAULT_PREFIX_SHARE, guidance: str | None = None,
             last_noise: bool = False) -> Decoder:
  """Decodes by the target alone, with the same number of tokens in every step.

  A valid verification of whole blocks samples from this distribution, whatever the draft model: so
  this decoder, at the same number of target passes, is its baseline. Exact by definition; masked
  models only.

  Args:
    target: the model whose distribution is sampled, `cspd_jax.continuous.Target`.
    block_length: tokens per step.
    schedule: the levels of the head, or their number; by default the model's.
    prefix_share: for the target passes of `cspd.cspd_released` with the same length and share: one
      token per step first, then its blocks. None for equal steps.
    guidance: 'linear', as in MAR's published results, or 'constant', as in its demo and in
      NextStep-1; by default the model's.
    last_noise: whether the last kernel adds its noise; it does not in MAR.

  Example:
    decode = cspd_jax.jit(cspd_jax.continuous.parallel(target, block_length=4))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(guidance_scale=1.5))
  """
  schedule, size = as_schedule(target, schedule), target.num_tokens
  schedule_lib.check_length('block_length', block_length, size)
  if prefix_share is None:
    first, stops = 0, (*range(block_length, size, block_length), size)
  else:
    (_, first), *blocks = schedule_lib.blocks(size, block_length, prefix_share)
    stops = (*range(1, first + 1), *(stop for _, stop in blocks))
  return make_decoder(
      target, schedule, no_drafts(ancestral(target, schedule, last_noise)), stops,
      guidance=guidance, distribution=describe_blocks(block_length, first, last_noise))


def windows(target: Target, window: int = DEFAULT_WINDOW, num_iter: int | None = None,
            schedule: Schedule | int | None = None, *,
            kernels_per_call: int | None = None, rho: np.ndarray | None = None,
            guidance: str | None = None) -> Decoder:
  """Decodes windows of tokens in parallel until they do not change; see `coupled_chains`.

  The denoising chains of a window's tokens are drafts, kept from round to round. Exact: it samples
  the distribution of `mar` with `last_noise`. Nothing is trained, and there is no draft model.

  Args:
    target: the model whose distribution is sampled, `cspd_jax.continuous.Target`.
    window: tokens of a round. A causal model runs them in one pass, a masked one in a pass each.
    num_iter: autoregressive steps, for masked models; one token per step by default. Rounds divide
      a step with more tokens than `window`.
    schedule: the levels of the head, or their number; by default the model's. Its last
      kernel must have noise.
    kernels_per_call: drafts of every chain that the head is evaluated at together, where chains
      have left the last round's; more than all levels count as all. By default a twelfth of
      the levels: 8 of 100, 4 of 50.
    rho: `[num_levels]` the blend of the head's drafter, see `head_drafter.fit_rho`; by default the
      target's.
    guidance: 'linear', as in MAR's published results, or 'constant', as in its demo and in
      NextStep-1; by default the model's.

  Example:
    decode = cspd_jax.jit(cspd_jax.continuous.windows(target, window=4))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(guidance_scale=1.5))
  """
  schedule, size = as_schedule(target, schedule), target.num_tokens
  if size > MAX_TRIALS:
    raise ValueError(f'the image has {size} tokens; windows support {MAX_TRIALS}, '
                     'because there is noise for as many rounds.')
  schedule_lib.check_length('window', window, size)
  if kernels_per_call is None:
    kernels_per_call = max(1, schedule.num_levels // _LEVELS_PER_DRAFT)
  fields.check_whole('kernels_per_call', kernels_per_call)
  kernels_per_call = min(kernels_per_call, schedule.num_levels)
  rho = speculative_head.check(
      schedule, kernels_per_call, target.rho(schedule) if rho is None else rho)
  check_noise(schedule)
  steps = None
  if num_iter is not None:
    steps = tuple(size - masked for masked in schedule_lib.mask_lengths(size, num_iter))
  verifier = coupled_chains(schedule.num_levels, window, kernels_per_call, rho)
  visibility, width = CACHED, window
  if target.cached is None:
    # A masked model returns `z` for all positions in every pass, so tokens behind the window can be
    # drawn for no further pass. They are the drafts of the next round.
    visibility, width = true_window(window), min(2 * window, size)
  return make_decoder(
      target, schedule, verifier, (size,), drafter=old_chains(),
      visibility=visibility, width=width, guidance=guidance, steps=steps,
      distribution=describe_steps(num_iter or size, True, target.cached is not None))


def exact_path(target: Target, draft: Target, draft_length: int = DEFAULT_DRAFT_LENGTH,
               schedule: Schedule | int | None = None, *, split: int | None = None,
               eta: float = path.DEFAULT_ETA, max_trials: int = coupling.DEFAULT_TRIALS,
               bonus: bool = True, prefix_share: float = DEFAULT_PREFIX_SHARE,
               aligned: bool = True, guidance: str | None = None) -> Decoder:
  """Speculative sampling with a draft model, one token per autoregressive step.

  Drafts are accepted by a test of their denoising paths. Exact: it samples the distribution of
  `mar` with `last_noise`, for masked models only.

  Args:
    target: the model whose distribution is sampled, `cspd_jax.continuous.Target`.
    draft: the draft model; it has the same tokens and reads the same condition. Its parameters are
      the decoder's `draft_params`.
    draft_length: `gamma`, drafts per round.
    schedule: the levels of both heads, or their number; by default the target's.
    split: first kernel of the tested path, a fifth of the way up by default. Above it the noise is
      shared. Low values accept less; high values accept less where the heads disagree at the first
      kernels, which magnify errors most. The distribution is the same for all values.
    eta: see `coupling`.
    max_trials: the largest number of proposals per residual draw.
    bonus: whether a round with all drafts accepted adds a token of the target. Without it, draft
      and test of a token are the same whatever `draft_length` is, and so are images.
    prefix_share: share of the tokens that the target decodes alone first, one by one.
    aligned: whether the draft model uses the target's noise above `split`.
    guidance: 'linear', as in MAR's published results, or 'constant', as in its demo and in
      NextStep-1; by default the model's.

  Example:
    decode = cspd_jax.jit(cspd_jax.continuous.exact_path(target, draft, draft_length=2))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(), draft_params)
  """
  schedule = as_schedule(target, schedule)
  split, last = schedule.num_levels // 5 if split is None else split, schedule.num_levels - 1
  fields.check_whole('split', split, f'a whole number from 0 to the last level, {last}', 0, last)
  verifier = path.path_test(split, eta, max_trials, bonus)
  return path_decoder(target, draft, draft_length, schedule, verifier, prefix_share, aligned,
                      guidance)


def path_decoder(target: Target, draft: Target, draft_length: int, schedule: Schedule,
                 verifier: Verifier, prefix_share: float, aligned: bool, guidance: str | None
                 ) -> Decoder:
  """Returns a decoder with a `path.path_test`; other arguments as for `exact_path`."""
  size = target.num_tokens
  schedule_lib.check_length('draft_length', draft_length, size)
  fields.require(0 <= prefix_share <= 1, 'prefix_share', prefix_share, 'from 0 to 1')
  check_noise(schedule)
  prefix = math.floor(prefix_share * size)
  return make_decoder(
      target, schedule, verifier, (size,) if prefix < size else (),
      drafter=path.model(draft, aligned), visibility=TRUE, width=draft_length + verifier.bonus,
      prefix=prefix, prefix_sampler=ancestral(target, schedule, last_noise=True),
      guidance=guidance, distribution=describe_steps(size, last_noise=True))


def check_noise(schedule: Schedule) -> None:
  """Raises ValueError for a schedule with a kernel at which no draft can be compared."""
  if not np.all(np.isfinite(schedule.min_log_variance)):
    raise ValueError(
        'the schedule has a kernel without noise, after which no token can be kept; this decoder '
        'requires noise at every kernel.')


_LAST_KERNEL = (', last kernel without noise', ', last kernel with noise')


def describe_steps(num_iter: int, last_noise: bool, causal: bool = False) -> str:
  """Returns the distribution of `mar` in words, for a masked or a causal model."""
  steps = 'token by token' if causal else f'in {num_iter} steps'
  return f'{"causal" if causal else "masked"} generation {steps}' + _LAST_KERNEL[last_noise]


def describe_blocks(block_length: int, first: int, last_noise: bool) -> str:
  """Returns the distribution of `parallel` in words, with `first` tokens one by one (or 0)."""
  after = f' after the first {first}' if first else ''
  return f'parallel generation, {block_length} tokens per step{after}' + _LAST_KERNEL[last_noise]


def _mar_steps(target: Target, num_iter: int | None, schedule: Schedule, sampler: HeadSampler,
               guidance: str | None, last_noise: bool) -> Decoder:
  """Returns a decoder with the steps of MAR and any head sampler."""
  num_iter = target.num_tokens if num_iter is None else num_iter
  masked = schedule_lib.mask_lengths(target.num_tokens, num_iter)
  return make_decoder(
      target, schedule, no_drafts(sampler), [target.num_tokens - length for length in masked],
      guidance=guidance,
      distribution=describe_steps(num_iter, last_noise, target.cached is not None))
