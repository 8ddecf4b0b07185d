"""The Inception network and its features, against those of torch-fidelity.

tests/data/inception.npz holds features of torch-fidelity's `FeatureExtractorInceptionV3` (commit
of November 2026, PyTorch 2.13, float32) with the weights of `_published`: for `adm` and
`torch_fidelity` as it is, for `pytorch_fid` with PyTorch's bilinear `interpolate` of the images in
[0, 1] and `2 x - 1` in place of its own resizing. `pool` and `spatial` are every 32nd feature and
`logits` every 16th of two images of 96 x 112 pixels; `spatial` is the output of
`Mixed_6d.branch1x1`.
"""

import pathlib
import zlib

import jax
import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from checkpoints_conversion.rules import ConversionError
from cspd_jax.metrics import inception
from cspd_jax.models import inception as network
from cspd_jax.models.inception import InceptionConfig

GOLDEN = pathlib.Path(__file__).parents[1] / 'data' / 'inception.npz'
FAMILY = rules.get('inception')
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 3, 96, 112), np.uint8).transpose(0, 2, 3, 1)


def published(config=InceptionConfig()):
  """Random weights by published name, none of which is zero."""
  tensors = {}
  for name, shape in convert.published_shapes(FAMILY, config).items():
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if 'running_var' in name:
      values = rng.uniform(.5, 2, shape)
    elif 'bn.weight' in name:
      values = rng.uniform(.5, 1.5, shape)
    elif 'bn.bias' in name or 'running_mean' in name:
      values = rng.normal(0, .2, shape)
    else:
      values = rng.normal(0, (2 / np.prod(shape[1:]))**.5, shape)
    tensors[name] = values.astype(np.float32)
  return tensors


@pytest.fixture(name='params', scope='module')
def _params():
  return convert.convert(FAMILY, InceptionConfig(), published())


@pytest.mark.slow
@pytest.mark.parametrize('evaluator', ['adm', 'pytorch_fid'])
def test_features_are_those_of_torch_fidelity(params, evaluator):
  features = inception.features(params, InceptionConfig(), IMAGES, evaluator)
  parts = dict(pool=features.pool[:, ::32], logits=features.logits[:, ::16],
               spatial=features.spatial[:, ::32])
  golden = np.load(GOLDEN)
  for name, values in parts.items():
    expected = golden[f'{evaluator}_{name}']
    np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())
    other = golden[f'{"adm" if evaluator == "pytorch_fid" else "pytorch_fid"}_{name}']
    assert np.abs(values - other).max() > 3e-3 * np.abs(expected).max()


@pytest.mark.slow
def test_the_last_pool_is_a_maximum(params, monkeypatch):
  block = network._BLOCKS['mixed_7c']
  monkeypatch.setitem(network._BLOCKS, 'mixed_7c', block._replace(pool='mean'))
  image = inception.prepared(IMAGES, inception.EVALUATORS['adm'])
  pool = jax.jit(lambda x: network.apply(params, InceptionConfig(), x))(image).pool[:, ::32]
  expected = np.load(GOLDEN)['adm_pool']
  assert np.abs(pool - expected).max() > 1e-2 * np.abs(expected).max()


def test_images_of_299_pixels_are_not_resized():
  images = np.random.default_rng(1).integers(0, 256, (1, 299, 299, 3), np.uint8)
  for evaluator in inception.EVALUATORS.values():
    expected = (images.astype(np.float32) - evaluator.center) / evaluator.scale
    np.testing.assert_allclose(inception.prepared(images, evaluator), expected, atol=1e-5)


@pytest.mark.parametrize('evaluator', inception.EVALUATORS)
def test_images_are_resized_alike_on_the_host(evaluator):
  for shape in ((40, 31), (299, 299), (500, 333), (1, 700)):
    image = np.random.default_rng(1).integers(0, 256, (*shape, 3), np.uint8)
    result = inception.resized(image, evaluator)
    assert result.dtype == np.float32
    np.testing.assert_allclose(
        result, inception.prepared(image[None], inception.EVALUATORS[evaluator])[0], atol=1e-5)


@pytest.mark.slow
def test_the_size_is_inferred_and_the_bias_is_left_out():
  tensors = published(InceptionConfig(unit=2, num_classes=5))
  tensors['fc.bias'] = np.zeros(5, np.float32)
  tensors['Conv2d_1a_3x3.bn.num_batches_tracked'] = np.zeros((), np.int64)
  source = convert.of_tensors('inception', tensors, {}, metadata=dict)
  assert source.network.config == InceptionConfig(unit=2, num_classes=5)
  for name, tensor in convert.publish(FAMILY, source.network.config, source.params()).items():
    np.testing.assert_array_equal(tensor, tensors[name])


@pytest.mark.slow
def test_other_networks_are_refused():
  tensors = published(InceptionConfig(unit=2, num_classes=1000))
  with pytest.raises(ConversionError, match='1000 classes, as the Inception of torchvision'):
    convert.of_tensors('inception', tensors, {}, metadata=dict)
  tensors = published(InceptionConfig(unit=2, num_classes=5))
  del tensors['Mixed_7c.branch_pool.bn.running_var']
  with pytest.raises(ConversionError, match='missing: Mixed_7c.branch_pool.bn.running_var'):
    convert.of_tensors('inception', tensors, {}, metadata=dict)
