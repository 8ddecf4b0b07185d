"""A family of files that is not in the package: everything that its rule module has to say."""

import re

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
