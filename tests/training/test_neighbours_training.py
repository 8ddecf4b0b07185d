"""The neighbours corrector learns from images, and stops when others no longer gain."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import neighbours as network
from cspd_jax.models.neighbours import NeighboursConfig
from cspd_jax.training import neighbours
from cspd_jax.training.optimizer import OptimizerConfig
from tests.builders import models

CONFIG = NeighboursConfig(vocab_size=6, num_tokens=16, row_width=4, dim=8, hidden_dim=16)
OPTIMIZER = OptimizerConfig(
    num_steps=200, batch_size=8, learning_rate=1e-2, warmup_steps=5, weight_decay=0.05)
TRAIN = neighbours.NeighboursTrainConfig(OPTIMIZER, evaluate_every=20)


def _images(count, seed):
  """Every token but the first of a row follows its left neighbour, one up or the same."""
  rng = np.random.default_rng(seed)
  steps = rng.integers(0, 2, (count, 4, 4))
  steps[:, :, 0] = rng.integers(0, 6, (count, 4))
  return (steps.cumsum(axis=2) % 6).reshape(count, 16).astype(np.int32)


@pytest.mark.slow
def test_it_learns_dependence_on_neighbours():
  _, losses = neighbours.fit(CONFIG, TRAIN, _images(256, 0), _images(32, 1))
  # A quarter of the tokens are one of six, the others one of two.
  least = 0.25 * np.log(6) + 0.75 * np.log(2)
  assert least - 0.05 < min(losses) < least + 0.1 < losses[0]


@pytest.mark.slow
def test_it_stops_early():
  train = dataclasses.replace(
      TRAIN, optimizer=dataclasses.replace(OPTIMIZER, num_steps=2000), patience=2)
  _, losses = neighbours.fit(CONFIG, train, _images(16, 0), _images(32, 1))
  assert len(losses) < 100 and int(np.argmin(losses)) == len(losses) - 3


def test_losses_that_are_not_finite(monkeypatch):
  first = network.init(CONFIG, jax.random.key(OPTIMIZER.seed))
  nll, train = neighbours.nll, dataclasses.replace(TRAIN, optimizer=dataclasses.replace(
      OPTIMIZER, num_steps=4, warmup_steps=1, ema_decay=None))

  def at_first(params, config, tokens):  # The first step of the warm-up moves nothing.
    is_first = jnp.all(jnp.array(jax.tree.leaves(jax.tree.map(
        lambda x, y: jnp.all(x == y), params, first))))
    return nll(params, config, tokens) + jnp.where(is_first, jnp.nan, 0)

  monkeypatch.setattr(neighbours, 'nll', at_first)
  params, losses = neighbours.fit(CONFIG, train, _images(16, 0), _images(8, 1))
  assert np.isnan(losses[0]) and np.isfinite(losses[1:]).all() and len(losses) == 3
  assert nll(params, CONFIG, _images(8, 1)) == pytest.approx(min(losses[1:]), rel=1e-5)
  monkeypatch.setattr(neighbours, 'nll', lambda *args: jnp.nan * nll(*args))
  with pytest.raises(ValueError, match='learning_rate is 0.01, with which .* never finite in 4 st'):
    neighbours.fit(CONFIG, train, _images(16, 0), _images(8, 1))


def test_images_of_another_seed_have_one_behind_the_last():
  model = models.of_table()
  recipe = neighbours.NeighboursRecipe(
      neighbours.sizes(model), TRAIN, seed=2**32 - 1, num_measured_images=2)
  assert neighbours.tokens_per_pass(recipe, model, 'vanilla') == 1
