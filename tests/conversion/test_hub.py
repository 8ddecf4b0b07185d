"""Published models by their ids, fetched from a stand-in for the Hugging Face Hub."""

import dataclasses
import importlib
import pathlib
import sys
from unittest import mock

import pytest

import cspd_jax
from checkpoints_conversion import command, hub as hub_lib, rules
from cspd_jax.files import paths
from cspd_jax.models import llamagen
from tests.builders import published, sizes
from tests.conversion import torch_files

pytest.importorskip('huggingface_hub')
constants = importlib.import_module('huggingface_hub.constants')

CLASSES = dataclasses.replace(
    llamagen.PRESETS['c2i_b_256'], height=2, width=2, dim=32, num_layers=1, num_heads=2,
    num_kv_heads=2, ffn_dim=24, vocab_size=64)
CODES = dataclasses.replace(sizes.T2I_VQ, codebook_size=64)
LLAMAGEN = 'FoundationVision/LlamaGen'


def _llamagen(folder):
  """Files of a repository with two models, of which one is small enough for a test."""
  folder.mkdir()
  torch_files.save(folder / 'model.pt', published.tensors('llamagen', CLASSES, 1), 'model')
  torch_files.save(folder / 'vq.pt', published.tensors('llamagen_vq', CODES, 2), 'model')
  files = {'c2i_B_256.pt': 'model.pt', 'vq_ds16_c2i.pt': 'vq.pt'}
  return {'README.md': b'#', 'c2i_3B_384.pt': bytes(10), 'vq_ds8_c2i.pt': bytes(10)} | {
      name: (folder / file).read_bytes() for name, file in files.items()}


def _convert(output, *words):
  small = rules.get('llamagen')._replace(presets={'c2i_b_256': CLASSES})
  with mock.patch.dict(rules.FAMILIES, llamagen=small):
    return command.main(['convert', '--family=llamagen', f'--output={output}', *words])


def test_the_files_of_a_model_are_fetched_and_converted(hub, tmp_path, capsys):
  hub.repositories[LLAMAGEN] = files = _llamagen(tmp_path / 'published')
  output = tmp_path / 'model'
  assert not _convert(output, f'--source={LLAMAGEN}', '--model=c2i_b_256')
  wanted = {'c2i_B_256.pt', 'vq_ds16_c2i.pt'}
  assert {path for path, _ in hub.fetched} == wanted
  size = sum(len(files[name]) for name in wanted) / 1e6
  assert (f'fetching 2 files of {LLAMAGEN}, {size:.1f} MB, into {tmp_path}/cache'
          in capsys.readouterr().out)
  model = cspd_jax.load(output)
  assert model.tokenizer is not None and model.num_tokens == 4
  # Again: nothing is fetched, with a network and without one.
  assert not _convert(tmp_path / 'again', f'--source={LLAMAGEN}', '--model=c2i_b_256')
  hub.stop()
  assert not _convert(tmp_path / 'offline', f'--source={LLAMAGEN}', '--model=c2i_b_256')
  assert len(hub.fetched) == 2 and 'fetching' not in capsys.readouterr().out


def test_a_repository_of_several_models(hub, tmp_path, capsys):
  assert _convert(tmp_path / 'model', f'--source={LLAMAGEN}') == 2
  assert capsys.readouterr().err == (
      'error: model is None, and repositories of llamagen hold several; give one of: c2i_b_256.\n')
  assert not hub.requests


def test_a_download_that_was_cut_resumes(hub, monkeypatch):
  monkeypatch.setattr(constants, 'DOWNLOAD_CHUNK_SIZE', 100)
  content = bytes(range(256)) * 4
  hub.repositories['owner/beach'] = {'sea/waves.ckpt': content}
  hub.cut = 500
  path = hub_lib.local('owner/beach@main:sea/waves.ckpt')
  assert path.read_bytes() == content
  assert hub.fetched == [('sea/waves.ckpt', 0), ('sea/waves.ckpt', 500)]


