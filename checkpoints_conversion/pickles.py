"""Pickles as data: the values that a pickle describes, while nothing is imported, called or run.

A pickle is a program for a stack machine. The `pickle` module imports and calls what the program
names; this machine only knows values. Numbers, texts, lists, tuples and mappings become Python's,
and everything else becomes an `Object`, which has a name. PyTorch's restricted reader
(`weights_only`) is no substitute: it knows the classes that it allows and refuses files with
others, and it returns memory of the process for a storage that a file names and does not hold.
"""

import dataclasses
import pickle
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

# Bytes and instructions of a file's pickles; a state dict uses 40 instructions per tensor.
MOST_BYTES = 1 << 28
_MOST_STEPS = 1 << 21
# Bytes of the name of a module or class.
_MOST_NAME = 1 << 10
# Bytes of a whole number.
_MOST_DIGITS = 32


@dataclasses.dataclass(eq=False, slots=True)
class Name:
  """A class or function: its module and its name in it, with a dot between."""

  name: str


@dataclasses.dataclass(eq=False, slots=True)
class Object:
  """Stands for a value of any other type.

  `name` is its class, or the function that returns it; `state` its attributes in the file, or None.
  """

  name: str
  state: Any = None


class Reader:
  """Reads the pickles at the current position of a stream, one after the other.

  No instruction needs more memory than a small multiple of its bytes, and their number is limited.
  """

  def __init__(self, stream: BinaryIO, size: int, call: Callable[[str, tuple], Any],
               persistent: Callable[[Any], Any]):
    """Initialises a reader of pickles that may have `size` bytes together.

    `call` is `(name, arguments) ->` the value of a call of a class or function, such as an
    `Object`; `persistent` is `id ->` the value that is stored outside of the pickle.
    """
    self._stream, self._left, self._steps = stream, size, _MOST_STEPS
    self._call, self._persistent = call, persistent

  def load(self) -> Any:
    """Returns the value of the next pickle.

    Mappings are dicts, whose keys are strings; each other key is replaced by an `Object`. Raises
    ValueError for damage, more instructions than the limit, or instructions that no state dict
    needs.
    """
    self._stack: list[Any] = []
    self._marks: list[int] = []
    # By the numbers in the file, of which none is used as a size.
    self._memo: dict[int, Any] = {}
    while (code := self._take(1)) != pickle.STOP:
      self._steps -= 1
      if self._steps < 0:
        raise ValueError(f'its pickle has more than {_MOST_STEPS} instructions')
      action = _ACTIONS.get(code)
      if action is None:
        raise ValueError(f'its pickle has the instruction {code!r}, which torch.save does not use')
      action(self)
    return self._pop()

  def _take(self, size: int) -> bytes:
    if size > self._left:
      raise ValueError('its pickle is cut off or too long')
    self._left -= size
    content = self._stream.read(size)
    if len(content) < size:
      raise ValueError('its pickle is cut off')
    return content

  def _unsigned(self, size: int) -> int:
    return int.from_bytes(self._take(size), 'little')

  def _line(self) -> str:
    line = self._stream.readline(min(_MOST_NAME, self._left))
    self._left -= len(line)
    if not line.endswith(b'\n'):
      raise ValueError('its pickle holds a name that does not end')
    return line[:-1].decode('utf-8')

  def _push(self, value: Any) -> None:
    self._stack.append(value)

  def _top(self) -> Any:
    if len(self._stack) <= (self._marks[-1] if self._marks else 0):
      raise ValueError('its pickle uses a value that is missing')
    return self._stack[-1]

  def _pop(self) -> Any:
    self._top()
    return self._stack.pop()

  def _pop_to_mark(self) -> list[Any]:
    if not self._marks:
      raise ValueError('its pickle uses a mark that is missing')
    start = self._marks.pop()
    values = self._stack[start:]
    del self._stack[start:]
    return values

  def _pop_last(self, count: int) -> list[Any]:
    return [self._pop() for _ in range(count)][::-1]

  def _integer(self, size: int) -> None:
    content = self._take(size)
    self._push(int.from_bytes(content, 'little', signed=True) if size <= _MOST_DIGITS
               else Object('int'))

  def _text(self, width: int) -> None:
    # Python 2 also pickled bytes as texts.
    self._push(self._take(self._unsigned(width)).decode('utf-8', 'backslashreplace'))

  def _bytes(self, width: int) -> None:
    self._take(self._unsigned(width))
    self._push(Object('bytes'))

  def _frozenset(self) -> None:
    self._pop_to_mark()
    self._push(Object('frozenset'))

  def _append(self, values: list[Any]) -> None:
    target = self._top()
    if type(target) is list:
      target.extend(values)
    elif type(target) is not Object:
      raise ValueError('its pickle appends to a value that is no list')

  def _set(self, values: list[Any]) -> None:
    target = self._top()
    if len(values) % 2 or type(target) not in (dict, Object):
      raise ValueError('its pickle sets items of a value that is no mapping')
    if type(target) is dict:
      for key, value in zip(values[::2], values[1::2]):
        # Hashes of other keys may be equal on purpose, or recurse.
        target[key if type(key) is str else Object('key')] = value

  def _name_of_stack(self) -> None:
    module, name = self._pop_last(2)
    if type(name) is not str or type(module) is not str or len(module) + len(name) > _MOST_NAME:
      raise ValueError('its pickle holds a name that is no text')
    self._push(Name(f'{module}.{name}'))

  def _called(self, function: Any, arguments: Any) -> None:
    is_call = type(function) is Name and type(arguments) is tuple
    self._push(self._call(function.name, arguments) if is_call else Object('object'))

  def _build(self) -> None:
    state, target = self._pop(), self._top()
    if type(target) is Object:
      target.state = state
    elif type(target) is not dict:  # Mappings with attributes are plain ones here.
      raise ValueError('its pickle sets attributes of a value that has none')

  def _memoize(self, index: int) -> None:
    self._memo[index] = self._top()

  def _recall(self, index: int) -> None:
    if index not in self._memo:
      raise ValueError('its pickle recalls a value that it has not stored')
    self._push(self._memo[index])


