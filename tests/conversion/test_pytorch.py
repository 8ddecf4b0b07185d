"""PyTorch files are read as data: their tensors, without memory or programs for anything else.

The bytes `script` of `tests/data/cosmos.npz` were written by `torch.jit.save` of torch 2.14 for a
scripted module with a parameter `scale`, the view `arange(6).reshape(3, 2).T[:, 1:]` of float32, a
text, a list, and a module `layer` with a bfloat16 parameter `weight`, `arange(6).reshape(2, 3)`,
and an integer buffer `count`, 7 and 8.
"""

import pickle
import tracemalloc
import warnings
import zipfile

import ml_dtypes
import numpy as np
import pytest

from checkpoints_conversion import convert, pickles, read, rules
from cspd_jax.files import reading
from tests.builders import published
from tests.conversion import torch_files as files

SOUND = files.mapping({'a': files.tensor(shape=(3,))})


@pytest.fixture
def script(tmp_path):
  """The recorded file."""
  path = tmp_path / 'encoder.jit'
  path.write_bytes(published.recorded('cosmos')['script'].tobytes())
  return path


def test_tensors_are_those_of_the_module(script):
  tensors = {name: np.asarray(tensor) for name, tensor in read.read(script).tensors.items()}
  assert tensors.keys() == {'scale', 'layer.weight', 'layer.count'}
  assert tensors['scale'].tolist() == [[2, 4], [3, 5]]
  assert tensors['layer.weight'].dtype == ml_dtypes.bfloat16
  assert tensors['layer.weight'].astype(float).tolist() == [[0, 1, 2], [3, 4, 5]]
  assert tensors['layer.count'].tolist() == [7, 8]


def test_torch_agrees(script):
  torch = pytest.importorskip('torch')
  state, tensors = torch.jit.load(script).state_dict(), read.read(script).tensors
  assert state.keys() == tensors.keys()
  for name, value in state.items():
    np.testing.assert_array_equal(
        np.asarray(tensors[name]).astype(np.float64), value.double().numpy())


def test_two_files_are_one_source(script, tmp_path):
  with pytest.raises(ValueError, match='where decoder.jit is missing; download it'):
    read.read(tmp_path)
  (tmp_path / 'decoder.jit').write_bytes(script.read_bytes())
  with pytest.raises(ValueError, match='repeats tensors of another file'):
    read.read(tmp_path)
  with pytest.raises(ValueError, match="key is 'ema'; the parts .* are: none, so leave it out"):
    read.read(script, key='ema')
  with pytest.raises(rules.ConversionError, match='The file is not a Cosmos-Tokenizer DV'):
    convert.open_source('cosmos_dv', script)


@pytest.mark.parametrize('write', [files.archive, files.series])
def test_sound_files_are_read_without_torch(tmp_path, write):
  values = {'a': files.tensor(offset=1, shape=(2, 1), strides=(2, 5)), 'b': files.NOTHING,
            'none': files.tensor(shape=(0, 7), strides=(7, 1))}
  write(tmp_path / 'x.pt', files.mapping(values))
  tensors = read.read(tmp_path / 'x.pt').tensors
  assert {name: np.asarray(tensor).tolist() for name, tensor in tensors.items()} == {
      'a': [[1], [3]], 'none': []}
  assert [(tensor.shape, tensor.dtype, tensor.nbytes) for tensor in tensors.values()] == [
      ((2, 1), np.float32, 8), ((0, 7), np.float32, 0)]


def _memo(index):
  return pickle.LONG_BINPUT + index.to_bytes(4, 'little')


# A module in two attributes of another one, which is in two of the next, and so on.
_SHARED = files.module() + pickle.BINPUT + b'\0' + b''.join(
    pickle.POP + files.module(a=pickle.BINGET + bytes([i]), b=pickle.BINGET + bytes([i])) +
    pickle.BINPUT + bytes([i + 1]) for i in range(30))
