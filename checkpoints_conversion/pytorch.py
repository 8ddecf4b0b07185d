"""Files like those of `torch.save` and `torch.jit.save`, read and written without PyTorch.

A file is a zip archive, in which a pickle describes the values and each storage is a member; before
PyTorch 1.6 it is a series of pickles with the storages behind them. Nothing in the pickles is
called (see `pickles`), and a tensor is only a place in the file, which is compared with the file's
size before a number is read. PyTorch never compresses storages, so compressed ones are refused.
The files that `save` writes are archives of the same form.
"""

import dataclasses
import functools
import io
import math
import os
import pathlib
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from checkpoints_conversion import pickles, tensors as tensors_lib
from cspd_jax.files import atomic, reading

# By their names in PyTorch.
_DTYPES = {name: np.dtype(dtype) for name, dtype in {
    'float64': np.float64, 'float32': np.float32, 'float16': np.float16,
    'bfloat16': ml_dtypes.bfloat16, 'complex128': np.complex128, 'complex64': np.complex64,
    'int64': np.int64, 'int32': np.int32, 'int16': np.int16, 'int8': np.int8,
    'uint64': np.uint64, 'uint32': np.uint32, 'uint16': np.uint16, 'uint8': np.uint8,
    'bool': np.bool_}.items()}
# What the names of storages say of the dtype.
_STORAGES = {
    'Double': 'float64', 'Float': 'float32', 'Half': 'float16', 'BFloat16': 'bfloat16',
    'ComplexDouble': 'complex128', 'ComplexFloat': 'complex64', 'Long': 'int64', 'Int': 'int32',
    'Short': 'int16', 'Char': 'int8', 'Byte': 'uint8', 'Bool': 'bool', 'QInt8': 'qint8',
    'QUInt8': 'quint8', 'QInt32': 'qint32', 'QUInt4x2': 'quint4x2', 'QUInt2x4': 'quint2x4'}
# Bytes of an element, where NumPy has no such dtype.
_WIDTHS = {None: 1, 'qint8': 1, 'quint8': 1, 'qint32': 4, 'quint4x2': 1, 'quint2x4': 1}
# The first numbers of files without an archive.
_MAGIC, _PROTOCOL = 0x1950a86a20f9469cfc6c, 1001
# Axes of a tensor, and elements of a storage or a tensor.
_MOST_AXES, _MOST_ELEMENTS = 32, 1 << 48
# Letters of all names of tensors in a tree of modules.
_MOST_NAMES = 1 << 23
_SCRIPTED = '__torch__.'
# What precedes the name of a member: magic, fields that its list repeats, lengths of name and rest.
_HEADER = struct.Struct('<4s22sHH')


@dataclasses.dataclass(eq=False, slots=True)
class _Storage:
  """The numbers of one or several tensors.

  Attributes:
    dtype: name of their dtype; None if only their tensors specify it.
    size: their bytes.
    start: their first byte in the file; None until it is known.
    crc: their checksum, or None.
  """

  dtype: str | None
  size: int
  start: int | None = None
  crc: int | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Stored:
  """A tensor in a file.

  Attributes:
    storage: the storage of its numbers.
    dtype: name of its dtype.
    offset: its first number in the storage.
    shape: its shape.
    strides: numbers from one element of an axis to the next one, by axis.
    note: what else has to be known to use its numbers, or ''.
  """

  storage: _Storage
  dtype: str
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]
  note: str

  @property
  def span(self) -> int:
    """Numbers from the first to the last one in the storage."""
    if 0 in self.shape:
      return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))


class OtherForm(ValueError):
  """A file is complete, in a form that is not read."""


def load(path: pathlib.Path) -> Any:
  """Returns what a file holds: mappings, lists and plain values with tensors among them.

  A `Stored` stands for a tensor, a mapping of names to them for a scripted module, and a
  `pickles.Object` for any other object. Raises OtherForm if the file is complete but of a form that
  is not read, and ValueError if it is damaged, or needs more memory than its size explains.
  """
  try:
    with path.open('rb') as stream:
      size = os.fstat(stream.fileno()).st_size
      is_archive = stream.read(4) == b'PK\3\4'
      content = _load_archive(path, stream, size) if is_archive else _load_series(stream, size)
    is_scripted = isinstance(content, pickles.Object) and content.name.startswith(_SCRIPTED)
    return _of_module(content) if is_scripted else content
  except (MemoryError, OtherForm):
    raise
  except Exception as error:  # Damaged files raise almost anything.
    reason = str(error) or type(error).__name__
    raise ValueError(f'it is not a complete PyTorch file ({reason:.300})') from error


