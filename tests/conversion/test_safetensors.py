"""Safetensors files: complete ones are read, damaged ones are refused with one message."""

import json
import random

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from checkpoints_conversion import read


def _file(header, data=b'', length=None):
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  return (len(text) if length is None else length).to_bytes(8, 'little') + text + data


def _tensor(first=0, last=8, dtype='F32', shape=(2,)):
  return {'dtype': dtype, 'shape': list(shape), 'data_offsets': [first, last]}


BROKEN = {
    'empty': b'',
    'no header': b'\0' * 7,
    'header past the end': _file({}, length=1 << 62),
    'cut JSON': _file(b'{"a": '),
    'another JSON': _file([1]),
    'other encoding': _file(b'{"\xff": 1}'),
    'depth': _file(b'{"a":' + b'[' * 100_000),
    'not a tensor': _file({'a': 3}),
    'unknown dtype': _file({'a': _tensor(dtype='F31')}, b'\0' * 8),
    'negative shape': _file({'a': _tensor(shape=(-1, -2))}, b'\0' * 8),
    'huge shape': _file({'a': _tensor(shape=(1 << 40, 1 << 40))}, b'\0' * 8),
    'shape of too many bytes': _file({'a': _tensor(shape=(3,))}, b'\0' * 8),
    'backward offsets': _file({'a': _tensor(8, 0)}, b'\0' * 8),
    'overlap': _file({'a': _tensor(), 'b': _tensor(4, 12)}, b'\0' * 12),
    'hole': _file({'a': _tensor(), 'b': _tensor(12, 20)}, b'\0' * 20),
    'bytes at the end': _file({'a': _tensor()}, b'\0' * 9),
    'a name twice': _file(b'{"a": %s, "a": %s}' % ((json.dumps(_tensor()).encode(),) * 2),
                          b'\0' * 8),
    'missing bytes': _file({'a': _tensor()}, b'\0' * 7),
}


@pytest.mark.parametrize('name', BROKEN)
def test_broken_files_are_refused(tmp_path, name):
  path = tmp_path / 'x.safetensors'
  path.write_bytes(BROKEN[name])
  with pytest.raises(ValueError, match='not a complete safetensors file.*; download it again'):
    read.read(path)


def test_a_header_that_is_too_long_is_not_read(tmp_path):
  path = tmp_path / 'x.safetensors'
  with path.open('wb') as file:
    file.write((200_000_000).to_bytes(8, 'little'))
    file.truncate(300_000_000)  # Uses no space on the disk.
  with pytest.raises(ValueError, match='header too large'):
    read.read(path)


@pytest.mark.parametrize('dtype, name', [
    (ml_dtypes.bfloat16, 'BF16'), (np.float16, 'F16'), (np.float64, 'F64'), (np.bool_, 'BOOL'),
    (np.uint16, 'U16')])
def test_dtypes(tmp_path, dtype, name):
  values = np.arange(6).reshape(2, 3).astype(dtype)
  header = {'a': _tensor(0, values.nbytes, name, (2, 3)),
            'none': _tensor(values.nbytes, values.nbytes, name, (0, 2))}
  (tmp_path / 'x.safetensors').write_bytes(_file(header, values.tobytes()))
  tensors = read.read(tmp_path / 'x.safetensors').tensors
  assert (tensors['a'].dtype, tensors['a'].shape, tensors['a'].nbytes) == (
      dtype, (2, 3), values.nbytes)
  for _ in range(2):  # Every use reads it again.
    np.testing.assert_array_equal(np.asarray(tensors['a']), values, strict=True)
  assert np.asarray(tensors['none']).shape == (0, 2)


def _changed(data, header, rng):
  """The file with a change in one of its regions: length, header, numbers, end."""
  first, last = rng.choice([(0, 8), (8, 8 + header), (8 + header, len(data))])
  position = rng.randrange(first, last)
  start, end = data[:position], data[position:]
  return rng.choice([
      lambda: start,
      lambda: start + bytes([end[0] ^ 1 << rng.randrange(8)]) + end[1:],
      lambda: start + rng.randbytes(rng.randrange(1, 9)) + end,
      lambda: start + end[rng.randrange(1, 9):],
      lambda: data + rng.randbytes(rng.randrange(1, 9)),
  ])()


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(2))
def test_any_change_is_read_or_refused(tmp_path, seed):
  rng = random.Random(seed)
  tensors = {'a.weight': np.arange(12, dtype=np.float32).reshape(3, 4),
             'b': np.arange(5, dtype=np.int64), 'c': np.array(3, np.float16)}
  data = safetensors.numpy.save(tensors, {'format': 'pt'})
  header, path, num_read = int.from_bytes(data[:8], 'little'), tmp_path / 'x.safetensors', 0
  for _ in range(250):
    path.write_bytes(_changed(data, header, rng))
    try:
      result = read.read(path).tensors
    except ValueError:
      continue
    num_read += 1
    for tensor in result.values():
      assert np.asarray(tensor).nbytes == tensor.nbytes
  assert num_read > 10
