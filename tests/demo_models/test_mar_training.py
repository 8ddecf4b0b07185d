"""The training step of MAR; `tests/models/test_mar.py` compares its loss with the official one."""

import dataclasses
import functools

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
def test_a_fresh_model_has_the_error_of_predicting_no_noise(fresh):
  _, metrics = _STEP(fresh, _data(), CONFIG, TRAIN)
  assert abs(metrics['mse'] - 1) < 0.1
  np.testing.assert_allclose(metrics['loss'], metrics['mse'] + metrics['vlb'], rtol=1e-6)


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


@pytest.mark.slow
def test_only_hidden_tokens_count(fresh):
  tokens, labels = _data()
  draws = _DRAW(jax.random.key(1), tokens.shape, TRAIN)
  draws = draws._replace(hidden=jnp.tile(jnp.arange(4) < 2, (32, 1)))
  value, _ = _LOSS(fresh.params, CONFIG, tokens, labels, draws)
  noise = draws.noise.at[:, :, 2:].multiply(100.0)
  same, _ = _LOSS(fresh.params, CONFIG, tokens, labels, draws._replace(noise=noise))
  np.testing.assert_allclose(value, same, rtol=1e-6)
  # A fresh head predicts no noise: its error is the square of the noise.
  expected = np.mean(np.square(draws.noise[:, :, :2]))
  np.testing.assert_allclose(
      _LOSS(fresh.params, CONFIG, tokens, labels, draws)[1]['mse'], expected, rtol=1e-5)


def test_the_bound_teaches_the_variance_only():
  x0, noise, x = (jax.random.normal(key, (5, 3)) for key in jax.random.split(jax.random.key(0), 3))
  step = jnp.array([0, 1, 30, 500, 999])
  bound = lambda eps, v: mar.token_losses(x0, step, noise, x, eps, v)[1].sum()
  to_eps, to_v = jax.jit(jax.grad(bound, argnums=(0, 1)))(0.9 * noise, jnp.zeros((5, 3)))
  assert not to_eps.any() and to_v.any()


@pytest.mark.slow
def test_biases_norms_and_the_head_do_not_decay(fresh):
  decayed = mar.decayed(fresh.params)
  flat = {'/'.join(key.key for key in path): leaf
          for path, leaf in jax.tree_util.tree_leaves_with_path(decayed)}
  assert not any(leaf for name, leaf in flat.items()
                 if name.startswith('head/') or name.endswith(('/bias', '/scale')))
  assert {name for name, leaf in flat.items() if leaf and '/' not in name} == {
      'class_embedding', 'null_embedding', 'mask_token', 'encoder_positions',
      'decoder_positions', 'z_positions'}
  assert flat['encoder_layers_0/query/kernel'] and flat['token_in/kernel']


@pytest.mark.slow
def test_dropout_is_in_every_block_and_only_there(fresh):
  tokens, labels = _data()
  draws = _DRAW(jax.random.key(1), tokens.shape, TRAIN)
  # Four times per block: one of the decoder, and that of the encoder at each static length.
  lengths = model._NUM_LENGTHS  # pylint: disable=protected-access
  for rate, expected in ((0.0, 0), (0.5, 4 * (1 + lengths))):
    jaxpr = str(jax.make_jaxpr(lambda params: mar.loss(
        params, CONFIG, tokens, labels, draws, dropout=rate, dropout_key=jax.random.key(0)))(
            fresh.params))
    assert jaxpr.count('name=_bernoulli') == expected


@pytest.mark.slow
def test_the_same_state_and_batch_give_the_same_step(fresh):
  first, second = (_STEP(fresh, _data(), CONFIG, TRAIN)[0] for _ in range(2))
  jax.tree.map(np.testing.assert_array_equal, first, second)


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


@pytest.mark.slow
def test_the_weight_of_the_last_step_is_for_the_head_alone(trained):
  params = trained[0].params
  tokens, labels = _data()
  draws = _DRAW(jax.random.key(2), tokens.shape, TRAIN)
  draws = draws._replace(step=jnp.full_like(draws.step, 999))
  gradient = jax.jit(jax.grad(
      lambda params, weight: mar.loss(params, CONFIG, tokens, labels, draws, last_weight=weight)[0]
      - mar.loss(params, CONFIG, tokens, labels, draws)[1]['vlb']))
  plain, weighted = gradient(params, 1.0), gradient(params, 100.0)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6)
  head, transformer = ({name: leaf for name, leaf in weighted.items() if (name == 'head') == part}
                       for part in (True, False))
  jax.tree.map(close, transformer, {name: plain[name] for name in transformer})
  jax.tree.map(close, head, {'head': jax.tree.map(lambda leaf: 100 * leaf, plain['head'])})
  assert jax.tree.reduce(lambda total, leaf: total + jnp.abs(leaf).sum(), transformer, 0.0) > 0


@pytest.mark.slow
def test_sine_positions_tell_neighbours_from_others():
  config = dataclasses.replace(CONFIG, height=6, width=6, dim=32)
  params = mar.start(config, dataclasses.replace(TRAIN, sine_positions=True)).params
  for name in ('encoder_positions', 'decoder_positions', 'z_positions'):
    table = np.asarray(params[name])[0, -36:].reshape(6, 6, 32)
    likeness = np.einsum('d,hwd->hw', table[2, 3], table)
    below = np.sort(likeness.ravel())[-6]
    for row, column in ((1, 3), (3, 3), (2, 2), (2, 4)):
      assert below < likeness[row, column] < likeness[2, 3], name
    # The rows before the tokens start as published.
    assert np.abs(np.asarray(params[name])[0, :-36]).max(initial=0) < 0.1


def test_hidden_shares_can_go_far_down():
  train = dataclasses.replace(TRAIN, min_hidden=0.1, hidden_deviation=0.5)
  draw = jax.jit(jax.vmap(lambda key: mar.draw(key, (1, 256, 1), train).hidden))
  shares = np.asarray(draw(jax.random.split(jax.random.key(0), 300))).mean(axis=2)
  assert 0.1 <= shares.min() < 0.25 and shares.max() > 0.97


@pytest.mark.slow
def test_the_rate_falls_to_nothing_at_the_end(fresh):
  train = dataclasses.replace(
      TRAIN, optimizer=dataclasses.replace(OPTIMIZER, num_steps=40, cooldown_steps=20))
  # A fresh head gives the transformer no gradient: what moves is the rate times the weight decay.
  change = lambda count: float(jnp.abs(_STEP(
      fresh._replace(opt_state=jax.tree.map(
          lambda leaf: jnp.int32(count) if leaf.dtype == jnp.int32 else leaf, fresh.opt_state)),
      _data(), CONFIG, train)[0].params['class_embedding'] - fresh.params['class_embedding']).max())
  full = change(20)
  np.testing.assert_allclose([change(30), change(39)], [full / 2, full / 20], rtol=0.01)


@pytest.mark.parametrize('name, value, words', [
    ('min_hidden', 1.0, 'from 0 to below 1'), ('hidden_deviation', 0.0, 'above 0'),
    ('last_share', 1.5, 'from 0 to 1'), ('last_weight', 0.0, 'above 0')])
def test_options_out_of_range(name, value, words):
  with pytest.raises(ValueError, match=f'{name} is {value}; it must be .*{words}'):
    dataclasses.replace(TRAIN, **{name: value})
