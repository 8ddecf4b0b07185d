"""MAR: agreement with the official modules and loss, masks, conditions.

`tests/data/mar.npz` was recorded in float32 from the official PyTorch model (with the blocks of
timm 0.9.12) at the sizes below, without dropout, and with the weights of `published.py` for seed
11. Everything random comes from `default_rng(seed)` in the order given; normal numbers are cast to
float32.

Seed 12: tokens `standard_normal((3, 64, 16))`, then three times `permutation(64)`; labels 3, 7 and
0; image `b` hides the first 64, 44 and 7 entries of its permutation. `z` `[2, 3, 64, 64]` is the
decoder's output with the labels, then with the null class; `encoded` `[26, 64]` the encoder's for
image 1 with its label: the buffer, then the visible tokens in raster order.

Seed 13: states `standard_normal((100, 16))`, then conditions `standard_normal((100, 64))`; row `i`
is at level `i` of 100. `head` `[100, 32]` holds the two outputs of the head; `mean` and
`log_variance` those of the reverse step, without clipping.

Seed 14: `permutation(64)` for either image, then `standard_normal((2, 64, 101, 16))`: the noise of
a token's kernel at level `i`, and its starting state at 100. `sampled` `[2, 16, 8, 8]` is the
official sampler's result for labels 4 and 9 in 4 steps with guidance 3 (linear) and temperature
1000: the head is not trained, the states grow to 1e5, and noise of size 1 would not be seen.

Seed 15: tokens 0.8 `standard_normal((4, 64, 16))`; four times `permutation(64)`, whose first 52
entries are hidden; steps `integers(1, 1000, (4, 4, 64))`; noise `standard_normal((4, 4, 64, 16))`.
The labels are 1, 2, 3 and 8, the second replaced by the null class. `loss` is the official training
loss, and `grad.NAME` its gradient by published name.

Seed 16: four times `standard_normal((64, 16))`: tokens (times 0.8), noise, what the head's noise is
off by (times 0.5), and the head's variance; steps `integers(0, 1000, 64)`, of which the first 16
are set to 0. `mse` and `vlb` `[64]` are the terms of the official loss. (Its likelihood at step 0
is lost in float32 rounding for tokens many deviations away, as an untrained head makes them.)
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import products
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax.continuous import (
  decoders,
  head as head_lib,
  noise as noise_lib,
  schedule as schedule_lib,
)
from cspd_jax.continuous.span import TokenBatch
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.models import mar
from experiments.demo_models import mar as training
from tests.builders import published
from tests.marks import representative

pytestmark = pytest.mark.usefixtures('precise')

CONFIG = mar.MARConfig(
    height=8, width=8, dim=64, num_layers=2, num_heads=4, head_width=80, head_layers=3,
    num_classes=10, buffer_size=6)
LEVELS = schedule_lib.make(100)

_TARGETS = {guided: mar.target(CONFIG, guided=guided) for guided in (False, True)}
_TRANSFORM = jax.jit(_TARGETS[True].transform)
_DENOISE = jax.jit(_TARGETS[True].denoise)


@pytest.fixture(scope='module')
def params():
  return jax.tree.map(jnp.asarray, published.params('mar', CONFIG, 11))


@pytest.fixture(scope='module')
def expected():
  return published.recorded('mar')


@pytest.fixture(scope='module')
def images():
  """Labels, tokens and masks with a different number of visible tokens in every row."""
  rng = np.random.default_rng(12)
  tokens = rng.standard_normal((3, 64, 16)).astype(np.float32)
  visible = np.ones((3, 64), bool)
  for row, hidden in enumerate((64, 44, 7)):
    visible[row, rng.permutation(64)[:hidden]] = False
  return jnp.array([3, 7, 0]), tokens, visible


@pytest.mark.verifies('parity', 'mar')
def test_the_transformer_agrees_with_the_official_one(params, expected, images):
  z = _TRANSFORM(params, *images)
  np.testing.assert_allclose(z, expected['z'], atol=1e-5, rtol=0)
  labels, tokens, visible = (part[1:2] for part in images)
  encoded = jax.jit(lambda *args: mar.MAR(CONFIG).apply(
      {'params': params}, *args, method='encode'))(labels, jnp.zeros(1, bool), tokens, visible)
  kept = np.concatenate([np.ones(6, bool), visible[0]])
  np.testing.assert_allclose(encoded[0, kept], expected['encoded'], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize('lengths', representative([1, 2, 3, 4], 4))
def test_the_encoder_reads_as_few_rows_as_hold_the_visible_tokens(
    params, expected, images, monkeypatch, lengths):
  monkeypatch.setattr(mar, '_NUM_LENGTHS', lengths)
  transform = jax.jit(mar.target(CONFIG, guided=True).transform)
  for image in range(3):  # Alone, as the fullest image decides: 0, 20 and 57 visible tokens.
    z = transform(params, *(part[image:image + 1] for part in images))
    np.testing.assert_allclose(z[:, 0], expected['z'][:, image], atol=1e-5, rtol=0)
  np.testing.assert_allclose(transform(params, *images), expected['z'], atol=1e-5, rtol=0)


def test_the_head_agrees_with_the_official_one(params, expected):
  rng = np.random.default_rng(13)
  x, z = (rng.standard_normal((100, size)).astype(np.float32) for size in (16, 64))
  head = np.concatenate(_DENOISE(params, x, jnp.asarray(LEVELS.steps), z), axis=-1)
  np.testing.assert_allclose(head, expected['head'], atol=1e-5, rtol=0)


def test_reverse_steps_agree_with_the_official_ones_at_every_level(expected):
  x = np.random.default_rng(13).standard_normal((100, 16)).astype(np.float32)
  eps, v = np.split(expected['head'], 2, axis=-1)
  mean, std = schedule_lib.posterior(LEVELS, jnp.arange(100), x, eps, v)
  np.testing.assert_allclose(mean, expected['mean'], atol=1e-6, rtol=1e-6)
  np.testing.assert_allclose(2 * np.log(std), expected['log_variance'], atol=5e-6, rtol=0)


@pytest.mark.slow
def test_whole_guided_images_agree_with_the_official_sampler(params, expected, monkeypatch):
  """The library's own sampler, in the recorded order and with the recorded noise."""
  rng = np.random.default_rng(14)
  hidden_first = np.stack([rng.permutation(64) for _ in range(2)])
  noise = jnp.asarray(rng.standard_normal((2, 64, 101, 16)), jnp.float32)

  def recorded(keys, purpose, level, size, trial=0):
    # The first half of the tokens is that of the first image; the start is recorded at level 100.
    assert size == 16 and purpose in (noise_lib.START, noise_lib.STEP)
    image = jnp.arange(len(keys.position)) * 2 // len(keys.position)
    level = 100 if purpose == noise_lib.START else level
    return noise[image.reshape(-1, *(1,) * (keys.position.ndim - 1)), keys.position, level]

  monkeypatch.setattr(noise_lib, 'normal', recorded)
  decoder = dataclasses.replace(
      decoders.mar(_TARGETS[True], 4, LEVELS),
      orders=lambda rows, size: jnp.asarray(hidden_first[:, ::-1]))
  generated = jax.jit(decoder)(
      params, jnp.array([4, 9]), jax.random.key(0), SamplingParams(3.0, 1000.0))
  latents = mar.unpatchify(CONFIG, generated.tokens).transpose(0, 3, 1, 2)
  largest = np.abs(expected['sampled']).max()
  np.testing.assert_allclose(latents / largest, expected['sampled'] / largest, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_training_loss_and_its_gradient_agree_with_the_official_ones(params, expected):
  rng = np.random.default_rng(15)
  tokens = 0.8 * rng.standard_normal((4, 64, 16))
  hidden = np.zeros((4, 64), bool)
  for row in hidden:
    row[rng.permutation(64)[:52]] = True
  step = rng.integers(1, 1000, (4, 4, 64))
  noise = rng.standard_normal((4, 4, 64, 16))
  tokens, noise = jnp.asarray(tokens, jnp.float32), jnp.asarray(noise, jnp.float32)
  draws = training.Draws(jnp.asarray(hidden), jnp.arange(4) == 1, jnp.asarray(step), noise)
  run = jax.jit(jax.value_and_grad(
      lambda params: training.loss(params, CONFIG, tokens, jnp.array([1, 2, 3, 8]), draws)[0]),
      compiler_options={'xla_backend_optimization_level': 0})  # Compiling takes longest.
  value, grads = run(params)
  np.testing.assert_allclose(value, expected['loss'], rtol=1e-5)
  grads = convert.publish(rules.FAMILIES['mar'], CONFIG, grads)
  compared = [name for name in expected if name.startswith('grad.')]
  assert len(compared) == 5
  for name in compared:
    np.testing.assert_allclose(
        grads[name.removeprefix('grad.')], expected[name], atol=1e-5, rtol=1e-4, err_msg=name)


def test_the_terms_of_the_loss_agree_with_the_official_ones(expected):
  rng = np.random.default_rng(16)
  x0, noise, off, v = (rng.standard_normal((64, 16)).astype(np.float32) for _ in range(4))
  x0, eps = np.float32(0.8) * x0, noise + np.float32(0.5) * off
  step = rng.integers(0, 1000, 64)
  step[:16] = 0
  x = schedule_lib.diffuse(schedule_lib.make(1000), step, x0, noise)
  mse, vlb = training.token_losses(x0, step, noise, x, eps, v)
  np.testing.assert_allclose(mse, expected['mse'], rtol=1e-5)
  np.testing.assert_allclose(vlb, expected['vlb'], rtol=1e-4, atol=1e-5)


def test_hidden_tokens_are_not_read(params, images):
  labels, tokens, visible = images
  spoiled = np.where(visible[..., None], tokens, np.nan)
  np.testing.assert_array_equal(
      _TRANSFORM(params, labels, spoiled, visible),
      _TRANSFORM(params, *images))


def test_without_guidance_there_is_one_stream(params, images):
  assert _TARGETS[False].num_streams == 1 and _TARGETS[True].num_streams == 2
  assert jax.eval_shape(_TARGETS[False].transform, params, *images).shape == (1, 3, 64, 64)


@pytest.mark.parametrize('dtype,platform,expected', [
    (jnp.float32, 'cpu', products.FLOAT32), (jnp.bfloat16, 'cpu', products.FLOAT32),
    (jnp.float32, 'cuda', products.FLOAT32), (jnp.bfloat16, 'cuda', products.BFLOAT16)])
def test_the_head_is_float32_in_full_precision_whatever_the_dtype(
    params, dtype, platform, expected):
  params = jax.tree.map(lambda x: x.astype(dtype), params)
  target = _TARGETS[False]
  x, z = jnp.ones((2, 16)), jnp.ones((2, 64), dtype)
  result = functools.partial(products.lowered, platform=platform)
  with jax.default_matmul_precision('default'):
    # As a whole, and in the two parts that decoders run.
    whole = result(target.denoise, params, x, jnp.arange(2), z)
    make = result(target.modulation.make, params, jnp.arange(3), z)
    shapes = jax.eval_shape(target.modulation.make, params, jnp.arange(3), z)
    assert shapes.shape == (2, 3, 3 * CONFIG.head_layers + 2, CONFIG.head_width)
    rows = jax.ShapeDtypeStruct((6, *shapes.shape[2:]), shapes.dtype)
    apply = result(target.modulation.apply, params, x, rows, jnp.arange(2))
    results = jax.eval_shape(target.modulation.apply, params, x, rows, jnp.arange(2))
  blocks = CONFIG.head_layers
  # The modulation has a product for each of three bfloat16 parts.
  extra = 2 * (expected == products.BFLOAT16)
  assert whole == [expected] * (6 + 2 * blocks + extra)
  assert make == [expected] * (4 + extra) and apply == [expected] * (2 + 2 * blocks)
  assert {leaf.dtype for leaf in (shapes, *results)} == {np.dtype('float32')}


def test_the_transformer_has_the_dtype_of_its_parameters(params):
  half, target = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params), _TARGETS[False]
  shape = jax.eval_shape(target.transform, half, jnp.zeros(2, int), jnp.zeros((2, 64, 16)),
                         jnp.ones((2, 64), bool))
  assert shape.dtype == jnp.bfloat16


