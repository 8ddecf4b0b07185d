"""The training step of class-conditional models."""

import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import llamagen
from cspd_jax.training import loop
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import recipe as ar, stages

CONFIG = llamagen.LlamaGenConfig(
    height=2, width=3, dim=16, num_layers=1, num_heads=1, ffn_dim=16, vocab_size=8, num_classes=2)
OPTIMIZER = OptimizerConfig(
    num_steps=80, batch_size=8, learning_rate=2e-2, warmup_steps=5, weight_decay=0.05)
TRAIN = ar.ARTrainConfig(OPTIMIZER)


def _data():
  """Class 0 counts up and class 1 counts down, from a random first token."""
  labels = np.arange(16, dtype=np.int32) % 2
  first = np.random.default_rng(0).integers(8, size=16)
  direction = np.where(labels == 0, 1, -1)
  tokens = (first[:, None] + direction[:, None] * np.arange(6)) % 8
  return tokens.astype(np.int32), labels


@pytest.fixture(scope='module')
def trained():
  step, state = stages.jit_step(ar.loss, CONFIG, TRAIN), ar.start(CONFIG, TRAIN)
  for index in range(OPTIMIZER.num_steps):
    state, metrics = step(state, loop.batch_of(*_data(), 0, index, OPTIMIZER.batch_size))
  return state, metrics


@pytest.mark.slow
def test_nll_is_the_cross_entropy_of_the_logits(trained):
  tokens, labels = _data()
  state, _ = trained
  logits, _ = llamagen.logits_and_features(
      state.params, CONFIG, labels, tokens, np.zeros(len(tokens), bool))
  logits = np.asarray(logits, np.float64)
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  expected = -np.take_along_axis(log_probs, tokens[..., None], -1)[..., 0]
  np.testing.assert_allclose(ar.nll(state.params, CONFIG, tokens, labels), expected, atol=1e-5)


@pytest.mark.slow
def test_average_learns_and_uses_the_label(trained):
  tokens, labels = _data()
  state, _ = trained
  given = ar.nll(state.average, CONFIG, tokens, labels)[:, 1:].mean()
  wrong = ar.nll(state.average, CONFIG, tokens, 1 - labels)[:, 1].mean()
  null = ar.nll(state.average, CONFIG, tokens, labels, jnp.ones(16, bool))[:, 1].mean()
  assert given < 0.8
  assert wrong > null > given


def test_batches_visit_everything_once_per_epoch_in_a_new_order():
  tokens = np.arange(12)[:, None]
  epochs = [np.concatenate([loop.batch_of(tokens, tokens[:, 0], 3, i, 4)[1]
                            for i in range(start, start + 3)]) for start in (0, 3)]
  for epoch in epochs:
    np.testing.assert_array_equal(np.sort(epoch), np.arange(12))
  assert (epochs[0] != epochs[1]).any()
