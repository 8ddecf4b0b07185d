"""Reading weight files without torch; files of torch itself are in `TestPickles`."""

import argparse
import collections
import json
import os
import pathlib
import pickle
import re
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from checkpoints_conversion import read
from tests.conversion import torch_files


def _tensors(seed=0):
  rng = np.random.default_rng(seed)
  return {'a.weight': rng.standard_normal((3, 4)).astype(np.float32),
          'b.bias': rng.standard_normal(5).astype(np.float16), 'empty': np.zeros((0, 2), np.int64)}


def _assert_same(result, expected):
  assert result.keys() == expected.keys()
  for name, tensor in expected.items():
    assert (result[name].dtype, result[name].shape) == (tensor.dtype, tensor.shape)
    np.testing.assert_array_equal(np.asarray(result[name]), tensor)


def test_safetensors_are_read_without_torch(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'torch', None)
  safetensors.numpy.save_file(_tensors(), tmp_path / 'x.safetensors', metadata={'format': 'pt'})
  _assert_same(read.read(tmp_path / 'x.safetensors').tensors, _tensors())


@pytest.mark.parametrize('dtype, name', [
    (ml_dtypes.bfloat16, 'BF16'), (np.float16, 'F16'), (np.float64, 'F64'), (np.bool_, 'BOOL'),
    (np.uint16, 'U16')])
def test_dtypes_of_safetensors(tmp_path, dtype, name):
  values = np.arange(6).reshape(2, 3).astype(dtype)
  size = values.nbytes
  header = json.dumps({'a': dict(dtype=name, shape=[2, 3], data_offsets=[0, size]),
                       'none': dict(dtype=name, shape=[0, 2], data_offsets=[size] * 2)}).encode()
  (tmp_path / 'x.safetensors').write_bytes(
      len(header).to_bytes(8, 'little') + header + values.tobytes())
  tensors = read.read(tmp_path / 'x.safetensors').tensors
  assert (tensors['a'].dtype, tensors['a'].shape, tensors['a'].nbytes) == (
      dtype, (2, 3), size)
  for _ in range(2):  # Every use reads it again.
    np.testing.assert_array_equal(np.asarray(tensors['a']), values, strict=True)
  assert np.asarray(tensors['none']).shape == (0, 2)


def test_a_folder_of_shards_is_one_model(tmp_path):
  first, second = {'a': np.ones(2)}, {'b': np.zeros(3)}
  safetensors.numpy.save_file(first, tmp_path / '1.safetensors')
  safetensors.numpy.save_file(second, tmp_path / '2.safetensors')
  _assert_same(read.read(tmp_path).tensors, {**first, **second})


def test_an_index_says_which_shards_belong_to_a_model(tmp_path):
  index = tmp_path / 'model.safetensors.index.json'
  safetensors.numpy.save_file({'a': np.ones(2)}, tmp_path / '1.safetensors')
  index.write_text(json.dumps({'weight_map': {'a': '1.safetensors'}}))
  for source in (tmp_path, index):
    _assert_same(read.read(source).tensors, {'a': np.ones(2)})
    assert read.sha256(source).keys() == {'1.safetensors'}
  index.write_text(json.dumps({'weight_map': {'a': '1.safetensors', 'b': '2.safetensors'}}))
  with pytest.raises(ValueError, match='where 2.safetensors is missing; download it'):
    read.read(tmp_path)


