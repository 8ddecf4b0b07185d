"""The strict driver, and the command line around it."""

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
from checkpoints_conversion.rules import family as family_lib
from cspd_jax.files import store, weights
from cspd_jax.models import llamagen, vq
from tests.conversion import torch_files

_ROOT = pathlib.Path(__file__).parents[2]
MODELS = {
    'class': ('llamagen', llamagen.LlamaGenConfig(
        height=2, width=2, dim=16, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=24,
        vocab_size=12, num_classes=3)),
    'text': ('llamagen', llamagen.LlamaGenConfig(
        conditioning='text', height=2, width=2, dim=16, num_layers=1, num_heads=2, ffn_dim=24,
        vocab_size=12, caption_dim=6)),
    'vq': ('llamagen_vq', vq.VQConfig(
        ch_mult=(1, 2), num_res_blocks=1, z_channels=4, codebook_size=9, codebook_dim=2)),
}
OPTIONS = {'class': {'image_size': 32, 'num_heads': 2}, 'text': {'image_size': 32, 'num_heads': 2},
           'vq': {}}


def _published(name, seed=0):
  family, config = MODELS[name]
  rng, shapes = np.random.default_rng(seed), convert.published_shapes(
      rules.FAMILIES[family], config)
  return {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


@pytest.mark.parametrize('name', MODELS)
def test_there_and_back_is_exact(name):
  family, config = rules.FAMILIES[MODELS[name][0]], MODELS[name][1]
  tensors = _published(name)
  params = convert.convert(family, config, tensors)
  expected = jax.eval_shape(
      lambda: store.KINDS[family.kind].init(config, jax.random.key(0)))
  assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, expected)
  back = convert.publish(family, config, params)
  assert back.keys() == tensors.keys()
  for key, tensor in tensors.items():
    np.testing.assert_array_equal(back[key], tensor)


