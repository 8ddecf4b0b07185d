"""`cspd-train-drafter`: sizes follow from the model, one command for every kind of drafter."""

import json

import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.commands import train_drafter
from tests.experiments import models as models_lib


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp('models')
  models_lib.llamagens(folder)
  return folder


def _train(capsys, *words):
  code = train_drafter.main(['cspd-train-drafter', '--smoke', *map(str, words)])
  return (code, *capsys.readouterr())


@pytest.mark.parametrize('kind, decoder', [
    pytest.param('eagle', 'eagle(tree=chain(2))+match', marks=pytest.mark.slow),
    ('medusa', 'medusa(length=2)+match')])
def test_a_trained_drafter_drafts(models, tmp_path, capsys, kind, decoder):
  words = [f'--model={models}/model', f'--kind={kind}', f'--workdir={tmp_path}/work',
           f'--output={tmp_path}/{kind}']
  code, out, err = _train(capsys, *words)
  assert code == 0, err
  assert 'Next: cspd_jax.load(' in out and f'{kind}=' in out
  model = cspd_jax.load(models / 'model', **{kind: tmp_path / kind})
  decode = lambda decoder: model.generate(['cat'] * 2, seed=1, decoder=decoder).decoded.tokens
  np.testing.assert_array_equal(decode(decoder), decode('vanilla'))
  report = json.loads((tmp_path / 'work' / 'report.json').read_text())
  assert report['settings']['guidance_scale'] == 2, "the model's own"
  # Repeated, it has nothing left to train.
  assert _train(capsys, *words[:-1], f'--output={tmp_path}/again')[0] == 0


@pytest.mark.parametrize('kind', ['eagle', 'corrector'])
@pytest.mark.slow
def test_a_mesh_samples_the_same_images(models, tmp_path, capsys, kind):
  for name, words in (('alone', []), ('mesh', ['--mesh=1x1'])):
    code, _, err = _train(capsys, f'--model={models}/model', f'--kind={kind}', *words,
                          f'--workdir={tmp_path}/{name}', f'--output={tmp_path}/of_{name}')
    assert code == 0, err
  for path in (tmp_path / 'alone').glob('*.npz'):
    with np.load(path) as alone, np.load(tmp_path / 'mesh' / path.name) as divided:
      np.testing.assert_array_equal(alone['tokens'], divided['tokens'])
  code, _, err = _train(capsys, f'--model={models}/model', '--mesh=2', f'--workdir={tmp_path}/no')
  assert code == 2 and "mesh is '2'; it must be two numbers" in err


@pytest.mark.slow
@pytest.mark.parametrize('model', [
    'c2i_b_256', 't2i_xl_256', 'lumina_mgpt_7b_768', 'anole_7b', 'emu3_gen_8b'])
def test_sizes_fit_every_published_model(model):
  described = families.describe(model)
  for kind in ('eagle', 'corrector'):
    recipe = train_drafter.recipe_for(described, model, kind)
    assert recipe.drafter.dim == described.config.dim
    assert recipe.drafter.num_tokens == described.num_tokens


@pytest.mark.parametrize('words, message', [
    (['--model=mar_demo'], "a 'mar' model, for which no drafters are trained"),
    (['--kind=neighbours'], 'one of eagle, medusa, corrector'), (['--num_steps=0'], 'num_steps'),
    (['--batch_size=0'], 'batch_size is 0'), (['--num_images=0'], 'num_images is 0'),
    (['--prompts={tmp}/none'], 'cannot be read'), (['--export=x'], 'did you mean --output?'),
    (['--config=configs/train/eagle_demo.py', '--kind=medusa'], "kind is 'medusa', but --config")])
def test_what_is_refused(models, tmp_path, capsys, words, message):
  words = [word.format(tmp=tmp_path) for word in words]
  words += [f'--model={models}/model'] if not words[0].startswith('--model') else []
  code, out, err = _train(capsys, *words, f'--workdir={tmp_path}/work')
  assert code == 2 and not out and message in err and err.count('\n') == 1, err


@pytest.mark.slow
def test_medusa_heads_are_for_families_that_have_them():
  described = families.describe('anole_7b')
  with pytest.raises(ValueError, match="kind is 'medusa'; for model 'anole_7b' it must be one of "
                                       'eagle, corrector'):
    train_drafter.recipe_for(described, 'anole_7b', 'medusa')
