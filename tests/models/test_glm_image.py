"""GLM-Image's autoregressive part: greedy tokens, the installed version, grids and positions.

`glm_image_reference.py` builds the network, and compares with an installed version.
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import glm_image
from tests.builders import published
from tests.models import cases

pytestmark = pytest.mark.usefixtures('precise')

CONFIG = cases.GLM_IMAGE


def test_greedy_tokens_are_those_of_its_own_loop():
  """A forced continuation of each prefix of its tokens: every one of them is the most probable."""
  case, greedy = cases.case('glm_image'), published.recorded('glm_image')['greedy']
  tokens = jnp.pad(greedy, ((0, 0), (0, 1)), constant_values=40)
  logits, _ = glm_image.logits_and_features(
      case.params, CONFIG, case.condition, tokens, jnp.zeros(2, bool))
  np.testing.assert_array_equal(jnp.argmax(logits[:, :-1], axis=-1), greedy)
  assert len(np.unique(greedy)) > 8


@pytest.mark.slow
@pytest.mark.parametrize('has_biases', [True, False])
def test_logits_agree_with_the_installed_version(has_biases):
  pytest.importorskip('torch')
  pytest.importorskip('transformers.models.glm_image')
  from tests.models import glm_image_reference as reference  # It requires both.
  case, config = cases.case('glm_image'), dataclasses.replace(CONFIG, qkv_bias=has_biases)
  condition, tokens = case.condition, case.tokens
  network = reference.network(config)
  ids, visible = reference.prompts(config)
  np.testing.assert_array_equal(visible[:, None], condition.visible)
  ours = published.params('glm_image', config, reference.SEED)
  want = reference.logits(network, np.where(tokens == 40, config.image_end, tokens), config)
  logits, _ = glm_image.logits_and_features(
      ours, config, condition, tokens, jnp.zeros(2, bool))
  np.testing.assert_allclose(logits[..., :40], want[..., :40], atol=3e-5)
  made = reference.greedy(network, config)
  logits, _ = glm_image.logits_and_features(
      ours, config, condition, jnp.pad(made, ((0, 0), (0, 1)), constant_values=40),
      jnp.zeros(2, bool))
  np.testing.assert_array_equal(jnp.argmax(logits[:, :-1], axis=-1), made)


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
