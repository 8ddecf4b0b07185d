"""`examples/rl.py`: the curve of a training does not depend on the seed-exact decoder."""

import json

import numpy as np
import pytest

import cspd_jax
from examples import rl
from tests.builders import models

VANILLA = 'vanilla(window=4)'
SEED_EXACT = 'corrected_seed_exact(corrector=layers, window=4)'


@pytest.fixture(name='train')
def _train(tmp_path):
  """Trains a small model on two prompts, and returns the rows of its report."""
  models.llamagens(tmp_path)
  model = cspd_jax.load(str(tmp_path / 'model'), dtype='float32')

  def train(decoder, *num_steps, name=None):
    folder = tmp_path / (name or decoder)
    for number in num_steps:
      params = rl.train(
          model, models.NAMES[:2], lambda images: images.images.mean(axis=(1, 2, 3)) / 255.0,
          rl.Config(decoder, num_steps=number, num_images=2, workdir=str(folder)))
    rows = json.loads((folder / 'report.json').read_text())['rows']
    assert rows[-1]['digest'] == rl.digest(params)
    assert all(row.pop('generating') > 0 and row.pop('learning') > 0 for row in rows)
    return rows
  return train


def test_seed_exact_decoders_have_the_same_curve(train):
  # The second run is stopped after a step.
  vanilla, fast, other = train(VANILLA, 3), train(SEED_EXACT, 1, 3), train('mc_sjd(window=4)', 3)
  passes = lambda rows: sum(row.pop('passes') + row.pop('passes_per_image') for row in rows)
  assert passes(fast) < passes(vanilla)
  assert fast == vanilla and len({row['digest'] for row in vanilla}) == 3
  assert other[-1]['digest'] != vanilla[-1]['digest']
  with pytest.raises(ValueError, match='holds another run'):
    train(VANILLA, 3, name=SEED_EXACT)


def test_rewards_are_relative_to_their_group():
  advantages = rl.advantages(np.array([1.0, 3.0, 7.0, 7.0]), num_groups=2)
  np.testing.assert_allclose(advantages, [-1, 1, 0, 0], rtol=1e-3)


def test_every_prompt_has_its_turn():
  first = [prompt for step in range(2) for prompt in rl.prompts_of(step, 'abcdef', 3, 1)]
  assert sorted(first) == list('abcdef')
  assert rl.prompts_of(0, 'ab', 3, 1) != rl.prompts_of(1, 'ab', 3, 1)
