"""The training program end to end with the recipes of all shipped models, as with --smoke."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

pytest.importorskip('matplotlib')
pytest.importorskip('skimage')
pytest.importorskip('sklearn')

import cspd_jax
from cspd_jax.cli import wrapper
from cspd_jax.files import store
from cspd_jax.models import early_fusion
from cspd_jax.training import loop
from experiments import fit_head_drafter, train
from experiments.demo_models import continuous_recipe, emoji, stages
from tests.demo_models import emoji_files

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs' / 'train'
OF_PHOTOS, OF_SCENES = ('demo', 'mar_demo'), ('emoji', 'emoji_continuous')


@pytest.fixture(scope='module')
def sources(tmp_path_factory):
  return emoji_files.write(tmp_path_factory.mktemp('emoji'))


@pytest.fixture(scope='module')
def finished(sources, tmp_path_factory):
  """`name -> ` a recipe and the folder of its stages, trained once."""
  done = {}

  def run(name):
    if name not in done:
      config, workdir = str(CONFIGS / f'{name}.py'), tmp_path_factory.mktemp(name)
      own = sources if name in OF_SCENES else {}
      flags = [f'--{key}={value}' for key, value in own.items()]
      recipe = dataclasses.replace(loop.smoke(wrapper.load(config).small()), **own)
      train.run(recipe, workdir, 'tokenizer', workdir / 'export')  # Alone, then everything.
      assert train.main(['train', f'--config={config}', '--smoke', f'--workdir={workdir}',
                         *flags]) == 0
      done[name] = recipe, workdir
    return done[name]

  return run


@pytest.mark.slow
@pytest.mark.parametrize('name', (*OF_PHOTOS, *OF_SCENES))
def test_the_exported_model_is_that_of_the_recipe(finished, name):
  recipe, workdir = finished(name)
  for role in ('tokenizer', *recipe.models):
    loaded = store.load(workdir / 'export' / role)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(loaded.params)} == {'bfloat16'}
    if role != 'tokenizer':
      assert loaded.config == getattr(recipe, role)
  model = cspd_jax.load(workdir / 'export')
  assert model.family == recipe.family and ('model' in model.drafts) == ('draft' in recipe.models)
  assert model.sampling().guidance_scale == recipe.guidance_scale
  made = model.generate([*model.prompts[:2]], seed=1, decoder=model.table.baseline)
  assert made.images.shape == (2, recipe.image_size, recipe.image_size, 3)
  rows = json.loads((workdir / 'report.json').read_text())['rows']
  assert [row['network'] for row in rows] == ['tokenizer', *recipe.models]
  for picture in train.picture_names(recipe):
    assert (workdir / picture).read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
def test_metrics_are_those_of_networks_that_learned_little(finished):
  rows = lambda name: {row['network']: row for row in json.loads(
      (finished(name)[1] / 'report.json').read_text())['rows']}
  report, recipe = rows('demo'), finished('demo')[0]
  assert 0 < report['tokenizer']['codebook_used'] <= 1
  uniform = np.log2(recipe.tokenizer.codebook_size)
  for role in ('target', 'draft'):
    assert 0 < report[role]['nll_bits'] < 1.5 * uniform
    for distribution in ('plain', 'guided'):
      quantiles = [report[role][distribution][f'entropy_bits_q{q}'] for q in (10, 50, 90)]
      assert 0 <= quantiles[0] <= quantiles[1] <= quantiles[2] <= uniform + 1e-3
  # Tokens and noise have a variance of one, and an untrained head predicts a velocity of 0.
  target = rows('emoji_continuous')['target']
  assert 1 < target['loss'] < 3 and 1 < target['loss_no_prompt'] < 3
  assert {'mse', 'vlb', 'mse_no_label', 'vlb_no_label'} <= rows('mar_demo')['draft'].keys()


@pytest.mark.slow
@pytest.mark.parametrize('name', OF_SCENES)
def test_models_learn_from_prompts_as_users_write_them(finished, name):
  recipe, workdir = finished(name)
  captions = np.array(['a red cat on white', 'two ? foxes'])
  if name == 'emoji':
    codes = np.random.default_rng(0).integers(32, size=(2, 16))
    tokens, learned = recipe.sequences((codes, captions))
    np.testing.assert_array_equal(early_fusion.codes(recipe.target, tokens), codes)
  else:
    learned = recipe.conditions(captions)
    words = [[continuous_recipe.TOKENS[number] for number in ids[visible]] for ids, visible in zip(
        np.asarray(learned.tokens[1]), np.asarray(learned.visible[1]))]
    assert words == [['<unk>', '<unk>', '<unk>', '<|begin_of_image|>'], ['<|begin_of_image|>']]
  networks = {role: store.load(workdir / 'export' / role)
              for role in ('tokenizer', 'text', *recipe.models)}
  for model in (cspd_jax.load(workdir / 'export'), train.built(recipe, networks, 'target')):
    assert list(model.prompts) == list(emoji.EXAMPLES)
    wanted = model.condition(captions.tolist())
    np.testing.assert_array_equal(learned.visible, wanted.visible)
    np.testing.assert_array_equal(np.where(learned.visible, learned.tokens, 0),
                                  np.where(wanted.visible, wanted.tokens, 0))


@pytest.mark.slow
def test_stopped_run_continues_to_the_same_parameters(finished, tmp_path, monkeypatch):
  recipe, workdir = finished('demo')
  crops = stages.photos_lib.crops

  def stop_at_step_4(photos, seed, step, split, *args):
    if (step, split) == (4, 'train'):
      raise KeyboardInterrupt
    return crops(photos, seed, step, split, *args)

  monkeypatch.setattr(stages.photos_lib, 'crops', stop_at_step_4)
  with pytest.raises(KeyboardInterrupt):
    recipe.train_tokenizer(tmp_path)
  monkeypatch.undo()
  jax.tree.map(np.testing.assert_array_equal, recipe.train_tokenizer(tmp_path),
               recipe.train_tokenizer(workdir))


@pytest.mark.slow
def test_a_tokenizer_is_taken_from_a_model(finished, tmp_path):
  recipe, workdir = finished('demo')
  taken = dataclasses.replace(recipe, tokenizer_of=str(workdir / 'export'))
  jax.tree.map(np.testing.assert_array_equal, taken.train_tokenizer(tmp_path),
               store.load(workdir / 'export' / 'tokenizer').params)
  assert not list(tmp_path.iterdir())
  for field in ('tokenizer_of', 'tokenizer_from'):
    with pytest.raises(ValueError, match=f"{field} is 'demo', which has VQConfig"):
      dataclasses.replace(recipe, **{field: 'demo'}).prepare()


@pytest.mark.parametrize('name, role, field, value', [
    ('demo', 'draft', 'vocab_size', 99), ('mar_demo', 'draft', 'token_dim', 8),
    ('emoji', 'target', 'vocab_size', 99), ('emoji', 'draft', 'row_end', None)])
def test_models_that_do_not_fit_are_refused(name, role, field, value):
  recipe = wrapper.load(str(CONFIGS / f'{name}.py')).small()
  with pytest.raises(ValueError, match=f'{role}.{field} is {value}; .* it must be'):
    dataclasses.replace(recipe, **{role: dataclasses.replace(
        getattr(recipe, role), **{field: value})})
  with pytest.raises(ValueError, match='multiple of the'):
    dataclasses.replace(recipe, image_size=7)


def _fit(workdir, *words):
  return fit_head_drafter.main([
      'fit', f'--model={workdir}/export', '--num_chains=32', '--kernels_per_call=4', *words])


@pytest.mark.slow
def test_the_drafter_of_a_causal_head_is_fitted(finished, tmp_path, capsys):
  _, workdir = finished('emoji_continuous')
  output, model = tmp_path / 'fitted', cspd_jax.load(workdir / 'export')
  assert _fit(workdir, f'--output={output}') == 0
  assert 'with guidance, head calls per token at batch 1: default ' in capsys.readouterr().out
  schedule = model.config.schedule()
  fitted = cspd_jax.load(workdir / 'export', target=output)
  entry = store.load(output).metadata['head_drafter']
  for guided, name in ((False, 'plain'), (True, 'guided')):
    np.testing.assert_allclose(fitted.target(guided).rho(schedule), entry[name]['rho'])
    np.testing.assert_allclose(entry[name]['steps'], schedule.steps)
  assert model.target(True).rho(schedule) is None
  assert _fit(workdir, '--num_iter=2', f'--output={tmp_path}/other') == 2
  assert 'a causal model decodes one token per step' in capsys.readouterr().err
