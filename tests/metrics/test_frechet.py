"""The Frechet distance compared with closed forms and another algorithm; pooled features."""

import jax
import numpy as np
import pytest
import scipy.linalg
from absl.testing import absltest, parameterized

from cspd_jax.metrics import image_scores
from cspd_jax.models import vq


def random_gaussian(rng, size, rank=None):
  factor = rng.normal(size=(size, rank or size))
  return image_scores.FeatureMoments(rng.normal(size=size), factor @ factor.T)


class DistanceTest(parameterized.TestCase):

  @parameterized.parameters(None, 3)
  def test_matrix_root(self, rank):
    rng = np.random.default_rng(1)
    a, b = random_gaussian(rng, 6, rank), random_gaussian(rng, 6)
    root = np.real(scipy.linalg.sqrtm(a.covariance @ b.covariance))
    expected = np.sum((a.mean - b.mean)**2) + np.trace(a.covariance + b.covariance - 2 * root)
    self.assertAlmostEqual(image_scores.distance(a, b), expected, places=4 if rank else 8)


class GaussianTest(parameterized.TestCase):

  def test_moments(self):
    points = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    got = image_scores.gaussian(points)
    self.assertEqual(got.mean.dtype, np.float64)
    np.testing.assert_allclose(got.mean, points.mean(0), rtol=1e-5)
    np.testing.assert_allclose(got.covariance, np.cov(points.T), rtol=1e-5)


class FeaturesTest(absltest.TestCase):

  @pytest.mark.slow
  def test_pools_the_latents(self):
    config = vq.VQConfig(ch=4, ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=16,
                         codebook_dim=3)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32),
        jax.eval_shape(lambda: vq.init(config, jax.random.key(0))))
    images = rng.uniform(-1, 1, (2, 4, 4, 3)).astype(np.float32)
    got, latents = jax.jit(lambda images: (
        vq.features(params, config, images), vq.latents(params, config, images)))(images)
    latents = np.asarray(latents).reshape(2, 16, 3)
    np.testing.assert_allclose(
        got, np.concatenate([latents.mean(1), latents.std(1)], axis=1), atol=1e-6)
