"""The recipe of the shipped MAR models, without training them."""

import pathlib

import jax
import numpy as np
import pytest

pytest.importorskip('skimage')
pytest.importorskip('sklearn')

from cspd_jax.cli import wrapper
from cspd_jax.models import kl_vae, mar
from cspd_jax.training import loop
from experiments.demo_models import mar as training, stages, tokenizers

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def recipe():
  return loop.smoke(wrapper.load(str(ROOT / 'configs' / 'train' / 'mar_demo.py')).small())


def _moments(recipe, count=64):
  rng = np.random.default_rng(0)
  mean = 3 * rng.standard_normal((count, 4, 4, recipe.tokenizer.z_channels))
  return np.stack([mean, np.full_like(mean, -2.0)], axis=1).astype(np.float32)


def test_tokens_have_a_variance_of_one_and_are_drawn_anew(recipe):
  moments, labels = _moments(recipe), np.arange(64, dtype=np.int32) % 8
  config = recipe.sized_tokenizer({'train': (moments, labels)})
  assert config.scale == pytest.approx(1 / np.sqrt(9 + np.exp(-2)), rel=0.03)
  batch = lambda index: stages.batch_of(
      recipe.target, moments, labels, config.scale, 0, index, 256)
  tokens, chosen = batch(0)
  assert tokens.shape == (256, 4, 16) and tokens.dtype == np.float32
  assert tokens.std() == pytest.approx(1, rel=0.05)
  np.testing.assert_array_equal(batch(0)[0], tokens)
  assert not np.array_equal(batch(1)[1], chosen)
  # The latents come back, up to the noise of their Gaussians.
  unscaled = mar.unpatchify(recipe.target, tokens) / config.scale
  nearest = np.abs(unscaled[:, None] - moments[None, :, 0]).mean((2, 3, 4)).min(axis=1)
  assert nearest.max() < 2 * np.exp(-1)


def test_draws_have_the_published_distributions():
  train = training.MARTrainConfig()
  draw_one = jax.jit(training.draw, static_argnums=(1, 2))
  draw = jax.jit(jax.vmap(lambda key: training.draw(key, (2, 256, 1), train).hidden))
  hidden = np.asarray(draw(jax.random.split(jax.random.key(0), 200)))
  counts = hidden.sum(axis=2)
  assert (counts[:, 0] == counts[:, 1]).all()  # One rate per batch.
  # Mean of 1 - 0.25 |n| for a normal number cut at 1.2 deviations.
  assert counts.min() >= 180 and counts.max() <= 256 and abs(counts.mean() / 256 - 0.867) < 0.02
  assert abs((hidden[:, 0] == hidden[:, 1]).mean() - 0.77) < 0.05  # Every row hides its own.
  draws = [draw_one(jax.random.key(i), (32, 4, 3), train) for i in range(30)]
  assert draws[0].step.shape == (4, 32, 4) and draws[0].noise.shape == (4, 32, 4, 3)
  steps = np.array([one.step for one in draws])
  assert 0 <= steps.min() < 5 and 995 <= steps.max() <= 999
  assert abs(np.mean([one.drop for one in draws]) - 0.1) < 0.04


@pytest.mark.slow
def test_the_kl_term_is_that_of_the_definition():
  config = kl_vae.KLVAEConfig(ch=4, ch_mult=(1, 1), num_res_blocks=1, z_channels=2, scale=1.0)
  params = kl_vae.init(config, jax.random.key(0))
  images = jax.random.uniform(jax.random.key(0), (4, 8, 8, 3), minval=-1, maxval=1)
  posterior = kl_vae.encode(params, config, images)
  loss = lambda weight: tokenizers.kl_loss(
      params, images, jax.random.key(1), config, tokenizers.KLVAETrainConfig(kl_weight=weight))
  (with_kl, metrics), (without, _) = loss(1.0), loss(0.0)
  deviation = np.exp(0.5 * np.asarray(posterior.log_variance, np.float64))
  expected = np.mean(0.5 * (np.square(posterior.mean) + deviation**2 - 1) - np.log(deviation))
  np.testing.assert_allclose(with_kl - without, expected, rtol=1e-3)
  np.testing.assert_allclose(metrics['kl'], expected, rtol=1e-4)