_FLOAT32 = files.name('torch', 'float32')
_BYTES = files.storage(16, '0', files.name('torch.storage', 'UntypedStorage'))
_SIZES, _LARGER = 'a tensor with impossible sizes', 'is larger than its storage'
_NO_STORAGE, _INSTEAD = 'refers to something that is no storage', r'a \(torch._utils._rebuild'
# What a stranger may write, and the reason for which it is refused.
ATTACKS = {
    # Places outside of a storage.
    'too many': (files.tensor(shape=(5,)), _LARGER),
    'past the end': (files.tensor(offset=3, shape=(2,)), _LARGER),
    'far away': (files.tensor(shape=(2,), strides=(1 << 47,)), _LARGER),
    'rows': (files.tensor(offset=1, shape=(2, 2), strides=(2, 1)), _LARGER),
    'negative offset': (files.tensor(offset=-1), _SIZES),
    'negative stride': (files.tensor(offset=3, shape=(2,), strides=(-1,)), _SIZES),
    'negative shape': (files.tensor(shape=(-4,)), _SIZES),
    'overflow': (files.tensor(shape=(1 << 33, 1 << 33), strides=(0, 0)), _SIZES),
    'overflow of strides': (files.tensor(shape=(2, 2), strides=(1 << 63, 1 << 63)), _SIZES),
    'overflow beside 0': (files.tensor(shape=(0, 1 << 62, 1 << 62), strides=(0,) * 3), _SIZES),
    'axes': (files.tensor(shape=(1,) * 33, strides=(1,) * 33), _SIZES),
    'fewer strides': (files.tensor(shape=(2, 2)), _SIZES),
    'sizes in a list': (files.tensor(shape=(), strides=()).replace(b'(t', b']'), _SIZES),
    'true as a size': (files.tensor(offset=9).replace(files.number(9), pickle.NEWTRUE), _SIZES),
    'bytes as numbers': (files.tensor(_BYTES, 0, (5,), (1,), _FLOAT32, version=3), _LARGER),
    'bytes without dtype': (files.tensor(_BYTES), _SIZES),
    # Storages that are none.
    'tensor of a tensor': (files.tensor(files.tensor(shape=(4,), strides=(0,))), _INSTEAD),
    'tensor of numbers': (files.tensor(files.number(3)), _INSTEAD),
    'storage of a text': (files.text('storage') + pickle.BINPERSID, _NO_STORAGE),
    'storage of a class': (files.storage(4, '0', files.text('FloatStorage')), _NO_STORAGE),
    'negative storage': (files.storage(-1), _NO_STORAGE),
    'huge storage': (files.tensor(files.storage(1 << 60)), _NO_STORAGE),
    'larger storage': (files.tensor(files.storage(5)), 'does not hold the 20 bytes of storage'),
    'missing storage': (files.tensor(files.storage(4, '1')), "does not hold .* of storage '1'"),
    'storage elsewhere': (files.tensor(files.storage(4, '../data/0')), 'does not hold'),
    'storage twice': (files.tupled(files.storage(), files.storage(2)), 'in two ways'),
    'view of a storage': (files.storage(4, '0', files.name('torch', 'FloatStorage'),
                                        files.tupled()), 'views of storages'),
    'another class': (files.storage(4, '0', files.name('os', 'Storage')), "of class 'os.Storage'"),
    # Memory.
    'memo': (pickle.NEWTRUE + _memo((1 << 32) - 1), r'a \(bool'),
    'nested key': (pickle.EMPTY_DICT + b')' + pickle.TUPLE1 * 10**5 + b'Ns', r'a \(dict'),
    'text': (pickle.BINUNICODE + b'\xff' * 4, 'cut off or too long'),
    'long text': (pickle.BINUNICODE8 + b'\xff' * 8, 'cut off or too long'),
    'long number': (pickle.LONG4 + b'\xff' * 4, 'cut off or too long'),
    'name without end': (pickle.GLOBAL + b'x' * 5000, 'a name that does not end'),
    # Classes and functions.
    'state of a class': (files.name('__torch__', 'Net') + files.mapping(
        {'__setstate__': files.name('builtins', 'eval')}) + pickle.BUILD, 'sets attributes'),
    'state of a storage': (files.storage() + b'}b', 'sets attributes'),
    'state of a tensor': (files.tensor() + b'}b', 'sets attributes'),
    'items of a storage': (files.storage() + b'NNs', 'sets items'),
    'items of a tuple': (b')Na', 'appends to'),
    'registered': (pickle.EXT1 + b'\1', 'has the instruction'),
    'buffers': (pickle.NEXT_BUFFER, 'has the instruction'),
    # Damage.
    'nothing to call': (pickle.REDUCE, 'a value that is missing'),
    'below a mark': (b'N(a', 'a value that is missing'),
    'no mark': (b't', 'a mark that is missing'),
    'no memo': (pickle.BINGET + b'\7', 'has not stored'),
    'one item': (b'}(Nu', 'sets items'),
}