def arrays(path: pathlib.Path, tensors: Mapping[str, Stored]) -> dict[str, tensors_lib.AnyTensor]:
  """Returns tensors of a file as arrays that are read when they are used.

  Raises ValueError if they are much larger than the file, because they share numbers.
  """
  total = sum(stored.span * _DTYPES[stored.dtype].itemsize
              for stored in tensors.values() if stored.dtype in _DTYPES)
  reading.check_total('tensors', total, path.stat().st_size)
  return {name: _array(path, stored) for name, stored in tensors.items()}


def _array(path: pathlib.Path, stored: Stored) -> tensors_lib.AnyTensor:
  dtype = _DTYPES.get(stored.dtype)
  problem = stored.note if dtype else stored.dtype
  if dtype and math.prod(stored.shape) * dtype.itemsize > stored.storage.size:
    problem = f'{stored.dtype} that repeats its numbers'
  if dtype is None or problem:
    return tensors_lib.Unusable(stored.shape, problem)
  return tensors_lib.Tensor(stored.shape, dtype, functools.partial(_read, path, stored, dtype))


def _read(path: pathlib.Path, stored: Stored, dtype: np.dtype) -> np.ndarray:
  """Reads the numbers of a tensor, and compares the checksum if they are all of its storage."""
  storage, size = stored.storage, stored.span * dtype.itemsize
  if not size:
    return np.zeros(stored.shape, dtype)
  assert storage.start is not None
  with path.open('rb') as stream:
    stream.seek(storage.start + stored.offset * dtype.itemsize)
    content = stream.read(size)
  if len(content) < size or (
      storage.crc and size == storage.size and zlib.crc32(content) != storage.crc):
    raise ValueError(f'{path} is damaged: numbers do not have their checksum, or are missing; '
                     'download it again.')
  return np.lib.stride_tricks.as_strided(
      np.frombuffer(content, dtype), stored.shape,
      [stride * dtype.itemsize for stride in stored.strides], writeable=False)


class _Storages:
  """The storages that a pickle names."""

  def __init__(self) -> None:
    self.by_key: dict[str, _Storage] = {}
    self.counts: dict[str, int] = {}

  def of(self, pid: Any) -> Any:
    """Returns the storage of an id: `('storage', class, key, device, number of elements)`.

    In old files, modules have ids too: `('module', class, file of its program, program)`.
    """
    if type(pid) is tuple and len(pid) == 4 and pid[0] == 'module':
      return pid[1]
    if not (type(pid) is tuple and len(pid) in (5, 6) and pid[0] == 'storage' and
            type(pid[1]) is pickles.Name and type(pid[2]) is str and _is_size(pid[4])):
      raise ValueError('its pickle refers to something that is no storage')
    if len(pid) == 6 and pid[5] is not None:
      raise OtherForm('it has views of storages, which only old PyTorch wrote')
    dtype, key, count = _dtype_of(pid[1].name), pid[2], pid[4]
    if key not in self.by_key:
      self.by_key[key] = _Storage(dtype, count * _width(dtype))
      self.counts[key] = count
    elif (self.by_key[key].dtype, self.counts[key]) != (dtype, count):
      raise ValueError(f'it describes storage {key!r:.80} in two ways')
    return self.by_key[key]


def _is_size(value: Any) -> bool:
  return type(value) is int and 0 <= value <= _MOST_ELEMENTS


def _dtype_of(name: str) -> str | None:
  """Returns the dtype of a class of storages by its name, None for one of bytes."""
  if re.fullmatch(r'torch\.(storage\.)?_?UntypedStorage', name):
    return None
  match = re.fullmatch(r'torch\.(?:cuda\.)?(\w+)Storage', name)
  if match is None or match[1] not in _STORAGES:
    raise ValueError(f'it has a storage of class {name!r:.80}')
  return _STORAGES[match[1]]


def _width(dtype: str | None) -> int:
  return _DTYPES[dtype].itemsize if dtype in _DTYPES else _WIDTHS[dtype]


