"""`cspd-train`: sizes follow from the model, one command for every kind of network."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.commands import train
from cspd_jax.training import neighbours
from cspd_jax.verify import stored


def _train(capsys, *words):
  code = train.main(['cspd-train', '--smoke', *map(str, words)])
  return (code, *capsys.readouterr())


@pytest.mark.parametrize('kind, decoder', [
    pytest.param('eagle', 'eagle(tree=chain(2))+match', marks=pytest.mark.slow),
    pytest.param('medusa', 'medusa(length=2)+match', marks=pytest.mark.slow),
    pytest.param('local', 'corrected_seed_exact(corrector=local, window=5, iterations=2)',
                 marks=pytest.mark.slow),
    pytest.param('neighbours', 'corrected_seed_exact(corrector=neighbours, window=5, iterations=2)',
                 marks=pytest.mark.slow)])
def test_a_trained_drafter_drafts(llamagens, tmp_path, capsys, kind, decoder):
  words = [f'--model={llamagens}/model', f'--kind={kind}', f'--workdir={tmp_path}/work',
           f'--output={tmp_path}/{kind}']
  code, out, err = _train(capsys, *words)
  assert code == 0, err
  assert (f'Next: cspd-compare --model={llamagens}/model --parts={kind}={tmp_path}/{kind} '
          '--decoder=') in out
  model = cspd_jax.load(llamagens / 'model', **{kind: tmp_path / kind})
  decode = lambda decoder: model.generate(['cat'] * 2, seed=1, decoder=decoder).decoded.tokens
  np.testing.assert_array_equal(decode(decoder), decode('vanilla'))
  report = json.loads((tmp_path / 'work' / 'report.json').read_text())
  assert report['settings']['guidance_scale'] == 2, "the model's own"
  if kind == 'neighbours':
    assert 'acceptance' not in report
  else:
    first, *others = report['acceptance']
    assert first['position'] == 1 and first['tested'] > 0 and others
    # Few images, so that the measured rate has a large error; both are rates.
    assert abs(first['predicted'] - first['measured']) < 5 * (0.25 / first['tested'])**0.5
    assert first['predicted'] == report['rows'][0]['overlap_1']
    recorded, = stored.predictions(
        str(llamagens / 'model'), {kind: str(tmp_path / kind)}, of_prior=False)
    assert recorded['predicted'] == [row['predicted'] for row in report['acceptance']]
    assert report['acceptance_of'].startswith(recorded['decoder'])
    assert recorded['sampling']['guidance_scale'] == 2
    assert f'measured with {report["acceptance_of"]}' in out and 'drafts tested' in out
  # Repeated, it has nothing left to train.
  assert _train(capsys, *words[:-1], f'--output={tmp_path}/again')[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize('model', [
    'c2i_b_256', 't2i_xl_256', 'lumina_mgpt_7b_768', 'anole_7b', 'emu3_gen_8b'])
def test_sizes_fit_every_published_model(model):
  described = families.describe(model)
  for kind, width in (('eagle', 'dim'), ('corrector', 'dim'), ('local', 'feature_dim')):
    recipe = train.recipe_for(described, model, kind)
    assert getattr(recipe.drafter, width) == described.config.dim
    assert recipe.drafter.num_tokens == described.num_tokens


@pytest.fixture
def fit(llamagens, tmp_path, capsys, monkeypatch):
  """Trains a neighbours corrector of a copy of the model, with measured tokens per pass."""
  def fit(*words, passes=(), work='work'):
    measured, asked = iter(passes), []
    monkeypatch.setattr(neighbours, 'tokens_per_pass', lambda recipe, model, decoder: (
        asked.append(decoder), next(measured))[1])
    folder = tmp_path / 'models' / 'model'
    if not folder.exists():
      shutil.copytree(llamagens, folder.parent)
    code = train.main(['cspd-train', f'--model={folder}', '--num_images=16', '--num_steps=4',
                       f'--workdir={tmp_path}/{work}', *words])
    return folder, asked, code, *capsys.readouterr()
  return fit


@pytest.mark.slow
def test_only_a_better_corrector_is_stored(fit):
  """One that had learned 64 images by heart was stored, and recommended."""
  folder, asked, code, out, err = fit(passes=(3.28, 2.9, 2.88))
  assert code == 0, err
  assert asked == ['mc_sjd(window=16)', 'corrected(corrector=layers, window=16, tree=chain())',
                   'corrected(corrector=neighbours, window=16, tree=chain())']
  assert 'Nothing is stored: others gain as many tokens' in out and 'Next:' not in out
  assert 'mc_sjd(window=16): 3.28 tokens per forward pass' in out
  assert 'neighbours' not in cspd_jax.load(folder).drafts
  _, _, _, out, _ = fit(passes=(3.28, 2.9, 3.3))
  assert f'Stored in {folder}/neighbours. Next: cspd-tune --model={folder}' in out
  # A kill before the network became a part, and a repeated command: it is not compared with itself.
  description = json.loads((folder / 'model.json').read_text())
  for parts in ({'target', 'tokenizer', 'text'}, description['parts'].keys()):
    (folder / 'model.json').write_text(json.dumps(description | dict(parts={
        role: place for role, place in description['parts'].items() if role in parts})))
    _, asked, _, out, _ = fit(passes=(3.28, 2.9, 3.3))
    assert len(asked) == 3 and f'Stored in {folder}/neighbours.' in out
    assert 'neighbours' in cspd_jax.load(folder).drafts
  report = json.loads((folder.parent.parent / 'work' / 'report.json').read_text())
  assert report['stored'] is True
  stored = (folder / 'neighbours' / 'model.json').read_bytes()
  # What the model has is one of those to beat.
  _, asked, _, out, _ = fit('--num_steps=5', passes=(3.28, 2.9, 3.4, 3.3), work='other')
  assert 'corrector=neighbours, window=16, tree=chain()) before: 3.40 tokens' in out
  assert (folder / 'neighbours' / 'model.json').read_bytes() == stored and len(asked) == 4


@pytest.mark.slow
def test_as_many_images_as_the_time_allows(llamagens, tmp_path, monkeypatch):
  monkeypatch.setattr(neighbours, '_SECONDS', 0.0)
  monkeypatch.setattr(neighbours, '_MIN_IMAGES', 16)
  monkeypatch.setattr(neighbours, '_MAX_IMAGES', 200)
  model = cspd_jax.load(llamagens / 'model')
  recipe = train.recipe_for(model, 'model', 'neighbours')
  tokens = neighbours.sample(recipe, model, tmp_path)
  assert 16 + 64 <= len(tokens) < 200 + 64
  monkeypatch.setattr(neighbours, '_SECONDS', 600.0)
  np.testing.assert_array_equal(neighbours.sample(recipe, model, tmp_path), tokens)


@pytest.mark.slow
def test_nothing_is_lost_if_nobody_reads_what_it_prints(llamagens, tmp_path):
  """As with `| head -1`: it ended at its first line, before the network was stored."""
  output = tmp_path / 'neighbours'
  with subprocess.Popen(
      [sys.executable, '-m', 'cspd_jax.commands.train', f'--model={llamagens}/model', '--smoke',
       f'--output={output}', f'--workdir={tmp_path}/work'],
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
    process.stdout.close()
    assert process.wait() == 0
  assert (output / 'model.json').exists()
