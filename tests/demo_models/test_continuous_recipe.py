"""The loss of the shipped causal model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import nextstep
from cspd_jax.models.conditions import Prompt
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import continuous_recipe

SMALL = nextstep.NextStepConfig(
    height=2, width=2, vocab_size=5, latent_channels=3, patch_size=1, dim=16, num_layers=1,
    num_heads=2, num_kv_heads=2, ffn_dim=16, head_width=16, head_layers=1, token_norm=False,
    num_levels=8)
TRAIN = continuous_recipe.FlowTrainConfig(OptimizerConfig(), drop_rate=0.25, draws=2)


def _data(seed=0, count=32):
  """Tokens that are a constant of the prompt's word, give or take a little; the null has none."""
  rng = np.random.default_rng(seed)
  word = rng.integers(2, size=count)
  tokens = np.where(word == 0, -1.0, 1.0)[:, None, None] + 0.1 * rng.standard_normal((count, 4, 3))
  ids = np.stack([np.stack([2 + word, np.ones_like(word)], 1), np.array([[0, 1]] * count)], axis=1)
  visible = np.ones(ids.shape, bool)
  visible[:, 1, 0] = False
  return jnp.asarray(tokens, jnp.float32), Prompt(jnp.asarray(ids), jnp.asarray(visible))


@pytest.mark.slow
def test_the_loss_is_that_of_its_definition():
  """One token at a time on the cache, one state of the head after the other, NumPy for the rest."""
  fresh = nextstep.init(SMALL, jax.random.key(0))
  params = jax.tree.map(
      lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(1), leaf.shape), fresh)
  tokens, prompt = _data(count=6)
  draws = continuous_recipe.draw(jax.random.key(2), tokens.shape, TRAIN)
  assert 0 < draws.drop.sum() < 6 and draws.noise.shape == (2, 6, 4, 3)
  assert draws.time.min() >= 0 and draws.time.max() < 1
  loss = jax.jit(continuous_recipe.loss, static_argnums=1)(params, SMALL, tokens, prompt, draws)[0]

  target = nextstep.target(SMALL, guided=True)
  z, cache = jax.jit(target.cached.prefill, static_argnums=2)(params, prompt, 4)
  score, denoise = jax.jit(target.cached.score), jax.jit(target.denoise)
  stream, images = np.asarray(draws.drop, int), np.arange(6)
  squares = []
  for number in range(4):
    context = z[stream, images] if number == 0 else z[stream, images, 0]
    for draw in range(2):
      time, noise = (np.asarray(part[draw, :, number]) for part in (draws.time, draws.noise))
      x0 = np.asarray(tokens[:, number])
      x = time[:, None] * x0 + (1 - time[:, None]) * noise
      velocity, _ = denoise(params, x, time, context)
      squares.append(np.square(np.asarray(velocity) - (x0 - noise)))
    z, cache = score(params, cache, tokens[:, number:number + 1], jnp.full(6, number))
  np.testing.assert_allclose(loss, np.mean(squares), rtol=1e-4)