# What every instruction does.
_ACTIONS: dict[bytes, Callable[[Reader], Any]] = {
    pickle.PROTO: lambda self: self._take(1),
    pickle.FRAME: lambda self: self._take(8),
    pickle.NONE: lambda self: self._push(None),
    pickle.NEWTRUE: lambda self: self._push(True),
    pickle.NEWFALSE: lambda self: self._push(False),
    pickle.BININT: lambda self: self._integer(4),
    pickle.BININT1: lambda self: self._push(self._unsigned(1)),
    pickle.BININT2: lambda self: self._push(self._unsigned(2)),
    pickle.LONG1: lambda self: self._integer(self._unsigned(1)),
    pickle.LONG4: lambda self: self._integer(self._unsigned(4)),
    pickle.BINFLOAT: lambda self: self._push(struct.unpack('>d', self._take(8))[0]),
    pickle.SHORT_BINUNICODE: lambda self: self._text(1),
    pickle.BINUNICODE: lambda self: self._text(4),
    pickle.BINUNICODE8: lambda self: self._text(8),
    pickle.SHORT_BINSTRING: lambda self: self._text(1),
    pickle.BINSTRING: lambda self: self._text(4),
    pickle.SHORT_BINBYTES: lambda self: self._bytes(1),
    pickle.BINBYTES: lambda self: self._bytes(4),
    pickle.BINBYTES8: lambda self: self._bytes(8),
    pickle.BYTEARRAY8: lambda self: self._bytes(8),
    pickle.EMPTY_LIST: lambda self: self._push([]),
    pickle.EMPTY_DICT: lambda self: self._push({}),
    pickle.EMPTY_SET: lambda self: self._push(Object('set')),
    pickle.EMPTY_TUPLE: lambda self: self._push(()),
    pickle.TUPLE1: lambda self: self._push(tuple(self._pop_last(1))),
    pickle.TUPLE2: lambda self: self._push(tuple(self._pop_last(2))),
    pickle.TUPLE3: lambda self: self._push(tuple(self._pop_last(3))),
    pickle.MARK: lambda self: self._marks.append(len(self._stack)),
    pickle.TUPLE: lambda self: self._push(tuple(self._pop_to_mark())),
    pickle.FROZENSET: Reader._frozenset,
    pickle.POP_MARK: lambda self: self._pop_to_mark(),
    pickle.POP: lambda self: self._pop(),
    pickle.DUP: lambda self: self._push(self._top()),
    pickle.APPEND: lambda self: self._append(self._pop_last(1)),
    pickle.APPENDS: lambda self: self._append(self._pop_to_mark()),
    pickle.ADDITEMS: lambda self: self._append(self._pop_to_mark()),
    pickle.SETITEM: lambda self: self._set(self._pop_last(2)),
    pickle.SETITEMS: lambda self: self._set(self._pop_to_mark()),
    pickle.GLOBAL: lambda self: self._push(Name(f'{self._line()}.{self._line()}')),
    pickle.STACK_GLOBAL: Reader._name_of_stack,
    pickle.REDUCE: lambda self: self._called(*self._pop_last(2)),
    pickle.NEWOBJ: lambda self: self._called(*self._pop_last(2)),
    # The last ones are arguments by name.
    pickle.NEWOBJ_EX: lambda self: self._called(*self._pop_last(3)[:2]),
    pickle.BUILD: Reader._build,
    pickle.BINPERSID: lambda self: self._push(self._persistent(self._pop())),
    pickle.BINPUT: lambda self: self._memoize(self._unsigned(1)),
    pickle.LONG_BINPUT: lambda self: self._memoize(self._unsigned(4)),
    pickle.MEMOIZE: lambda self: self._memoize(len(self._memo)),
    pickle.BINGET: lambda self: self._recall(self._unsigned(1)),
    pickle.LONG_BINGET: lambda self: self._recall(self._unsigned(4))}
