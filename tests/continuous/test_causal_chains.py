"""Chains of a causal model's head: recorded under the true contexts, fitted, stored by their times.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import decoders, head_drafter
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.models import nextstep
from cspd_jax.models.conditions import Prompt

CONFIG = nextstep.NextStepConfig(
    height=2, width=3, vocab_size=9, latent_channels=4, patch_size=1, dim=16, num_layers=1,
    num_heads=2, num_kv_heads=1, ffn_dim=24, head_width=16, head_layers=1, num_levels=6)
SCALE = 3.0


@pytest.fixture(scope='module')
def params():
  fresh = nextstep.init(CONFIG, jax.random.key(0))
  return jax.tree.map(
      lambda leaf: leaf + 0.2 * jax.random.normal(jax.random.key(1), leaf.shape), fresh)


def _prompts(num):
  ids = np.random.default_rng(0).integers(9, size=(num, 2, 4))
  return Prompt(ids, np.ones(ids.shape, bool))


def _contexts(params, prompts, tokens):
  """`z` of whole images by one pass per stream, without a cache."""
  return np.stack([nextstep.forward(
      params, CONFIG, Prompt(*(part[:, stream:stream + 1] for part in prompts)), tokens)
                   for stream in range(2)])


@pytest.mark.slow
def test_recorded_chains_belong_to_tokens_of_their_images(params):
  target, prompts, key = nextstep.target(CONFIG, guided=True), _prompts(16), jax.random.key(3)
  decoder, sampling = decoders.mar(target), SamplingParams(SCALE)
  x, eps = jax.jit(lambda: head_drafter.record(decoder, params, prompts, key, sampling))()
  tokens = jax.jit(lambda: decoder(params, prompts, key, sampling))().tokens
  assert x.shape == eps.shape == (6, 16, 4)
  z, times = _contexts(params, prompts, tokens), decoder.schedule.steps
  # The guided velocity at the recorded states, `[levels, B, T, C]`, with the context of each token.
  repeated = lambda leaf: jnp.repeat(leaf[:, :, None], 6, axis=2).reshape(-1, 4)
  time = jnp.repeat(jnp.asarray(times, jnp.float32), 16 * 6)
  conditional, null = (target.denoise(
      params, repeated(x), time, jnp.tile(stream.reshape(-1, 16), (6, 1)))[0] for stream in z)
  guided = (null + SCALE * (conditional - null)).reshape(6, 16, 6, 4)
  errors = np.abs(guided - np.asarray(eps)[:, :, None]).max(axis=(0, 3))
  rank = errors.argmin(axis=1)
  assert errors.min(axis=1).max() < 1e-4 and len(set(rank.tolist())) > 2
  assert np.sort(errors, axis=1)[:, 1].min() > 1e-3, 'tokens of one image have the same context'
  # The chain ends in the token: without noise at the last kernel this is its mean.
  schedule = decoder.schedule
  clean = schedule.x_to_x0[0] * x[0] - schedule.eps_to_x0[0] * eps[0]
  last = schedule.x0_to_mean[0] * clean + schedule.x_to_mean[0] * x[0]
  np.testing.assert_allclose(last, tokens[np.arange(16), rank], atol=1e-4)


@pytest.mark.slow
def test_fits_are_stored_by_their_times(params):
  target, prompts = nextstep.target(CONFIG, guided=False), _prompts(32)
  decoder = decoders.mar(target)
  chains = jax.jit(lambda: head_drafter.record(
      decoder, params, prompts, jax.random.key(4), SamplingParams()))()
  rho = head_drafter.fit_rho(decoder.schedule, chains)
  assert rho.shape == (6,) and np.all(np.isfinite(rho)) and rho[-1] == 1
  metadata = head_drafter.describe_rho(decoder.schedule, rho, np.ones(6))
  np.testing.assert_allclose(
      head_drafter.stored_rho(decoder.schedule, metadata, False), rho, atol=1e-4)