def test_the_next_call_fetches_what_is_missing(hub):
  hub.repositories['owner/beach'] = {'a.safetensors': b'a', 'b.safetensors': b'b'}
  hub.refused.add('b.safetensors')
  with pytest.raises(ValueError, match='check the network'):
    hub_lib.local('owner/beach')
  hub.refused.clear()
  assert (hub_lib.local('owner/beach') / 'b.safetensors').read_bytes() == b'b'
  assert sorted(hub.fetched) == [('a.safetensors', 0), ('b.safetensors', 0)]


@pytest.mark.parametrize('source, message', [
    ('owner/sea', 'no such repository that everyone may read; check the name, and run `hf auth'),
    ('FoundationVision/Llamagen', f'did you mean {LLAMAGEN}?'),
    ('owner/beach@v2', "has no revision 'v2' of it; leave it out"),
    ('owner/beach:sand.pt', "'owner/beach:sand.pt', a repository without sand.pt"),
    ('owner/beach', 'a repository without *.safetensors'),
    ('owner/gated', 'https://huggingface.co/owner/gated, then run `hf auth login`')])
def test_what_cannot_be_fetched(hub, source, message):
  hub.repositories |= {'owner/beach': {'sea.pt': b'1'}, 'owner/gated': {'a.safetensors': b'1'}}
  hub.gated.add('owner/gated')
  with pytest.raises(ValueError) as error:
    hub_lib.local(source)
  text = str(error.value)
  assert message in text and text.startswith(f'source is {source!r}') and '\n' not in text
  assert not hub.fetched


def test_without_a_network_or_the_package(hub, tmp_path, capsys, monkeypatch):
  hub.stop()
  words = f'--source={LLAMAGEN}', '--model=c2i_b_256'
  assert _convert(tmp_path / 'model', *words) == 2
  message = capsys.readouterr().err
  assert 'cannot be reached (' in message and 'or download the files elsewhere' in message
  assert message.count('\n') == 1
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  assert _convert(tmp_path / 'model', *words) == 2
  assert "pip install -e '.[hub]' in a clone" in capsys.readouterr().err
  assert not (tmp_path / 'model').exists()


def test_files_that_do_not_fit_on_the_disk(hub, monkeypatch):
  hub.repositories['owner/beach'] = {'a.safetensors': bytes(2000)}
  monkeypatch.setattr(paths, '_free', lambda path: 1000)
  with pytest.raises(ValueError, match='0.0 MB left, and 0.0 MB are to be written; free some'):
    hub_lib.local('owner/beach')
  assert not hub.fetched


def test_paths_are_not_asked_for(hub, tmp_path, capsys):
  (tmp_path / 'owner' / 'beach').mkdir(parents=True)
  assert hub_lib.local(tmp_path / 'owner' / 'beach') == tmp_path / 'owner' / 'beach'
  for source in (f'{tmp_path}/no', 'models/x.safetensors', '../no', 'no', 'a/b/c.pt'):
    assert _convert(tmp_path / 'model', f'--source={source}', '--model=c2i_b_256') == 2
    assert 'there is no such file' in capsys.readouterr().err
  assert not hub.requests


def test_settings_and_words_next_to_the_weights_are_fetched(hub):
  names = ('tokenizer.json', 'tokenizer_config.json', 'config.json', 'a.safetensors', 'vq/x.pt',
           'vq/config.json')
  hub.repositories['owner/lumina'] = {
      name: name.encode() for name in (*names, 'other.txt', 'vq/y.pt')}
  folder = hub_lib.local('owner/lumina', ['.', 'tokenizer.json', 'vq/x.pt', '../movqgan.ckpt'])
  assert sorted(path for path, _ in hub.fetched) == sorted(names)
  assert all((folder / name).is_file() for name in names)


@pytest.mark.parametrize('family', [file for file in rules.FAMILIES.values() if file.hub],
                         ids=lambda file: file.name)
def test_ids_are_those_of_published_models(family):
  """A typing error in the table would send users to a repository that does not exist."""
  assert family.hub.keys() <= family.presets.keys()
  for source in family.hub.values():
    repository = hub_lib.parse(source)
    assert repository is not None and repository.revision is None
    assert repository.file is None or pathlib.PurePosixPath(repository.file).suffix in (
        '.ckpt', '.pt')