@pytest.mark.parametrize('suffix', ['safetensors', 'bin'])
def test_files_of_several_models_are_not_chosen_from(tmp_path, suffix):
  """A folder is saved again with another number of files, and the old ones stay."""
  name = {'safetensors': 'model', 'bin': 'pytorch_model'}[suffix]
  save = {'safetensors': lambda path, tensors: safetensors.numpy.save_file(tensors, path),
          'bin': torch_files.save}[suffix]
  tensors = {'a': np.ones(2, np.float32)}
  single, shard = tmp_path / f'{name}.{suffix}', tmp_path / f'{name}-00001-of-00001.{suffix}'
  index = tmp_path / f'{name}.{suffix}.index.json'
  index.write_text(json.dumps({'weight_map': {'a': shard.name}}))
  save(single, tensors)
  # A stale index beside a complete file, then a stale file beside newer shards.
  for absent in (f', of which {shard.name} is missing', ''):
    with pytest.raises(ValueError, match=(
        f'has {single.name} besides the files of {index.name}{absent}, so it may hold several '
        f'models; specify one as the source .{index}, {single}., or move')):
      read.read(tmp_path)
    assert read.files(single) == [single]
    save(shard, tensors)
  assert read.files(index) == [shard]
  single.unlink()
  other = tmp_path / f'{name}.{suffix}.index.fp16.json'
  other.write_text(index.read_text())
  with pytest.raises(ValueError, match=f'has the indexes {other.name}, {index.name}, so'):
    read.read(tmp_path)
  for path in (index, other):
    path.unlink()
  save(single, tensors)
  with pytest.raises(ValueError, match='repeats tensors of another file .* such as a, so they '
                     'are not parts of one model; specify one'):
    read.read(tmp_path)


def test_adapters_are_not_ignored(tmp_path):
  tensors = {'a': np.ones(2, np.float32)}
  torch_files.save(tmp_path / 'pytorch_model.bin', tensors)
  torch_files.save(tmp_path / 'adapter_model.bin', tensors)
  assert read.left_out(tmp_path) == ['adapter_model.bin']
  (tmp_path / 'adapter_config.json').write_text('{}')
  with pytest.raises(ValueError, match='with adapter_config.json, .* merge the adapter into'):
    read.read(tmp_path)
  _assert_same(read.read(tmp_path / 'pytorch_model.bin').tensors, tensors)


def test_files_of_other_formats_in_a_folder_are_named(tmp_path):
  tensors = {'a': np.ones(2, np.float32)}
  torch_files.save(tmp_path / 'pytorch_model.bin', tensors)
  torch_files.save(tmp_path / 'consolidated.00.pth', tensors)
  for name in ('._model.safetensors', '._model.safetensors.index.json'):
    (tmp_path / name).write_bytes(b'\0\5\x16\7' + bytes(60))
  assert [file.name for file in read.files(tmp_path)] == ['consolidated.00.pth']
  safetensors.numpy.save_file(tensors, tmp_path / 'model.safetensors')
  assert [file.name for file in read.files(tmp_path)] == ['model.safetensors']
  (tmp_path / 'vqgan.ckpt').touch()
  assert read.left_out(tmp_path) == [
      '._model.safetensors', 'consolidated.00.pth', 'pytorch_model.bin', 'vqgan.ckpt']
  assert not read.left_out(tmp_path / 'model.safetensors')


_ARRAYS = {'a': np.arange(3, dtype=np.float32)}


@pytest.mark.parametrize('save', [
    lambda path, tensors: safetensors.numpy.save_file(tensors, path), torch_files.save])
@pytest.mark.parametrize('name', [
    'x.safetensors', 'x.pt', 'x.pth', 'x.ckpt', 'pytorch_model.bin', 'x.part', 'x.safetensors.part',
    'x', 'consolidated.pth'])
def test_the_content_of_a_file_decides_and_not_its_name(tmp_path, save, name):
  save(tmp_path / name, _ARRAYS)
  _assert_same(read.read(tmp_path / name).tensors, _ARRAYS)
  if name in ('x.safetensors', 'pytorch_model.bin', 'consolidated.pth'):
    _assert_same(read.read(tmp_path).tensors, _ARRAYS)


def test_a_header_of_any_size_is_not_another_form(tmp_path):
  """Its bytes are the first ones of the file."""
  header = json.dumps({'a': {'dtype': 'F32', 'shape': [1], 'data_offsets': [0, 4]}}).encode()
  size = int.from_bytes(b'\x1f\x8b\x08' + bytes(5), 'little')  # The first bytes of gzip.
  (tmp_path / 'x.pt').write_bytes(
      size.to_bytes(8, 'little') + header.ljust(size) + np.float32(2).tobytes())
  _assert_same(read.read(tmp_path / 'x.pt').tensors, {'a': np.full(1, 2, np.float32)})