def test_tensors_that_share_numbers(tmp_path, monkeypatch):
  """Many large tensors in a small file are refused before one is read, and so is a repeated one."""
  monkeypatch.setattr(reading, '_MAX_UNPACKED', 1 << 16)
  tensors = {str(i): files.tensor() for i in range(5000)}
  files.archive(tmp_path / 'x.pt', files.mapping(tensors), {'m/data/0': bytes(16)})
  assert len(read.read(tmp_path / 'x.pt').tensors) == 5000
  many = pickle.EMPTY_DICT + files.tensor(files.storage(4096)) + pickle.BINPUT + b'\1' + pickle.POP
  many += b''.join(files.text(str(i)) + pickle.BINGET + b'\1' + pickle.SETITEM for i in range(9000))
  files.archive(tmp_path / 'x.pt', many.replace(files.number(4), files.number(4096)),
                {'m/data/0': bytes(4 * 4096)})
  with pytest.raises(ValueError, match='its tensors have .* bytes and the file'):
    read.read(tmp_path / 'x.pt')
  files.archive(tmp_path / 'x.pt', files.mapping({
      'a': files.tensor(shape=(1 << 40,), strides=(0,))}))
  tensor = read.read(tmp_path / 'x.pt').tensors['a']
  assert tensor.dtype == 'float32 that repeats its numbers'
  with pytest.raises(ValueError, match='cannot be read as numbers'):
    np.asarray(tensor)


def test_nothing_that_a_file_names_is_called(tmp_path, monkeypatch):
  """Objects beside the weights are left out, and no file changes how a later one is read."""
  monkeypatch.chdir(tmp_path)
  command = files.call(files.name('os', 'system'), files.text('touch opened'))
  values = {'state_dict': SOUND, 'callbacks': command, 'hyper_parameters': files.mapping({
      'a': files.name('omegaconf.dictconfig', 'DictConfig') + b')\x81}b',
      'b': files.call(files.name('numpy.core.multiarray', 'scalar'), files.NOTHING)})}
  files.archive(tmp_path / 'x.ckpt', files.mapping(values))
  assert read.read(tmp_path / 'x.ckpt').tensors.keys() == {'a'}
  files.archive(tmp_path / 'x.jit', files.module(__setstate__=command, a=files.tensor()))
  for _ in range(2):
    assert read.read(tmp_path / 'x.jit').tensors.keys() == {'a'}
  for value, message in ((command, 'holds a posix.system|holds a os.system'),
                         (files.mapping({'a': command}), r'a \(os.system\)'),
                         (files.name('my\x1b[2J.models', 'Net') + b')\x81', r'models.Net')):
    files.archive(tmp_path / 'x.pt', value)
    with pytest.raises(ValueError, match=message) as raised:
      read.read(tmp_path / 'x.pt')
    assert '\x1b' not in str(raised.value)
  assert not (tmp_path / 'opened').exists()


