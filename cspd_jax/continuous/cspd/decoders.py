"""Continuous speculative decoding as published, as released, and as a bounded relaxation.

None of these preserves the target's distribution; `exact_head` and `exact_path` do.

`cspd_paper` is Algorithm 1 of the paper. Its factor Sigma is to correct for densities evaluated at
two different points, each model's own trajectory; given the shared noise both trajectories are
constants and the right factor is 1. So with learned variances the distribution is biased; where
both models have the same variances Sigma is 1 and the decoder is exact.

`cspd_released` is the algorithm of the released code: verification in blocks, a test softened by a
factor of 42, Sigma inverted, and a token of zeros if 100 proposals fail. Its speed is that of its
schedule of passes, whatever is accepted: compare with `parallel` at equal numbers of target passes.

`cspd_relaxed` accepts a draft with probability `exp(-d^2 / (2 kappa^2))`, where `d` is the distance
of the two models' tokens under the same noise in units of the last kernel's standard deviation `s`,
else emits the target's own token. Then the mean squared distance to that token is at most
`(2 / e) kappa^2 s^2`, for any two models. The root of this bounds the Wasserstein distance of a
token's distribution, given the tokens before it, to that of `parallel` with the same blocks, or
with true contexts to that of `mar`. It is not equality in distribution, and no bound for whole
images, whose later tokens depend on the earlier ones.

Reference: Wang et al., Continuous Speculative Decoding for Autoregressive Image
Generation, 2024 (arXiv:2411.11925), and its released code.
"""

from cspd_jax.continuous import coupling, decoders, draft_model, schedule as schedule_lib
from cspd_jax.continuous.base import Drafter, Target, Verifier
from cspd_jax.continuous.context import BLOCK, TRUE
from cspd_jax.continuous.cspd.token_test import relaxed, released
from cspd_jax.continuous.decoders import (
  DEFAULT_BLOCK_LENGTH,
  DEFAULT_DRAFT_LENGTH,
  DEFAULT_PREFIX_SHARE,
)
from cspd_jax.continuous.loop import Decoder, make_decoder
from cspd_jax.continuous.path.path_test import path_test
from cspd_jax.continuous.schedule import Schedule

# Tolerance of the released code, in standard deviations of the last kernel.
DEFAULT_KAPPA = 42.0
# Proposals for a rejected token in the released code.
_RELEASED_TRIALS = 100


def cspd_paper(target: Target, draft: Target, draft_length: int = DEFAULT_DRAFT_LENGTH,
               schedule: Schedule | int | None = None, *,
               max_trials: int = coupling.DEFAULT_TRIALS,
               prefix_share: float = DEFAULT_PREFIX_SHARE, aligned: bool = True,
               guidance: str | None = None) -> Decoder:
  """Algorithm 1: true contexts, an end at the first rejection, Sigma (equation 4).

  The residual loop, unbounded in the paper, ends after `max_trials` proposals.
  Arguments as for `decoders.exact_path`.

  Raises:
    ValueError: for options out of range or models that do not fit together.
  """
  verifier = path_test(split=0, eta=1.0, max_trials=max_trials, sigma=True)
  return decoders.path_decoder(target, draft, draft_length, target.as_schedule(schedule),
                               verifier, prefix_share, aligned, guidance)


def cspd_released(
    target: Target, draft: Target, block_length: int = DEFAULT_BLOCK_LENGTH,
    schedule: Schedule | int | None = None, *, prefix_share: float = DEFAULT_PREFIX_SHARE,
    kappa: float = DEFAULT_KAPPA, sigma: str = 'inverted', aligned: bool = True,
    guidance: str | None = None) -> Decoder:
  """The released code.

  Verification does not see the drafts of the block, whose tokens all have the guidance scale of the
  last one. Drafts after a replaced one may be accepted. A token becomes zero if 100 proposals fail.

  Args:
    target: the model that verifies.
    draft: the draft model.
    block_length: `gamma`, drafts per block.
    schedule: the levels of both heads, or their number; by default those of the target.
    prefix_share: share of the tokens that the target decodes alone.
    kappa: multiplies both models' standard deviations in the test, but not in the
      residual.
    sigma: 'inverted' as released, 'paper', or 'off'.
    aligned: whether the draft model uses the target's noise.
    guidance: as for `decoders.mar`.

  Raises:
    ValueError: for options out of range or models that do not fit together.
  """
  verifier = released(kappa, sigma, _RELEASED_TRIALS, zero_fallback=True)
  return block_decoder(target, draft_model.model(draft, aligned), verifier, block_length, schedule,
                       prefix_share, True, True, guidance)


def cspd_relaxed(
    target: Target, draft: Target, block_length: int = DEFAULT_BLOCK_LENGTH,
    schedule: Schedule | int | None = None, *, prefix_share: float = DEFAULT_PREFIX_SHARE,
    kappa: float = DEFAULT_KAPPA, block_context: bool = True, aligned: bool = True,
    guidance: str | None = None) -> Decoder:
  """A simple test that bounds the error, in blocks as in the released code or with true contexts.

  Args:
    target: the model that verifies.
    draft: the draft model.
    block_length: `gamma`, drafts per block.
    schedule: the levels of both heads, or their number; by default those of the target.
    prefix_share: share of the tokens that the target decodes alone.
    kappa: tolerance in units of the last kernel's standard deviation, 0.0064.
    block_context: True for one pass of the target per block, which does not see the drafts: the
      bound is to the distribution of `parallel`, so the whole block has the guidance scale of its
      last token. False for a pass per draft and an end at the first rejection: the bound is to the
      distribution of one token per step.
    aligned: whether the draft model uses the target's noise.
    guidance: as for `decoders.mar`.

  Raises:
    ValueError: for options out of range or models that do not fit together.
  """
  return block_decoder(
      target, draft_model.model(draft, aligned, guided_as_verified=True),
      relaxed(kappa, keep_after_reject=block_context), block_length, schedule, prefix_share,
      block_context, block_context, guidance)


def expected_speedup(cost: float, block_length: int) -> float:
  """Returns the speed-up of block verification over the target, whatever is accepted.

  It is `1 / (cost + 1 / block_length)`.

  Args:
    cost: time of a draft step divided by the time of a target step.
    block_length: `gamma`.
  """
  return 1 / (cost + 1 / block_length)


def block_decoder(target: Target, drafter: Drafter, verifier: Verifier, block_length: int,
                  schedule: Schedule | int | None, prefix_share: float, block_context: bool,
                  guidance_of_last: bool, guidance: str | None) -> Decoder:
  """Returns a decoder that verifies whole blocks and approximates a decoder without drafts."""
  size = target.num_tokens
  (_, prefix), *blocks = schedule_lib.blocks(size, block_length, prefix_share)
  distribution = (decoders.describe_blocks(block_length, prefix, last_noise=False)
                  if block_context else decoders.describe_steps(size, last_noise=False))
  return make_decoder(
      target, target.as_schedule(schedule), verifier, [stop for _, stop in blocks],
      drafter=drafter, context=BLOCK if block_context else TRUE, prefix=prefix, guidance=guidance,
      guidance_of_last=guidance_of_last, distribution=distribution)