def _call(name: str, arguments: tuple) -> Any:
  """Returns the value of a call in a pickle: a tensor, a mapping, or an `Object` for any other."""
  if name == 'collections.OrderedDict' and not arguments:
    return {}
  if name in _TENSORS and arguments and type(arguments[0]) is _Storage:
    return _tensor(_TENSORS[name], *arguments)
  if name in _WRAPPERS and arguments and type(arguments[0]) is Stored:
    return arguments[0]
  if (name == 'torch._tensor._rebuild_from_type_v2' and len(arguments) == 4 and
      all(type(value) is pickles.Name for value in arguments[:2]) and
      arguments[1].name in _CLASSES and type(arguments[2]) is tuple and
      arguments[0].name in {**_TENSORS, **_WRAPPERS}):
    return _call(arguments[0].name, arguments[2])
  return pickles.Object(name)


# By name, where the arguments of a function have the dtype and what else is to be known.
_TENSORS: dict[str, tuple[int | None, int | None]] = {
    'torch._utils._rebuild_tensor': (None, None), 'torch._utils._rebuild_tensor_v2': (None, 6),
    'torch._utils._rebuild_tensor_v3': (6, 7)}
_WRAPPERS = dict.fromkeys(('torch._utils._rebuild_parameter',
                           'torch._utils._rebuild_parameter_with_state'))
_CLASSES = ('torch.Tensor', 'torch.nn.parameter.Parameter', 'torch.nn.parameter.Buffer')


def _tensor(places: tuple[int | None, int | None], storage: _Storage, offset: Any = None,
            shape: Any = None, strides: Any = None, *rest: Any) -> Stored:
  """Returns a tensor, after a comparison with its storage in whole numbers of any size."""
  values = (storage, offset, shape, strides, *rest)
  dtype_at, flags_at = places
  dtype = storage.dtype
  if dtype_at is not None:
    name = values[dtype_at] if len(values) > dtype_at else None
    if type(name) is not pickles.Name:
      raise ValueError('it has a tensor without a dtype')
    dtype = name.name.removeprefix('torch.')[:80]
  flags = values[flags_at] if flags_at is not None and len(values) > flags_at else None
  if not (dtype and _is_size(offset) and
          all(type(sizes) is tuple and len(sizes) <= _MOST_AXES and all(map(_is_size, sizes))
              for sizes in (shape, strides))
          and len(shape) == len(strides)
          and math.prod(size or 1 for size in shape) <= _MOST_ELEMENTS):
    raise ValueError('it has a tensor with impossible sizes')
  # Of other dtypes no number is read.
  is_set = type(flags) is dict and any(value is not False for value in flags.values())
  note = f'{dtype} that is stored negated or conjugated' if is_set else ''
  result = Stored(storage, dtype, offset, shape, strides, note)
  if dtype in _DTYPES and result.span and (
      (offset + result.span) * _width(dtype) > storage.size):
    raise ValueError(f'it has a tensor of shape {shape}, which is larger than its storage')
  return result


def _load_archive(path: pathlib.Path, stream: BinaryIO, size: int) -> Any:
  with reading.open_zip(path) as archive:
    members = archive.infolist()
  by_name = {member.filename: member for member in members}
  if len(by_name) < len(members):
    raise ValueError('its archive has several members of one name')
  roots = [match[1] for name in by_name if (match := re.fullmatch(r'([^/]+/)data\.pkl', name))]
  if len(roots) != 1:
    raise ValueError(f'its archive has {len(roots)} members data.pkl instead of one')
  root = roots[0]
  order = by_name.get(f'{root}byteorder')
  if order is not None and _content(stream, order, size, 16) != b'little':
    raise OtherForm('its numbers are not stored in little-endian order')
  data = _content(stream, by_name[f'{root}data.pkl'], size, pickles.MOST_BYTES)
  storages = _Storages()
  value = pickles.Reader(io.BytesIO(data), len(data), _call, storages.of).load()
  for key, storage in storages.by_key.items():
    member = by_name.get(f'{root}data/{key}')
    if member is None or member.file_size < storage.size:
      raise ValueError(f'it does not hold the {storage.size} bytes of storage {key!r:.80}')
    storage.start = _start(stream, member, size)
    if member.file_size == storage.size:
      storage.crc = member.CRC  # 0 if PyTorch did not compute it.
  return value


