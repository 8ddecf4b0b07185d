"""The training program end to end, as with --smoke."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

pytest.importorskip('skimage')
pytest.importorskip('sklearn')

import cspd_jax  # pylint: disable=wrong-import-position
from cspd_jax.cli import wrapper  # pylint: disable=wrong-import-position
from cspd_jax.files import store
from cspd_jax.training import loop
from experiments import train  # pylint: disable=wrong-import-position
from experiments.demo_models import stages

CONFIG = str(pathlib.Path(__file__).parents[2] / 'configs' / 'train' / 'demo.py')


@pytest.fixture(scope='module')
def recipe():
  return loop.smoke(wrapper.load(CONFIG).small())


@pytest.fixture(scope='module')
def finished(recipe, tmp_path_factory):
  """A work folder in which one stage was done on its own, and then everything."""
  workdir = tmp_path_factory.mktemp('whole')
  train.run(recipe, workdir, 'tokenizer', workdir / 'export')
  assert train.main(['train', f'--config={CONFIG}', '--smoke', f'--workdir={workdir}']) == 0
  return workdir


def _assert_equal(first, second):
  jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.slow
def test_exported_models_can_be_used(finished, recipe):
  tokenizer = store.load(finished / 'export' / 'tokenizer')
  assert tokenizer.config == recipe.tokenizer
  assert len(tokenizer.metadata['labels']) == recipe.target.num_classes
  for role in ('target', 'draft'):
    loaded = store.load(finished / 'export' / role)
    assert loaded.config == getattr(recipe, role)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(loaded.params)} == {'bfloat16'}
  model = cspd_jax.load(finished / 'export')
  assert set(model.drafts) == {'model', 'corrector', 'layers'}
  assert model.sampling().guidance_scale == 2
  tokens = np.zeros((1, recipe.target.height * recipe.target.width), np.int32)
  assert model.pixels(tokens).shape == (1, recipe.image_size, recipe.image_size, 3)


@pytest.mark.slow
def test_report_and_pictures(finished, recipe):
  rows = json.loads((finished / 'report.json').read_text())['rows']
  report = {row['network']: row for row in rows}
  assert 0 < report['tokenizer']['codebook_used'] <= 1
  uniform = np.log2(recipe.tokenizer.codebook_size)
  for name in ('target', 'draft'):
    result = report[name]
    assert 0 < result['nll_bits'] < 1.5 * uniform
    for distribution in ('plain', 'guided'):
      quantiles = [result[distribution][f'entropy_bits_q{q}'] for q in (10, 50, 90)]
      assert 0 <= quantiles[0] <= quantiles[1] <= quantiles[2] <= uniform + 1e-3
  for name in ('held_out', 'reconstructions', 'samples_target', 'samples_target_guided',
               'samples_draft', 'samples_draft_guided'):
    assert (finished / f'{name}.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
def test_stopped_run_continues_to_the_same_parameters(finished, recipe, tmp_path, monkeypatch):
  crops = stages.photos_lib.crops

  def stop_at_step_4(photos, seed, step, split, *args):
    if (step, split) == (4, 'train'):
      raise KeyboardInterrupt
    return crops(photos, seed, step, split, *args)

  monkeypatch.setattr(stages.photos_lib, 'crops', stop_at_step_4)
  with pytest.raises(KeyboardInterrupt):
    recipe.train_tokenizer(tmp_path)
  monkeypatch.undo()
  continued = recipe.train_tokenizer(tmp_path)
  _assert_equal(continued, recipe.train_tokenizer(finished))


def test_recipe_refuses_models_that_do_not_fit(recipe):
  with pytest.raises(ValueError, match='draft.vocab_size is 99; .* it must be 32'):
    dataclasses.replace(recipe, draft=dataclasses.replace(recipe.draft, vocab_size=99))
  with pytest.raises(ValueError, match='multiple of the'):
    dataclasses.replace(recipe, image_size=7)


@pytest.mark.slow
def test_a_tokenizer_is_taken_from_a_model(finished, recipe, tmp_path):
  taken = dataclasses.replace(recipe, tokenizer_of=str(finished / 'export'))
  _assert_equal(taken.train_tokenizer(tmp_path),
                store.load(finished / 'export' / 'tokenizer').params)
  assert not list(tmp_path.iterdir())
  with pytest.raises(ValueError, match="tokenizer_of is 'demo', which has VQConfig"):
    dataclasses.replace(recipe, tokenizer_of='demo').prepare()
  with pytest.raises(ValueError, match="tokenizer_from is 'demo', which has VQConfig"):
    dataclasses.replace(recipe, tokenizer_from='demo').prepare()
