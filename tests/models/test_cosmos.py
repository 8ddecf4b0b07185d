"""SimpleAR's image tokenizer: agreement with the official video tokenizer on a single frame.

`tests/data/cosmos.npz` was recorded in float32 from NVIDIA's `CausalDiscreteVideoTokenizer` with
the sizes of its configuration DV at a spatial compression of 16 and a temporal one of 8, except 16
channels, multipliers (1, 2, 2), one residual block and `z_channels` 8, and the weights of
`published.py` with seed 71. From `default_rng(72)`: two images `uniform(-1, 1, (2, 48, 64, 3))` as
float32, each a video of one frame, of which the numbers before the quantiser and the indices were
recorded (the closest number is 1.5e-4 from the border of two levels); and the codes
`integers(0, 64000, (2, 2, 3))`, of which the frame of `decode_code` was. `script` holds the bytes
of a small file of `torch.jit.save`; see `tests/conversion/test_pytorch.py`.

The manifest holds names and shapes of the module at its published sizes, whose parts are the two
published files.
"""

import gzip
import json
import pathlib
import re

import jax
import numpy as np
import published
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax.models import cosmos, vq

CONFIG = cosmos.CosmosConfig(ch=16, ch_mult=(1, 2, 2), num_res_blocks=1, z_channels=8)
FILE = rules.FAMILIES['cosmos_dv']
MANIFEST = (pathlib.Path(__file__).parent.parent / 'data' / 'manifests' /
            'cosmos_dv8x16x16.json.gz')


def _published_shapes():
  """Names and shapes of the recorded module, including weights that a single frame does not use."""
  shapes = dict(convert.published_shapes(FILE, CONFIG))
  unused = {f'{part}.mid.attn_1.1.{name}': (32, 32, 1, 1, 1)
            for part in ('encoder', 'decoder') for name in 'qk'}
  unused |= {'encoder.down.1.downsample.conv2': (32, 32, 3, 1, 1),
             'decoder.up.2.upsample.conv1': (32, 32, 3, 1, 1)}
  for name, shape in unused.items():
    shapes |= {f'{name}.conv3d.weight': shape, f'{name}.conv3d.bias': shape[:1]}
  return shapes


@pytest.fixture(scope='module')
def weights():
  return published.weights(_published_shapes(), 71)


@pytest.fixture(scope='module')
def params(weights):
  return convert.convert(FILE, CONFIG, weights)


@pytest.fixture(autouse=True)
def _precise():
  with jax.default_matmul_precision('highest'):
    yield


def _draws():
  rng = np.random.default_rng(72)
  images = rng.uniform(-1, 1, (2, 48, 64, 3)).astype(np.float32)
  return images, rng.integers(0, 64000, (2, 2, 3))


@pytest.mark.slow
def test_encoding_agrees_with_the_video_of_one_frame(params):
  want, images = published.recorded('cosmos'), _draws()[0]
  latents = jax.jit(vq.latents, static_argnums=1)(params, CONFIG, images)
  np.testing.assert_allclose(latents, want['latents'], atol=1e-5)
  np.testing.assert_array_equal(
      jax.jit(vq.encode, static_argnums=1)(params, CONFIG, images), want['indices'])


@pytest.mark.slow
def test_decoding_agrees_with_the_video_of_one_frame(params):
  want, codes = published.recorded('cosmos')['pixels'], _draws()[1]
  vectors = vq.codebook(params, CONFIG)[codes]
  pixels = jax.jit(vq.decode_vectors, static_argnums=1)(params, CONFIG, vectors)
  # Numbers are up to 40 at these weights.
  np.testing.assert_allclose(pixels, want, atol=2e-4)
  clipped = vq.decode(params, CONFIG, codes)
  np.testing.assert_allclose(clipped, np.clip(want, -1, 1), atol=2e-4)


@pytest.mark.slow
def test_tokens_are_the_numbers_of_their_vectors(params):
  tokens = np.arange(64000)
  vectors = np.asarray(vq.codebook(params, CONFIG))
  assert vectors.shape == (64000, 6) and len(np.unique(vectors, axis=0)) == 64000
  assert vectors.min(axis=0).tolist() == [-1] * 6
  assert vectors.max(axis=0).tolist() == [0.75] * 3 + [1] * 3
  # Large numbers before the quantiser reach the first and the last level of each.
  ends = vq.quantize({}, CONFIG, np.array([[-9.0] * 6, [9.0] * 6], np.float32))
  assert ends.tolist() == [0, 63999]
  np.testing.assert_array_equal(
      vq.quantize({}, CONFIG, np.arctanh(np.clip(
          (vectors * np.array([4, 4, 4, 2, 2, 2]) + np.array([.5, .5, .5, 0, 0, 0]))
          / (np.array([3.5, 3.5, 3.5, 2, 2, 2]) * 1.001), -0.9999, 0.9999)) - np.arctanh(
              np.array([.5, .5, .5, 0, 0, 0]) / (np.array([3.5, 3.5, 3.5, 2, 2, 2]) * 1.001))),
      tokens)


@pytest.mark.slow
def test_published_tensors_are_exactly_those_of_the_model():
  manifest = json.loads(gzip.decompress(MANIFEST.read_bytes()))
  shapes = {name: tuple(shape) for name, shape in manifest['tensors'].items()}
  config = FILE.presets['dv8x16x16']
  expected = convert.published_shapes(FILE, config)
  assert expected.items() <= shapes.items()
  unused = shapes.keys() - expected.keys()
  assert all(re.fullmatch(FILE.leftovers, name) for name in unused)
  # Queries and keys of attention over time, and layers over time that the sizes leave out.
  assert len(unused) == 12
  assert FILE.infer(shapes, {}) == config
  assert config.codebook_size == 64000 and config.factor == 16


def test_files_come_back(params, weights):
  back = convert.publish(FILE, CONFIG, params)
  for name, value in back.items():
    np.testing.assert_array_equal(value, weights[name])


@pytest.mark.parametrize('changes, message', [
    (dict(patch_size=3), 'patch_size is 3; it must be a power of 2'),
    (dict(factor=2), 'factor is 2; it must be a power of 2 of at least 4'),
    (dict(time_factor=6), 'time_factor is 6; it must be a power'),
    (dict(factor=64), 'factor is 64 with patch_size 4 and 3 levels'),
    (dict(levels=(1, 8)), r'levels is \(1, 8\)')])
def test_impossible_sizes_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    cosmos.CosmosConfig(**changes)


@pytest.mark.slow
def test_refused_settings(params):
  with pytest.raises(ValueError, match='must be multiples of 16, got 16x24'):
    vq.encode(params, CONFIG, np.zeros((1, 16, 24, 3), np.float32))
  with pytest.raises(ValueError, match='indices must be integers'):
    vq.decode(params, CONFIG, np.zeros((1, 4), int))
  shapes = _published_shapes()
  with pytest.raises(rules.ConversionError, match='it has 100 inputs, vectors of 6 numbers'):
    FILE.infer({**shapes, 'encoder.conv_in.0.conv3d.weight': (16, 100, 1, 3, 3)}, {})
  with pytest.raises(rules.ConversionError, match='decoder.conv_in.0.conv3d.weight is missing'):
    FILE.infer({name: shape for name, shape in shapes.items() if 'decoder' not in name}, {})
