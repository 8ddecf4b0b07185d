"""Block verification with a valid test has the distribution of parallel decoding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import (
  coupling,
  decoders,
  noise as noise_lib,
  path,
  schedule as schedule_lib,
)
from cspd_jax.continuous.cspd import TokenVerdict, token_test
from cspd_jax.continuous.loop import make_decoder
from cspd_jax.testing.proofs import analytic
from tests.marks import representative

LEVELS = schedule_lib.make(6)
CORRELATION, OF_DRAFT = 0.9, 0.6
# One token of the target, then 64: whole blocks of every length.
CHAIN = analytic.gaussian_chain(1 + 64, CORRELATION, schedule=LEVELS)
# Length of a block and the correlation of neighbours that is left.
PARALLEL = [(4, 0.68), (8, 0.49), (16, 0.29)]


def valid(length):
  """A test that is speculative sampling, for drafts of a chain with another correlation.

  The draft model's distribution does not follow from `LastKernel`, but in raster order it follows
  from the token before, which for the first draft of a block follows from the target's mean.
  """
  def test(batch, draft, target, pending):
    del target
    p = analytic.unpack(batch.z[0], 1)
    mean, std = p.means[:, :, 0], p.stds
    drafts = draft.mean.reshape(-1, length)
    first = mean.reshape(-1, length)[:, :1] / CORRELATION
    before = jnp.concatenate([first, drafts[:, :-1]], axis=1).reshape(-1, 1)
    density = lambda *args: coupling.log_density(*(leaf[..., None] for leaf in args))
    log_ratio = lambda x: density(x, mean, std) - density(
        x, OF_DRAFT * before, jnp.full_like(std, np.sqrt(1 - OF_DRAFT**2)))
    accepted = coupling.accept(
        log_ratio(draft.mean)[:, 0],
        noise_lib.log_uniform(batch.keys, noise_lib.ACCEPT, 0), 1.0)
    keys = jax.tree.map(lambda leaf: leaf[:, None], batch.keys)

    def propose(trials):
      noise = noise_lib.normal(keys, noise_lib.PROPOSE, 0, 1, trials[None])
      y = mean + std * noise[..., 0]
      log_uniform = noise_lib.log_uniform(keys, noise_lib.RESIDUAL, 0, trials[None])
      return y[..., None], log_ratio(y), log_uniform

    drawn, trials, missed = coupling.residual(
        propose, pending & ~accepted, 1.0, coupling.DEFAULT_TRIALS)
    return TokenVerdict(
        jnp.where(accepted[:, None], draft.mean, drawn), accepted, trials, missed)

  return test


def in_raster_order(decoder):
  return dataclasses.replace(decoder, orders=noise_lib.raster_orders)


def verified(length):
  """Block verification with the valid test, and its own noise for the draft model."""
  (_, prefix), *blocks = schedule_lib.blocks(CHAIN.target.num_tokens, length, 0.0)
  return in_raster_order(make_decoder(
      CHAIN.target, LEVELS, token_test(valid(length), 'exact'), [stop for _, stop in blocks],
      prefix=prefix, drafter=path.model(CHAIN.target, aligned=False)))


def run(decoder):
  return jax.jit(decoder)(
      CHAIN.params, jnp.zeros(1000, jnp.int32), jax.random.key(1),
      draft_params=CHAIN.params._replace(correlation=jnp.float32(OF_DRAFT)))


def correlation(generated):
  tokens = np.asarray(generated.tokens[..., 0])
  return np.mean(tokens[:, 1:] * tokens[:, :-1]) / np.mean(np.square(tokens))


@pytest.mark.slow
@pytest.mark.parametrize('length, published', representative(PARALLEL, PARALLEL[0]))
def test_blocks_lose_correlation_like_parallel_decoding(length, published):
  # The tokens of a block only share the one before it, at distances of `i + 1` and `i`.
  expected = np.mean(CORRELATION ** (2 * np.arange(length) + 1))
  assert abs(expected - published) < 0.01
  generated = run(verified(length))
  # Most drafts are accepted, and one proposal per test is drawn on average.
  assert 0.6 < generated.tests.accepted.sum() / generated.tests.tested.sum() < 0.8
  assert abs(generated.tests.trials.sum() / generated.tests.tested.sum() - 1) < 0.05
  assert abs(correlation(generated) - expected) < 0.015
  baseline = run(in_raster_order(
      decoders.parallel(CHAIN.target, length, LEVELS, prefix_share=0.0)))
  np.testing.assert_array_equal(baseline.costs.target_passes, generated.costs.target_passes)
  assert abs(correlation(baseline) - expected) < 0.015
