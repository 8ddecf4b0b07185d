"""Reads the text of an optimised HLO module: what XLA made of a program, for any device.

Only what counting needs is read: computations, instructions with the arrays they give, what they
take and call, and the lines of the source that they come from.
"""

import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

# Types whose names do not say their bits.
_BITS = {'pred': 8, 'token': 0, 'opaque': 0}
# `calls`, `body` and the like name computations; conditionals name several.
_CALLED = re.compile(
    r'\b(?:calls|to_apply|body|condition|true_computation|false_computation|branch_computations)='
    r'(\{[^}]*\}|%[\w.\-]+)')


class Array(NamedTuple):
  """An array that an instruction gives.

  Attributes:
    dtype: as HLO writes it, such as 'bf16'.
    dims: its shape.
    layout: what stands behind the shape: minor dimensions first, tiles, memory space.
  """

  dtype: str
  dims: tuple[int, ...]
  layout: str = ''

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.dims)

  @property
  def bytes(self) -> float:
    """Bytes in the device's main memory, padded to tiles; 0 in another memory."""
    space = re.search(r'S\((\d+)\)', self.layout)
    if space and int(space[1]):
      return 0
    named = re.findall(r'\d+', self.dtype)
    bits = _BITS[self.dtype] if self.dtype in _BITS else int(named[0])
    return math.prod(self._padded()) * bits / 8

  def _padded(self) -> list[int]:
    dims = list(self.dims)
    tile = re.search(r':T\(([\d,]+)\)', self.layout)
    if tile and dims:
      order = [int(one) for one in self.layout[1:].split(':')[0].split(',') if one]
      sizes = [int(one) for one in tile[1].split(',')]
      for axis, size in zip(order, reversed(sizes)):
        dims[axis] = -(-dims[axis] // size) * size
    return dims

  def __str__(self) -> str:
    return f'{self.dtype}[{",".join(map(str, self.dims))}]'


class Instruction(NamedTuple):
  """An instruction.

  Attributes:
    name: unique in the module.
    opcode: as HLO writes it.
    arrays: what it gives, tuples flattened.
    operands: names of what it takes, in order.
    literal: what stands between its brackets.
    attributes: the rest of the line.
  """

  name: str
  opcode: str
  arrays: tuple[Array, ...]
  operands: tuple[str, ...]
  literal: str
  attributes: str

  @property
  def called(self) -> list[str]:
    """Names of the computations that it calls, in the order of the text."""
    return [name for group in _CALLED.findall(self.attributes)
            for name in re.findall(r'%([\w.\-]+)', group)]

  def calls(self, attribute: str) -> list[str]:
    """Names of the computations of one attribute, such as 'body'."""
    found = re.search(rf'\b{attribute}=(\{{[^}}]*\}}|%[\w.\-]+)', self.attributes)
    return re.findall(r'%([\w.\-]+)', found[1]) if found else []

  def text(self, attribute: str) -> str | None:
    """The value of an attribute of quoted text, or of a number, such as 'op_name' or 'index'."""
    quoted = re.search(rf'\b{attribute}="((?:[^"\\]|\\.)*)"', self.attributes)
    if quoted:
      return quoted[1].replace("\\'", "'")
    bare = re.search(rf'\b{attribute}=([\w.\-]+)', self.attributes)
    return bare[1] if bare else None

  def numbers(self, attribute: str) -> list[int]:
    """The numbers of an attribute such as 'lhs_contracting_dims={1}'."""
    found = re.search(rf'\b{attribute}=\{{([\d,]*)\}}', self.attributes)
    return [int(one) for one in found[1].split(',') if one] if found else []

  @property
  def trips(self) -> int | None:
    """How often the body of a loop runs; None where that is known at run time only."""
    found = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', self.attributes)
    return int(found[1]) if found else None


class Computation(NamedTuple):
  """A computation.

  Attributes:
    name: its name.
    instructions: by name, operands before those that take them.
    root: name of the one whose arrays are the result.
  """

  name: str
  instructions: dict[str, Instruction]
  root: str

  @property
  def result(self) -> Instruction:
    """The instruction whose arrays are the result."""
    return self.instructions[self.root]

  def parameters(self) -> list[Instruction]:
    """The parameters, in order."""
    found = [one for one in self.instructions.values() if one.opcode == 'parameter']
    return sorted(found, key=lambda one: int(one.literal))


class Line(NamedTuple):
  """Attributes: a file of the source, its function and a line of it."""

  file: str
  function: str
  line: int


class Module(NamedTuple):
  """A module.

  Attributes:
    computations: by name.
    entry: the name of the one that runs.
    frames: by number, a line of the source and the number of the frame that called it; 0 if none.
  """

  computations: dict[str, Computation]
  entry: str
  frames: dict[int, tuple[Line, int]]

  def stack(self, instruction: Instruction) -> list[Line]:
    """The lines of the source that an instruction comes from, the innermost first."""
    number, found = int(instruction.text('stack_frame_id') or 0), []
    while number in self.frames:
      line, number = self.frames[number]
      found.append(line)
    return found

  def trips(self, loop: Instruction) -> int | None:
    """How often the body of a loop runs; None where that is known at run time only.

    TPUs do not note it: there a loop that compares with a constant counts to it from 0.
    """
    condition = self.computations[loop.calls('condition')[0]]
    compared = condition.result
    if loop.trips is not None or compared.text('direction') != 'LT':
      return loop.trips
    bound = condition.instructions[compared.operands[1]]
    return int(bound.literal) if bound.opcode == 'constant' else None


def parse(text: str) -> Module:
  """Reads the text of a module, as `Compiled.as_text()` gives it.

  Raises:
    ValueError: if it has no entry computation.
  """
  computations, entry, lines = {}, None, iter(text.splitlines())
  for line in lines:
    head = re.match(r'(ENTRY )?%?([\w.\-]+) \(.*\{$', line)
    if head:
      computations[head[2]] = _computation(head[2], lines)
      entry = head[2] if head[1] else entry
  if entry is None:
    raise ValueError('text has no ENTRY computation; give the text of an optimised HLO module.')
  return Module(computations, entry, _frames(text))


def _computation(name: str, lines: Iterator[str]) -> Computation:
  instructions, root = {}, ''
  for line in lines:
    if line.startswith('}'):
      break
    found = re.match(r'\s+(ROOT )?%?([\w.\-]+) = ', line)
    if found:
      instructions[found[2]] = one = _instruction(found[2], line[found.end():])
      root = one.name if found[1] else root
  return Computation(name, instructions, root or next(reversed(instructions)))


def _instruction(name: str, text: str) -> Instruction:
  shape = text[:_closing(text, 0) if text.startswith('(') else text.index(' ')]
  rest = text[len(shape):].lstrip()
  opening = rest.index('(')
  end = _closing(rest, opening)
  literal = rest[opening + 1:end - 1]
  return Instruction(
      name, rest[:opening], tuple(_arrays(shape)), tuple(re.findall(r'%([\w.\-]+)', literal)),
      literal, rest[end:])


def _closing(text: str, start: int) -> int:
  """The place behind the bracket that closes the one at `start`."""
  depth = 0
  for place in range(start, len(text)):
    depth += (text[place] == '(') - (text[place] == ')')
    if not depth:
      return place + 1
  raise ValueError(f'text has a bracket that is never closed: {text[:80]!r}.')


@functools.cache
def _array(dtype: str, dims: str, layout: str) -> Array:
  return Array(dtype, tuple(int(one) for one in dims.split(',') if one), layout)


def _arrays(shape: str) -> Iterator[Array]:
  for dtype, dims, layout in re.findall(r'\b([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?', shape):
    yield _array(dtype, dims.replace('<=', ''), layout)


def _frames(text: str) -> dict[int, tuple[Line, int]]:
  """The tables of files, functions, lines and frames in front of the computations."""
  rows: dict[str, dict[int, str]] = {}
  table: dict[int, str] = {}
  for line in text.splitlines():
    if re.fullmatch(r'[A-Z][A-Za-z]+', line):
      table = rows.setdefault(line, {})
    elif found := re.match(r'(\d+) (.*)', line):
      table[int(found[1])] = found[2]
    elif line.startswith(('%', 'ENTRY')):
      break
  number = lambda row, name: int(re.findall(rf'\b{name}=(\d+)', row)[0])
  word = lambda name, key: rows.get(name, {}).get(key, '""').strip('"')
  places = {key: Line(word('FileNames', number(row, 'file_name_id')),
                      word('FunctionNames', number(row, 'function_name_id')), number(row, 'line'))
            for key, row in rows.get('FileLocations', {}).items()}
  frames = {key: (number(row, 'file_location_id'), number(row, 'parent_frame_id'))
            for key, row in rows.get('StackFrames', {}).items()}
  # Some versions count parents from 1, so that the outermost frame seems its own.
  offset = int(any(key == parent for key, (_, parent) in frames.items()))
  return {key: (places[place], parent - offset) for key, (place, parent) in frames.items()
          if place in places}