def _content(stream: BinaryIO, member: zipfile.ZipInfo, size: int, most: int) -> bytes:
  start = _start(stream, member, size)
  if member.file_size > most:
    raise ValueError(f'{member.filename!r:.80} has {member.file_size} bytes, more than {most}')
  stream.seek(start)
  content = stream.read(member.file_size)
  if member.CRC and zlib.crc32(content) != member.CRC:
    raise ValueError(f'{member.filename!r:.80} does not have its checksum')
  return content


def _start(stream: BinaryIO, member: zipfile.ZipInfo, size: int) -> int:
  """Returns the first byte of a member in a file of `size` bytes, which holds all of it."""
  name = f'{member.filename!r:.80}'
  if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
    raise OtherForm(f'{name} is compressed or encrypted, which torch.save does not do')
  if 0 <= member.header_offset <= size - _HEADER.size:
    stream.seek(member.header_offset)
    magic, *_, name_size, extra_size = _HEADER.unpack(stream.read(_HEADER.size))
    start = member.header_offset + _HEADER.size + name_size + extra_size
    if magic == b'PK\3\4' and start + member.file_size <= size and (
        member.file_size == member.compress_size):
      return start
  raise ValueError(f'{name} is not in the file with the size that its archive has for it')


def _load_series(stream: BinaryIO, size: int) -> Any:
  """Returns the values of a file of PyTorch before 1.6: five pickles, then the storages."""
  stream.seek(0)
  if stream.read(1) != pickle.PROTO:
    raise ValueError('it does not begin like one')
  stream.seek(0)
  storages = _Storages()
  reader = pickles.Reader(stream, min(size, pickles.MOST_BYTES), _call, storages.of)
  if reader.load() != _MAGIC or reader.load() != _PROTOCOL:
    raise ValueError('it does not begin like one')
  system = reader.load()
  if type(system) is not dict or type(system.get('little_endian')) is not bool:
    raise ValueError('it does not say the order of its bytes')
  if not system['little_endian']:
    raise OtherForm('its numbers are not stored in little-endian order')
  value, keys = reader.load(), reader.load()
  if type(keys) is not list or not all(type(key) is str for key in keys):
    raise ValueError('it has no list of storages')
  if sorted(keys) != sorted(storages.by_key):
    raise ValueError('its list of storages is not that of its tensors')
  for key in keys:
    storage = storages.by_key[key]
    count = int.from_bytes(stream.read(8), 'little')
    storage.start = stream.tell()
    if count != storages.counts[key] or storage.start + storage.size > size:
      raise ValueError(f'it does not hold the {storage.size} bytes of storage {key!r:.80}')
    stream.seek(storage.size, os.SEEK_CUR)
  return value


def _of_module(root: pickles.Object) -> dict[str, Stored]:
  """Returns the tensors in a tree of scripted modules by name, as `state_dict` names them."""
  result: dict[str, Stored] = {}
  letters, pending = 0, [('', _attributes(root))]
  while pending:
    prefix, attributes = pending[-1]
    name, value = next(attributes, (None, None))
    if name is None:
      pending.pop()
      continue
    # A module in many others has many names, and one in itself endlessly many.
    letters += len(prefix) + len(name) + 1
    if letters > _MOST_NAMES:
      raise ValueError(f'the names of its tensors have more than {_MOST_NAMES} letters')
    if isinstance(value, Stored):
      if result.setdefault(prefix + name, value) is not value:
        raise ValueError(f'it has several tensors {prefix + name!r:.80}')
    elif isinstance(value, pickles.Object) and value.name.startswith(_SCRIPTED):
      pending.append((f'{prefix}{name}.', _attributes(value)))
  return result


def _attributes(module: pickles.Object) -> Iterator[tuple[str, Any]]:
  state: dict[Any, Any] = module.state if isinstance(module.state, dict) else {}
  return ((name, value) for name, value in state.items() if isinstance(name, str))


# By dtype, the class of the storages that `save` writes.
_CLASS_OF = {_DTYPES[dtype]: f'{kind}Storage' for kind, dtype in _STORAGES.items()
             if dtype in ('float64', 'float32', 'float16', 'bfloat16')}
