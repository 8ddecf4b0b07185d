"""Published folders of every family of words, whole: two commands to pictures, and what is broken.
"""

import json
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from cspd_jax.commands import generate as generate_command
from tests.families import published_files
from tests.families.published_files import WHOLE, convert, convert_whole
from tests.marks import representative

for _package in ('ftfy', 'tiktoken', 'tokenizers'):  # They read words.
  pytest.importorskip(_package)

# Rows and columns of pixels.
SIZES = {'lumina_mgpt': (4, 6), 'lumina_mgpt_2': (8, 16), 'anole': (3, 4), 'emu3': (4, 6),
         'emu3_5': (4, 6), 'llamagen': (3, 3)}
CONFIGS = {'lumina_mgpt': published_files.LUMINA_MGPT,
           'lumina_mgpt_2': published_files.LUMINA_MGPT_2, 'anole': published_files.ANOLE,
           'emu3': published_files.EMU3, 'emu3_5': published_files.EMU3_5,
           'llamagen': published_files.T2I}


def _size(png):
  """Rows and columns of a picture."""
  header = png.read_bytes()
  return int.from_bytes(header[20:24], 'big'), int.from_bytes(header[16:20], 'big')


@pytest.mark.slow
@pytest.mark.verifies('folder to pictures', 'lumina_mgpt', 'lumina_mgpt_2', 'anole', 'emu3',
                      'emu3_5', 'llamagen')
@pytest.mark.parametrize('family', representative(WHOLE, 'emu3'))
def test_a_folder_becomes_pictures_by_two_commands(family, tmp_path, capsys):
  convert_whole(family, tmp_path / 'published', tmp_path / 'model')
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
  assert [_size(picture) for picture in pictures] == [SIZES[family]] * 2
  assert pictures[0].read_bytes() != pictures[1].read_bytes()
  report = json.loads((tmp_path / 'out' / 'report.json').read_text())
  assert [row['prompt'] for row in report['rows']] == ['a cat', 'a dog, 中文']
  model = cspd_jax.load(tmp_path / 'model')
  assert model.config == CONFIGS[family]
  assert model.defaults['guidance_scale'] > 1 < model.defaults['top_k']


@pytest.fixture(scope='module')
def published(request, tmp_path_factory):
  """Family, folder in two shards, and what the command is told beside it."""
  root = tmp_path_factory.mktemp('published')
  if request.param == 't5':
    published_files.flan_t5(root / 'flan-t5-xl')
    return 't5', root / 'flan-t5-xl', ('--role=t5',)
  make, words = WHOLE[request.param]
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


FAMILIES = 'lumina_mgpt', 'lumina_mgpt_2', 'anole', 'emu3', 'emu3_5', 't5'
every_family = pytest.mark.parametrize('published', FAMILIES, indirect=True)


@pytest.mark.slow
@every_family
def test_a_missing_shard(refused):
  assert 'model-00001-of-00002.safetensors is missing; download it' in refused(
      lambda tensors, path: path.unlink() or path)


@pytest.mark.slow
@every_family
def test_a_truncated_shard(refused):
  assert 'model-00001-of-00002.safetensors is not a complete safetensors file (' in refused(
      lambda tensors, path: path.write_bytes(path.read_bytes()[:-10]))


@pytest.mark.slow
@every_family
def test_numbers_of_another_kind(refused):
  def whole(tensors, path):
    tensors[_norm(tensors)] = tensors[_norm(tensors)].astype(np.int32)

  assert re.search('mis-typed: .*norm.* is int32', refused(whole))


@pytest.mark.parametrize('published', representative(FAMILIES, 'emu3'), indirect=True)
def test_numbers_that_are_none(refused):
  def spoil(tensors, path):
    tensors[_norm(tensors)][0] = np.nan

  assert re.search('tensor .*norm.* holds numbers that are not finite, such as nan', refused(spoil))


@pytest.mark.slow
@pytest.mark.parametrize('published', ['emu3'], indirect=True)
def test_a_refused_target_leaves_no_other_part(published, tmp_path, capsys):
  """The text and the image tokenizer come first, and are whole."""
  family, folder, (*words, _) = published
  shutil.copytree(folder.parent, tmp_path / 'published')
  path = next((tmp_path / 'published').rglob('model-00002-of-00002.safetensors'))
  tensors = safetensors.numpy.load_file(path)
  tensors[max(tensors)].flat[0] = np.nan
  safetensors.numpy.save_file(tensors, path)
  assert convert(path.parent.parent, family, path.parent.name, tmp_path / 'model', *words) == 2
  assert 'not finite' in capsys.readouterr().err
  assert not (tmp_path / 'model').exists()


@every_family
def test_names_too_many_and_too_few(refused):
  def rename(tensors, path):
    name = _norm(tensors)
    tensors[f'another.{name}'] = tensors.pop(name)

  assert re.search(r'(?s)\n  missing: .*norm.*\n  unexpected: another\..*norm', refused(rename))


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