@pytest.mark.parametrize('name, message', [
    ('__0_0.distcp', r'a checkpoint of torch.distributed.checkpoint.*format_utils dcp_to_torch'),
    ('pytorch_model_fsdp_0/__1_0.distcp', 'of torch.distributed.checkpoint.*dcp_to_torch'),
    ('zero_pp_rank_0_mp_rank_00_optim_states.pt', 'of DeepSpeed.*zero_to_fp32.py'),
    ('bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt', 'of DeepSpeed.*zero_to_fp32.py'),
    ('global_step10/mp_rank_00_model_states.pt', 'of DeepSpeed.*zero_to_fp32.py'),
    ('actor/model_world_size_8_rank_3.pt', 'of FSDP, as verl .*python -m verl.model_merger merge')])
def test_checkpoints_of_several_processes_are_to_be_merged(tmp_path, name, message):
  (tmp_path / name).parent.mkdir(exist_ok=True)
  torch_files.save(tmp_path / name, _ARRAYS)
  is_whole = 'model_states' in name
  for source in (tmp_path, tmp_path / name):
    if source == tmp_path or not is_whole:
      with pytest.raises(ValueError, match='merge the checkpoint first') as error:
        read.read(source)
      assert re.search(message, str(error.value))
      assert (f', with {tmp_path / name}:' in str(error.value)) == (source == tmp_path)
  if is_whole:  # Without a division of the weights.
    _assert_same(read.read(tmp_path / name).tensors, _ARRAYS)
    assert 'merge the checkpoint first' in read.incomplete(tmp_path / name)
  safetensors.numpy.save_file(_ARRAYS, tmp_path / 'model.safetensors')
  _assert_same(read.read(tmp_path).tensors, _ARRAYS)  # The merged weights lie there, too.


def _consolidated(folder):
  for name in ('consolidated.pth', 'consolidated.00.pth'):
    torch_files.save(folder / name, _ARRAYS)


@pytest.mark.parametrize('write, name, key, message', [
    (lambda folder: None, 'x.pt', None, 'no such file'),
    (lambda folder: None, '', None, 'without .safetensors'),
    (lambda folder: os.mkfifo(folder / 'x.pt'), 'x.pt', None, 'neither a file nor a folder'),
    (lambda folder: safetensors.numpy.save_file(_ARRAYS, folder / 'x'), 'x', 'ema', "key is 'ema'"),
    (_consolidated, '', None, 'has consolidated.pth and consolidated.00.pth, so'),
    (lambda folder: safetensors.numpy.save_file({'module.a': np.ones(2), **_ARRAYS}, folder / 'x'),
     'x', None, 'a more than once')])
def test_missing_sources_and_parts_are_named(tmp_path, write, name, key, message):
  write(tmp_path)
  with pytest.raises(ValueError, match=message):
    read.read(tmp_path / name, key=key)


def test_prefixes_of_wrapped_modules_are_stripped(tmp_path):
  tensors = {'module._orig_mod.a': np.ones(2), '_orig_mod.b': np.ones(3), 'c.module.d': np.ones(1)}
  safetensors.numpy.save_file(tensors, tmp_path / 'x')
  assert {'a', 'b', 'c.module.d'} == read.read(tmp_path / 'x').tensors.keys()


def test_sha256_is_that_of_the_file(tmp_path):
  (tmp_path / 'x.safetensors').write_bytes(b'abc')
  expected = 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'
  assert read.sha256(tmp_path / 'x.safetensors') == {'x.safetensors': expected}
  (tmp_path / 'y.safetensors').write_bytes(b'abc')
  assert read.sha256(tmp_path) == {'x.safetensors': expected, 'y.safetensors': expected}


