"""The training program on scenes of emoji, from pictures to a model of words."""

import dataclasses
import pathlib

import numpy as np
import pytest

import cspd_jax
from cspd_jax.cli import wrapper
from cspd_jax.models import early_fusion
from cspd_jax.training import loop
from experiments import train
from experiments.demo_models import emoji
from tests.demo_models import emoji_files

pytest.importorskip('matplotlib')

pytestmark = pytest.mark.slow  # It trains; `test_train` goes through the same stages.

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def recipe(tmp_path_factory):
  shipped = wrapper.load(str(ROOT / 'configs' / 'train' / 'emoji.py'))
  sources = emoji_files.write(tmp_path_factory.mktemp('emoji'))
  return dataclasses.replace(loop.smoke(shipped.small()), **sources)


@pytest.fixture(scope='module')
def finished(recipe, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('whole')
  train.run(recipe, workdir, 'all', workdir / 'export')
  return workdir


def test_the_exported_model_takes_words(finished, recipe):
  model = cspd_jax.load(finished / 'export')
  assert model.family == 'early_fusion' and model.config == recipe.target
  assert list(model.prompts) == list(emoji.EXAMPLES) and 'model' in model.drafts
  made = model.generate(['a red cat', 'a zebra'], seed=1, decoder='mc_sjd(window=4)')
  assert made.images.shape == (2, 8, 8, 3)
  tokens = made.decoded.tokens
  np.testing.assert_array_equal(
      early_fusion.with_grammar(
          model.config, np.asarray(early_fusion.codes(model.config, tokens))), tokens)
  for name in ('samples_target_guided', 'reconstructions'):
    assert (finished / f'{name}.png').read_bytes().startswith(b'\x89PNG')


def test_the_model_learns_from_prompts_as_users_write_them(finished, recipe):
  codes = np.random.default_rng(0).integers(32, size=(2, 16))
  shown = np.array(['a red cat on white', 'two ? foxes'])
  tokens, condition = recipe.sequences((codes, shown))
  wanted = cspd_jax.load(finished / 'export').condition(shown.tolist())
  np.testing.assert_array_equal(condition.visible, wanted.visible)
  np.testing.assert_array_equal(np.where(condition.visible, condition.tokens, 0),
                                np.where(wanted.visible, wanted.tokens, 0))
  np.testing.assert_array_equal(early_fusion.codes(recipe.target, tokens), codes)


def test_a_recipe_refuses_models_of_another_vocabulary(recipe):
  with pytest.raises(ValueError, match='target.vocab_size is 99; .* it must be'):
    dataclasses.replace(recipe, target=dataclasses.replace(recipe.target, vocab_size=99))
  with pytest.raises(ValueError, match='draft.row_end is None; .* it must be'):
    dataclasses.replace(recipe, draft=dataclasses.replace(recipe.draft, row_end=None))
