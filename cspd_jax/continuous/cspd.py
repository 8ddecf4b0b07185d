"""Continuous speculative decoding as published, as released, and as a bounded relaxation.

None of these preserves the target's distribution; `exact_head` and `exact_path` do. All raise
ValueError for options out of range, and for models that do not fit together.

`cspd_paper` is Algorithm 1 of the paper. Its factor Sigma is to correct for densities evaluated at
two different points, each model's own trajectory; given the shared noise both trajectories are
constants and the right factor is 1. So with learned variances the distribution is biased; where
both models have the same variances Sigma is 1 and the decoder is exact.

`cspd_released` is the algorithm of the released code: verification in blocks, a test softened by a
factor of 42, Sigma inverted, and a token of zeros if 100 proposals fail.

`cspd_relaxed` accepts a draft with probability `exp(-d^2 / (2 kappa^2))`, where `d` is the distance
of the two models' tokens under the same noise in units of the last kernel's standard deviation `s`,
else emits the target's own token. Then the mean squared distance to that token is at most
`(2 / e) kappa^2 s^2`, for any two models. The root of this bounds the Wasserstein distance of a
token's distribution, given the tokens before it, to that of `parallel` with the same blocks, but
not that of whole images, whose later tokens depend on the earlier ones.

`released` and `relaxed` are tests of `token_test`, which compares the means of the two heads at
kernel 0, the tokens that each would emit under the shared noise of the position. The target decodes
the first tokens alone (the prefix). Then the draft model decodes token by token, and at every step
whose number is divisible by `gamma`, and at the last, one pass of the target verifies the block of
tokens since the last verification. That pass does not see the drafts: it scores the target's
parallel distribution of the block. Every draft is accepted or replaced separately, none is
discarded, so the number of passes, and the speed, does not depend on acceptance. With a valid test
the distribution would be that of `parallel`, which needs no draft model; these tests are not valid.

Reference: Wang et al., Continuous Speculative Decoding for Autoregressive Image
Generation, 2024 (arXiv:2411.11925), and its released code.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import coupling, decoders, noise as noise_lib, path
from cspd_jax.continuous.base import (
  Cost,
  DecodeContext,
  Draft,
  Drafter,
  Target,
  Verdict,
  Verifier,
  as_schedule,
)
from cspd_jax.continuous.head import Head
from cspd_jax.continuous.loop import Decoder, make_decoder
from cspd_jax.continuous.result import Errors
from cspd_jax.continuous.schedule import Schedule, blocks
from cspd_jax.continuous.span import Span, TokenBatch
from cspd_jax.continuous.visibility import BLOCK
from cspd_jax.core import fields

DEFAULT_KAPPA = 42.0  # Tolerance of the released code, in standard deviations of the last kernel.
_RELEASED_TRIALS = 100  # Proposals for a rejected token in the released code.


def cspd_paper(target: Target, draft: Target, draft_length: int = decoders.DEFAULT_DRAFT_LENGTH,
               schedule: Schedule | int | None = None, *,
               max_trials: int = coupling.DEFAULT_TRIALS,
               prefix_share: float = decoders.DEFAULT_PREFIX_SHARE, aligned: bool = True,
               guidance: str | None = None) -> Decoder:
  """Algorithm 1 of CSpD (arXiv 2411.11925) as printed.

  True contexts, an end at the first rejection, Sigma (equation 4). Biased, unless both models have
  the same variances. For masked models only.

  Args:
    target: the model whose distribution is sampled, `cspd_jax.continuous.Target`.
    draft: the draft model; it has the same tokens and reads the same condition. Its parameters are
      the decoder's `draft_params`.
    draft_length: `gamma`, drafts per round.
    schedule: the levels of both heads, or their number; by default the target's.
    max_trials: proposals per residual draw, after which the loop ends; the paper has no end.
    prefix_share: share of the tokens that the target decodes alone first, one by one.
    aligned: whether the draft model uses the target's noise.
    guidance: 'linear', as in MAR's published results, or 'constant', as in its demo and in
      NextStep-1; by default the model's.

  Example:
    decode = cspd_jax.jit(cspd_jax.continuous.cspd_paper(target, draft, draft_length=2))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(), draft_params)
  """
  verifier = path.path_test(split=0, eta=1.0, max_trials=max_trials, sigma=True)
  return decoders.path_decoder(target, draft, draft_length, as_schedule(target, schedule),
                               verifier, prefix_share, aligned, guidance)


def cspd_released(
    target: Target, draft: Target, block_length: int = decoders.DEFAULT_BLOCK_LENGTH,
    schedule: Schedule | int | None = None, *, prefix_share: float = decoders.DEFAULT_PREFIX_SHARE,
    kappa: float = DEFAULT_KAPPA, sigma: str = 'inverted', aligned: bool = True,
    guidance: str | None = None) -> Decoder:
  """The control flow of CSpD's released code (arXiv 2411.11925).

  Verification does not see the drafts of the block, whose tokens all have the guidance scale of the
  last one. Drafts after a replaced one may be accepted. A token becomes zero if 100 proposals fail.
  Biased. For masked models only.

  Args:
    target: the model whose distribution is sampled, `cspd_jax.continuous.Target`.
    draft: the draft model; it has the same tokens and reads the same condition. Its parameters are
      the decoder's `draft_params`.
    block_length: `gamma`, drafts per block.
    schedule: the levels of both heads, or their number; by default the target's.
    prefix_share: share of the tokens that the target decodes alone first, one by one.
    kappa: multiplies both models' standard deviations in the test, but not in the residual.
    sigma: 'inverted' as released, 'paper', or 'off'.
    aligned: whether the draft model uses the target's noise.
    guidance: 'linear', as in MAR's published results, or 'constant', as in its demo and in
      NextStep-1; by default the model's.

  Example:
    decode = cspd_jax.jit(cspd_jax.continuous.cspd_released(target, draft, block_length=4))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(), draft_params)
  """
  return block_decoder(target, path.model(draft, aligned), released(kappa, sigma),
                       block_length, schedule, prefix_share, guidance)


def cspd_relaxed(
    target: Target, draft: Target, block_length: int = decoders.DEFAULT_BLOCK_LENGTH,
    schedule: Schedule | int | None = None, *, prefix_share: float = decoders.DEFAULT_PREFIX_SHARE,
    kappa: float = DEFAULT_KAPPA, aligned: bool = True, guidance: str | None = None) -> Decoder:
  """A simple test that bounds the error, in blocks as in the released code of CSpD.

  Bounded: `Decoded.errors` bounds the squared distance of every token to the target's own under the
  distribution of `parallel`, so drafts, too, have the guidance scale of the last token of their
  block. For masked models only.

  Args:
    target: the model whose distribution is sampled, `cspd_jax.continuous.Target`.
    draft: the draft model; it has the same tokens and reads the same condition. Its parameters are
      the decoder's `draft_params`.
    block_length: `gamma`, drafts per block.
    schedule: the levels of both heads, or their number; by default the target's.
    prefix_share: share of the tokens that the target decodes alone first, one by one.
    kappa: the tolerance, in units of the last kernel's standard deviation, 0.0064.
    aligned: whether the draft model uses the target's noise.
    guidance: 'linear', as in MAR's published results, or 'constant', as in its demo and in
      NextStep-1; by default the model's.

  Example:
    decode = cspd_jax.jit(cspd_jax.continuous.cspd_relaxed(target, draft, block_length=4))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(), draft_params)
  """
  return block_decoder(target, path.model(draft, aligned, guided_as_verified=True),
                       relaxed(kappa), block_length, schedule, prefix_share, guidance)


def block_decoder(target: Target, drafter: Drafter, verifier: Verifier, block_length: int,
                  schedule: Schedule | int | None, prefix_share: float, guidance: str | None
                  ) -> Decoder:
  """Returns a decoder that verifies whole blocks and approximates `parallel`."""
  schedule = as_schedule(target, schedule)
  decoders.check_noise(schedule)
  (_, prefix), *verified = blocks(target.num_tokens, block_length, prefix_share)
  return make_decoder(
      target, schedule, verifier, [stop for _, stop in verified], drafter=drafter, visibility=BLOCK,
      prefix=prefix, guidance=guidance,
      distribution=decoders.describe_blocks(block_length, prefix, last_noise=False))


class LastKernel(NamedTuple):
  """The last kernel of a model's chains, leaves `[N, ...]` or `[B, W, ...]`."""

  mean: jax.Array  # `[..., C]` mean of kernel 0: the token that the model would emit.
  std: jax.Array  # `[..., C]` standard deviation of kernel 0.
  log_std: jax.Array  # `[...]` sum of the logarithms of the deviations of all kernels above.


