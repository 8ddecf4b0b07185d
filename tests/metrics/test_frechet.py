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

  def test_one_feature(self):
    # (m_a - m_b)^2 + (s_a - s_b)^2.
    a = image_scores.FeatureMoments(np.array([1.0]), np.array([[4.0]]))
    b = image_scores.FeatureMoments(np.array([-2.0]), np.array([[0.25]]))
    self.assertAlmostEqual(image_scores.distance(a, b), 9 + 1.5**2, places=12)

  def test_covariances_with_common_axes(self):
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    s, t = rng.uniform(0.1, 2, (2, 5))
    a = image_scores.FeatureMoments(np.zeros(5), (axes * s**2) @ axes.T)
    b = image_scores.FeatureMoments(np.ones(5), (axes * t**2) @ axes.T)
    self.assertAlmostEqual(image_scores.distance(a, b), 5 + np.sum((s - t)**2), places=10)

  @parameterized.parameters(None, 3)
  def test_matrix_root(self, rank):
    rng = np.random.default_rng(1)
    a, b = random_gaussian(rng, 6, rank), random_gaussian(rng, 6)
    root = np.real(scipy.linalg.sqrtm(a.covariance @ b.covariance))
    expected = np.sum((a.mean - b.mean)**2) + np.trace(a.covariance + b.covariance - 2 * root)
    self.assertAlmostEqual(image_scores.distance(a, b), expected, places=4 if rank else 8)

  def test_symmetric_and_0_for_equals(self):
    rng = np.random.default_rng(2)
    a, b = random_gaussian(rng, 4), random_gaussian(rng, 4)
    self.assertAlmostEqual(image_scores.distance(a, b), image_scores.distance(b, a), places=10)
    self.assertAlmostEqual(image_scores.distance(a, a), 0, places=10)

  def test_other_features(self):
    rng = np.random.default_rng(3)
    with self.assertRaisesRegex(ValueError, 'a has 3 features and b 4'):
      image_scores.distance(random_gaussian(rng, 3), random_gaussian(rng, 4))


class GaussianTest(parameterized.TestCase):

  def test_moments(self):
    points = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    got = image_scores.gaussian(points)
    self.assertEqual(got.mean.dtype, np.float64)
    np.testing.assert_allclose(got.mean, points.mean(0), rtol=1e-5)
    np.testing.assert_allclose(got.covariance, np.cov(points.T), rtol=1e-5)

  @parameterized.parameters((np.zeros((1, 3)),), (np.zeros(3),), (np.full((4, 3), np.nan),))
  def test_bad_points(self, points):
    with self.assertRaisesRegex(ValueError, 'points have shape'):
      image_scores.gaussian(points)


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
