"""Parses the text of an optimised HLO module, the output of XLA's compiler for any device.

Reads only what counting requires: computations, instructions with their results, operands and
called computations, and the source lines of instructions.
"""

import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

# Types whose names do not contain their number of bits.
_BITS = {'pred': 8, 'token': 0, 'opaque': 0}


class Array(NamedTuple):
  """An array that an instruction returns."""

  dtype: str  # HLO's name of the type, such as 'bf16'.
  dims: tuple[int, ...]  # Its shape.
  # The text after the shape: minor-to-major order of dimensions, tiles, memory space.
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
    digits = re.findall(r'\d+', self.dtype)
    bits = _BITS[self.dtype] if self.dtype in _BITS else int(digits[0])
    return math.prod(self._padded()) * bits / 8

  def _padded(self) -> list[int]:
    dims = list(self.dims)
    tile = re.search(r':T\(([\d,]+)\)', self.layout)
    if tile and dims:
      order = [int(axis) for axis in self.layout[1:].split(':')[0].split(',') if axis]
      sizes = [int(size) for size in tile[1].split(',')]
      for axis, size in zip(order, reversed(sizes)):
        dims[axis] = -(-dims[axis] // size) * size
    return dims

  def __str__(self) -> str:
    return f'{self.dtype}[{",".join(map(str, self.dims))}]'


class Instruction(NamedTuple):
  """An instruction."""

  name: str  # Its name, unique in the module.
  opcode: str  # HLO's name of the operation.
  arrays: tuple[Array, ...]  # Its results, tuples flattened.
  operands: tuple[str, ...]  # Names of its operands, in order.
  literal: str  # The text between its parentheses.
  attributes: str  # The rest of the line.

  @property
  def called(self) -> str:
    """Name of the computation of a fusion, a call or the start of an asynchronous one."""
    return self.calls('(?:calls|to_apply)')[0]

  def calls(self, attribute: str) -> list[str]:
    """Returns the names of the computations in one attribute, such as 'body'."""
    match = re.search(rf'\b{attribute}=(\{{[^}}]*\}}|%[\w.\-]+)', self.attributes)
    return re.findall(r'%([\w.\-]+)', match[1]) if match else []

  def text(self, attribute: str) -> str | None:
    """Returns the value of an attribute such as 'op_name' (quoted text) or 'index' (a number)."""
    quoted = re.search(rf'\b{attribute}="((?:[^"\\]|\\.)*)"', self.attributes)
    if quoted:
      return quoted[1].replace("\\'", "'")
    bare = re.search(rf'\b{attribute}=([\w.\-]+)', self.attributes)
    return bare[1] if bare else None

  def numbers(self, attribute: str) -> list[int]:
    """Returns the numbers of an attribute such as 'lhs_contracting_dims={1}'."""
    match = re.search(rf'\b{attribute}=\{{([\d,]*)\}}', self.attributes)
    return [int(number) for number in match[1].split(',') if number] if match else []

  @property
  def trips(self) -> int | None:
    """Number of iterations of a loop; None if it is determined at run time."""
    match = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', self.attributes)
    return int(match[1]) if match else None


class Computation(NamedTuple):
  """A computation: instructions by name, operands before users, and the name of the last one."""

  name: str
  instructions: dict[str, Instruction]
  root: str

  @property
  def result(self) -> Instruction:
    """The instruction that returns the result."""
    return self.instructions[self.root]

  def parameters(self) -> list[Instruction]:
    """Returns the parameters, in order."""
    parameters = [each for each in self.instructions.values() if each.opcode == 'parameter']
    return sorted(parameters, key=lambda parameter: int(parameter.literal))


class Line(NamedTuple):
  """A line of source code: path of its file, name of its function, its number."""

  file: str
  function: str
  line: int


class Module(NamedTuple):
  """A module."""

  computations: dict[str, Computation]  # Computations by name.
  entry: str  # Name of the computation that the program runs.
  # Stack frames by number: a source line and the number of the calling frame, or 0.
  frames: dict[int, tuple[Line, int]]

  def stack(self, instruction: Instruction) -> list[Line]:
    """Returns the stack of source lines of an instruction, the innermost first."""
    number, lines = int(instruction.text('stack_frame_id') or 0), []
    while number in self.frames:
      line, number = self.frames[number]
      lines.append(line)
    return lines

  def trips(self, loop: Instruction) -> int | None:
    """Returns the number of iterations of a loop; None if it is determined at run time.

    Programs for TPUs do not state it; a loop that compares with a constant counts to it from 0.
    """
    condition = self.computations[loop.calls('condition')[0]]
    comparison = condition.result
    if loop.trips is not None or comparison.text('direction') != 'LT':
      return loop.trips
    bound = condition.instructions[comparison.operands[1]]
    counts = bound.opcode == 'constant' and bound.arrays[0].dtype[0] in 'su'
    return int(bound.literal) if counts else None


def parse(text: str) -> Module:
  """Parses the text of a module, as returned by `Compiled.as_text()`."""
  computations, entry, lines = {}, None, iter(text.splitlines())
  for line in lines:
    head = re.match(r'(ENTRY )?%?([\w.\-]+) \(.*\{$', line)
    if head:
      computations[head[2]] = _computation(head[2], lines)
      entry = head[2] if head[1] else entry
  if entry is None:
    raise ValueError('text has no ENTRY computation; pass the text of an optimised HLO module.')
  return Module(computations, entry, _frames(text))


def as_computation(module: Module, computation: Computation, instruction: Instruction
                   ) -> Computation:
  """Returns the computation of a fusion; for others, a computation with just this instruction."""
  if instruction.opcode == 'fusion':
    return module.computations[instruction.called]
  inputs = [computation.instructions[name].arrays for name in instruction.operands]
  parts = {str(i): Instruction(str(i), 'parameter', arrays, (), str(i), '')
           for i, arrays in enumerate(inputs)}
  arrays = instruction.arrays
  if instruction.opcode in ('copy-start', 'slice-start'):
    # Besides the copy they return their operand and a token.
    arrays = arrays[:1] if instruction.opcode == 'copy-start' else arrays[-2:-1]
  if instruction.opcode == 'custom-call' and len(arrays) > 1:
    arrays = tuple(array for array in arrays if array.dtype != 's8')  # Without scratch space.
  opcode = instruction.opcode.removesuffix('-start')
  parts['root'] = instruction._replace(
      name='root', opcode=opcode, arrays=arrays, operands=tuple(parts))
  return Computation('', parts, 'root')


def _computation(name: str, lines: Iterator[str]) -> Computation:
  instructions, root = {}, ''
  for line in lines:
    if line.startswith('}'):
      break
    match = re.match(r'\s+(ROOT )?%?([\w.\-]+) = ', line)
    if match:
      instructions[match[2]] = _instruction(match[2], line[match.end():])
      root = match[2] if match[1] else root
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
  """Returns the index after the parenthesis that closes the one at `start`."""
  depth = 0
  for index in range(start, len(text)):
    depth += (text[index] == '(') - (text[index] == ')')
    if not depth:
      return index + 1
  raise ValueError(f'text has a parenthesis that is never closed: {text[:80]!r}.')


@functools.cache
def _array(dtype: str, dims: str, layout: str) -> Array:
  return Array(dtype, tuple(int(size) for size in dims.split(',') if size), layout)


def _arrays(shape: str) -> Iterator[Array]:
  for dtype, dims, layout in re.findall(r'\b([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?', shape):
    yield _array(dtype, dims.replace('<=', ''), layout)


def _frames(text: str) -> dict[int, tuple[Line, int]]:
  rows: dict[str, dict[int, str]] = {}
  table: dict[int, str] = {}
  for line in text.splitlines():
    if re.fullmatch(r'[A-Z][A-Za-z]+', line):
      table = rows.setdefault(line, {})
    elif match := re.match(r'(\d+) (.*)', line):
      table[int(match[1])] = match[2]
    elif line.startswith(('%', 'ENTRY')):
      break
  number = lambda row, name: int(re.findall(rf'\b{name}=(\d+)', row)[0])
  word = lambda name, key: rows.get(name, {}).get(key, '""').strip('"')
  locations = {
      key: Line(word('FileNames', number(row, 'file_name_id')),
                word('FunctionNames', number(row, 'function_name_id')), number(row, 'line'))
      for key, row in rows.get('FileLocations', {}).items()}
  frames = {key: (number(row, 'file_location_id'), number(row, 'parent_frame_id'))
            for key, row in rows.get('StackFrames', {}).items()}
  # Some versions count parents from 1, so that the outermost frame appears to be its own parent.
  offset = int(any(key == parent for key, (_, parent) in frames.items()))
  return {key: (locations[location], parent - offset)
          for key, (location, parent) in frames.items() if location in locations}