def test_other_parts_with_the_same_names_are_noted(tmp_path):
  path, ones, two = tmp_path / 'x.pt', np.ones(3, np.float32), np.ones(2, np.float32)
  torch_files.save_parts(path, {
      'model': {'a': ones, 'buffer': two}, 'shadow': {'a': ones, 'buffer': two},
      'ema': {'module.a': ones}, 'empty_ema': {}, 'scales': {'a': two},
      'ema_of_others': {'b': two}})
  part = read.read(path)
  assert part.tensors.keys() == {'a', 'buffer'} and part.notes == (
      'read model of x.pt, not shadow, ema, which --key=NAME selects',)
  part = read.read(path, prefer='ema')
  assert part.tensors.keys() == {'a'} and part.notes == (
      'read ema of x.pt, not model, shadow, which --key=NAME selects',)
  assert read.read(path, key='shadow').notes == ()
  for key in ('eam', 'empty_ema'):
    with pytest.raises(ValueError, match='parts of .* are: model, shadow, ema, scales, ema_of_oth'):
      read.read(path, key=key)


@pytest.mark.parametrize('names', [['ema'], ['params_ema', 'params'], ['model_state_dict']])
def test_the_flag_of_other_parts_is_named(tmp_path, names):
  tensors = {'a': np.ones(3, np.float32)}
  torch_files.save_parts(tmp_path / 'x.pt', {'model': {}, **dict.fromkeys(names, tensors)})
  with pytest.raises(ValueError, match=(
      'holds other values than tensors: model .* the part with the weights by --key=NAME: '
      f'{", ".join(names)}[.]')):
    read.read(tmp_path / 'x.pt')
  _assert_same(read.read(tmp_path / 'x.pt', key=names[0]).tensors, tensors)


class TestPickles:
  """Needs torch, which only reading pickles does."""

  @pytest.fixture
  def torch(self):
    return pytest.importorskip('torch')

  def _state(self, torch):
    return {name: torch.tensor(tensor) for name, tensor in _tensors().items()}

  @pytest.mark.parametrize('legacy', [False, True])
  @pytest.mark.parametrize('outer', [None, 'model', 'module', 'state_dict'])
  def test_weights_are_found_at_the_known_places(self, torch, tmp_path, outer, legacy):
    state = self._state(torch)
    content = state if outer is None else {
        outer: state, 'ema': {}, 'optimizer': {'lr': 0.1, 'state': {0: torch.ones(2)}},
        'steps': 7, 'args': argparse.Namespace(dropout=0.1)}
    torch.save(content, tmp_path / 'x.pt', _use_new_zipfile_serialization=not legacy)
    _assert_same(read.read(tmp_path / 'x.pt').tensors, _tensors())

  @pytest.mark.parametrize('legacy', [False, True])
  @pytest.mark.parametrize('protocol', [2, 3, 4, 5])
  def test_objects_beside_the_weights_are_left_out_and_not_run(
      self, torch, tmp_path, legacy, protocol):
    marker = tmp_path / 'was_run'

    class Foreign(dict):

      def __reduce__(self):
        return pathlib.Path.touch, (marker,), None, None, iter([('a', 1)])

    others = {'callbacks': {'{"monitor": "loss"}': Foreign()}, 'rng': [np.random.RandomState(0)],
              'numbers': (np.float64(3), np.arange(3), 2j, 1 << 300, {1}, frozenset(), b'x', 0.5),
              'optimizer': {0: collections.defaultdict(list, {(0, 'a'): torch.ones(2)})},
              'args': argparse.Namespace(path=pathlib.Path('x')), 'dtype': torch.float32,
              'counter': collections.Counter('aab'), 'net': torch.nn.Linear(1, 1)}
    torch.save({'model': self._state(torch), **others}, tmp_path / 'x.pt', pickle_protocol=protocol,
               _use_new_zipfile_serialization=not legacy)
    _assert_same(read.read(tmp_path / 'x.pt').tensors, _tensors())
    (tmp_path / 'y.pt').write_bytes(pickle.dumps(Foreign()))
    with pytest.raises(ValueError):
      read.read(tmp_path / 'y.pt')
    assert not marker.exists()

  @pytest.mark.parametrize('content, message', [
      ([1, 2], 'holds a list'), ({'a': 3}, r'a \(int\)'), ({'model': {'a': 'x'}}, r'a \(str\)')])
  def test_files_without_tensors_are_refused(self, torch, tmp_path, content, message):
    torch.save(content, tmp_path / 'x.pt')
    with pytest.raises(ValueError, match=message):
      read.read(tmp_path / 'x.pt')

  @pytest.mark.filterwarnings('ignore')
  def test_tensors_that_are_no_plain_arrays_are_named(self, torch, tmp_path):
    for tensor, message in [
        (torch.eye(2).to_sparse(), 'sparse_tensor'), (torch.empty(2, device='meta'), 'meta_tensor'),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), 'qtensor'),
        (torch.nested.nested_tensor([torch.ones(2)]), 'nested_tensor')]:
      torch.save({'a.weight': tensor}, tmp_path / 'x.pt')
      with pytest.raises(ValueError, match=f'a.weight .*{message}'):
        read.read(tmp_path / 'x.pt')

  @pytest.mark.parametrize('legacy', [False, True])
  def test_all_dtypes_and_strides(self, torch, tmp_path, legacy):
    """As torch has them, with attributes and as parameters."""
    values = torch.arange(24.).reshape(2, 3, 2, 2)
    wanted = {str(dtype): values.to(dtype) for dtype in (
        torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool, torch.complex64,
        torch.complex128)}
    wanted |= {'transposed': values.mT[1:], 'slice': values[1:, ::2], 'scalar': values[1, 1, 1, 1],
               'parameter': torch.nn.Parameter(values), 'buffer': torch.nn.Buffer(values),
               'last': values.to(memory_format=torch.channels_last),
               'row': values[0].expand(1, -1, -1, -1)}
    wanted['parameter'].attribute = 1
    content = wanted | {'bfloat16': values.to(torch.bfloat16)}
    torch.save(content, tmp_path / 'x.pt', _use_new_zipfile_serialization=not legacy)
    result = read.read(tmp_path / 'x.pt').tensors
    _assert_same(result, {name: tensor.detach().numpy() for name, tensor in wanted.items()} | {
        'bfloat16': values.numpy().astype(ml_dtypes.bfloat16)})


