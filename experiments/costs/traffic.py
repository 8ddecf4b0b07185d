"""Memory traffic of one instruction of a compiled program.

The model: an instruction reads the required part of its operands once and writes its results once.
An update of a part of an operand that the instruction returns is written in place. Fused attention
with the number of live slots as an operand reads half of its keys and values: the mean over an
image.
"""

import collections
from collections.abc import Iterator
from typing import NamedTuple

from experiments.costs import hlo, products

# Operations that move numbers without computing any.
_MOVES = frozenset((
    'bitcast', 'broadcast', 'concatenate', 'constant', 'convert', 'copy', 'copy-start',
    'dynamic-slice', 'dynamic-update-slice', 'fusion', 'gather', 'get-tuple-element', 'iota', 'pad',
    'parameter', 'reshape', 'reverse', 'slice', 'slice-start', 'transpose', 'tuple'))
# Operations that read or update a part of an operand.
_SLICES = ('slice', 'dynamic-slice', 'gather')
_UPDATES = ('dynamic-update-slice', 'scatter')
# The name of cuDNN's fused attention, and the indices of keys and values among its operands.
_FUSED_ATTENTION, _KEYS_AND_VALUES = '__cudnn$fmha', slice(1, 3)
# The first operand of the kernels of `models.fused_head` has one number per state; from a table,
# their only operand of three dimensions, they read two rows per state.
_ROWS_OF_TABLE = 2
# Operations that need the same share of their operands as is needed of their result.
_SHARED = ('reduce', 'dot', 'convolution', 'concatenate', 'pad', 'reduce-window', 'transpose',
           'reshape', 'copy', 'bitcast', 'convert')


class Traffic(NamedTuple):
  """The memory traffic of an instruction.

  Attributes:
    read: bytes read of every operand.
    written: for every result, the index of the operand that it updates in place or None, and the
      bytes written.
  """

  read: list[float]
  written: list[tuple[int | None, float]]


def of(module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction) -> Traffic:
  """Returns the memory traffic of an instruction of a computation."""
  return _inside(module, hlo.as_computation(module, computation, instruction))


def only_moves(module: hlo.Module, instruction: hlo.Instruction) -> bool:
  """Returns whether an instruction only moves numbers, except for small arrays such as indices."""
  if instruction.opcode != 'fusion':
    return instruction.opcode in _MOVES
  inner = module.computations[instruction.called[0]]
  least = _count(inner.result) / 8
  return all(part.opcode in _MOVES or _count(part) < least for part in inner.instructions.values())


def is_split_product(module: hlo.Module, computation: hlo.Computation,
                       instruction: hlo.Instruction) -> bool:
  """Returns whether an instruction is a matrix product split over its inner dimension.

  Its result has a leading dimension of partial sums, which every reader adds up. XLA splits
  products that are too small to occupy a GPU.
  """
  name = instruction.name
  users = [user for user in computation.instructions.values() if name in user.operands]
  return bool(users) and all(_adds_up(module, user, name) for user in users) and (
      sum(products.of(module, computation, instruction).values()) > 0)


def _adds_up(module: hlo.Module, user: hlo.Instruction, name: str) -> bool:
  """Returns whether an instruction uses an operand only to sum over its first dimension."""
  if user.opcode == 'reduce':
    return user.operands[0] == name and user.numbers('dimensions') == [0]
  if user.opcode != 'fusion':
    return False
  inner = module.computations[user.called[0]]
  parameter = inner.parameters()[user.operands.index(name)].name
  readers = [part for part in inner.instructions.values() if parameter in part.operands]
  return bool(readers) and all(_adds_up(module, part, parameter) for part in readers)


