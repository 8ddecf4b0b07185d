"""MoVQGAN: agreement with the official module.

`tests/data/movq.npz` was recorded in float32 from the encoder, quantiser and decoder of
`movqgan` in Lumina-mGPT 2.0's repository (commit f44a4d7), with width 128, level multiples (1, 2),
attention at the second, two residual blocks, 4 latent channels and 96 codes, and the weights of
`published.py` with seed 12: for two images `[2, 12, 16, 3]` of `default_rng(13).uniform(-1, 1)` as
float32 the latents and the indices (the two best codes differ by 2.3e-4 in squared distance), and
the pixels of the codes `default_rng(14).integers(0, 96, (2, 6, 8))`, not clipped.
`manifests/movqgan.json.gz` contains the shapes of that program's 270M model without weights.
"""

import gzip
import json
import pathlib

import jax
import numpy as np
import published
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax.models import vq

CONFIG = vq.VQConfig(ch_mult=(1, 2), z_channels=4, codebook_size=96, codebook_dim=4,
                     normalized=False, spatial_norm=True)
FILE = rules.FAMILIES['movqgan']
MANIFEST = pathlib.Path(__file__).parent.parent / 'data' / 'manifests' / 'movqgan.json.gz'


@pytest.fixture(autouse=True)
def _precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def params():
  return published.params(FILE.name, CONFIG, 12)


@pytest.mark.slow
def test_encoding_agrees_with_the_official_tokenizer(params):
  want = published.recorded('movq')
  images = np.random.default_rng(13).uniform(-1, 1, (2, 12, 16, 3)).astype(np.float32)
  np.testing.assert_allclose(vq.latents(params, CONFIG, images), want['latents'], atol=1e-5)
  np.testing.assert_array_equal(vq.encode(params, CONFIG, images), want['indices'])


@pytest.mark.slow
def test_decoding_agrees_with_the_official_tokenizer(params):
  codes = np.random.default_rng(14).integers(0, 96, (2, 6, 8))
  pixels = vq.decode_vectors(params, CONFIG, vq.codebook(params, CONFIG)[codes])
  want = published.recorded('movq')['pixels']
  np.testing.assert_allclose(pixels, want, atol=1e-4)
  np.testing.assert_allclose(vq.decode(params, CONFIG, codes), np.clip(want, -1, 1), atol=1e-4)


@pytest.mark.slow
def test_published_tensors_are_exactly_those_of_the_model():
  manifest = json.loads(gzip.decompress(MANIFEST.read_bytes()))
  shapes = {name: tuple(shape) for name, shape in manifest['tensors'].items()}
  assert convert.published_shapes(FILE, vq.MOVQGAN) == shapes
  assert FILE.infer(shapes, {}) == vq.MOVQGAN


@pytest.mark.slow
def test_files_come_back(params):
  back = convert.publish(FILE, CONFIG, params)
  for name, value in published.weights(convert.published_shapes(FILE, CONFIG), 12).items():
    np.testing.assert_array_equal(back[name], value)


@pytest.mark.slow
def test_a_tokenizer_with_plain_norms_is_refused():
  plain = convert.published_shapes(rules.FAMILIES['chameleon_vqgan'], vq.CHAMELEON)
  with pytest.raises(rules.ConversionError, match='decoder.norm_out.conv_y.weight'):
    FILE.infer(plain, {})
