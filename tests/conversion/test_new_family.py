"""A family of files that is not in the package: everything that its rule module has to say."""

import re
import sys

import jax
import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import command, rules
from checkpoints_conversion.rules.base import KEEP, Rule
from checkpoints_conversion.rules.family import FileFamily
from cspd_jax import families
from tests.families import tiny


def _infer(shapes, options):
  labels, _, vocab_size = shapes['table.weight']
  return tiny.TinyConfig(options['rows'], vocab_size=vocab_size, num_classes=labels - 1)


TABLE = FileFamily(
    name='tiny', title='a table', kind='tiny', model='tiny',
    rules=lambda config: [Rule('table.weight', ('table',), KEEP)], infer=_infer,
    presets={'tiny_2': tiny.TinyConfig(2)}, options={'rows': 'Rows of tokens.'},
    sampling=lambda config: {'pictures': {'guidance_scale': 1.5}},
    layout=lambda model: {'tiny': ('table.safetensors',),
                          'tiny_palette': ('tokenizer/x.safetensors', 'palette.safetensors')})
PALETTE = FileFamily(
    name='tiny_palette', title='a palette', kind='palette', model='tiny',
    rules=lambda config: [Rule('colours', ('colours',), KEEP)],
    infer=lambda shapes, options: tiny.PaletteConfig(shapes['colours'][0]), presets={})


@pytest.fixture
def sources(tmp_path, monkeypatch):
  """Published files of a family that is registered for one test."""
  monkeypatch.setattr(rules, 'FAMILIES', dict(rules.FAMILIES))
  families.register(tiny.FAMILY)
  rules.register(TABLE)
  rules.register(PALETTE)
  table = tiny.init(tiny.TinyConfig(), jax.random.key(0))['table']
  colours = tiny.init_palette(tiny.PaletteConfig(), jax.random.key(1))['colours']
  for name, tensors in {'table': {'table.weight': table}, 'palette': {'colours': colours}}.items():
    safetensors.numpy.save_file(
        {key: np.asarray(tensor) for key, tensor in tensors.items()},
        tmp_path / f'{name}.safetensors')
  return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize('size', ['--rows=2', '--model=tiny_2'])
def test_the_command_converts_it_into_a_model(size, sources, capsys):
  output = f'--output={sources}/beach'
  assert not command.main(
      ['convert', '--family=tiny', f'--source={sources}/table.safetensors', size, output])
  assert not command.main(
      ['convert', '--family=tiny_palette', f'--source={sources}/palette.safetensors', output])
  assert 'beach/tokenizer: PaletteConfig' in capsys.readouterr().out
  made = cspd_jax.load(sources / 'beach').generate(['sea', 'sky'], seed=1, decoder='vanilla')
  assert made.images.shape == (2, 8, 16, 3) and made.sampling['guidance_scale'] == 1.5


def test_help_names_its_options_and_models(sources, capsys):
  assert command.main(['convert', '--help']) == 0
  text = capsys.readouterr().out
  assert '--rows' in text
  assert re.search('^      tiny  +a table: tiny_2$', text, re.MULTILINE)


def test_its_options_are_not_for_others(sources, capsys):
  assert command.main(['convert', '--family=tiny_palette', '--rows=2',
                       f'--source={sources}/palette.safetensors', f'--output={sources}/beach']) == 2
  assert 'rows: not an option for a palette' in capsys.readouterr().err
  assert not (sources / 'beach').exists()


def test_a_published_folder_is_a_whole_model(sources, capsys):
  arguments = ['convert', '--family=tiny', f'--source={sources}', '--rows=2',
               f'--output={sources}/beach']
  assert not command.main(arguments)
  *_, line = capsys.readouterr().out.splitlines()
  assert line == f'Next: cspd-generate --model={sources}/beach --prompt=0'
  assert cspd_jax.load(sources / 'beach').generate(['sea'], decoder='vanilla').images is not None
  (sources / 'palette.safetensors').unlink()
  capsys.readouterr()
  assert not command.main([*arguments[:-1], f'--output={sources}/sand'])
  assert ('Missing: a palette (tokenizer/x.safetensors); next: cspd-convert '
          f'--family=tiny_palette --source=FILE --output={sources}/sand') in capsys.readouterr().out
  assert cspd_jax.load(sources / 'sand').tokenizer is None
  (sources / 'table.safetensors').unlink()
  assert command.main(arguments) == 2
  assert 'a folder without table.safetensors' in capsys.readouterr().err


class TestHub:
  """Ids of the hub, of which a folder stands for all."""

  @pytest.fixture
  def downloads(self, sources, monkeypatch):
    hub = pytest.importorskip('huggingface_hub')
    asked = []

    def download(name, *, revision, allow_patterns):
      asked.append((name, revision, allow_patterns))
      if name != 'owner/beach':
        raise ConnectionError('no route to host\nmore')
      return str(sources)

    monkeypatch.setattr(hub, 'snapshot_download', download)
    return asked

  def test_an_id_is_converted(self, sources, downloads):
    assert not command.main(['convert', '--family=tiny', '--source=owner/beach@v1', '--rows=2',
                             f'--output={sources}/beach'])
    assert downloads == [('owner/beach', 'v1', [
        'table.safetensors', 'tokenizer/x.safetensors', 'palette.safetensors',
        'tokenizer/config.json'])]
    assert cspd_jax.load(sources / 'beach').tokenizer is not None

  def test_files_of_words_need_no_weights(self, sources, downloads, capsys):
    (sources / 'emu3.tiktoken').write_bytes(b'YQ== 0\n')
    arguments = ['convert', '--family=emu3_text', '--source=owner/beach',
                 f'--output={sources}/words']
    command.main(arguments)
    assert downloads == [('owner/beach', None, ['emu3.tiktoken'])]
    (sources / 'emu3.tiktoken').unlink()
    assert command.main(arguments) == 2
    assert 'owner/beach, a folder without emu3.tiktoken' in capsys.readouterr().err

  def test_failed_downloads_end_with_one_line(self, sources, downloads, capsys, monkeypatch):
    arguments = ['convert', '--family=tiny', '--source=owner/sea', '--rows=2',
                 f'--output={sources}/sea']
    assert command.main(arguments) == 2
    message = capsys.readouterr().err
    assert 'failed (no route to host); check the name' in message
    assert message.count('\n') == 1
    monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
    assert command.main(arguments) == 2
    assert "pip install 'cspd_jax[hub]'" in capsys.readouterr().err
    assert not (sources / 'sea').exists()

  def test_paths_are_not_asked_for(self, sources, downloads, capsys):
    for source in (f'{sources}/no', 'models/x.safetensors', '../no', 'no'):
      assert command.main(['convert', '--family=tiny', f'--source={source}', '--rows=2',
                           f'--output={sources}/sea']) == 2
      assert 'there is no such file' in capsys.readouterr().err
    assert not downloads