@pytest.mark.parametrize('name', ['../x.safetensors', '..', '', '{tmp}/x.safetensors',
                                  'a\nb.safetensors', 'sub/x.safetensors', 'pipe.safetensors',
                                  'folder.safetensors', 3, None, ['x']])
def test_names_in_an_index_lead_nowhere(tmp_path, name):
  folder = tmp_path / 'm'
  for place in (tmp_path, folder / 'sub', folder / 'folder.safetensors'):
    place.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file({'a': np.ones(2)}, place / 'x.safetensors')
  os.mkfifo(folder / 'pipe.safetensors')
  name = name.format(tmp=tmp_path) if isinstance(name, str) else name
  (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': {'a': name}}))
  with pytest.raises(ValueError, match='index.json.*(holds the name|is damaged)'):
    read.read(folder)


def test_files_of_an_index_may_be_links(tmp_path):
  """So they are in the cache of the hub."""
  safetensors.numpy.save_file({'a': np.ones(2)}, tmp_path / 'blob')
  (tmp_path / 'm').mkdir()
  (tmp_path / 'm' / 'x.safetensors').symlink_to('../blob')
  (tmp_path / 'm' / 'model.safetensors.index.json').write_text(
      json.dumps({'weight_map': {'a': 'x.safetensors'}}))
  _assert_same(read.read(tmp_path / 'm').tensors, {'a': np.ones(2)})


@pytest.mark.parametrize('told', [10**11, 101, 0, -1, [1], '2', 1.5, True, {}])
def test_numbers_of_files_that_cannot_be(tmp_path, told):
  (tmp_path / 'consolidated.00.pth').write_bytes(b'')
  (tmp_path / 'params.json').write_text(json.dumps({'model_parallel_size': told}))
  with pytest.raises(ValueError, match='has model_parallel_size .* from 1 to 100'):
    read.files(tmp_path)
