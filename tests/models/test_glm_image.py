"""GLM-Image's autoregressive part against transformers, at random weights in float32.

`tests/data/glm_image.npz` was recorded from `GlmImageForConditionalGeneration` of transformers
5.24 with the weights of `published.py`, at the sizes of `CONFIG`, grids of 4x3 and 8x6 tokens,
weight seed 81. Two prompts of 70 and 62 ids, padded on the left, come from
`default_rng(82).integers(48, 94, (2, 70))`, of which the last ids are 40; so all positions of
images lie beyond 62.

- `logits` `[2, 61, 40]` are those of the codes at every position of an image, the prefill first and
  then one step of its cache per token, for the tokens `default_rng(83).integers(0, 40, (2, 61))`.
- `greedy` `[2, 60]` are the tokens that its own `generate` writes without sampling for both prompts
  at once, with `suppress_tokens` for the outputs that are no codes.

`glm_image_reference.py` builds the network, and compares with an installed version.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding.tree import chain
from cspd_jax.models import glm_image
from cspd_jax.models.conditions import Prompt
from tests.models import published

pytestmark = pytest.mark.usefixtures('precise')

CONFIG = glm_image.GlmImageConfig(
    height=8, width=6, dim=64, num_layers=3, num_heads=4, num_kv_heads=2, ffn_dim=96, small_side=4,
    vocab_size=96, num_codes=40, image_end=41, output_size=48, sections=(1, 1, 2))
SEED, LENGTHS = 81, np.array([70, 62])


@pytest.fixture(scope='module')
def params():
  return published.params('glm_image', CONFIG, SEED)


@pytest.fixture(scope='module')
def recorded():
  return published.recorded('glm_image')


@pytest.fixture(scope='module')
def condition():
  ids = np.random.default_rng(SEED + 1).integers(48, 94, (2, 70))
  ids[:, -1] = 40
  visible = np.arange(70) >= 70 - LENGTHS[:, None]
  return glm_image.renumbered(CONFIG, Prompt(ids[:, None], visible[:, None]))


@pytest.fixture(scope='module')
def tokens():
  drawn = np.random.default_rng(SEED + 2).integers(0, 40, (2, CONFIG.num_tokens))
  drawn[:, -1] = 40  # The end follows the codes here.
  return drawn


def _whole(params, condition, tokens):
  return np.asarray(glm_image.logits_and_features(
      params, CONFIG, condition, jnp.asarray(tokens), jnp.zeros(len(tokens), bool))[0])


@pytest.mark.verifies('parity', 'glm_image')
def test_logits_of_both_grids_agree(params, condition, tokens, recorded):
  logits = _whole(params, condition, tokens)
  assert recorded['logits'].shape == (2, 61, 40) and np.ptp(recorded['logits'], axis=-1).min() > 2
  np.testing.assert_allclose(logits[..., :40], recorded['logits'], atol=3e-5)
  assert logits.shape[-1] == 41 and np.all(logits[..., 40] < -1e29)


def test_windows_on_the_cache_agree(params, condition, tokens, recorded):
  """Windows that lie in both grids, with a batch padded further."""
  padded = Prompt(*(np.pad(part, ((0, 0), (0, 0), (3, 0))) for part in condition))
  target = glm_image.target(CONFIG, guided=True)
  logits, _, cache = jax.jit(target.prefill, static_argnums=2)(params, padded, 60)
  np.testing.assert_allclose(logits[0, :, :40], recorded['logits'][:, 0], atol=3e-5)
  score = jax.jit(target.score, static_argnums=4)
  for start in range(0, 60, 10):
    logits, _, cache = score(
        params, cache, jnp.asarray(tokens[:, start:start + 10]), jnp.full(2, start), chain(9))
    np.testing.assert_allclose(
        logits[0, ..., :40], recorded['logits'][:, start + 1:start + 11], atol=3e-5)


def test_greedy_tokens_are_those_of_its_own_loop(params, condition, recorded):
  """A forced continuation of each prefix of its tokens: every one of them is the most probable."""
  tokens = np.pad(recorded['greedy'], ((0, 0), (0, 1)), constant_values=40)
  logits = _whole(params, condition, tokens)
  np.testing.assert_array_equal(logits[:, :-1].argmax(axis=-1), recorded['greedy'])
  assert len(np.unique(recorded['greedy'])) > 8


@pytest.mark.slow
@pytest.mark.parametrize('has_biases', [True, False])
def test_logits_agree_with_the_installed_version(has_biases, params, condition, tokens):
  pytest.importorskip('torch')
  pytest.importorskip('transformers.models.glm_image')
  from tests.models import glm_image_reference as reference  # It requires both.
  config = dataclasses.replace(CONFIG, qkv_bias=has_biases)
  assert reference.CONFIG == CONFIG
  network = reference.network(config)
  ids, visible = reference.prompts(config)
  np.testing.assert_array_equal(visible[:, None], condition.visible)
  ours = published.params('glm_image', config, SEED)
  want = reference.logits(network, np.where(tokens == 40, config.image_end, tokens), config)
  logits, _ = glm_image.logits_and_features(
      ours, config, condition, jnp.asarray(tokens), jnp.zeros(2, bool))
  np.testing.assert_allclose(logits[..., :40], want[..., :40], atol=3e-5)
  made = reference.greedy(network, config)
  logits, _ = glm_image.logits_and_features(
      ours, config, condition, jnp.pad(made, ((0, 0), (0, 1)), constant_values=40),
      jnp.zeros(2, bool))
  np.testing.assert_array_equal(jnp.argmax(logits[:, :-1], axis=-1), made)


@pytest.mark.slow
def test_it_is_a_target(params, condition):
  small = dataclasses.replace(CONFIG, height=3, width=3, small_side=2)
  published.check(glm_image, small, params, condition)


def test_positions_are_those_of_the_example_of_its_authors():
  """A small grid of 3x2 after the token at 4, then one of 3x3; all axes count from the first code.
  """
  class Example(glm_image.GlmImageConfig):
    small = 3, 2

  config = Example(height=3, width=3)
  np.testing.assert_array_equal(5 + glm_image.positions(config).T, [
      [5, 5, 5, 5, 5, 5, 8, 8, 8, 8, 8, 8, 8, 8, 8, 11],
      [5, 5, 6, 6, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10, 10, 11],
      [5, 6, 5, 6, 5, 6, 8, 9, 10, 8, 9, 10, 8, 9, 10, 11]])
  rope = glm_image.rope(dataclasses.replace(CONFIG, height=3, width=3, small_side=2))
  cos, _ = rope(jnp.array([[-2, -1, 0, 3, 4, 13, 99]]))
  # Pairs of the temporal, the vertical and twice the horizontal position, then four that stay.
  turns = 1e4 ** -np.array([0, 0.25, 0.5, 0.75])
  at = np.array([[-2] * 4, [-1] * 4, [0] * 4, [0, 1, 1, 1], [2] * 4, [5] * 4, [5] * 4])
  np.testing.assert_allclose(cos[0, :, :4], np.cos(at * turns), atol=1e-6)
  np.testing.assert_array_equal(cos[0, :, 4:], 1)


@pytest.mark.parametrize('grid, small', [
    ((32, 32), (16, 16)), ((36, 24), (19, 13)), ((24, 36), (13, 19)), ((64, 64), (16, 16)),
    ((33, 32), (16, 15))])
def test_small_grids_are_those_of_its_processor(grid, small):
  config = dataclasses.replace(glm_image.PRESETS['glm_image_9b'], height=grid[0], width=grid[1])
  assert config.small == small
  assert config.num_tokens == math.prod(small) + math.prod(grid) + 1
  ratio = grid[0] / grid[1]
  assert small == (int(math.sqrt(ratio) * 16), int(math.sqrt(1 / ratio) * 16))


def test_the_end_is_forced_and_nothing_else():
  config = dataclasses.replace(CONFIG, height=3, width=3, small_side=2)
  numbers = jnp.arange(config.num_tokens + 2)
  assert glm_image.forced(config, numbers).tolist() == [-1] * 13 + [40] * 3
  small, large = glm_image.grids(config, np.arange(14)[None])
  assert small.tolist() == [[[0, 1], [2, 3]]]
  assert large.tolist() == [[[4, 5, 6], [7, 8, 9], [10, 11, 12]]]
  assert glm_image.order(config)[39:44].tolist() == [39, 41, 40, 42, 43]


def test_cells_of_the_large_grid_have_a_token_of_the_small_one():
  config = dataclasses.replace(CONFIG, height=3, width=4, small_side=2)
  cells = glm_image.small_cells(config, jnp.arange(config.num_tokens + 1))
  assert config.small == (1, 2)
  assert cells.tolist() == [-1, -1, *[0, 0, 1, 1] * 3, -1, -1]
  whole = glm_image.PRESETS['glm_image_9b']
  _, large = glm_image.grids(whole, np.asarray(
      glm_image.small_cells(whole, jnp.arange(whole.num_tokens)))[None])
  assert large[0, 31, 31] == 255 and large[0, 6, 9] == 3 * 16 + 4
  assert sorted(np.unique(large, return_counts=True)[1]) == [4] * 256