# The first byte of a storage is at a multiple of it, so that it can be mapped into memory. The room
# before it is a field of the archive of this type, with four bytes of type and length.
_ALIGNMENT, _FILLER = 64, struct.Struct('<HH')
_FILLER_TYPE = 0x4246
# Bytes of the field with sizes of 64 bits, which every member has.
_LONG_SIZES = 20


def save(path: pathlib.Path, tensors: Iterable[tuple[str, np.ndarray]],
         keys: Sequence[str] = ()) -> None:
  """Writes tensors by name as `torch.save` writes a state dict; reads them one after the other.

  `torch.load(weights_only=True)` reads the file. Equal tensors give equal bytes, and the file is
  complete whenever it exists. With `keys` it is a mapping that has the state dict under each key;
  the numbers are stored once.
  """
  table: list[bytes] = []
  with atomic.writing(path) as stream, zipfile.ZipFile(stream, 'w') as archive:
    for name, array in tensors:
      if array.dtype not in _CLASS_OF:
        raise ValueError(f'{name} is {array.dtype}; files of PyTorch are written with: '
                         f'{", ".join(map(str, _CLASS_OF))}.')
      # In blocks of rows, because the array may be in another order in memory.
      rows = array.reshape(1) if array.ndim == 0 else array
      with _member(stream, archive, f'data/{len(table)}', array.nbytes) as member:
        for block in np.array_split(rows, max(1, min(len(rows), array.nbytes >> 24))):
          member.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
      table.append(_pickled_tensor(name, len(table), array))
    state = pickle.EMPTY_DICT + pickle.MARK + b''.join(table) + pickle.SETITEMS
    # Memo 0 is the state dict, which the other keys recall.
    parts = [_pickled(key) + (pickle.BINGET + b'\0' if number else state + pickle.BINPUT + b'\0')
             for number, key in enumerate(keys)]
    value = (pickle.EMPTY_DICT + pickle.MARK + b''.join(parts) + pickle.SETITEMS) if keys else state
    for member, content in {'data.pkl': pickle.PROTO + b'\2' + value + pickle.STOP,
                            'byteorder': b'little', 'version': b'3\n'}.items():
      with _member(stream, archive, member, len(content)) as part:
        part.write(content)


def _member(stream: BinaryIO, archive: zipfile.ZipFile, name: str, size: int) -> Any:
  """Returns a stream to the next member of an archive, which begins at a multiple of bytes."""
  member = zipfile.ZipInfo(f'archive/{name}')  # With the first date of archives.
  start = stream.tell() + _HEADER.size + len(member.filename) + _LONG_SIZES + _FILLER.size
  room = -start % _ALIGNMENT
  member.extra = _FILLER.pack(_FILLER_TYPE, room) + b'Z' * room
  member.file_size = size
  return archive.open(member, 'w', force_zip64=True)


def _pickled(value: Any) -> bytes:
  """Returns the instructions that push a text or a whole number of at least 0, or a tuple of them.
  """
  if isinstance(value, str):
    data = value.encode()
    return pickle.BINUNICODE + len(data).to_bytes(4, 'little') + data
  if isinstance(value, tuple):
    return pickle.MARK + b''.join(map(_pickled, value)) + pickle.TUPLE
  data = value.to_bytes(value.bit_length() // 8 + 1, 'little')
  return pickle.LONG1 + bytes([len(data)]) + data


def _pickled_name(module: str, name: str) -> bytes:
  return pickle.GLOBAL + f'{module}\n{name}\n'.encode()


def _pickled_tensor(name: str, number: int, array: np.ndarray) -> bytes:
  """Returns the instructions that push the name of a tensor and its description."""
  strides = tuple(math.prod(array.shape[axis + 1:]) for axis in range(array.ndim))
  storage = (pickle.MARK + _pickled('storage') + _pickled_name('torch', _CLASS_OF[array.dtype]) +
             _pickled(str(number)) + _pickled('cpu') + _pickled(array.size) + pickle.TUPLE +
             pickle.BINPERSID)
  hooks = (_pickled_name('collections', 'OrderedDict') + pickle.EMPTY_TUPLE + pickle.REDUCE)
  return (_pickled(name) + _pickled_name('torch._utils', '_rebuild_tensor_v2') + pickle.MARK +
          storage + _pickled(0) + _pickled(array.shape) + _pickled(strides) + pickle.NEWFALSE +
          hooks + pickle.TUPLE + pickle.REDUCE)