class TokenVerdict(NamedTuple):
  """A test's decisions about drafts; fields as of `Verdict`."""

  tokens: jax.Array  # `[N, C]` the drafts, or the tokens that replace them.
  accepted: jax.Array  # `[N]` bool.
  trials: jax.Array  # `[N]` int32.
  missed: jax.Array  # `[N]` bool or int32.
  errors: Errors | None = None  # Leaves `[N]`; None if the test has no bound.


# `(batch [N], draft model's last kernel, target's last kernel, pending [N]) -> TokenVerdict`:
# accepts or replaces drafts; the result is ignored for those that are not pending.
TokenTest = Callable[[TokenBatch, LastKernel, LastKernel, jax.Array], TokenVerdict]


def last_kernel(head: Head, batch: TokenBatch, aligned: bool = True) -> LastKernel:
  """Runs the whole chain, `num_levels` head calls; `aligned` as for `path.start_path`."""
  batch = head.modulated(batch)
  start = path.start_path(head, batch, 0, aligned)
  k = head.kernel(batch, start.x, 0)
  return LastKernel(k.mean, k.std, start.log_std)


def token_test(test: TokenTest, guarantee: str, bounded: bool = False) -> Verifier:
  """Returns a verifier that accepts or replaces every draft of a block separately.

  `guarantee` says in words how close the samples are to the distribution; `bounded` is whether the
  test has a bound on its error. Drafts after a replaced one are accepted if they pass their own.
  """
  def sample_draft(head: Head, batch: TokenBatch, aligned: bool) -> tuple[jax.Array, LastKernel]:
    kernel = last_kernel(head, batch, aligned)
    return kernel.mean, kernel

  def verify(context: DecodeContext, span: Span, draft: Draft | None, z: jax.Array) -> Verdict:
    assert draft is not None, 'make_decoder requires a drafter'
    batch = span.batch(z)
    of_draft = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draft.record)
    of_target = last_kernel(Head(context.target, context.schedule, context.params), batch)
    tested = test(batch, of_draft, of_target, batch.active)
    tested = jax.tree.map(lambda leaf: leaf.reshape(*span.ranks.shape, *leaf.shape[1:]), tested)
    levels = context.schedule.num_levels
    total = lambda leaf: jnp.sum(jnp.where(span.in_round, leaf, 0), axis=1)
    return Verdict(
        tokens=tested.tokens, length=span.size, tested=span.in_round, accepted=tested.accepted,
        trials=total(tested.trials), missed=total(tested.missed),
        cost=Cost(head_calls=jnp.where(span.active, levels, 0),
                  head_rows=context.target.num_streams * levels * span.size,
                  draft_head_calls=levels * span.size),
        errors=tested.errors)

  return Verifier(verify, sample_draft, guarantee, commits_all=True, bounded=bounded)


