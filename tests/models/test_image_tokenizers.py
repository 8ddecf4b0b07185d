"""Image tokenizers of all families: agreement with the official modules.

The files in `tests/data` were recorded in float32 with the weights of `published.py` at the sizes
of `CASES`; images are `default_rng(seed).uniform(-1, 1)` as float32. Pixels are not clipped.

- `llamagen_vq.npz`: LlamaGen's official tokenizer, weight seed 5; of two images `[2, 12, 16, 3]`
  (seed 6) the unit latents, the indices, and the pixels of those indices. At the indices the two
  best codes of every latent differ by at least 7e-4 in their inner product.
- `chameleon_vqgan.npz`: the `VQModel` that Lumina-mGPT has from Chameleon, weight seed 7; images of
  seed 8; the pixels are those of the codebook's entries at the indices. The squared distances of
  the two best codes differ by at least 3e-3.
- `emu3_vq.npz`: BAAI's `Emu3VisionVQModel`, a tokenizer of videos, weight seed 9, except that
  running variances are one and three times the absolute value; images of seed 10: the latents and
  indices of four equal frames (the best codes differ by 1.8e-4 in squared distance), and the first
  frame of the codes `default_rng(11).integers(0, 96, (2, 6, 8))`.
- `movq.npz`: encoder, quantiser and decoder of `movqgan` in Lumina-mGPT 2.0's repository (commit
  f44a4d7), weight seed 12, images of seed 13 (2.3e-4), codes of seed 14.
- `emu3_5.npz`: `IBQ` of baaivision/Emu3.5 (commit 8fcf1da), weight seed 73, images of seed 74 (the
  best codes differ by 1.5e-3 in their inner product), codes of seed 75.
- `cosmos.npz`: NVIDIA's `CausalDiscreteVideoTokenizer` with the sizes of its configuration DV at a
  spatial compression of 16 and a temporal one of 8 but for those below, weight seed 71. From
  `default_rng(72)`: images `[2, 48, 64, 3]`, each a video of one frame, of which the numbers before
  the quantiser and the indices were recorded (the closest number is 1.5e-4 from the border of two
  levels), then the codes `integers(0, 64000, (2, 2, 3))`, of which the frame of `decode_code` was.
  `script` holds the bytes of a file of `torch.jit.save`, see `tests/conversion/test_pytorch.py`.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax.models import cosmos, vq
from tests.builders import published
from tests.marks import representative

pytestmark = pytest.mark.usefixtures('precise')


class Case(NamedTuple):
  config: vq.VQConfig | cosmos.CosmosConfig
  family: str
  seed: int
  recorded: str
  codes_seed: int | None  # None decodes the recorded indices.
  tolerances: tuple[float, float] = (1e-5, 1e-4)  # Of latents and of pixels.


_plain = dict(codebook_size=96, normalized=False)
CASES = {
    'llamagen': Case(vq.VQConfig(ch_mult=(1, 2), z_channels=64, codebook_size=512), 'llamagen_vq',
                     5, 'llamagen_vq', None, (1e-4, 1e-4)),
    'chameleon': Case(
        vq.VQConfig(ch_mult=(1, 2), num_res_blocks=1, z_channels=64, codebook_dim=32,
                    level_attention=False, **_plain),
        'chameleon_vqgan', 7, 'chameleon_vqgan', None, (1e-4, 1e-3)),
    'emu3': Case(dataclasses.replace(vq.EMU3, ch=128, ch_mult=(1, 2), codebook_size=96),
                 'emu3_vq', 9, 'emu3_vq', 11),
    'movqgan': Case(vq.VQConfig(ch_mult=(1, 2), z_channels=4, codebook_dim=4, spatial_norm=True,
                                **_plain), 'movqgan', 12, 'movq', 14),
    'emu3_5': Case(vq.VQConfig(ch_mult=(1, 2), z_channels=6, codebook_dim=5, by_product=True,
                               **_plain), 'emu3_5_vq', 73, 'emu3_5', 75),
    # Pixels are up to 40 at these weights.
    'cosmos': Case(cosmos.CosmosConfig(ch=16, ch_mult=(1, 2, 2), num_res_blocks=1, z_channels=8),
                   'cosmos_dv', 71, 'cosmos', 72, (1e-5, 2e-4))}


def _shapes(case):
  """Names and shapes of the recorded module, including weights that a single frame does not use."""
  shapes = dict(convert.published_shapes(rules.get(case.family), case.config))
  if case.family == 'cosmos_dv':
    unused = {f'{part}.mid.attn_1.1.{name}': (32, 32, 1, 1, 1)
              for part in ('encoder', 'decoder') for name in 'qk'}
    unused |= {'encoder.down.1.downsample.conv2': (32, 32, 3, 1, 1),
               'decoder.up.2.upsample.conv1': (32, 32, 3, 1, 1)}
    for name, shape in unused.items():
      shapes |= {f'{name}.conv3d.weight': shape, f'{name}.conv3d.bias': shape[:1]}
  return shapes


@pytest.fixture(name='case', scope='module', params=representative(CASES, 'llamagen'))
def _case(request):
  """A case, its parameters, images and codes."""
  case = CASES[request.param]
  weights = {name: np.float32(1) + 3 * np.abs(x) if name.endswith('running_var') else x
             for name, x in published.weights(_shapes(case), case.seed).items()}
  rng = np.random.default_rng(case.seed + 1)
  size = (48, 64) if request.param == 'cosmos' else (12, 16)
  images = rng.uniform(-1, 1, (2, *size, 3)).astype(np.float32)
  if case.codes_seed is None:
    codes = published.recorded(case.recorded)['indices']
  elif request.param == 'cosmos':
    codes = rng.integers(0, 64000, (2, 2, 3))
  else:
    codes = np.random.default_rng(case.codes_seed).integers(0, 96, (2, 6, 8))
  return case, convert.convert(rules.get(case.family), case.config, weights), images, codes


def test_encoding_agrees_with_the_official_tokenizer(case):
  case, params, images, _ = case
  want = published.recorded(case.recorded)
  latents, indices = jax.jit(lambda params, images: (
      vq.latents(params, case.config, images), vq.encode(params, case.config, images)))(
          params, images)
  np.testing.assert_allclose(latents, want['latents'], atol=case.tolerances[0])
  np.testing.assert_array_equal(indices, want['indices'])
  if case.family == 'emu3_5_vq':
    nearest = vq.quantize(params, dataclasses.replace(case.config, by_product=False), latents)
    assert np.mean(nearest != want['indices']) > 0.5, 'the smallest distance would agree too'


def test_decoding_agrees_with_the_official_tokenizer(case):
  case, params, _, codes = case
  want = published.recorded(case.recorded)['pixels']
  pixels, clipped = jax.jit(lambda params, codes: (
      vq.decode_vectors(params, case.config, vq.codebook(params, case.config)[codes]),
      vq.decode(params, case.config, codes)))(params, codes)
  np.testing.assert_allclose(pixels, want, atol=case.tolerances[1])
  np.testing.assert_allclose(clipped, np.clip(want, -1, 1), atol=case.tolerances[1])


@pytest.mark.slow
def test_tokens_of_cosmos_are_the_numbers_of_their_vectors():
  config = CASES['cosmos'].config
  vectors = np.asarray(vq.codebook({}, config))
  assert vectors.shape == (64000, 6) and len(np.unique(vectors, axis=0)) == 64000
  assert vectors.min(axis=0).tolist() == [-1] * 6
  assert vectors.max(axis=0).tolist() == [0.75] * 3 + [1] * 3
  # Large numbers before the quantiser reach the first and the last level of each.
  ends = vq.quantize({}, config, np.array([[-9.0] * 6, [9.0] * 6], np.float32))
  assert ends.tolist() == [0, 63999]
  # The number before the quantiser of every level, by the published formula.
  halves, shifts = np.array([4, 4, 4, 2, 2, 2]), np.array([.5, .5, .5, 0, 0, 0])
  widths = np.array([3.5, 3.5, 3.5, 2, 2, 2]) * 1.001
  before = np.arctanh(np.clip((vectors * halves + shifts) / widths, -0.9999, 0.9999))
  np.testing.assert_array_equal(
      vq.quantize({}, config, before - np.arctanh(shifts / widths)), np.arange(64000))