def _listed_as(path, member, **fields):
  """Changes what the list of an archive's members says of one; `extra` is what it adds."""
  data = path.read_bytes()
  start = data.index(b'PK\1\2')
  while data[start + 46:start + 46 + len(member)] != member:
    start = data.index(b'PK\1\2', start + 1)
  end, extra = start + 46 + len(member), fields.pop('extra', b'')
  entry = bytearray(data[start:end])
  for name, value in {**fields, 'extra_size': len(extra)}.items():
    place, size = {'flags': (8, 2), 'compressed': (20, 4), 'size': (24, 4), 'extra_size': (30, 2),
                   'start': (42, 4)}[name]
    entry[place:place + size] = value.to_bytes(size, 'little')
  last = bytearray(data[end:])
  place = last.index(b'PK\5\6') + 12
  size = int.from_bytes(last[place:place + 4], 'little') + len(extra)
  last[place:place + 4] = size.to_bytes(4, 'little')
  path.write_bytes(data[:start] + entry + extra + last)


_MANY = (1 << 32) - 1
LISTS = {
    'larger': dict(size=1000, compressed=1000), 'size of another': dict(size=20, compressed=16),
    'encrypted': dict(flags=1), 'elsewhere': dict(start=7), 'behind the end': dict(start=10**6),
    'ZIP64': dict(size=_MANY, compressed=_MANY, extra=b'\1\0\x10\0' + (
        (1 << 62).to_bytes(8, 'little') * 2)),
    'ZIP64, elsewhere': dict(start=_MANY, extra=b'\1\0\x08\0' + b'\xff' * 8),
    'ZIP64, cut off': dict(size=_MANY, extra=b'\1\0\x08\0'),
}


def _lying(member, fields):
  def write(path):
    files.archive(path, SOUND)
    _listed_as(path, member, **fields)
  return write


def _members(path, *names):
  """Writes an archive of members, each with the instructions of a sound file."""
  with zipfile.ZipFile(path, 'w') as file, warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of two members of one name.
    for name in names:
      file.writestr(name, pickle.PROTO + b'\2' + SOUND + b'.')


def _archive(value, **members):
  return lambda path: files.archive(path, value, {
      'm/data/0': files.NUMBERS.tobytes(), **{f'm/{name}': x for name, x in members.items()}})


_DEEP = 'the names of its tensors have more than'
# By name: writes a file; the reason for which it is refused.
REFUSED = {
    **{name: (_archive(b'}' + files.text('a') + value + b's'), words)
       for name, (value, words) in ATTACKS.items()},
    # Trees of modules.
    'shared': (_archive(_SHARED), _DEEP), 'in itself': (_archive(files.module(
        a=pickle.BINGET + b'\0').replace(b')\x81', b')\x81q\0')), _DEEP),
    'a name twice': (_archive(files.module(**{
        'a.b': files.tensor(), 'a': files.module(b=files.tensor())})), 'several tensors'),
    'a class': (_archive(files.name('__torch__', 'Net')), 'holds a __torch__.Net'),
    'a part of a tensor': (_archive(files.mapping({'a': files.call(
        files.name('torch.distributed.tensor', 'DTensor'))})),
                           'a .torch.distributed.tensor.DTensor.; .*so merge its'),
    # Members.
    **{f'{name} {member}': (_lying(member, fields),
                            'not a complete PyTorch file|compressed or encrypted')
       for member in (b'm/data/0', b'm/data.pkl') for name, fields in LISTS.items()},
    'two pickles': (lambda path: _members(path, 'm/data.pkl', 'n/data.pkl'),
                    '2 members data.pkl.*download it again'),
    'another order': (_archive(SOUND, byteorder=b'big'), 'little-endian order; load it with a'),
    'two storages': (lambda path: _members(path, 'm/data.pkl', 'm/data/0', 'm/data/0'),
                     'several members of one name'),
    **{f'only {name}': (lambda path, name=name: _members(path, name),
                        f'x.pt is a zip archive, which holds {name}; unpack it')
       for name in ('m/other', 'm/mydata.pkl', 'm/n/data.pkl', 'data.pkl')},
    'compressed': (lambda path: files.archive(
        path, SOUND, {'m/data/0': bytes(10**7)}, zipfile.ZIP_DEFLATED),
                   r"'m/data.pkl' is compressed or encrypted.*; load it with"),
    # Such a tensor must not be what was in the memory that it gets.
    **{f'series {options}': (lambda path, options=options: files.series(path, SOUND, **options),
                             'list of storages|does not hold the 16 bytes') for options in (
        dict(keys=()), dict(keys=('1',)), dict(keys=('0', '0')), dict(count=3),
        dict(count=1 << 62), dict(numbers=bytes(15)))}}


