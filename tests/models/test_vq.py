"""The image tokenizer: agreement with the official module.

`tests/data/llamagen_vq.npz` was recorded in float32 from the official PyTorch
tokenizer with level multiples (1, 2), 64 latent channels and 512 codes of length
8, and the weights of `published.py` with seed 5, for two images `[2, 12, 16, 3]`
of `default_rng(6).uniform(-1, 1)` as float32: the unit latents, the indices, and
the decoded images of those indices (not clipped). At the indices the two best
codes of every latent differ by at least 7e-4 in their inner product.
"""

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest

from cspd_jax.models import vq

CONFIG = vq.VQConfig(ch_mult=(1, 2), z_channels=64, codebook_size=512)


@pytest.fixture(scope='module')
def params():
  return published.params('llamagen_vq', CONFIG, 5)


@pytest.fixture(scope='module')
def expected():
  return published.recorded('llamagen_vq')


def test_encoding_agrees_with_the_official_tokenizer(params, expected):
  images = jnp.asarray(np.random.default_rng(6).uniform(-1, 1, (2, 12, 16, 3)), jnp.float32)
  with jax.default_matmul_precision('highest'):
    latents, indices = jax.jit(lambda params, images: (
        vq.latents(params, CONFIG, images), vq.encode(params, CONFIG, images)))(params, images)
  np.testing.assert_allclose(latents, expected['latents'], atol=1e-4)
  np.testing.assert_array_equal(indices, expected['indices'])


def test_decoding_agrees_with_the_official_tokenizer(params, expected):
  indices = jnp.asarray(expected['indices'])
  with jax.default_matmul_precision('highest'):
    pixels, clipped = jax.jit(lambda params, indices: (
        vq.decode_vectors(params, CONFIG, vq.codebook(params, CONFIG)[indices]),
        vq.decode(params, CONFIG, indices)))(params, indices)
  np.testing.assert_allclose(pixels, expected['pixels'], atol=1e-4)
  np.testing.assert_allclose(clipped, np.clip(expected['pixels'], -1, 1), atol=1e-4)
