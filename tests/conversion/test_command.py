"""What `cspd-convert` prints: what it assumes, what is missing, what comes next, and its errors."""

import dataclasses
import json
import shlex
import sys

import numpy as np
import pytest
import safetensors.numpy

from checkpoints_conversion import command, convert, rules
from cspd_jax.cli import imports
from cspd_jax.commands import generate
from tests.builders import sizes, writers
from tests.marks import representative

CHAMELEON_SETTINGS = {'rms_norm_eps': 1e-5, 'rope_theta': 10000.0, 'swin_norm': False}
EMU3_SETTINGS = {'rms_norm_eps': 1e-5, 'rope_theta': 1e6, 'num_attention_heads': 2}


@pytest.fixture
def source(tmp_path):
  """Writes a published file of random numbers, and settings next to it."""
  return lambda family, config, settings=None: writers.save(
      tmp_path / family, family, config, settings)


@pytest.fixture
def run(capsys, tmp_path):
  """Runs the command; returns its exit code and what it prints."""
  def run(family, source, *words):
    code = command.main(['convert', f'--family={family}', f'--source={source}',
                         f'--output={tmp_path}/model', *words])
    return code, *capsys.readouterr()

  return run


def _grid(text):
  return (f'assumed images of {text}; --height=ROWS --width=COLUMNS, or later cspd-generate '
          '--grid=ROWSxCOLUMNS, specify others')


def _eagle(values):
  return (f'assumed {values}, as in the published drafters; a config.json next to the weights '
          'specifies others')


@pytest.mark.parametrize('family, config, settings, options, lines', [
    ('anole', sizes.ANOLE, CHAMELEON_SETTINGS, {}, [_grid('32x32 tokens (512x512 pixels)')]),
    ('anole', sizes.ANOLE, CHAMELEON_SETTINGS, {'height': 4},
     [_grid('4x32 tokens (64x512 pixels)')]),
    ('anole', sizes.ANOLE, CHAMELEON_SETTINGS, {'height': 4, 'width': 4}, []),
    ('emu3', sizes.EMU3, EMU3_SETTINGS, {}, [_grid('90x90 tokens (720x720 pixels)')]),
    ('tar', sizes.TAR, writers.TAR_SETTINGS, {}, [
        'assumed 27x27 codes, which describe an image; --height=ROWS --width=COLUMNS specify '
        'others of 27x27, 13x13, 9x9']),
    ('llamagen', sizes.LLAMAGEN, None, {'image_size': 32, 'num_heads': 2}, []),
    ('eagle_llamagen', sizes.EAGLE, None, {'image_size': 32, 'num_heads': 2},
     [_eagle('norm_eps 1e-06')]),
    ('eagle_llamagen', sizes.EAGLE, {'rms_norm_eps': 1e-6}, {'image_size': 32, 'num_heads': 2}, []),
    ('eagle_anole', sizes.EAGLE_ANOLE, None, {'image_size': 32},
     [_eagle('norm_eps 1e-05 and rope_base 10000.0')]),
    ('mar', sizes.MAR, None, {'num_heads': 2}, []),
    ('kl_vae', sizes.KL_VAE, None, {}, [
        'assumed latents with the scale 0.2325 of KL-16 (--model=kl_16), the only supported one: '
        'with another autoencoder images have wrong colours']),
    ('llamagen_vq', sizes.VQ, None, {}, [])])
def test_assumed_settings_are_named(
    source, family, config, settings, options, lines):
  opened = convert.open_source(family, source(family, config, settings), options=options)
  assert list(opened.assumptions) == lines


@pytest.mark.parametrize('area, options, grid', [
    (518400, {}, (90, 90)), (262144, {}, (64, 64)), (262144, {'height': 4}, (4, 64)),
    (262144, {'height': 4, 'width': 8}, (4, 8)), (500000, {}, (88, 88))])
def test_the_image_area_of_emu3_is_that_of_its_images(source, area, options, grid):
  """The official program computes rows and columns from it."""
  file = source('emu3', sizes.EMU3, {**EMU3_SETTINGS, 'image_area': area})
  opened = convert.open_source('emu3', file, options=options)
  assert (opened.network.config.height, opened.network.config.width) == grid
  assert not opened.assumptions


def test_an_image_area_of_another_model_is_refused(source, monkeypatch):
  monkeypatch.setitem(rules.FAMILIES, 'emu3', rules.get('emu3')._replace(
      presets={'emu3_gen_8b': dataclasses.replace(sizes.EMU3, height=90)}))
  file = source('emu3', sizes.EMU3, {**EMU3_SETTINGS, 'image_area': 262144})
  with pytest.raises(rules.ConversionError, match='height is 64, the model has 90'):
    convert.open_source('emu3', file, model='emu3_gen_8b')
  for area in (0, 5, True, 262144.0, '512x512', 2**62):
    (file.parent / 'config.json').write_text(json.dumps({**EMU3_SETTINGS, 'image_area': area}))
    with pytest.raises(rules.ConversionError, match='image_area is .*number of pixels of an im'):
      convert.open_source('emu3', file)