def _inside(module: hlo.Module, computation: hlo.Computation) -> Traffic:
  """Returns the traffic of a fused computation: reads of its parameters, writes of its results."""
  instructions, result = computation.instructions, computation.result
  needed: dict[str, float] = collections.defaultdict(float)
  written: list[tuple[int | None, float]] = []
  for name in result.operands if result.opcode == 'tuple' else (result.name,):
    parameter, updates = _in_place(computation, name)
    if parameter is None:
      needed[name] += _count(instructions[name])
      written += [(None, array.bytes) for array in instructions[name].arrays]
      continue
    moved = 0
    for update in updates:
      for operand in update.operands[1:]:
        needed[operand] += _count(instructions[operand])
      moved += _count(instructions[update.operands[1 if update.opcode in _UPDATES[:1] else 2]])
    array = instructions[name].arrays[0]
    written.append((parameter, array.bytes * min(1, moved / array.size)))
  for instruction in reversed(instructions.values()):
    name = instruction.name
    if needed[name] > 0 and instruction.opcode != 'parameter':
      for operand, count in _needs(module, instructions, instruction, needed[name]):
        needed[operand] += count
  read = [sum(array.bytes for array in each.arrays) * min(1, needed[each.name] / _count(each))
          for each in computation.parameters()]
  return Traffic(read, written)


def _in_place(computation: hlo.Computation, name: str) -> tuple[int | None, list[hlo.Instruction]]:
  """Returns the parameter that a result updates in place, and the updates; None for a new array."""
  updates, instruction = [], computation.instructions[name]
  while instruction.opcode in ('bitcast', *_UPDATES):
    if instruction.opcode != 'bitcast':
      updates.append(instruction)
    instruction = computation.instructions[instruction.operands[0]]
  if updates and instruction.opcode == 'parameter':
    return int(instruction.literal), updates
  return None, []


def _needs(module: hlo.Module, instructions: dict[str, hlo.Instruction],
           instruction: hlo.Instruction, count: float) -> Iterator[tuple[str, float]]:
  """Yields the elements of every operand that `count` elements of the result depend on."""
  size, operands = lambda name: _count(instructions[name]), instruction.operands
  count = min(count, _count(instruction))
  share = count / _count(instruction)
  if instruction.opcode in _SLICES:
    yield operands[0], min(size(operands[0]), count)
    yield from ((name, size(name)) for name in operands[1:])
  elif instruction.opcode == 'dynamic-update-slice':
    yield operands[0], max(0.0, count - size(operands[1]))
    yield from ((name, size(name)) for name in operands[1:])
  elif instruction.opcode in _SHARED:
    yield from ((name, share * size(name)) for name in operands)
  elif instruction.opcode == 'fusion':
    inner = module.computations[instruction.called[0]]
    for name, parameter, read in zip(operands, inner.parameters(), _inside(module, inner).read):
      # Arrays in another memory have no bytes here; their count does not matter.
      whole = sum(array.bytes for array in parameter.arrays)
      yield name, share * size(name) * (read / whole if whole else 1)
  elif instruction.text('custom_call_target') == products.TRITON:
    states = size(operands[0])
    for name in operands:
      dims = instructions[name].arrays[0].dims
      yield name, min(size(name), _ROWS_OF_TABLE * states * dims[-1] if len(dims) == 3 else
                      size(name))
  elif instruction.opcode in ('sort', 'custom-call', 'scatter'):
    half = operands[_KEYS_AND_VALUES] if _reads_live_slots(instruction) else ()
    yield from ((name, size(name) / (2 if name in half else 1)) for name in operands)
  else:
    yield from ((name, min(size(name), count)) for name in operands)


def _reads_live_slots(instruction: hlo.Instruction) -> bool:
  """Returns whether an instruction is attention that reads only the live slots."""
  return (instruction.text('custom_call_target') or '').startswith(_FUSED_ATTENTION) and (
      '"mask_type": "PADDING"' in instruction.attributes)


def _count(instruction: hlo.Instruction) -> int:
  """Returns the number of elements of all results of an instruction, at least 1."""
  return max(1, sum(array.size for array in instruction.arrays))
