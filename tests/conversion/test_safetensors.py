"""Safetensors files: what the official package accepts is read, and nothing else."""

import json
import random

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from checkpoints_conversion import read


def _file(header, data=b'', length=None):
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  return (len(text) if length is None else length).to_bytes(8, 'little') + text + data


def _tensor(first=0, last=8, dtype='F32', shape=(2,), **more):
  return {'dtype': dtype, 'shape': list(shape), 'data_offsets': [first, last], **more}


_TEXT = json.dumps(_tensor())
# What is wrong, the file, and words of the message.
BROKEN = {
    'empty': (b'', '0 bytes'),
    'no header': (b'\0' * 7, '7 bytes'),
    'header past the end': (_file({}, length=1 << 62), 'a header of'),
    'header of zero bytes': (_file(b''), 'not JSON'),
    'cut JSON': (_file(b'{"a": '), 'Expecting value'),
    'another JSON': (_file([1]), 'not JSON'),
    'spaces before JSON': (_file(b' {}'), 'not JSON'),
    'other encoding': (_file(b'{"\xff": 1}'), 'utf-8'),
    'depth': (_file(b'{"a":' + b'[' * 100_000), 'not one of tensors'),
    'metadata of numbers': (_file({'__metadata__': {'a': 1}}), 'metadata'),
    'a name twice': (_file(f'{{"a": {_TEXT}, "a": {_TEXT}}}'.encode(), b'\0' * 8), "'a' is there"),
    'no tensor': (_file({'a': 3}), "'a' must have dtype"),
    'more than a tensor': (_file({'a': _tensor(more=1)}, b'\0' * 8), "'a' must have dtype"),
    'unknown dtype': (_file({'a': _tensor(dtype='F31')}, b'\0' * 8), "dtype 'F31'; it can be: F64"),
    'negative shape': (_file({'a': _tensor(shape=(-1, -2))}, b'\0' * 8), r'shape \[-1, -2\]'),
    'fractional shape': (_file({'a': _tensor(shape=(2.0,))}, b'\0' * 8), r'shape \[2.0\]'),
    'shape of flags': (_file({'a': _tensor(0, 4, shape=(True,))}, b'\0' * 4), r'shape \[True\]'),
    'huge shape': (_file({'a': _tensor(shape=(1 << 40, 1 << 40))}, b'\0' * 8), 'has 8 bytes'),
    'shape of too many bytes': (_file({'a': _tensor(shape=(3,))}, b'\0' * 8), 'has 8 bytes'),
    'negative offsets': (_file({'a': _tensor(-8, 0)}, b'\0' * 8), r'data_offsets \[-8, 0\]'),
    'backward offsets': (_file({'a': _tensor(8, 0)}, b'\0' * 8), r'data_offsets \[8, 0\]'),
    'one offset': (_file({'a': _tensor() | {'data_offsets': [0]}}, b'\0' * 8), 'data_offsets'),
    'huge offsets': (_file({'a': _tensor(0, 1 << 70, shape=(1 << 68,))}), 'tensors end at byte'),
    'overlap': (_file({'a': _tensor(), 'b': _tensor(4, 12)}, b'\0' * 12), "'b' begins at 4"),
    'the same place': (_file({'a': _tensor(), 'b': _tensor()}, b'\0' * 8), "'b' begins at 0"),
    'hole': (_file({'a': _tensor(), 'b': _tensor(12, 20)}, b'\0' * 20), "'b' begins at 12"),
    'hole at the beginning': (_file({'a': _tensor(4, 12)}, b'\0' * 12), "'a' begins at 4"),
    'bytes at the end': (_file({'a': _tensor()}, b'\0' * 9), 'tensors end at byte'),
    'missing bytes': (_file({'a': _tensor()}, b'\0' * 7), 'tensors end at byte'),
}
# What the official package lets pass.
LENIENT = ('spaces before JSON', 'a name twice', 'more than a tensor')


@pytest.mark.parametrize('name', BROKEN)
def test_broken_files_are_refused(tmp_path, name):
  data, message = BROKEN[name]
  path = tmp_path / 'x.safetensors'
  path.write_bytes(data)
  with pytest.raises(read.ReadError, match=f'(?s)not a complete safetensors file.*{message}'):
    read.read(path)
  if name not in LENIENT:
    with pytest.raises((safetensors.SafetensorError, ValueError)):
      safetensors.numpy.load(data)


def test_a_header_that_is_too_long_is_not_read(tmp_path):
  path = tmp_path / 'x.safetensors'
  with path.open('wb') as file:
    file.write((200_000_000).to_bytes(8, 'little'))
    file.truncate(300_000_000)  # Takes no place on the disk.
  with pytest.raises(read.ReadError, match='a header of 200000000'):
    read.read(path)


@pytest.mark.parametrize('dtype, name', [
    (ml_dtypes.bfloat16, 'BF16'), (ml_dtypes.float8_e4m3fn, 'F8_E4M3'),
    (ml_dtypes.float8_e5m2, 'F8_E5M2'), (np.float16, 'F16'), (np.bool_, 'BOOL')])
def test_dtypes(tmp_path, dtype, name):
  values = np.arange(6).reshape(2, 3).astype(dtype)
  header = {'a': _tensor(0, values.nbytes, name, (2, 3)),
            'none': _tensor(values.nbytes, values.nbytes, name, (0, 2))}
  (tmp_path / 'x.safetensors').write_bytes(_file(header, values.tobytes()))
  found = read.read(tmp_path / 'x.safetensors').tensors
  assert found['a'].dtype == dtype and found['none'].shape == (0, 2)
  np.testing.assert_array_equal(found['a'], values)


def _changed(data, header, rng):
  """The file with a change in one of its regions: length, header, numbers, end."""
  first, last = rng.choice([(0, 8), (8, 8 + header), (8 + header, len(data))])
  place = rng.randrange(first, last)
  return rng.choice([
      lambda: data[:place],
      lambda: data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1:],
      lambda: data[:place] + rng.randbytes(rng.randrange(1, 9)) + data[place:],
      lambda: data[:place] + data[place + rng.randrange(1, 9):],
      lambda: data + rng.randbytes(rng.randrange(1, 9)),
  ])()


@pytest.mark.parametrize('seed', range(4))
def test_any_change_is_read_as_the_official_package_does_or_refused(tmp_path, seed):
  rng = random.Random(seed)
  tensors = {'a.weight': np.arange(12, dtype=np.float32).reshape(3, 4),
             'b': np.arange(5, dtype=np.int64), 'c': np.array(3, np.float16)}
  data = safetensors.numpy.save(tensors, {'format': 'pt'})
  header, path, read_ones = int.from_bytes(data[:8], 'little'), tmp_path / 'x.safetensors', 0
  for _ in range(250):
    changed = _changed(data, header, rng)
    path.write_bytes(changed)
    try:
      expected = safetensors.numpy.load(changed)
    except (safetensors.SafetensorError, ValueError, KeyError):
      expected = None
    try:
      found = read.read(path).tensors
    except read.ReadError as error:
      # We are the stricter ones, for instance on names that are there twice.
      assert 'not a complete safetensors file' in str(error)
      continue
    read_ones += 1
    assert expected is not None and found.keys() == expected.keys()
    for name, tensor in expected.items():
      assert found[name].tobytes() == tensor.tobytes() and found[name].shape == tensor.shape
  assert read_ones > 10
