"""The decoding loop of a compiled program: its bytes, products, kernels and copies.

XLA has no cost analysis of programs for devices that are not there, so all is found in the text: a
kernel reads each of its operands and writes each of its results once; where it needs or updates a
part of an array, that part.
"""

import functools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

LARGE = 1 << 20  # Smallest copy that counts, bytes; that of a layer's keys is one.
# Operations without a kernel of their own; the copies among them run beside kernels.
_FREE = frozenset((
    'parameter', 'constant', 'iota', 'tuple', 'get-tuple-element', 'bitcast', 'opt-barrier',
    'after-all', 'partition-id', 'replica-id', 'copy-start', 'copy-done', 'slice-start',
    'slice-done', 'async-done'))
# Operations that are kernels even with a scalar result; other scalar operations are not.
_ALWAYS = frozenset(('fusion', 'custom-call', 'sort', 'scatter', 'reduce', 'copy'))
# Operations that only move numbers to a new array.
_MOVES = _FREE | {'broadcast', 'concatenate', 'convert', 'copy', 'dynamic-slice', 'gather', 'pad',
                  'reshape', 'reverse', 'slice', 'transpose'}
# Operations that read or update a part of their first operand.
_READS, _UPDATE = ('gather', 'dynamic-slice', 'slice'), 'dynamic-update-slice'
# Custom calls that only annotate arrays, for example that parts are contiguous on a TPU.
_ANNOTATIONS = re.compile('ConcatBitcast|AssumeGatherIndicesInBound|GatherScatterIndicesBitpacked')
# cuDNN's fused attention that reads the live slots of keys and values, half of them on average.
_LIVE, _KEYS_AND_VALUES = '"mask_type": "PADDING"', slice(1, 3)
# A kernel of `models.fused_head`: its only operand of three dimensions is a table of which it reads
# two rows for each of its states, of which the first operand has a number each.
_HEAD, _ROWS = 'head_layer', 2
_PRODUCTS = f'gemm|matmul|{_HEAD}'  # In custom calls.
_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.\-]+) \(.*\{\n((?:.*\n)*?)\}', re.MULTILINE)
_INSTRUCTION = re.compile(r'\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)')
_ARRAY = re.compile(r'\b(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^}]*\})?')


class Cost(NamedTuple):
  """What a part of a program takes; all of it is linear in the number of layers."""

  bytes: float = 0  # Read from the main memory and written to it.
  # Of every kernel its bytes, or those that the device moves during its products if these are more.
  lasting: float = 0
  flops: float = 0  # Multiplications and additions of matrix products.
  kernels: float = 0  # Launched.
  copies: float = 0  # Kernels that only move `LARGE` bytes or more to a new array.
  conditionals: float = 0  # Branches at run time; on a GPU, by the host.
  loops: float = 0  # Loops inside of it.
  temporaries: float = 0  # Bytes that the whole program needs in addition to its arguments.

  def plus(self, other: 'Cost', times: float = 1) -> 'Cost':
    """Returns the cost of both, of which the other one runs several times."""
    return Cost(*(own + times * more for own, more in zip(self, other)))


class Instruction(NamedTuple):
  """An instruction of a computation."""

  name: str  # Its name, unique in the program.
  arrays: str  # The types and shapes of its results.
  opcode: str  # XLA's name of the operation.
  rest: str  # Operands and attributes.

  @property
  def operands(self) -> list[str]:
    """The names of its operands."""
    return re.findall(r'%([\w.\-]+)', self.rest.partition(')')[0])

  def called(self, attributes: str) -> str:
    """Returns the name of the computation that one of the attributes has first."""
    found = re.search(rf'\b(?:{attributes})=\{{?%([\w.\-]+)', self.rest)
    assert found, self
    return found[1]


def shapes(arrays: str) -> list[list[int]]:
  """Returns the shapes of arrays."""
  return [[int(side) for side in dims.split(',') if side] for _, dims, _ in _ARRAY.findall(arrays)]


def sizes(arrays: str, everywhere: bool = False) -> list[float]:
  """Returns the bytes of arrays, padded to the tiles of their layout.

  Those outside of the main memory have 0, unless `everywhere`.
  """
  result = []
  for (bits, _, layout), shape in zip(_ARRAY.findall(arrays), shapes(arrays)):
    if tile := re.search(r'\{([\d,]+):T\(([\d,]+)\)', layout):
      minor_to_major, sides = ([int(number) for number in group.split(',')]
                               for group in tile.groups())
      for axis, side in zip(minor_to_major, reversed(sides)):
        shape[axis] = -(-shape[axis] // side) * side
    is_counted = everywhere or 'S(1)' not in layout
    result.append(is_counted * int(bits or 8) / 8 * math.prod(shape))
  return result


class Program:
  """The text of an optimised program, as of `Compiled.as_text()`.

  `iterations` are those of loops inside a round that end by run-time values, `balance` is how many
  multiplications and additions a device does for each byte that it moves.
  """

  def __init__(self, text: str, iterations: float = 1, balance: float = math.inf):
    self._iterations, self._balance = iterations, balance
    self._instructions = {name: [Instruction(*line.groups()) for line in map(
        _INSTRUCTION.match, lines.splitlines()) if line]
                          for name, lines in _COMPUTATION.findall(text)}
    self._arrays = {each.name: each.arrays
                    for several in self._instructions.values() for each in several}

  def round(self) -> Cost:
    """Returns the cost of a round, the largest loop that the program begins with.

    Raises:
      ValueError: if there is none.
    """
    entry = list(self._instructions.values())[-1]
    loops = [each for each in entry if each.opcode == 'while']
    if not loops:
      raise ValueError('text has no loop in its ENTRY computation; pass that of a whole decoder.')
    loop = max(loops, key=lambda each: sum(sizes(each.arrays, everywhere=True)))
    return self._cost(loop.called('body')).plus(self._cost(loop.called('condition')))

  def _cost(self, name: str) -> Cost:
    return functools.reduce(Cost.plus, map(self._of, self._instructions[name]), Cost())

  def _of(self, instruction: Instruction) -> Cost:
    """Returns the cost of an instruction outside of fusions."""
    opcode, rest = instruction.opcode, instruction.rest
    if opcode == 'while':
      cost = self._cost(instruction.called('body'))
      if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', rest):
        return Cost(loops=1).plus(cost, int(known[1]))
      return Cost(loops=1).plus(
          cost.plus(self._cost(instruction.called('condition'))), self._iterations)
    if opcode in ('conditional', 'call', 'async-start'):
      # Of a conditional the false branch runs when the sampling options are off.
      return Cost(conditionals=opcode == 'conditional').plus(self._cost(
          instruction.called('false_computation|branch_computations|to_apply|calls')))
    if opcode in ('copy-start', 'slice-start'):
      moved = min(sizes(instruction.arrays, everywhere=True)[:2])
      return Cost(moved, moved)
    is_scalar = opcode not in _ALWAYS and max(
        map(math.prod, shapes(instruction.arrays)), default=0) <= 1
    if opcode in _FREE or is_scalar or _ANNOTATIONS.search(rest):
      return Cost()
    parts = self._instructions[instruction.called('calls')] if opcode == 'fusion' else [instruction]
    moves = all(part.opcode in _MOVES for part in parts) and (
        sum(sizes(instruction.arrays)) >= LARGE)
    size, flops = self._bytes(instruction), self._flops(instruction)
    return Cost(size, max(size, flops / self._balance), flops, 1, moves)

  def _flops(self, instruction: Instruction) -> float:
    """Returns the multiplications and additions of the products in an instruction."""
    if instruction.opcode == 'fusion':
      return sum(map(self._flops, self._instructions[instruction.called('calls')]))
    if instruction.opcode not in ('dot', 'convolution') and not (
        instruction.opcode == 'custom-call' and re.search(_PRODUCTS, instruction.rest)):
      return 0.0
    arrays = [shapes(self._arrays[name])[0] for name in instruction.operands[:3]]
    result = shapes(instruction.arrays)[0]
    if _HEAD in instruction.rest:  # The third operand is a matrix in three parts of 16 bits.
      return 3 * 2 * math.prod(result) * arrays[2][0]
    # Of [b, m, k] and [b, k, n] arrays: their numbers and those of the result are (m k n)^2 b^3.
    left, right = arrays[:2]
    batched = re.search(r'lhs_batch_dims=\{([\d,]+)\}', instruction.rest)
    batch = math.prod(left[int(axis)] for axis in batched[1].split(',')) if batched else 1
    return 2 * math.sqrt(math.prod((*left, *right, *result)) / batch)

  def _bytes(self, instruction: Instruction) -> float:
    """Returns the bytes that a kernel reads and writes."""
    opcode, names = instruction.opcode, instruction.operands
    if opcode == 'fusion':
      return _of_fusion(self._instructions[instruction.called('calls')])
    if opcode in _READS or opcode == _UPDATE:
      moved = self._arrays[names[1]] if opcode == _UPDATE else instruction.arrays
      return 2 * sum(sizes(moved))
    read = [sum(sizes(self._arrays[name])) for name in names]
    if _HEAD in instruction.rest:
      states = sum(sizes(self._arrays[names[0]])) / 4
      read = [size * min(1, _ROWS * states / math.prod(shape[:2])) if len(shape) == 3 else size
              for size, (shape, *_) in zip(read, (shapes(self._arrays[name]) for name in names))]
    if _LIVE in instruction.rest:
      read[_KEYS_AND_VALUES] = [size / 2 for size in read[_KEYS_AND_VALUES]]
    return sum(read) + sum(sizes(instruction.arrays))


def _of_fusion(parts: Sequence[Instruction]) -> float:
  """Returns the bytes of a fusion: what its results need of its parameters, and its results."""
  named = {part.name: part for part in parts}
  operands = {part.name: part.operands for part in parts}
  count = lambda name: math.prod(shapes(named[name].arrays)[0])
  root = parts[-1]

  @functools.cache
  def share(name: str) -> float:
    """Returns the share of an array that the results need."""
    total = float(name == root.name)
    for user in (part for part in parts if name in operands[part.name]):
      is_first = operands[user.name][0] == name
      if user.opcode in _READS and is_first:
        total += share(user.name) * count(user.name) / count(name)
      elif user.opcode != _UPDATE or not is_first:
        total += share(user.name)
    return min(1.0, total)

  total = sum(share(part.name) * sum(sizes(part.arrays))
              for part in parts if part.opcode == 'parameter')
  for name in operands[root.name] if root.opcode == 'tuple' else [root.name]:
    while named[name].opcode == 'bitcast':
      name, = operands[name]
    whole, written = sum(sizes(named[name].arrays)), 0.0
    is_update = named[name].opcode == _UPDATE
    while named[name].opcode == _UPDATE:
      name, update = operands[name][:2]
      written += sum(sizes(named[update].arrays))
    total += min(whole, written) if is_update else whole
  return total
