"""The variational autoencoder: agreement with the official module, shapes, errors.

`tests/data/kl_vae.npz` was recorded in float32 from the official PyTorch autoencoder with level
multiples (1, 2) and attention at the lowest level of its encoder alone, as KL-16 has it, and with
the weights of `published.py` with seed 21: `mean` and `log_variance` `[2, 8, 10, 16]` for two
images `[2, 16, 20, 3]` of `default_rng(22).uniform(-1, 1)` as float32, and the decoded `pixels`
(not clipped) of latents `default_rng(23).standard_normal((2, 8, 10, 16))` as float32, divided by
0.2325.

`mean`, `log_variance` and `pixels` in `tests/data/nextstep.npz` were recorded in float32 from the
autoencoder of github.com/stepfun-ai/NextStep-1 (6e49bae) with level multiples (1, 2), 4 channels,
`encoder_norm`, `psz` 1, scale 0.7 and shift 0.2, and with the weights of `published.py` with seed
35: for two images `[2, 3, 12, 16]` of `default_rng(36).uniform(-1, 1)` as float32, and for
latents `default_rng(37).standard_normal((2, 4, 6, 8))` as float32, after scale and shift.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import kl_vae
from tests.builders import published

CONFIG = kl_vae.KLVAEConfig(ch_mult=(1, 2))
NEXTSTEP = kl_vae.KLVAEConfig(
    ch_mult=(1, 2), z_channels=4, scale=0.7, shift=0.2, quant_conv=False, level_attention=False,
    normalized=True)
IMAGES = np.random.default_rng(22).uniform(-1, 1, (2, 16, 20, 3)).astype(np.float32)
_LATENTS = np.random.default_rng(23).standard_normal((2, 8, 10, 16)).astype(np.float32)
# By the recorded file. Arrays of NextStep-1 have channels first.
_last = lambda x: x.astype(np.float32).transpose(0, 2, 3, 1)
CASES = {
    'kl_vae': (CONFIG, 21, IMAGES, _LATENTS),
    'nextstep': (NEXTSTEP, 35,
                 _last(np.random.default_rng(36).uniform(-1, 1, (2, 3, 12, 16))),
                 _last(np.random.default_rng(37).standard_normal((2, 4, 6, 8))))}

_ENCODE = jax.jit(kl_vae.encode, static_argnums=1)


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_both_directions_agree_with_the_official_autoencoders(name):
  config, seed, images, latents = CASES[name]
  params = published.params('kl_vae' if name == 'kl_vae' else 'nextstep_vae', config, seed)
  expected = {part: published.recorded(name)[part] if name == 'kl_vae' else
              _last(published.recorded(name)[part]) for part in ('mean', 'log_variance', 'pixels')}
  with jax.default_matmul_precision('highest'):
    posterior = _ENCODE(params, config, images)
    pixels, clipped = (jax.jit(run, static_argnums=1)(params, config, latents)
                       for run in (kl_vae.decode_unclipped, kl_vae.decode))
  np.testing.assert_allclose(posterior.mean, expected['mean'], atol=1e-4)
  np.testing.assert_allclose(posterior.log_variance, expected['log_variance'], atol=1e-4)
  np.testing.assert_allclose(pixels, expected['pixels'], atol=1e-4)
  np.testing.assert_allclose(clipped, np.clip(expected['pixels'], -1, 1), atol=1e-4)


def test_samples_follow_the_posterior_and_are_scaled():
  posterior = kl_vae.Posterior(jnp.full((1, 100, 100, 1), 3.0), jnp.full((1, 100, 100, 1), -2.0))
  sample = kl_vae.sample(CONFIG, posterior, jax.random.key(0)) / CONFIG.scale
  assert abs(sample.mean() - 3.0) < 0.02 and abs(sample.std() - np.exp(-1)) < 0.01
  certain = posterior._replace(log_variance=jnp.full((1, 100, 100, 1), -30.0))
  np.testing.assert_allclose(
      kl_vae.sample(CONFIG, certain, jax.random.key(0)), 3.0 * 0.2325, rtol=1e-5)


def test_small_tokenizers_and_half_precision():
  config = kl_vae.KLVAEConfig(ch=8, ch_mult=(1, 1, 2), num_res_blocks=1)

  def run(images):
    params = kl_vae.init(config, jax.random.key(0))
    assert 'attn_0' in params['encoder']['down_2'] and 'attn_0' not in params['decoder']['up_0']
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    posterior = kl_vae.encode(half, config, images)
    return posterior, kl_vae.decode(half, config, posterior.mean)

  posterior, images = jax.eval_shape(run, jnp.zeros((1, 16, 8, 3)))
  assert posterior.mean.shape == posterior.log_variance.shape == (1, 4, 2, 16)
  assert images.shape == (1, 16, 8, 3)
  assert posterior.mean.dtype == posterior.log_variance.dtype == images.dtype == jnp.float32


@pytest.mark.slow
def test_log_variances_stay_in_their_range():
  params = published.params('kl_vae', CONFIG, 21)
  for bias, limit in ((100.0, 20.0), (-100.0, -30.0)):
    moved = {**params, 'quant_conv': {**params['quant_conv'], 'bias': jnp.full(32, bias)}}
    np.testing.assert_array_equal(_ENCODE(moved, CONFIG, IMAGES).log_variance, limit)


def test_latents_are_shifted_and_scaled_as_they_are_decoded():
  mean = jnp.arange(8.0).reshape(1, 1, 2, 4)
  sample = kl_vae.sample(NEXTSTEP, kl_vae.Posterior(mean, jnp.full(mean.shape, -1e3)),
                         jax.random.key(0))
  np.testing.assert_allclose(sample / 0.7 + 0.2, mean, atol=1e-5)
