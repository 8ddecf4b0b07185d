"""Files like those of `torch.save`, without PyTorch and with any content: sound ones and others.

Every function returns instructions of a pickle, which push one value.
"""

import pickle
import zipfile

import numpy as np

NOTHING = pickle.NONE


def text(value: str) -> bytes:
  data = value.encode()
  return pickle.BINUNICODE + len(data).to_bytes(4, 'little') + data


def number(value: int) -> bytes:
  data = value.to_bytes(value.bit_length() // 8 + 1, 'little', signed=True)
  return pickle.LONG1 + bytes([len(data)]) + data


def tupled(*values: bytes) -> bytes:
  return pickle.MARK + b''.join(values) + pickle.TUPLE


def name(module: str, attribute: str) -> bytes:
  return pickle.GLOBAL + f'{module}\n{attribute}\n'.encode()


def call(function: bytes, *arguments: bytes) -> bytes:
  return function + tupled(*arguments) + pickle.REDUCE


def mapping(values: dict[str, bytes]) -> bytes:
  items = b''.join(text(key) + value for key, value in values.items())
  return pickle.EMPTY_DICT + pickle.MARK + items + pickle.SETITEMS


def module(**attributes: bytes) -> bytes:
  """A scripted module."""
  return (name('__torch__', 'Net') + pickle.EMPTY_TUPLE + pickle.NEWOBJ + mapping(attributes) +
          pickle.BUILD)


def storage(count: int = 4, key: str = '0', kind: bytes = name('torch', 'FloatStorage'),
            *rest: bytes) -> bytes:
  return tupled(text('storage'), kind, text(key), text('cpu'), number(count),
                *rest) + pickle.BINPERSID


def tensor(of: bytes | None = None, offset: int = 0, shape: tuple[int, ...] = (4,),
           strides: tuple[int, ...] = (1,), *rest: bytes, version: int = 2) -> bytes:
  return call(name('torch._utils', f'_rebuild_tensor_v{version}'), of or storage(), number(offset),
              tupled(*map(number, shape)), tupled(*map(number, strides)), pickle.NEWFALSE,
              call(name('collections', 'OrderedDict')), *rest)


NUMBERS = np.arange(4, dtype=np.float32)


def archive(path, value: bytes, members: dict[str, bytes] | None = None,
            compression: int = zipfile.ZIP_STORED) -> None:
  """Writes an archive, by default with the storage '0' of four numbers."""
  members = {'m/data/0': NUMBERS.tobytes()} if members is None else members
  with zipfile.ZipFile(path, 'w', compression) as file:
    for member, content in {'m/data.pkl': pickle.PROTO + b'\2' + value + pickle.STOP,
                            **members}.items():
      file.writestr(member, content)


def series(path, value: bytes, keys: tuple[str, ...] = ('0',), count: int = 4,
           numbers: bytes = NUMBERS.tobytes()) -> None:
  """Writes a file of PyTorch before 1.6, by default with the storage '0' of four numbers."""
  head = [pickle.dumps(part, 2) for part in (
      0x1950a86a20f9469cfc6c, 1001, {'little_endian': True})]
  listed = pickle.dumps(list(keys), 2)
  path.write_bytes(b''.join(head) + b'\x80\2' + value + b'.' + listed +
                   count.to_bytes(8, 'little') + numbers)


def save(path, arrays: dict[str, np.ndarray], key: str | None = None) -> None:
  """Writes arrays of float32 and float8 as `torch.save` does, as a part of the file with a key."""
  tensors, members = _stored(arrays)
  archive(path, mapping(tensors if key is None else {key: mapping(tensors)}), members)


def save_parts(path, parts: dict[str, dict[str, np.ndarray]]) -> None:
  """Writes several state dicts, as training programs do."""
  values, members = {}, {}
  for part, arrays in parts.items():
    tensors, more = _stored(arrays, len(members))
    values[part], members = mapping(tensors), members | more
  archive(path, mapping(values), members)


def save_described(path, arrays: dict[str, np.ndarray], label: str, arguments: dict) -> None:
  """Writes arrays with the name and the arguments of their class, as Tar's programs do."""
  tensors, members = _stored(arrays)
  archive(path, mapping({'model': mapping({
      'name': text(label), 'args': plain(arguments), 'sd': mapping(tensors)}),
                         'epoch': number(3)}), members)


def plain(value) -> bytes:
  """Instructions for a value of Python, which pickle writes itself."""
  data = pickle.dumps(value, 2)
  return data[2:-1]  # Without the protocol and the end.


def _stored(arrays: dict[str, np.ndarray], first: int = 0
            ) -> tuple[dict[str, bytes], dict[str, bytes]]:
  tensors, members = {}, {}
  for place, (label, array) in enumerate(arrays.items(), first):
    array = np.asarray(array, order='C')
    strides = tuple(stride // array.itemsize for stride in array.strides)
    if array.dtype == np.float32:
      tensors[label] = tensor(storage(array.size, str(place)), 0, array.shape, strides)
    else:
      untyped = storage(array.size, str(place), name('torch.storage', 'UntypedStorage'))
      tensors[label] = tensor(untyped, 0, array.shape, strides, name('torch', array.dtype.name),
                              version=3)
    members[f'm/data/{place}'] = array.tobytes()
  return tensors, members