@pytest.mark.parametrize('family, config', [('llamagen', sizes.LLAMAGEN), ('mar', sizes.MAR)])
def test_heads_of_a_published_width_are_named(source, monkeypatch, family, config):
  """They are not in the weights."""
  module = sys.modules[f'checkpoints_conversion.rules.{family}']
  monkeypatch.setattr(module, 'PRESETS', {'small': config})
  options = {'image_size': 32} if family == 'llamagen' else {}
  opened = convert.open_source(family, source(family, config), options=options)
  assert opened.network.config == config
  assert opened.assumptions == (
      f'assumed 2 attention heads, as in the published models of width {config.dim}; '
      '--num_heads=N specifies another number',)


def test_a_published_name_leaves_nothing_to_assume(source, monkeypatch):
  monkeypatch.setitem(rules.FAMILIES, 'anole', rules.get('anole')._replace(
      presets={'anole_7b': sizes.ANOLE}))
  file = source('anole', sizes.ANOLE)
  assert convert.open_source('anole', file, model='anole_7b').assumptions == ()


def test_assumptions_are_printed_before_the_files(source, run):
  code, out, _ = run('anole', source('anole', sizes.ANOLE, CHAMELEON_SETTINGS))
  first, second, *_ = out.splitlines()
  assert code == 0 and first == f'anole: {_grid("32x32 tokens (512x512 pixels)")}'
  assert 'model/target: EarlyFusionConfig' in second


def test_image_sizes_of_lumina_mgpt_are_required(source, run, tmp_path):
  """Its models of 512, 768 and 1024 pixels have the same shapes."""
  config = dataclasses.replace(sizes.LUMINA_MGPT, num_layers=1)
  code, out, err = run('lumina_mgpt', source('lumina_mgpt', config, CHAMELEON_SETTINGS))
  assert code == 2 and not out and not (tmp_path / 'model').exists()
  assert 'height, width cannot be inferred' in err and 'lumina_mgpt_7b_512' in err


def _commands(out):
  """The printed commands."""
  return [shlex.split(line.partition('ext: ')[2]) for line in out.splitlines() if 'ext: ' in line]


def test_the_end_names_what_is_missing_and_then_what_is_next(source, run, tmp_path, capsys):
  output = f'--output={tmp_path}/model'
  _, out, _ = run('llamagen_vq', source('llamagen_vq', sizes.VQ))
  assert 'Missing: a LlamaGen transformer; next: ' in out
  assert _commands(out) == [['cspd-convert', '--family=llamagen', '--source=FILE', output]]
  options = ('--image_size=32', '--num_heads=2')
  file = source('llamagen', sizes.LLAMAGEN)
  code, out, _ = run('llamagen', file, *options)
  assert code == 0 and _commands(out) == [
      ['cspd-generate', f'--model={tmp_path}/model', '--prompt=0']]
  assert generate.main([*_commands(out)[0], '--decoder=vanilla', '--guidance_scale=1',
                        f'--output={tmp_path}/out']) == 0
  assert 'Next: cspd-tune' in capsys.readouterr().out
  _, out, _ = run('llamagen', file, *options, f'--output={tmp_path}/my model')
  assert 'Missing: a LlamaGen image tokenizer; next: ' in out
  assert _commands(out) == [
      ['cspd-convert', '--family=llamagen_vq', '--source=FILE', f'--output={tmp_path}/my model']]


def test_the_model_of_weights_that_are_not_finite_is_loaded_by_the_next_command(
    source, run, tmp_path, capsys):
  run('llamagen_vq', source('llamagen_vq', sizes.VQ))
  file = source('llamagen', sizes.LLAMAGEN)
  tensors = safetensors.numpy.load_file(file)
  tensors['cls_embedding.embedding_table.weight'][2] = np.inf  # A class that is not asked for.
  safetensors.numpy.save_file(tensors, file)
  options = ('--image_size=32', '--num_heads=2')
  code, _, err = run('llamagen', file, *options)
  assert code == 2 and 'if they are intended, pass --allow_nonfinite.' in err
  _, out, _ = run('llamagen', file, *options, '--allow_nonfinite')
  words, = _commands(out)
  assert words[-1] == '--allow_nonfinite=true'
  words += ['--decoder=vanilla', f'--output={tmp_path}/out', '--num_images=1']
  words.remove('--allow_nonfinite=true')
  assert generate.main(words) == 2
  assert 'if they are intended, pass --allow_nonfinite.' in capsys.readouterr().err
  assert generate.main([*words, '--allow_nonfinite']) == 0
  assert 'Next: cspd-tune' in (out := capsys.readouterr().out) and '--allow_nonfinite=true' in out


