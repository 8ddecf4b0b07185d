"""The state, optimiser and moving average that all training steps share."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import early_fusion, vq
from cspd_jax.training import optimizer as optimizer_lib
from cspd_jax.training.optimizer import OptimizerConfig

CONFIG = OptimizerConfig(num_steps=20, warmup_steps=4, learning_rate=0.5, weight_decay=0.0,
                         ema_decay=None)
PARAMS = {'kernel': jnp.ones((2, 3)), 'bias': jnp.ones(3)}


def _rates(**options):
  """How far parameters of one move in every step with a constant gradient."""
  config = dataclasses.replace(CONFIG, **options)
  step = jax.jit(
      lambda state: optimizer_lib.update(state, jax.tree.map(jnp.ones_like, PARAMS), config))
  state, moved = optimizer_lib.start(PARAMS, config), []
  for _ in range(CONFIG.num_steps):
    following = step(state)
    moved.append(float(state.params['bias'][0] - following.params['bias'][0]))
    state = following
  assert int(state.step) == CONFIG.num_steps
  return np.array(moved)


def test_the_rate_rises_then_falls_on_a_cosine():
  steps = np.arange(20)
  cosine = 0.25 * (1 + np.cos(np.pi * (steps - 4) / 16))
  np.testing.assert_allclose(_rates(), np.where(steps < 4, steps / 8, cosine), rtol=1e-4, atol=1e-6)


def test_the_rate_is_constant_up_to_the_cooldown():
  steps = np.arange(20)
  expected = np.minimum(np.minimum(steps / 8, 0.5), (20 - steps) / 20)
  np.testing.assert_allclose(_rates(cooldown_steps=10), expected, rtol=1e-4, atol=1e-6)


def test_matrices_decay_and_vectors_do_not():
  config = dataclasses.replace(CONFIG, weight_decay=0.1)
  state = optimizer_lib.start(PARAMS, config)
  for _ in range(2):  # The first step of the warm-up moves nothing.
    state = optimizer_lib.update(state, jax.tree.map(jnp.zeros_like, PARAMS), config)
  np.testing.assert_allclose(state.params['kernel'], 1 - 0.1 * 0.5 / 4, rtol=1e-5)
  np.testing.assert_array_equal(state.params['bias'], 1)


@pytest.mark.parametrize('step, share', [(0, 0.9), (10, 0.45), (1000, 0.02)])
def test_the_average_forgets_the_first_parameters(step, share):
  config = dataclasses.replace(CONFIG, ema_decay=0.98)
  state = optimizer_lib.start(PARAMS, config, extra=jnp.int32(7))._replace(
      step=jnp.int32(step), params=jax.tree.map(lambda x: 3 * x, PARAMS))
  state = optimizer_lib.update(state, jax.tree.map(jnp.zeros_like, PARAMS), config)
  np.testing.assert_allclose(state.average['bias'], 1 + 2 * share, rtol=1e-6)
  assert int(state.step) == step + 1 and int(state.extra) == 7


def test_without_an_average_there_is_none():
  state = optimizer_lib.update(optimizer_lib.start(PARAMS, CONFIG), PARAMS, CONFIG)
  assert state.average is None and state.result is state.params


@pytest.mark.parametrize('cooldown', [None, 0])
def test_fewer_steps_have_a_shorter_warmup(cooldown):
  fewer = optimizer_lib.with_num_steps(dataclasses.replace(CONFIG, cooldown_steps=cooldown), 5)
  assert (fewer.num_steps, fewer.warmup_steps, fewer.cooldown_steps) == (5, 2, cooldown)


def test_the_first_step_learns_without_a_warmup():
  assert _rates(warmup_steps=0, cooldown_steps=5)[:2] == pytest.approx([CONFIG.learning_rate] * 2)


@pytest.mark.slow
def test_muon_moves_the_matrices_of_layers_and_adamw_the_rest():
  rng = np.random.default_rng(0)
  params = {'query': jnp.zeros((8, 2, 4)), 'out': jnp.zeros((2, 4, 8)), 'output': jnp.zeros((8, 5)),
            'norm': {'bias': jnp.zeros((2, 4))}}
  grads = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)
  config = dataclasses.replace(CONFIG, warmup_steps=0)
  muon = dataclasses.replace(config, muon_learning_rate=0.02)
  plain, mixed = (optimizer_lib.update(optimizer_lib.start(params, options), grads, options).params
                  for options in (config, muon))
  nesterov = 1 + 0.9 * 0.1 / (1 - 0.9 ** 2)  # The first step of Adam with Nesterov's momentum.
  for ours, adam in ((mixed['output'], plain['output']),
                     (mixed['norm']['bias'], plain['norm']['bias'])):
    np.testing.assert_allclose(ours, nesterov * adam, rtol=1e-4)
  for name, shape in (('query', (8, 8)), ('out', (8, 8))):
    # Newton and Schulz's iteration brings all singular values near 1.
    values = np.linalg.svd(np.asarray(mixed[name]).reshape(shape), compute_uv=False) / 0.02
    assert values.min() > 0.3 and values.max() < 1.4, name


def test_muon_takes_each_parameter_as_the_matrix_that_it_is():
  def axes(module, config):
    params = jax.eval_shape(lambda: module.init(config, jax.random.key(0)))
    return optimizer_lib.muon_axes(params)

  fusion = axes(early_fusion, early_fusion.EarlyFusionConfig(
      height=2, width=2, vocab_size=40, num_codes=8, dim=16, num_layers=1, num_heads=2, ffn_dim=8))
  layer = fusion['transformer']['layers_0']
  assert layer['query'] == ((0,), (1, 2)) and layer['out'] == ((0, 1), (2,))
  assert layer['gate'] == layer['down'] == ((0,), (1,))
  for name in ('token_embedding', 'output'):
    assert fusion['transformer'][name] is None
  assert layer['query_norm'] == {'scale': None, 'bias': None}
  tokenizer = axes(vq, vq.VQConfig(
      ch=8, ch_mult=(1, 2), num_res_blocks=1, z_channels=8, codebook_size=16, codebook_dim=4))
  assert tokenizer['encoder']['down_0']['downsample'] == {'kernel': ((0, 1, 2), (3,)), 'bias': None}
  assert tokenizer['codebook']['embedding'] is None
