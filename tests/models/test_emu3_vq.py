"""Emu3's image tokenizer: agreement with the official video tokenizer on still images.

`tests/data/emu3_vq.npz` was recorded in float32 from BAAI's `Emu3VisionVQModel` with width 128,
level multiples (1, 2), attention at the second, two residual blocks, 4 latent channels, four
frames per latent and 96 codes, and the weights of `published.py` with seed 9, except that running
variances are one and three times the absolute value: for two images `[2, 12, 16, 3]` of
`default_rng(10).uniform(-1, 1)` as float32 the latents of four equal frames and the indices (the
two best codes differ by 1.8e-4 in squared distance), and of the codes
`default_rng(11).integers(0, 96, (2, 6, 8))` the first frame.
"""

import dataclasses
import gzip
import json
import pathlib
import re

import jax
import numpy as np
import published
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax.models import vq

CONFIG = dataclasses.replace(vq.EMU3, ch=128, ch_mult=(1, 2), codebook_size=96)
FILE = rules.FAMILIES['emu3_vq']
MANIFEST = pathlib.Path(__file__).parent.parent / 'data' / 'manifests' / 'emu3_vq.json.gz'


def _weights():
  drawn = published.weights(convert.published_shapes(FILE, CONFIG), 9)
  return {name: np.float32(1) + 3 * np.abs(value) if name.endswith('running_var') else value
          for name, value in drawn.items()}


@pytest.fixture(scope='module')
def params():
  return convert.convert(FILE, CONFIG, _weights())


@pytest.fixture(autouse=True)
def _precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.mark.slow
def test_encoding_agrees_with_four_equal_frames(params):
  want = published.recorded('emu3_vq')
  images = np.random.default_rng(10).uniform(-1, 1, (2, 12, 16, 3)).astype(np.float32)
  latents = jax.jit(vq.latents, static_argnums=1)(params, CONFIG, images)
  np.testing.assert_allclose(latents, want['latents'], atol=1e-5)
  np.testing.assert_array_equal(
      jax.jit(vq.encode, static_argnums=1)(params, CONFIG, images), want['indices'])


@pytest.mark.slow
def test_decoding_agrees_with_the_first_frame(params):
  codes = np.random.default_rng(11).integers(0, 96, (2, 6, 8))
  vectors = vq.codebook(params, CONFIG)[codes]
  pixels = jax.jit(vq.decode_vectors, static_argnums=1)(params, CONFIG, vectors)
  np.testing.assert_allclose(pixels, published.recorded('emu3_vq')['pixels'], atol=1e-4)
  clipped = jax.eval_shape(lambda: vq.decode(params, CONFIG, codes))
  assert clipped.shape == (2, 12, 16, 3)


@pytest.mark.slow
def test_published_tensors_are_exactly_those_of_the_model():
  manifest = json.loads(gzip.decompress(MANIFEST.read_bytes()))
  shapes = {name: tuple(shape) for name, shape in manifest['tensors'].items()}
  config = FILE.presets['vision_tokenizer']
  expected = {name: shape for name, shape in shapes.items()
              if not re.fullmatch(FILE.leftovers, name)}
  assert convert.published_shapes(FILE, config) == expected
  assert FILE.infer(expected, {}) == config


@pytest.mark.slow
def test_files_come_back(params):
  back = convert.publish(FILE, CONFIG, params)
  for name, value in _weights().items():
    np.testing.assert_array_equal(back[name], value)


@pytest.mark.slow
def test_refused_settings(params):
  with pytest.raises(ValueError, match='must be multiples of 2, got 3x4'):
    vq.encode(params, CONFIG, np.zeros((1, 3, 4, 3), np.float32))
  with pytest.raises(ValueError, match='indices must be integers'):
    vq.decode(params, CONFIG, np.zeros((1, 4), int))