@pytest.mark.parametrize('name', REFUSED)
def test_no_memory_is_read_or_taken(tmp_path, name):
  write, words = REFUSED[name]
  write(tmp_path / 'x.pt')
  tracemalloc.start()
  with pytest.raises(ValueError, match=words):
    list(map(np.asarray, read.read(tmp_path / 'x.pt').tensors.values()))
  assert tracemalloc.get_traced_memory()[1] < 20 << 20
  tracemalloc.stop()


@pytest.mark.parametrize('owner, limit, write, words', [
    (pickles, '_MOST_STEPS', _archive(pickle.EMPTY_SET * 1001), 'more than 1000 instructions'),
    (reading._ListedBriefly, 'limit', _archive(SOUND, **{f'data/{i}': bytes(16) for i in range(
        20)}), 'the list of its members has .* more than 1000')])
def test_no_time_is_taken(tmp_path, monkeypatch, owner, limit, write, words):
  monkeypatch.setattr(owner, limit, 1000)
  write(tmp_path / 'x.pt')
  with pytest.raises(ValueError, match=words):
    read.read(tmp_path / 'x.pt')


def test_sizes_of_64_bits(tmp_path):
  """As in files of more than 4 GB."""
  files.archive(tmp_path / 'x.pt', SOUND)
  _listed_as(tmp_path / 'x.pt', b'm/data/0', size=_MANY, compressed=_MANY,
             extra=b'\1\0\x10\0' + (16).to_bytes(8, 'little') * 2)
  assert np.asarray(read.read(tmp_path / 'x.pt').tensors['a']).tolist() == [0, 1, 2]


def test_changed_numbers_are_found(tmp_path):
  """Where the whole of a storage is read."""
  files.archive(tmp_path / 'x.pt', files.mapping({'a': files.tensor()}))
  data = (tmp_path / 'x.pt').read_bytes()
  (tmp_path / 'x.pt').write_bytes(data.replace(files.NUMBERS.tobytes(), bytes(16)))
  with pytest.raises(ValueError, match='x.pt is damaged: numbers do not have their checksum'):
    np.asarray(read.read(tmp_path / 'x.pt').tensors['a'])


def test_dtypes_without_numbers(tmp_path):
  """What NumPy does not have, and what is stored negated, is told of where it is needed."""
  float8 = files.tensor(files.storage(4, '1', files.name('torch.storage', 'UntypedStorage')),
                        0, (4,), (1,), files.name('torch', 'float8_e4m3fn'), version=3)
  negated = files.tensor(None, 0, (4,), (1,), files.mapping({'neg': pickle.NEWTRUE}))
  files.archive(tmp_path / 'x.pt', files.mapping({'a': float8, 'b': negated, 'c': files.tensor()}),
                {'m/data/0': files.NUMBERS.tobytes(), 'm/data/1': b'8888'})
  tensors = read.read(tmp_path / 'x.pt').tensors
  assert [str(tensor.dtype) for tensor in tensors.values()] == [
      'float8_e4m3fn', 'float32 that is stored negated or conjugated', 'float32']
  assert [tensor.shape for tensor in tensors.values()] == [(4,)] * 3
