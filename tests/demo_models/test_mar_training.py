"""The training step of MAR; `tests/models/test_mar.py` compares its loss with the official one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import mar as model
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import mar, stages

CONFIG = model.MARConfig(
    height=2, width=2, token_dim=3, dim=16, num_layers=1, num_heads=2, head_width=16,
    head_layers=1, num_classes=2, buffer_size=2)
OPTIMIZER = OptimizerConfig(
    num_steps=150, batch_size=32, learning_rate=5e-3, warmup_steps=5, cooldown_steps=0,
    weight_decay=0.02, max_norm=3.0, ema_decay=0.98)
TRAIN = mar.MARTrainConfig(OPTIMIZER, dropout=0.0)

# Compiling takes most of the time here.
_STEP = jax.jit(lambda state, batch, config, train: stages.jit_step(
    mar.batch_loss, config, train, mar.decayed)(state, batch),
                static_argnums=(2, 3), compiler_options={'xla_backend_optimization_level': 0})
_DRAW = jax.jit(mar.draw, static_argnums=(1, 2))
_LOSS = jax.jit(mar.loss, static_argnums=1)


def _data(seed=0):
  """Tokens that are the class's constant, give or take a little."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(2, size=32)
  tokens = np.where(labels == 0, -1.0, 1.0)[:, None, None] + 0.1 * rng.standard_normal((32, 4, 3))
  return jnp.asarray(tokens, jnp.float32), jnp.asarray(labels)


@pytest.fixture(scope='module')
def fresh():
  return mar.start(CONFIG, TRAIN)


@pytest.fixture(scope='module')
def trained(fresh):
  state, history = fresh, []
  for index in range(OPTIMIZER.num_steps):
    state, metrics = _STEP(state, _data(index), CONFIG, TRAIN)
    history.append(metrics)
  return state, history


@pytest.mark.slow
def test_the_average_learns_and_uses_the_label(trained):
  state, history = trained
  assert np.mean([metrics['mse'] for metrics in history[-20:]]) < 0.35
  tokens, labels = _data(1000)
  draws = _DRAW(jax.random.key(1), tokens.shape, TRAIN)
  draws = draws._replace(drop=jnp.zeros(32, bool), hidden=jnp.ones((32, 4), bool))
  given = _LOSS(state.average, CONFIG, tokens, labels, draws)[1]['mse']
  wrong = _LOSS(state.average, CONFIG, tokens, 1 - labels, draws)[1]['mse']
  null = _LOSS(state.average, CONFIG, tokens, labels,
               draws._replace(drop=jnp.ones(32, bool)))[1]['mse']
  assert given < null < wrong


def test_draws_have_the_published_distributions():
  draw = jax.jit(jax.vmap(lambda key: mar.draw(key, (2, 256, 1), TRAIN).hidden))
  hidden = np.asarray(draw(jax.random.split(jax.random.key(0), 200)))
  counts = hidden.sum(axis=2)
  assert (counts[:, 0] == counts[:, 1]).all()  # One rate per batch.
  # Mean of 1 - 0.25 |n| for a normal number cut at 1.2 deviations.
  assert counts.min() >= 180 and counts.max() <= 256 and abs(counts.mean() / 256 - 0.867) < 0.02
  assert abs((hidden[:, 0] == hidden[:, 1]).mean() - 0.77) < 0.05  # Every row hides its own.
  draws = [_DRAW(jax.random.key(i), (32, 4, 3), TRAIN) for i in range(30)]
  assert draws[0].step.shape == (4, 32, 4) and draws[0].noise.shape == (4, 32, 4, 3)
  steps = np.array([one.step for one in draws])
  assert 0 <= steps.min() < 5 and 995 <= steps.max() <= 999
  assert abs(np.mean([one.drop for one in draws]) - 0.1) < 0.04


def test_the_bound_teaches_the_variance_only():
  x0, noise, x = (jax.random.normal(key, (5, 3)) for key in jax.random.split(jax.random.key(0), 3))
  step = jnp.array([0, 1, 30, 500, 999])
  bound = lambda eps, v: mar.token_losses(x0, step, noise, x, eps, v)[1].sum()
  to_eps, to_v = jax.jit(jax.grad(bound, argnums=(0, 1)))(0.9 * noise, jnp.zeros((5, 3)))
  assert not to_eps.any() and to_v.any()


@pytest.mark.slow
def test_draws_at_the_last_step_weigh_more():
  tokens, labels = _data()
  train = dataclasses.replace(TRAIN, last_share=0.5)
  draws = _DRAW(jax.random.key(2), tokens.shape, train)
  at_last = np.asarray(draws.step == 999)
  assert 0.4 < at_last.mean() < 0.6
  params = mar.start(CONFIG, TRAIN).params
  plain, metrics = _LOSS(params, CONFIG, tokens, labels, draws)
  weighted, _ = _LOSS(params, CONFIG, tokens, labels, draws, last_weight=jnp.float32(11.0))
  share = float((at_last & np.asarray(draws.hidden)).sum() / (
      np.asarray(draws.hidden).sum() * train.draws))
  np.testing.assert_allclose(weighted - plain, 10 * share * metrics['last_mse'], rtol=1e-4)


@pytest.mark.parametrize('name, value, words', [
    ('min_hidden', 1.0, 'from 0 to below 1'), ('hidden_deviation', 0.0, 'above 0'),
    ('last_share', 1.5, 'from 0 to 1'), ('last_weight', 0.0, 'above 0')])
def test_options_out_of_range(name, value, words):
  with pytest.raises(ValueError, match=f'{name} is {value}; it must be .*{words}'):
    dataclasses.replace(TRAIN, **{name: value})
