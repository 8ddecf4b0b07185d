"""The strict driver, and the command line around it."""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import convert, read, rules
from cspd_jax.files import store, weights
from cspd_jax.models import llamagen
from tests.builders import published, sizes
from tests.conversion import torch_files

_ROOT = pathlib.Path(__file__).parents[2]
OPTIONS = sizes.OPTIONS['llamagen']
CONFIG = dataclasses.replace(sizes.LLAMAGEN, num_layers=2, num_kv_heads=1)


def _published(seed=0):
  return published.tensors('llamagen', CONFIG, seed)


@pytest.mark.parametrize('dtype', [np.uint8, np.int8, np.uint32, np.int32])
def test_packed_weights_are_recognised_before_their_sizes(dtype):
  """Of bitsandbytes, AWQ, GPTQ and MLX, in a folder whose config does not mention them."""
  tensors = _published()
  name = 'layers.0.attention.wqkv.weight'
  tensors[name] = np.zeros((tensors[name].size // 2, 1), dtype)
  with pytest.raises(convert.ConversionError, match=(
      rf'quantised: {name} is {np.dtype(dtype)} of shape .*; save weights as float16')):
    convert.of_tensors('llamagen', tensors, {}, metadata=dict, options=OPTIONS)


def test_one_of_several_files_is_recognised(tmp_path):
  tensors = published.tensors('llamagen_vq', sizes.VQ)
  names = [f'model-0000{i}-of-00002.safetensors' for i in (1, 2)]
  some = dict(list(tensors.items())[:9])
  safetensors.numpy.save_file(some, tmp_path / names[0])
  for source in (tmp_path, tmp_path / names[0]):
    with pytest.raises(ValueError, match=f'where {names[1]} is missing; download it[.]'):
      convert.open_source('llamagen_vq', source)
  rest = {name: tensor for name, tensor in tensors.items() if name not in some}
  safetensors.numpy.save_file(rest, tmp_path / names[1])
  with pytest.raises(ValueError, match=f'{names[0]}, one of 2 files of a model; specify the'):
    convert.open_source('llamagen_vq', tmp_path / names[0])
  convert.open_source('llamagen_vq', tmp_path)
  # A network that is complete in one of them is converted.
  (tmp_path / names[1]).unlink()
  safetensors.numpy.save_file(tensors, tmp_path / names[0])
  convert.open_source('llamagen_vq', tmp_path / names[0])


def test_everything_wrong_is_listed_at_once():
  family, config = rules.FAMILIES['llamagen'], CONFIG
  tensors = _published()
  del tensors['layers.1.attention.wo.weight'], tensors['norm.weight']
  tensors['layers.2.attention.wo.weight'] = np.zeros((16, 16), np.float32)
  tensors['output.bias'] = np.zeros(9, np.float32)
  tensors['tok_embeddings.weight'] = np.zeros((10, 16), np.float32)
  tensors['layers.0.ffn_norm.weight'] = np.zeros(16, np.int32)
  with pytest.raises(rules.ConversionError) as caught:
    convert.convert(family, config, tensors)
  for line in ('missing: layers.1.attention.wo.weight (16, 16)', 'missing: norm.weight (16,)',
               'unexpected: layers.2.attention.wo.weight (16, 16)', 'unexpected: output.bias',
               'mis-shaped: tok_embeddings.weight is (10, 16), the model needs (9, 16)',
               'mis-typed: layers.0.ffn_norm.weight is int32'):
    assert line in str(caught.value)


@pytest.mark.parametrize('form', ['.safetensors', '.pt', 'memory'])
def test_weights_of_float8_are_refused_in_every_form(tmp_path, form):
  """They need scales, which no network here has; a tensor that is not needed may have any dtype."""
  path, options = tmp_path / f'x{form}', OPTIONS
  tensors = _published() | dict.fromkeys(
      ('norm.weight', 'freqs_cis'), np.ones(16, ml_dtypes.float8_e4m3fn))
  open_source = lambda: convert.open_source('llamagen', path, options=options)
  if form == '.pt':
    torch_files.save(path, tensors)
  elif form == '.safetensors':
    data = safetensors.numpy.save({name: x.view(np.uint8) if x.itemsize == 1 else x
                                   for name, x in tensors.items()})
    size = 8 + int.from_bytes(data[:8], 'little')
    header = data[8:size].replace(b'"U8"', b'"F8_E4M3"')
    path.write_bytes(len(header).to_bytes(8, 'little') + header + data[size:])
  else:
    torch = pytest.importorskip('torch')
    state = {name: torch.tensor(x.view(np.uint8)).view(torch.float8_e4m3fn) if x.itemsize == 1
             else torch.tensor(x) for name, x in tensors.items()}
    open_source = lambda: cspd_jax.from_torch(state, 'llamagen', options=options)
  with pytest.raises(rules.ConversionError, match='norm.weight is .*(F8_E4M3|float8_e4m3fn).*; '
                     'save weights as .* multiplied by their scales') as caught:
    open_source()
  assert 'freqs_cis' not in str(caught.value)


@pytest.mark.parametrize('arguments, message', [
    (dict(family_name='gpt'), "family is 'gpt'.*llamagen, llamagen_vq"),
    (dict(family_name='chameleon'), "family is 'chameleon'.*; did you mean anole"),
    (dict(model='c2i_z'), "model is 'c2i_z'.*c2i_b_256"),
    (dict(model='c2i_b_256'), 'unexpected|mis-shaped'),
    (dict(model='c2i_b_256', options={'num_heads': 2}), 'num_heads: only without model'),
    (dict(family_name='llamagen_vq'), 'not a LlamaGen image tokenizer'),
])
def test_inputs_that_do_not_fit_are_explained(arguments, message, tmp_path):
  source = tmp_path / 'model.safetensors'
  safetensors.numpy.save_file(_published(), source)
  arguments = {'family_name': 'llamagen', 'source': source, 'output': tmp_path / 'out', **arguments}
  with pytest.raises(ValueError, match=message):
    convert.convert_file(**arguments)
  assert not (tmp_path / 'out').exists()


def _run(*arguments):
  # A stand-in for an installation without torch.
  code = ("import sys; sys.modules['torch'] = None; sys.argv[0] = 'convert'; import runpy; "
          "runpy.run_module('checkpoints_conversion.command', run_name='__main__')")
  return subprocess.run(
      [sys.executable, '-c', code, *arguments], cwd=_ROOT, capture_output=True, text=True,
      env={**os.environ, 'JAX_PLATFORMS': 'cpu'}, check=False)


def test_command_line_converts_pytorch_files_without_torch(tmp_path):
  torch_files.save(tmp_path / 'model.pt', _published())
  done = _run('--family=llamagen', f'--source={tmp_path}/model.pt',
              f'--output={tmp_path}/out', '--image_size=32', '--num_heads=2', '--dtype=bfloat16')
  assert done.returncode == 0, done.stderr
  assert store.load(tmp_path / 'out/target').params['label_embedding'].dtype == 'bfloat16'


@pytest.mark.parametrize('number', [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named_as_published(tmp_path, number):
  tensors = _published()
  tensors['layers.1.attention.wqkv.weight'][5, 3] = number
  safetensors.numpy.save_file(tensors, tmp_path / 'model.safetensors')
  arguments = dict(source=tmp_path / 'model.safetensors', output=tmp_path / 'deep' / 'out',
                   options=OPTIONS)
  with pytest.raises(ValueError, match=f'tensor layers.1.attention.wqkv.weight .*such as {number}'):
    convert.convert_file('llamagen', **arguments)
  assert os.listdir(tmp_path) == ['model.safetensors']
  convert.convert_file('llamagen', allow_nonfinite=True, **arguments)
  loaded = store.load(tmp_path / 'deep' / 'out', allow_nonfinite=True)
  assert sum((~np.isfinite(leaf)).sum() for leaf in jax.tree.leaves(loaded.params)) == 1


def test_stopped_conversions_go_on_if_the_source_is_the_same(tmp_path, monkeypatch):
  monkeypatch.setattr(weights, '_GROUP', 3000)  # Bytes: some groups of some tensors.
  family = 'llamagen'
  source, made = tmp_path / 'model.safetensors', []
  append = weights._append

  def stop(done, total):
    if done == 2:
      raise KeyboardInterrupt

  def counted(*arguments):
    made.append(sorted(arguments[-1]))
    return append(*arguments)

  def run(progress=None):
    made.clear()
    convert.convert_file(family, source, tmp_path / 'out', options=OPTIONS,
                         progress=progress)

  monkeypatch.setattr(weights, '_append', counted)
  monkeypatch.setattr(weights, '_LARGEST', 10_000)
  first, second = _published(0), _published(1)
  safetensors.numpy.save_file(first, source)
  for tensors, kept in ((first, True), (second, False)):
    with pytest.raises(KeyboardInterrupt):
      run(stop)
    assert os.listdir(tmp_path / 'out') == ['.unfinished'] and len(made) == 2
    before = sum(made, []) if kept else []
    with max((tmp_path / 'out' / '.unfinished').glob('*.part')).open('ab') as part:
      part.write(b'of a group in which a process was killed' * 500)
    safetensors.numpy.save_file(tensors, source)
    if not kept:
      with pytest.raises(ValueError, match=r'another run was stopped \(other extra.sha256.*remove'):
        run()
      shutil.rmtree(tmp_path / 'out' / '.unfinished')
    run()
    assert len(list((tmp_path / 'out').glob('model-*'))) > 1
    written = sorted(weights.named(store.load(tmp_path / 'out').params))
    assert sorted(before + sum(made, [])) == written
    assert sorted(os.listdir(tmp_path)) == ['model.safetensors', 'out']
    back = convert.publish(
        rules.FAMILIES[family], CONFIG, store.load(tmp_path / 'out').params)
    for key, tensor in tensors.items():
      np.testing.assert_array_equal(back[key], tensor)
    shutil.rmtree(tmp_path / 'out')
    safetensors.numpy.save_file(first, source)


def test_the_averaged_weights_are_taken_unless_asked_otherwise(tmp_path):
  source = tmp_path / 'last.pth'
  parts = [published.tensors('mar', sizes.MAR, seed) for seed in (0, 1)]
  torch_files.save_parts(source, dict(model=parts[0], model_ema=parts[1]))
  config = convert.convert_file('mar', source, tmp_path / 'out', options={'num_heads': 2})
  loaded = store.load(tmp_path / 'out')
  assert loaded.metadata['key'] == 'model_ema'
  for name, x in convert.publish(rules.get('mar'), config, loaded.params).items():
    np.testing.assert_array_equal(x, parts[1][name])
  for other, name in ((dict(key='model', prefer='model_ema'), 'model'), (dict(), 'model')):
    content = read.read(source, **other)
    assert content.key == name
    for key, x in parts[0].items():
      np.testing.assert_array_equal(content.tensors[key], x)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='other systems count otherwise')
@pytest.mark.parametrize('shards', [0, 1, 4])
def test_memory_is_that_of_some_tensors(tmp_path, shards):
  """Of a PyTorch file, and of one or four safetensors files."""
  config = llamagen.LlamaGenConfig(
      height=2, width=2, dim=1024, num_layers=10, num_heads=16, ffn_dim=2816, vocab_size=8192,
      num_classes=3)
  shapes = list(convert.published_shapes(rules.get('llamagen'), config).items())
  (tmp_path / 'in').mkdir()
  if not shards:
    torch_files.save(tmp_path / 'in' / 'pytorch_model.bin',
                     {name: np.ones(shape, np.float32) for name, shape in shapes})
  for i in range(shards):
    safetensors.numpy.save_file(
        {name: np.ones(shape, np.float32) for name, shape in shapes[i::shards]},
        tmp_path / 'in' / f'{i}.safetensors')
  size = sum(file.stat().st_size for file in (tmp_path / 'in').iterdir())
  program = (
      'import resource, sys, jax\n'
      'from checkpoints_conversion import command\n'
      'peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10\n'
      'jax.devices()\n'
      'before = peak()\n'
      'assert not command.main()\n'
      'print(peak() - before)')
  out = subprocess.run(
      [sys.executable, '-c', program, '--family=llamagen', f'--source={tmp_path}/in',
       '--num_heads=16', '--image_size=32', f'--output={tmp_path}/out'],
      env=os.environ | {'PYTHONPATH': str(_ROOT)}, cwd=_ROOT, check=True, capture_output=True,
      text=True).stdout
  assert size > 500e6 and int(out.split()[-1]) < 0.9 * size