@pytest.mark.slow
def test_a_new_model_predicts_no_noise_and_starts_as_published():
  config = dataclasses.replace(CONFIG, num_layers=1, head_layers=1)
  params = mar.init(config, jax.random.key(0))
  eps, v = jax.jit(mar.target(config, guided=False).denoise)(
      params, jnp.ones((5, 16)), jnp.arange(5), jnp.ones((5, 64)))
  assert not eps.any() and not v.any()
  layer, head = params['encoder_layers_0'], params['head']
  # Three projections of D x D are drawn as one of D x 3 D.
  for kernel, limit in ((layer['query']['kernel'], (6 / (4 * 64))**0.5),
                        (layer['out']['kernel'], (6 / (2 * 64))**0.5),
                        (layer['mlp_in']['kernel'], (6 / (5 * 64))**0.5),
                        (head['mlp_in_0']['kernel'], (6 / (2 * 80))**0.5)):
    assert 0.97 * limit < jnp.abs(kernel).max() <= limit
  for table in (params['encoder_positions'], params['class_embedding'],
                head['time_in']['kernel']):
    assert abs(float(table.std()) - 0.02) < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize('guided', [False, True])
def test_the_head_in_two_parts_gives_the_same_kernels(params, guided, monkeypatch):
  target, rng = _TARGETS[guided], np.random.default_rng(20)
  z = jnp.asarray(rng.standard_normal((target.num_streams, 3, CONFIG.dim)), jnp.float32)
  keys = noise_lib.token_keys(row_keys(jax.random.key(0), 3), jnp.arange(3))
  batch = TokenBatch(z, jnp.full(3, 2.0), jnp.ones(3), keys, jnp.ones(3, bool))
  level = jnp.array([[99, 50], [7, 6], [0, 98]])
  x = jnp.asarray(rng.standard_normal((3, 2, 16)), jnp.float32)

  def kernel():
    head = head_lib.Head(target, LEVELS, params)
    made = head.modulated(batch)
    return made, head.kernel(made, x, level)

  made, split = kernel()
  assert {leaf.shape[:3] for leaf in jax.tree.leaves(made.modulation)} == {
      (target.num_streams, 3, 100)}
  monkeypatch.setattr(head_lib, 'MODULATION_BYTES', 1000)
  made, whole = kernel()
  assert made.modulation is None
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4, rtol=2e-5), split, whole)


def test_patches():
  """As MAR cuts them: a token is a patch, its channels one after the other."""
  config = mar.MARConfig(height=2, width=3, token_dim=12, patch_size=2)
  latents = np.random.default_rng(0).standard_normal((2, 4, 6, 3))
  tokens = mar.patchify(config, latents)
  assert tokens.shape == (2, 6, 12) and config.latent_channels == 3
  np.testing.assert_array_equal(
      tokens[1, 4].reshape(3, 2, 2), latents[1, 2:4, 2:4].transpose(2, 0, 1))
  np.testing.assert_array_equal(mar.unpatchify(config, tokens), latents)
  # Here tokens are single latents, in raster order.
  tokens = jnp.arange(2 * 64 * 16.0).reshape(2, 64, 16)
  np.testing.assert_array_equal(mar.unpatchify(CONFIG, tokens)[1, 2, 3], tokens[1, 2 * 8 + 3])