def half_squared_distance(draft: LastKernel, target: LastKernel, kappa: float) -> jax.Array:
  """Returns half the squared distance `[N]` of two tokens, in units of `kappa` deviations."""
  return 0.5 * jnp.sum(jnp.square((draft.mean - target.mean) / (kappa * target.std)), axis=-1)


def relaxed(kappa: float) -> Verifier:
  """Accepts a draft close to the target's own token, else emits that, as `cspd_relaxed` does."""
  fields.require(0 < kappa < np.inf, 'kappa', kappa, 'finite and above 0')

  def test(batch, draft, target, pending) -> TokenVerdict:
    accepted = coupling.accept(
        -half_squared_distance(draft, target, kappa),
        noise_lib.log_uniform(batch.keys, noise_lib.ACCEPT, 0), 1.0)
    tokens = jnp.where(accepted[:, None], draft.mean, target.mean)
    no_trials = jnp.zeros(accepted.shape, jnp.int32)
    bound = 2 / np.e * kappa**2 * jnp.max(jnp.square(target.std), axis=-1)
    return TokenVerdict(tokens, accepted, no_trials, no_trials,
                        Errors(jnp.sum(jnp.square(tokens - target.mean), axis=-1), bound))

  return token_test(
      test, "mean squared distance to the target's own token at most (2 / e) kappa^2 s^2, which "
      'is in `errors.bound`', bounded=True)


SIGMA = {'off': 0, 'paper': 1, 'inverted': -1}  # Powers of the factor Sigma in the test.


def released(kappa: float, sigma: str) -> Verifier:
  """Returns a verifier with the test of the released code; arguments as for `cspd_released`."""
  return token_test(
      released_test(kappa, sigma),
      'none: behaves as the released code, which preserves no distribution')


def released_test(kappa: float, sigma: str) -> TokenTest:
  """Accepts a draft by a softened test with Sigma; a token whose proposals all fail is zero."""
  fields.require(0 < kappa < np.inf, 'kappa', kappa, 'finite and above 0')
  fields.check_choice('sigma', sigma, SIGMA)

  def test(batch, draft, target, pending) -> TokenVerdict:
    log_sigma = SIGMA[sigma] * (draft.log_std - target.log_std)
    log_ratio = (log_sigma + jnp.sum(jnp.log(draft.std) - jnp.log(target.std), axis=-1) -
                 half_squared_distance(draft, target, kappa))
    accepted = coupling.accept(
        log_ratio, noise_lib.log_uniform(batch.keys, noise_lib.ACCEPT, 0), 1.0)
    failed = pending & ~accepted
    wide = lambda tree: jax.tree.map(lambda leaf: leaf[:, None], tree)
    keys, p, q = wide(batch.keys), wide(target), wide(draft)

    def propose(trials):
      noise = noise_lib.normal(keys, noise_lib.PROPOSE, 0, target.mean.shape[-1], trials[None])
      y = p.mean + p.std * noise
      log_ratio = (log_sigma[:, None] + coupling.log_density_of_draw(y, p.mean, p.std) -
                   coupling.log_density(y, q.mean, q.std))
      return y, log_ratio, noise_lib.log_uniform(keys, noise_lib.RESIDUAL, 0, trials[None])

    draws, trials, missed = coupling.residual(propose, failed, 1.0, _RELEASED_TRIALS)
    tokens = jnp.where(accepted[:, None], draft.mean, jnp.where(missed[:, None], 0, draws))
    return TokenVerdict(tokens, accepted, trials, missed)

  return test