@pytest.mark.parametrize('dtype', [np.uint8, np.int8, np.uint32, np.int32])
def test_packed_weights_are_recognised_before_their_sizes(dtype):
  """Of bitsandbytes, AWQ, GPTQ and MLX, in a folder whose config does not mention them."""
  tensors = _published('class')
  name = 'layers.0.attention.wqkv.weight'
  tensors[name] = np.zeros((tensors[name].size // 2, 1), dtype)
  with pytest.raises(convert.ConversionError, match=(
      rf'quantised: {name} is {np.dtype(dtype)} of shape .*; save weights as float16')):
    convert.of_tensors('llamagen', tensors, {}, metadata=dict, options=OPTIONS['class'])


def test_one_of_several_files_is_recognised(tmp_path):
  tensors, names = _published('vq'), [f'model-0000{i}-of-00002.safetensors' for i in (1, 2)]
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
  family, config = rules.FAMILIES['llamagen'], MODELS['class'][1]
  tensors = _published('class')
  del tensors['layers.1.attention.wo.weight'], tensors['norm.weight']
  tensors['layers.2.attention.wo.weight'] = np.zeros((16, 16), np.float32)
  tensors['output.bias'] = np.zeros(12, np.float32)
  tensors['tok_embeddings.weight'] = np.zeros((13, 16), np.float32)
  tensors['layers.0.ffn_norm.weight'] = np.zeros(16, np.int32)
  with pytest.raises(rules.ConversionError) as caught:
    convert.convert(family, config, tensors)
  for line in ('missing: layers.1.attention.wo.weight (16, 16)', 'missing: norm.weight (16,)',
               'unexpected: layers.2.attention.wo.weight (16, 16)', 'unexpected: output.bias',
               'mis-shaped: tok_embeddings.weight is (13, 16), the model needs (12, 16)',
               'mis-typed: layers.0.ffn_norm.weight is int32'):
    assert line in str(caught.value)


@pytest.mark.parametrize('form', ['.safetensors', '.pt', 'memory'])
def test_weights_of_float8_are_refused_in_every_form(tmp_path, form):
  """They need scales, which no network here has; a tensor that is not needed may have any dtype."""
  path, options = tmp_path / f'x{form}', OPTIONS['class']
  tensors = _published('class') | dict.fromkeys(
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


@pytest.mark.slow
@pytest.mark.parametrize('name, leftovers', [
    ('class', ['freqs_cis', 'causal_mask', 'layers.0.attention.kv_cache.k_cache',
               'layers.0.attention.kv_cache.v_cache']),
    ('vq', ['quantize.codebook_used'])])
def test_known_leftovers_are_ignored_and_no_others(name, leftovers):
  family, config = rules.FAMILIES[MODELS[name][0]], MODELS[name][1]
  tensors = {**_published(name), **{key: np.zeros(3) for key in leftovers}}
  convert.convert(family, config, tensors)
  other = rules.FAMILIES['llamagen' if name == 'vq' else 'llamagen_vq']
  with pytest.raises(rules.ConversionError) as caught:
    convert.convert(family._replace(leftovers=other.leftovers), config, tensors)
  assert all(f'unexpected: {key}' in str(caught.value) for key in leftovers)


@pytest.mark.slow
@pytest.mark.parametrize('name', MODELS)
def test_files_become_checkpoints_of_inferred_sizes(name, tmp_path):
  family, config = MODELS[name]
  tensors = _published(name)
  safetensors.numpy.save_file(tensors, tmp_path / 'model.safetensors')
  made = convert.convert_file(family, tmp_path / 'model.safetensors', tmp_path / 'out',
                              options=OPTIONS[name])
  assert made == config
  loaded = store.load(tmp_path / 'out')
  assert loaded.config == config
  assert loaded.metadata['source'] == 'model.safetensors'
  assert loaded.metadata['sha256'] == read.sha256(tmp_path / 'model.safetensors')
  back = convert.publish(rules.FAMILIES[family], config, loaded.params)
  for key, tensor in tensors.items():
    np.testing.assert_array_equal(back[key], tensor)


@pytest.mark.parametrize('arguments, message', [
    (dict(family_name='gpt'), "family is 'gpt'.*llamagen, llamagen_vq"),
    (dict(model='c2i_z'), "model is 'c2i_z'.*c2i_b_256"),
    (dict(model='c2i_b_256'), 'unexpected|mis-shaped'),
    (dict(model='c2i_b_256', options={'num_heads': 2}), 'num_heads: only without model'),
    ({}, 'num_heads, image_size cannot be inferred .*width 16 with 2 layers is not a published .*'
     'Specify --num_heads=N --image_size=PIXELS. Or specify model'),
    (dict(options={'image_size': 32}), 'num_heads cannot be inferred.*Specify --num_heads=N[.]'),
    (dict(options={'num_heads': 2}), 'image_size cannot be inferred.*Specify --image_size=PIXELS'),
    (dict(options={'height': 2, 'width': 2}),
     'height, width: not an option for .* its options are --image_size=PIXELS --num_heads=N[.]'),
    (dict(options={'num_heads': 3, 'image_size': 32}), 'num_heads is 3'),
    (dict(options={'num_heads': 2, 'image_size': 30}), 'image_size is 30'),
    (dict(family_name='llamagen_vq'), 'not a LlamaGen image tokenizer'),
])
def test_inputs_that_do_not_fit_are_explained(arguments, message, tmp_path):
  source = tmp_path / 'model.safetensors'
  safetensors.numpy.save_file(_published('class'), source)
  arguments = {'family_name': 'llamagen', 'source': source, 'output': tmp_path / 'out', **arguments}
  with pytest.raises(ValueError, match=message):
    convert.convert_file(**arguments)
  assert not (tmp_path / 'out').exists()


def test_narrow_tokenizers_are_refused():
  shapes = {key: tensor.shape for key, tensor in _published('vq').items()}
  narrow = {**shapes, 'encoder.conv_blocks.0.res.0.conv1.weight': (64, 64, 3, 3)}
  with pytest.raises(rules.ConversionError, match='64, 256'):
    family_lib.infer(rules.FAMILIES['llamagen_vq'], narrow, {})


def _run(*arguments):
  # A stand-in for an installation without torch.
  code = ("import sys; sys.modules['torch'] = None; sys.argv[0] = 'convert'; import runpy; "
          "runpy.run_module('checkpoints_conversion.command', run_name='__main__')")
  return subprocess.run(
      [sys.executable, '-c', code, *arguments], cwd=_ROOT, capture_output=True, text=True,
      env={**os.environ, 'JAX_PLATFORMS': 'cpu'}, check=False)


def test_command_line_converts_pytorch_files_without_torch(tmp_path):
  torch_files.save(tmp_path / 'model.pt', _published('class'))
  done = _run('--family=llamagen', f'--source={tmp_path}/model.pt',
              f'--output={tmp_path}/out', '--image_size=32', '--num_heads=2', '--dtype=bfloat16')
  assert done.returncode == 0, done.stderr
  assert store.load(tmp_path / 'out/target').params['label_embedding'].dtype == 'bfloat16'


@pytest.mark.slow
def test_command_line_answers_bad_input_with_one_message_and_code_2(tmp_path):
  (tmp_path / 'model.pt').write_bytes(b'PK')
  common = ['--family=llamagen', f'--output={tmp_path}/out', f'--source={tmp_path}/model.pt']
  for arguments, message in [(['--famly=x'], 'famly'), (common[:2], '--source must be specified'),
                             (common, 'not a complete PyTorch file')]:
    done = _run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize('number', [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named_as_published(tmp_path, number):
  tensors = _published('class')
  tensors['layers.1.attention.wqkv.weight'][5, 3] = number
  safetensors.numpy.save_file(tensors, tmp_path / 'model.safetensors')
  arguments = dict(source=tmp_path / 'model.safetensors', output=tmp_path / 'deep' / 'out',
                   options=OPTIONS['class'])
  with pytest.raises(ValueError, match=f'tensor layers.1.attention.wqkv.weight .*such as {number}'):
    convert.convert_file('llamagen', **arguments)
  assert os.listdir(tmp_path) == ['model.safetensors']
  convert.convert_file('llamagen', allow_nonfinite=True, **arguments)
  loaded = store.load(tmp_path / 'deep' / 'out', allow_nonfinite=True)
  assert sum((~np.isfinite(leaf)).sum() for leaf in jax.tree.leaves(loaded.params)) == 1


def test_stopped_conversions_go_on_if_the_source_is_the_same(tmp_path, monkeypatch):
  monkeypatch.setattr(weights, '_GROUP', 3000)  # Bytes: some groups of some tensors.
  family, _ = MODELS['class']
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
    convert.convert_file(family, source, tmp_path / 'out', options=OPTIONS['class'],
                         progress=progress)

  monkeypatch.setattr(weights, '_append', counted)
  monkeypatch.setattr(weights, '_LARGEST', 10_000)
  first, second = _published('class', 0), _published('class', 1)
  safetensors.numpy.save_file(first, source)
  for tensors, kept in ((first, True), (second, False)):
    with pytest.raises(KeyboardInterrupt):
      run(stop)
    assert not (tmp_path / 'out').exists() and len(made) == 2
    before = sum(made, []) if kept else []
    with max((tmp_path / '.out.unfinished' / 'new').glob('*.part')).open('ab') as part:
      part.write(b'of a group in which a process was killed' * 500)
    safetensors.numpy.save_file(tensors, source)
    run()
    assert len(list((tmp_path / 'out').glob('model-*'))) > 1
    written = sorted(weights.named(store.load(tmp_path / 'out').params))
    assert sorted(before + sum(made, [])) == written
    assert sorted(os.listdir(tmp_path)) == ['model.safetensors', 'out']
    back = convert.publish(
        rules.FAMILIES[family], MODELS['class'][1], store.load(tmp_path / 'out').params)
    for key, tensor in tensors.items():
      np.testing.assert_array_equal(back[key], tensor)
    shutil.rmtree(tmp_path / 'out')
    safetensors.numpy.save_file(first, source)


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
