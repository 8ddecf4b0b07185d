"""Published folders of every family of words, whole: two commands to pictures, and what is broken.
"""

import json
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

import cspd_jax
from checkpoints_conversion import rules
from cspd_jax.commands import generate as generate_command
from cspd_jax.models import early_fusion, vq
from tests.families import published_files, whole
from tests.families.published_files import convert
from tests.families.whole import WHOLE
from tests.marks import representative

for _package in ('ftfy', 'tiktoken', 'tokenizers'):  # They read words.
  pytest.importorskip(_package)

# Rows and columns of pixels.
SIZES = {'lumina_mgpt': (4, 6), 'lumina_mgpt_2': (8, 16), 'anole': (3, 4), 'emu3': (4, 6),
         'emu3_5': (4, 6), 'llamagen': (3, 3), 'janus_pro': (6, 8), 'simplear': (32, 48),
         'liquid': (3, 4)}


@pytest.mark.slow
@pytest.mark.verifies('folder to pictures', 'lumina_mgpt', 'lumina_mgpt_2', 'anole', 'emu3',
                      'emu3_5', 'llamagen', 'janus_pro', 'simplear', 'liquid')
@pytest.mark.parametrize('family', representative(WHOLE, 'emu3'))
def test_a_folder_becomes_pictures_by_two_commands(family, tmp_path, capsys):
  whole.convert(family, tmp_path / 'published', tmp_path / 'model')
  assert ("Next: cspd-generate --model=" f"{tmp_path}/model --prompt='a lighthouse at dusk'\n"
          ) in capsys.readouterr().out
  assert generate_command.main(
      ['cspd-generate', f'--model={tmp_path}/model', f'--output={tmp_path}/out']) == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and "no prompts of its own; pass --prompt='...'" in error
  assert generate_command.main(
      ['cspd-generate', f'--model={tmp_path}/model', '--prompt=a cat', '--prompt=a dog, 中文',
       '--decoder=seed_exact(window=4)', f'--output={tmp_path}/out']) == 0
  pictures = sorted((tmp_path / 'out').glob('*.png'))
  images = [np.asarray(Image.open(picture)) for picture in pictures]
  assert [image.shape[:2] for image in images] == [SIZES[family]] * 2
  assert pictures[0].read_bytes() != pictures[1].read_bytes()
  report = json.loads((tmp_path / 'out' / 'report.json').read_text())
  assert [row['prompt'] for row in report['rows']] == ['a cat', 'a dog, 中文']
  model = cspd_jax.load(tmp_path / 'model')
  assert model.config == WHOLE[family][2]
  assert model.defaults == rules.get(family).sampling(model.config)['pictures']
  if model.family == 'early_fusion':
    _check_pixels(model, family)


def _check_pixels(model, family):
  """Images are those of the codes that stand where the grammar forces no token."""
  made = model.generate(['a cat', 'a dog'], seed=1, decoder='vanilla')
  forced = np.asarray(early_fusion.forced(model.config, np.arange(model.num_tokens)))
  np.testing.assert_array_equal(
      made.tokens[:, forced >= 0], np.tile(forced[forced >= 0], (2, 1)))
  codes = np.asarray(early_fusion.codes(model.config, made.tokens)).reshape(-1, *model.grid)
  if family in ('lumina_mgpt', 'anole'):
    codes = published_files.CODES[codes]
  want = vq.decode(model.tokenizer.params, model.tokenizer.config, codes)
  # The official programs round to the nearest level.
  np.testing.assert_allclose(made.images, (np.clip(want, -1, 1) + 1) * 127.5, atol=0.51)


@pytest.fixture(scope='module')
def published(request, tmp_path_factory):
  """Family, folder in two shards, and what the command is told beside it."""
  root = tmp_path_factory.mktemp('published')
  if request.param == 't5':
    published_files.flan_t5(root / 'flan-t5-xl')
    return 't5', root / 'flan-t5-xl', ('--role=t5',)
  make, words, _ = WHOLE[request.param]
  return request.param, make(root), (*words, '--role=target')


@pytest.fixture
def refused(published, tmp_path, capsys):
  """Returns what the command says of a copy in which the tensors of the first shard are changed."""
  family, folder, words = published
  shutil.copytree(folder, tmp_path / folder.name)
  path = tmp_path / folder.name / 'model-00001-of-00002.safetensors'

  def run(change):
    tensors = safetensors.numpy.load_file(path)
    if change(tensors, path) is None:
      safetensors.numpy.save_file(tensors, path)
    assert convert(tmp_path, family, folder.name, tmp_path / 'model', *words) == 2
    assert not (tmp_path / 'model').exists()
    error = capsys.readouterr().err
    assert error.startswith('error: ')
    return error

  return run


def _norm(tensors):
  """The name of the scale of a norm, in any family."""
  return next(name for name in sorted(tensors)
              if 'norm' in name and 'weight' in name and not name.startswith('decoder'))


def _typed(tensors, path):
  tensors[_norm(tensors)] = tensors[_norm(tensors)].astype(np.int32)


def _infinite(tensors, path):
  tensors[_norm(tensors)][0] = np.nan


def _renamed(tensors, path):
  name = _norm(tensors)
  tensors[f'another.{name}'] = tensors.pop(name)


# What happens to the tensors of the first shard or to its file, and what is said.
DAMAGES = {
    'missing': (lambda tensors, path: path.unlink() or path,
                'model-00001-of-00002.safetensors is missing; download it'),
    'cut': (lambda tensors, path: path.write_bytes(path.read_bytes()[:-10]),
            r'model-00001-of-00002.safetensors is not a complete safetensors file \('),
    'another type': (_typed, 'quantised: .*norm.* is int32 of shape'),
    'not finite': (
        _infinite, 'tensor .*norm.* holds numbers that are not finite, such as nan'),
    'renamed': (_renamed, r'(?s)\n  missing: .*norm.*\n  unexpected: another\..*norm')}
FAMILIES = 'lumina_mgpt', 'lumina_mgpt_2', 'anole', 'emu3', 'emu3_5', 't5'


@pytest.mark.parametrize('published, damage', representative(
    [(family, damage) for family in FAMILIES for damage in DAMAGES],
    ('emu3', 'not finite'), ('emu3', 'renamed'), ('t5', 'cut')), indirect=['published'])
def test_damaged_files_are_refused(refused, damage):
  change, message = DAMAGES[damage]
  assert re.search(message, refused(change))


@pytest.mark.slow
@pytest.mark.parametrize('published, message', [
    ('lumina_mgpt', 'has 65539 tokens; a transformer like lumina_mgpt_7b_768 has 65536'),
    ('anole', 'has 65539 tokens; a transformer like anole_7b has 65536'),
    ('emu3', 'has 184625 tokens; a transformer like emu3_gen_8b has 184622')],
    indirect=['published'])
def test_another_vocabulary(refused, message):
  def more(tensors, path):
    for shard in path.parent.glob('model-*.safetensors'):
      tensors = safetensors.numpy.load_file(shard)
      tensors |= {name: np.concatenate([tensors[name], tensors[name][:3]]) for name in tensors
                  if name in ('model.embed_tokens.weight', 'lm_head.weight')}
      safetensors.numpy.save_file(tensors, shard)
    return path

  assert message in refused(more)