@pytest.mark.parametrize('role', representative(['target', 'draft'], 'draft'))
def test_a_role_is_that_of_the_only_network_of_a_folder(source, run, monkeypatch, role):
  folder = source('llamagen', sizes.LLAMAGEN).parent
  source('llamagen_vq', sizes.VQ).rename(folder / 'vq.safetensors')
  family = rules.get('llamagen')._replace(layout=lambda model: {
      'llamagen': ('x.safetensors',), 'llamagen_vq': ('vq.safetensors',)})
  monkeypatch.setitem(rules.FAMILIES, 'llamagen', family)
  options = ('--image_size=32', '--num_heads=2')
  code, out, err = run('llamagen', folder, *options, f'--role={role}')
  assert code == 0 and f'model/{role}: ' in out and 'model/tokenizer: ' not in out, err
  code, out, err = run('llamagen', folder, *options)
  assert code == 0 and 'model/target: ' in out and 'model/tokenizer: ' in out, err


def test_missing_parts_of_a_model_of_words(source, run):
  _, out, _ = run(
      'llamagen', source('llamagen', sizes.T2I), '--image_size=48', '--num_heads=2')
  assert [words[1] for words in _commands(out)] == [
      '--family=llamagen_vq', '--family=t5', '--family=t5_text']


def test_targets_of_several_families_are_named(source, run):
  _, out, _ = run('eagle_anole', source('eagle_anole', sizes.EAGLE_ANOLE), '--image_size=32')
  line, = (line for line in out.splitlines() if line.startswith('Missing: the target'))
  assert '--family=lumina_mgpt ' in line and line.endswith(
      '(or --family=lumina_mgpt_2, anole, emu3, emu3_5, simplear, liquid)')


def test_problems_are_grouped_and_counted(source, run, tmp_path):
  wide = dataclasses.replace(sizes.LLAMAGEN, num_layers=6)
  file = source('llamagen', wide)
  tensors = safetensors.numpy.load_file(file)
  tensors = {name.replace('.w2.', '.down.').replace('.w3.', '.up.'): tensor
             for name, tensor in tensors.items()}
  tensors['norm.weight'] = tensors['norm.weight'][:-1].copy()
  safetensors.numpy.save_file(tensors, file)
  code, out, err = run('llamagen', file, '--image_size=32', '--num_heads=2')
  head, *lines = err.splitlines()
  assert code == 2 and not out and head.startswith('error: The tensors do not belong')
  kinds = [line.split(':')[0].strip() for line in lines]
  assert kinds == [
      *['missing'] * 10, '... and 2 more missing, 12 in all',
      *['unexpected'] * 10, '... and 2 more unexpected, 12 in all', 'mis-shaped']
  assert not (tmp_path / 'model').exists()


def test_a_broken_package_names_its_extra(run, tmp_path, monkeypatch):
  (tmp_path / 'huggingface_hub.py').write_text("raise OSError('wrong ELF class')")
  monkeypatch.syspath_prepend(tmp_path)
  for module in [*sys.modules]:
    if module.split('.')[0] == 'huggingface_hub':
      monkeypatch.delitem(sys.modules, module)
  code, _, err = run('mar', 'owner/name')
  assert code == 2 and 'huggingface_hub cannot be imported (OSError: wrong ELF class)' in err
  assert "'.[hub]'" in err and err.count('\n') == 1


def test_a_source_whose_name_is_no_utf_8(source, run, tmp_path):
  """Other programs than Python refuse JSON with such a name."""
  file = source('llamagen', sizes.LLAMAGEN)
  try:
    file = file.rename(file.with_name('x\udce9.safetensors'))
  except OSError:
    pytest.skip('the file system has UTF-8 names only')
  assert run('llamagen', file, '--image_size=32', '--num_heads=2')[0] == 0
  content = json.loads((tmp_path / 'model' / 'target' / 'model.json').read_text())
  assert content['metadata']['source'] == 'x\\udce9.safetensors'
  assert [*content['metadata']['sha256']] == ['x\\udce9.safetensors']
  assert run('llamagen', file, '--image_size=32', '--num_heads=2')[0] == 0


def test_rules_that_a_module_of_one_s_own_does_not_register(monkeypatch):
  monkeypatch.setattr(imports, 'MODULES', ['bigram'])
  with pytest.raises(ValueError, match="to is 'bigram'; it must be one of: .*; bigram registers no "
                                       'rules of this name with checkpoints_conversion.rules.reg'):
    rules.get('bigram', 'to')
