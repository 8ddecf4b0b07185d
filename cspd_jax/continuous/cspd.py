"""Continuous speculative decoding as published, as released, and as a bounded relaxation.

None of these keeps the target's distribution; `exact_head` and `exact_path` do.

`cspd_paper` is Algorithm 1 of the paper. Its factor Sigma makes up for densities taken
at two different points, each model's own trajectory; given the shared noise both
trajectories are constants and the right factor is 1. So with learned variances the distribution
is biased; where both models have the same variances Sigma is 1 and it is exact.

`cspd_released` does what the released code does: verification in blocks, a test softened
42 times, Sigma inverted, and a token of zeros if 100 proposals fail. Its speed is that
of its schedule of passes, whatever is accepted: compare with `sample.parallel` at equal
numbers of target passes.

`cspd_relaxed` keeps a draft with probability `exp(-d^2 / (2 kappa^2))`, `d` the distance of
the two models' tokens under the same noise in units of the last kernel's standard
deviation `s`, else emits the target's own token. Then the mean squared distance to that
token is at most `(2 / e) kappa^2 s^2`, for any two models: given the tokens before it, a
token's distribution is so near in Wasserstein distance to that of `sample.parallel` with the same
blocks, or with true contexts to that of `sample.mar`. It is not equality in distribution, and no
bound for whole images, whose later tokens follow on the earlier ones.

Reference: Wang et al., Continuous Speculative Decoding for Autoregressive Image
Generation, 2024 (arXiv:2411.11925), and its released code.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import block, couple, exact_path
from cspd_jax.continuous import random as random_lib
from cspd_jax.continuous import sample as sample_lib
from cspd_jax.continuous import sampling as sampling_lib
from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.schedule import Schedule

SIGMA = ('off', 'paper', 'inverted')


def cspd_paper(target: Target, draft: Target, length: int = 4,
               schedule: Schedule | None = None, *, max_trials: int = couple.DEFAULT_TRIALS,
               prefix_share: float = 0.0, aligned: bool = True, num_iter: int | None = None,
               guidance: str = 'linear',
               orders: Callable = random_lib.random_orders) -> exact_path.Decoder:
  """Algorithm 1: true contexts, stop at the first rejection, Sigma (equation 4).

  The residual loop, unbounded in the paper, ends after `max_trials` proposals.
  Arguments as for `exact_path.exact_path`.

  Raises:
    ValueError: for options out of range or models that do not fit together.
  """
  decoder = exact_path.exact_path(target, draft, length, schedule, split=0, eta=1.0,
                                  max_trials=max_trials, prefix_share=prefix_share, aligned=aligned,
                                  num_iter=num_iter, guidance=guidance, orders=orders)
  return dataclasses.replace(
      decoder, sigma=True,
      guarantee='biased where the models have different learned variances; elsewhere '
                f'{decoder.guarantee}')


def cspd_released(
    target: Target, draft: Target, length: int = 8, schedule: Schedule | None = None, *,
    prefix_share: float = 0.15, kappa: float = 42.0, sigma: str = 'inverted',
    max_trials: int = 100, zero_fallback: bool = True, guidance_of_last: bool = True,
    block_context: bool = True, keep_after_reject: bool = True, aligned: bool = True,
    num_iter: int | None = None, guidance: str = 'linear',
    orders: Callable = random_lib.random_orders) -> block.Decoder:
  """The released code, every departure from the paper behind its own switch.

  Args:
    target: verifies.
    draft: the draft model.
    length: `gamma`, drafts per block.
    schedule: the levels of both heads; 100 by default.
    prefix_share: share of the tokens that the target fixes alone.
    kappa: multiplies both models' standard deviations in the test, but not in the
      residual.
    sigma: 'inverted' as released, 'paper', or 'off'.
    max_trials: proposals for a rejected token at most.
    zero_fallback: whether a token becomes zero when all proposals fail; else it becomes
      the target's own token.
    guidance_of_last: whether a block is verified with the guidance scale of its last token.
    block_context: whether verification does not see the block's own drafts.
    keep_after_reject: whether drafts after a replaced one may stay.
    aligned: whether the draft model uses the target's noise.
    num_iter: must be the number of tokens, one per step.
    guidance: as for `sample.mar`.
    orders: as for `sample.mar`.

  Raises:
    ValueError: for options out of range or models that do not fit together.
  """
  if sigma not in SIGMA:
    raise ValueError(f'sigma is {sigma!r}; it must be one of: {", ".join(SIGMA)}.')
  couple.check_max_trials(max_trials)
  sign = {'off': 0, 'paper': 1, 'inverted': -1}[sigma]

  def rule(batch, theirs, own, pending):
    log_sigma = sign * (theirs.log_std - own.log_std)
    log_ratio = (log_sigma + jnp.sum(jnp.log(theirs.std) - jnp.log(own.std), axis=-1) -
                 _softened(theirs, own, kappa))
    accepted = couple.accept(
        log_ratio, random_lib.log_uniform(batch.keys, random_lib.ACCEPT, 0), 1.0)
    failed = pending & ~accepted
    keys = jax.tree.map(lambda leaf: leaf[:, None], batch.keys)
    theirs_wide, own_wide = (jax.tree.map(lambda leaf: leaf[:, None], end) for end in (theirs, own))

    def propose(trials):
      noise = random_lib.normal(keys, random_lib.PROPOSE, 0, own.mean.shape[-1], trials[None])
      y = own_wide.mean + own_wide.std * noise
      log_ratio = (log_sigma[:, None] + couple.log_density(y, own_wide.mean, own_wide.std) -
                   couple.log_density(y, theirs_wide.mean, theirs_wide.std))
      return y, log_ratio, random_lib.log_uniform(keys, random_lib.RESIDUAL, 0, trials[None])

    drawn, trials, missed = couple.residual(propose, failed, 1.0, max_trials)
    last = jnp.zeros_like(own.mean) if zero_fallback else own.mean
    replaced = jnp.where(missed[:, None], last, drawn)
    return block.Verdict(
        jnp.where(accepted[:, None], theirs.mean, replaced), accepted, trials, missed)

  return _blocks(
      target, draft, length, schedule, prefix_share, kappa, num_iter, rule=rule, guidance=guidance,
      guidance_of_last=guidance_of_last, drafts_alike=False, block_context=block_context,
      keep_after_reject=keep_after_reject, bounded=False, aligned=aligned, orders=orders,
      guarantee='none: behaves as the released code, which keeps no distribution')


def cspd_relaxed(
    target: Target, draft: Target, length: int = 8, schedule: Schedule | None = None, *,
    prefix_share: float = 0.15, kappa: float = 42.0, block_context: bool = True,
    aligned: bool = True, num_iter: int | None = None, guidance: str = 'linear',
    orders: Callable = random_lib.random_orders) -> block.Decoder:
  """A plain test that bounds the error, in the released code's control flow or a true one.

  Args:
    target: verifies.
    draft: the draft model.
    length: `gamma`, drafts per block.
    schedule: the levels of both heads; 100 by default.
    prefix_share: share of the tokens that the target fixes alone.
    kappa: tolerance in units of the last kernel's standard deviation, 0.0064.
    block_context: True for one pass of the target per block, which does not see the drafts:
      the bound is to the distribution of `sample.parallel`, so all of a block has the guidance
      scale of its last token. False for a pass per draft and an end at the first rejection: the
      bound is to the distribution of one token per step.
    aligned: whether the draft model uses the target's noise.
    num_iter: must be the number of tokens, one per step.
    guidance: as for `sample.mar`.
    orders: as for `sample.mar`.

  Raises:
    ValueError: for options out of range or models that do not fit together.
  """
  def rule(batch, theirs, own, pending):
    del pending
    accepted = couple.accept(
        -_softened(theirs, own, kappa),
        random_lib.log_uniform(batch.keys, random_lib.ACCEPT, 0), 1.0)
    tokens = jnp.where(accepted[:, None], theirs.mean, own.mean)
    none = jnp.zeros(accepted.shape, jnp.int32)
    bound = 2 / np.e * kappa**2 * jnp.max(jnp.square(own.std), axis=-1)
    return block.Verdict(
        tokens, accepted, none, none, jnp.sum(jnp.square(tokens - own.mean), axis=-1), bound)

  return _blocks(
      target, draft, length, schedule, prefix_share, kappa, num_iter, rule=rule, guidance=guidance,
      guidance_of_last=block_context, drafts_alike=True, block_context=block_context,
      keep_after_reject=block_context, bounded=True, aligned=aligned, orders=orders,
      guarantee='mean squared distance to the target\'s own token at most (2 / e) kappa^2 s^2, '
                'which `error_bound` gives')


def expected_speedup(cost: float, length: int) -> float:
  """Speed of block verification over the target: `1 / (cost + 1 / length)`, whatever is accepted.

  Args:
    cost: time of a draft step over time of a target step.
    length: `gamma`.
  """
  return 1 / (cost + 1 / length)


def _softened(theirs: block.Ends, own: block.Ends, kappa: float) -> jax.Array:
  """`[N]` half the squared distance of the two tokens, in units of `kappa` deviations."""
  return 0.5 * jnp.sum(jnp.square((theirs.mean - own.mean) / (kappa * own.std)), axis=-1)


def _blocks(
    target, draft, length, schedule, prefix_share, kappa, num_iter, **fields) -> block.Decoder:
  """Checks the options; `fields` are those of `block.Decoder`."""
  size = target.num_tokens
  exact_path.check_pair(target, draft)
  exact_path.check_num_iter(target, num_iter)
  blocks = schedule_lib.blocks(size, length, prefix_share)
  if not (np.isfinite(kappa) and kappa > 0):
    raise ValueError(f'kappa is {kappa}; it must be finite and above 0.')
  sampling_lib.check_guidance(fields['guidance'])
  schedule = schedule_lib.make() if schedule is None else schedule
  baseline = (sample_lib.parallel(target, length, schedule, prefix_share=prefix_share)
              if fields['block_context'] else sample_lib.mar(target, schedule=schedule))
  return block.Decoder(
      target, draft, schedule, blocks, distribution=baseline.distribution, **fields)
