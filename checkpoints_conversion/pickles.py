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


class PickleError(ValueError):
  """A pickle that cannot be read as data."""


@dataclasses.dataclass(eq=False, slots=True)
class Name:
  """A class or function: its module and its name in it, with a dot between."""

  name: str


@dataclasses.dataclass(eq=False, slots=True)
class Object:
  """Stands for a value of any other type.

  Attributes:
    name: its class, or the function that returns it.
    state: its attributes as the file holds them, or None.
  """

  name: str
  state: Any = None


# `code ->` the method of `Reader` that follows this instruction.
_ACTIONS: dict[bytes, Callable[['Reader', bytes], None]] = {}


def _on(*codes: bytes) -> Callable[[Callable], Callable]:
  """Returns a decorator of the method that follows these instructions."""
  def register(method):
    _ACTIONS.update(dict.fromkeys(codes, method))
    return method

  return register


class Reader:
  """Reads the pickles at the current position of a stream, one after the other.

  No instruction needs more memory than a small multiple of its bytes, and their number is limited.
  """

  def __init__(self, stream: BinaryIO, size: int, call: Callable[[str, tuple], Any],
               persistent: Callable[[Any], Any]):
    """Initialises a reader.

    Args:
      stream: the file.
      size: bytes that the pickles may have together.
      call: `(name, arguments) ->` the value of a call of a class or function, such as an `Object`.
      persistent: `id ->` the value that is stored outside of the pickle under this id.
    """
    self._stream, self._left, self._steps = stream, size, _MOST_STEPS
    self._call, self._persistent = call, persistent

  def load(self) -> Any:
    """Returns the value of the next pickle.

    Mappings are dicts, whose keys are strings; each other key is replaced by an `Object`.

    Raises:
      PickleError: for damage, more instructions than the limit, or instructions that no state dict
        needs.
    """
    self._stack: list[Any] = []
    self._marks: list[int] = []
    # By the numbers in the file, of which none is used as a size.
    self._memo: dict[int, Any] = {}
    while (code := self._take(1)) != pickle.STOP:
      self._steps -= 1
      if self._steps < 0:
        raise PickleError(f'its pickle has more than {_MOST_STEPS} instructions')
      action = _ACTIONS.get(code)
      if action is None:
        raise PickleError(f'its pickle has the instruction {code!r}, which torch.save does not use')
      action(self, code)
    return self._pop()

  def _take(self, size: int) -> bytes:
    if size > self._left:
      raise PickleError('its pickle is cut off or too long')
    self._left -= size
    content = self._stream.read(size)
    if len(content) < size:
      raise PickleError('its pickle is cut off')
    return content

  def _unsigned(self, size: int) -> int:
    return int.from_bytes(self._take(size), 'little')

  def _line(self) -> str:
    line = self._stream.readline(min(_MOST_NAME, self._left))
    self._left -= len(line)
    if not line.endswith(b'\n'):
      raise PickleError('its pickle holds a name that does not end')
    return line[:-1].decode('utf-8')

  def _push(self, value: Any) -> None:
    self._stack.append(value)

  def _top(self) -> Any:
    if len(self._stack) <= (self._marks[-1] if self._marks else 0):
      raise PickleError('its pickle uses a value that is missing')
    return self._stack[-1]

  def _pop(self) -> Any:
    self._top()
    return self._stack.pop()

  def _pop_to_mark(self) -> list[Any]:
    if not self._marks:
      raise PickleError('its pickle uses a mark that is missing')
    start = self._marks.pop()
    values = self._stack[start:]
    del self._stack[start:]
    return values

  @_on(pickle.PROTO, pickle.FRAME)
  def _skip(self, code: bytes) -> None:
    self._take(1 if code == pickle.PROTO else 8)

  @_on(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE)
  def _constant(self, code: bytes) -> None:
    self._push({pickle.NONE: None, pickle.NEWTRUE: True, pickle.NEWFALSE: False}[code])

  @_on(pickle.BININT, pickle.BININT1, pickle.BININT2)
  def _integer(self, code: bytes) -> None:
    size = {pickle.BININT: 4, pickle.BININT1: 1, pickle.BININT2: 2}[code]
    self._push(int.from_bytes(self._take(size), 'little', signed=code == pickle.BININT))

  @_on(pickle.LONG1, pickle.LONG4)
  def _long(self, code: bytes) -> None:
    content = self._take(self._unsigned(1 if code == pickle.LONG1 else 4))
    self._push(int.from_bytes(content, 'little', signed=True) if len(content) <= _MOST_DIGITS
               else Object('int'))

  @_on(pickle.BINFLOAT)
  def _float(self, code: bytes) -> None:
    self._push(struct.unpack('>d', self._take(8))[0])

  @_on(pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8, pickle.SHORT_BINSTRING,
       pickle.BINSTRING)
  def _text(self, code: bytes) -> None:
    size = {pickle.SHORT_BINUNICODE: 1, pickle.SHORT_BINSTRING: 1, pickle.BINUNICODE8: 8}
    # Python 2 also pickled bytes as texts.
    self._push(self._take(self._unsigned(size.get(code, 4))).decode('utf-8', 'backslashreplace'))

  @_on(pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8, pickle.BYTEARRAY8)
  def _bytes(self, code: bytes) -> None:
    self._take(self._unsigned({pickle.SHORT_BINBYTES: 1, pickle.BINBYTES: 4}.get(code, 8)))
    self._push(Object('bytes'))

  @_on(pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_SET)
  def _empty(self, code: bytes) -> None:
    self._push([] if code == pickle.EMPTY_LIST else {} if code == pickle.EMPTY_DICT
               else Object('set'))

  @_on(pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
  def _short_tuple(self, code: bytes) -> None:
    size = (pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3).index(code)
    self._push(tuple([self._pop() for _ in range(size)][::-1]))

  @_on(pickle.MARK)
  def _mark(self, code: bytes) -> None:
    self._marks.append(len(self._stack))

  @_on(pickle.TUPLE, pickle.FROZENSET, pickle.POP_MARK)
  def _of_mark(self, code: bytes) -> None:
    values = self._pop_to_mark()
    if code != pickle.POP_MARK:
      self._push(tuple(values) if code == pickle.TUPLE else Object('frozenset'))

  @_on(pickle.POP)
  def _drop(self, code: bytes) -> None:
    self._pop()

  @_on(pickle.DUP)
  def _repeat(self, code: bytes) -> None:
    self._push(self._top())

  @_on(pickle.APPEND, pickle.APPENDS, pickle.ADDITEMS)
  def _append(self, code: bytes) -> None:
    values = [self._pop()] if code == pickle.APPEND else self._pop_to_mark()
    target = self._top()
    if type(target) is list:
      target.extend(values)
    elif type(target) is not Object:
      raise PickleError('its pickle appends to a value that is no list')

  @_on(pickle.SETITEM, pickle.SETITEMS)
  def _set(self, code: bytes) -> None:
    values = [self._pop(), self._pop()][::-1] if code == pickle.SETITEM else self._pop_to_mark()
    target = self._top()
    if len(values) % 2 or type(target) not in (dict, Object):
      raise PickleError('its pickle sets items of a value that is no mapping')
    if type(target) is dict:
      for key, value in zip(values[::2], values[1::2]):
        # Hashes of other keys may be equal on purpose, or recurse.
        target[key if type(key) is str else Object('key')] = value

  @_on(pickle.GLOBAL)
  def _name(self, code: bytes) -> None:
    self._push(Name(f'{self._line()}.{self._line()}'))

  @_on(pickle.STACK_GLOBAL)
  def _name_of_stack(self, code: bytes) -> None:
    name, module = self._pop(), self._pop()
    if type(name) is not str or type(module) is not str or len(module) + len(name) > _MOST_NAME:
      raise PickleError('its pickle holds a name that is no text')
    self._push(Name(f'{module}.{name}'))

  @_on(pickle.REDUCE, pickle.NEWOBJ, pickle.NEWOBJ_EX)
  def _called(self, code: bytes) -> None:
    if code == pickle.NEWOBJ_EX:
      self._pop()  # Arguments by name.
    arguments, function = self._pop(), self._pop()
    if type(function) is Name and type(arguments) is tuple:
      self._push(self._call(function.name, arguments))
    else:
      self._push(Object('object'))

  @_on(pickle.BUILD)
  def _build(self, code: bytes) -> None:
    state, target = self._pop(), self._top()
    if type(target) is Object:
      target.state = state
    elif type(target) is not dict:  # Mappings with attributes are plain ones here.
      raise PickleError('its pickle sets attributes of a value that has none')

  @_on(pickle.BINPERSID)
  def _stored_elsewhere(self, code: bytes) -> None:
    self._push(self._persistent(self._pop()))

  @_on(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE)
  def _memoize(self, code: bytes) -> None:
    index = (len(self._memo) if code == pickle.MEMOIZE
             else self._unsigned(1 if code == pickle.BINPUT else 4))
    self._memo[index] = self._top()

  @_on(pickle.BINGET, pickle.LONG_BINGET)
  def _recall(self, code: bytes) -> None:
    index = self._unsigned(1 if code == pickle.BINGET else 4)
    if index not in self._memo:
      raise PickleError('its pickle recalls a value that it has not stored')
    self._push(self._memo[index])
