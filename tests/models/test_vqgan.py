"""Chameleon's image tokenizer: agreement with the official module.

`tests/data/chameleon_vqgan.npz` was recorded in float32 from the `VQModel` that Lumina-mGPT has
from Chameleon, with level multiples (1, 2), one residual block, 64 latent channels and 96 codes of
length 32, and the weights of `published.py` with seed 7, for two images `[2, 12, 16, 3]` of
`default_rng(8).uniform(-1, 1)` as float32: the latents, the indices, and the decoded images of the
codebook's entries (not clipped). The squared distances of the two best codes differ by 3e-3 at
least.
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

CONFIG = vq.VQConfig(
    ch_mult=(1, 2), num_res_blocks=1, z_channels=64, codebook_size=96, codebook_dim=32,
    level_attention=False, normalized=False)
FILE = rules.FAMILIES['chameleon_vqgan']
MANIFEST = pathlib.Path(__file__).parent.parent / 'data' / 'manifests' / 'chameleon_vqgan.json.gz'


@pytest.fixture(autouse=True)
def _precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.mark.slow
def test_it_agrees_with_the_official_tokenizer():
  params, want = published.params(FILE.name, CONFIG, 7), published.recorded('chameleon_vqgan')
  images = np.random.default_rng(8).uniform(-1, 1, (2, 12, 16, 3)).astype(np.float32)
  np.testing.assert_allclose(vq.latents(params, CONFIG, images), want['latents'], atol=1e-4)
  np.testing.assert_array_equal(vq.encode(params, CONFIG, images), want['indices'])
  vectors = vq.codebook(params, CONFIG)[want['indices']]
  np.testing.assert_allclose(
      vq.decode_vectors(params, CONFIG, vectors), want['pixels'], atol=1e-3)


@pytest.mark.slow
def test_published_tensors_are_exactly_those_of_the_model():
  manifest = json.loads(gzip.decompress(MANIFEST.read_bytes()))
  shapes = {name: tuple(shape) for name, shape in manifest['tensors'].items()}
  assert convert.published_shapes(FILE, vq.CHAMELEON) == shapes
  assert FILE.infer(shapes, {}) == vq.CHAMELEON
  no_decoder = {name: shape for name, shape in shapes.items() if not name.startswith('decoder.')}
  with pytest.raises(ValueError, match='The file has no decoder, so it cannot generate images'):
    FILE.infer(no_decoder, {})
