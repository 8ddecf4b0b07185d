"""What one instruction of a compiled program moves and multiplies.

An instruction is taken to read what it needs of its operands once and to write its results once. An
update of a part of an operand that the instruction hands on is written in place. Fused attention
that is told how many slots are live reads half of its keys and values: the mean over an image.
"""

import collections
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from experiments.costs import hlo

# What moves numbers and computes none.
_MOVES = frozenset((
    'bitcast', 'broadcast', 'concatenate', 'constant', 'convert', 'copy', 'copy-start',
    'dynamic-slice', 'dynamic-update-slice', 'fusion', 'gather', 'get-tuple-element', 'iota', 'pad',
    'parameter', 'reshape', 'reverse', 'slice', 'slice-start', 'transpose', 'tuple'))
# Parts of an operand that are read or updated.
_SLICES = ('slice', 'dynamic-slice', 'gather')
_UPDATES = ('dynamic-update-slice', 'scatter')
# What cuDNN's fused attention is called, and where its operands have keys and values.
_FUSED_ATTENTION, _KEYS_AND_VALUES = '__cudnn$fmha', slice(1, 3)
# What kernels of `models.fused_head` are called. Their first operand has one number per state; of
# a table, their only operand of three dimensions, they read two rows for every state.
_TRITON, _ROWS_OF_TABLE = '__gpu$xla.gpu.triton', 2
# What needs of its operands the share that is needed of its result.
_SHARED = ('reduce', 'dot', 'convolution', 'concatenate', 'pad', 'reduce-window', 'transpose',
           'reshape', 'copy', 'bitcast', 'convert')


class Traffic(NamedTuple):
  """What an instruction moves.

  Attributes:
    read: bytes of every operand.
    written: of every result, the number of the operand that it updates in place, or None, and its
      bytes.
  """

  read: list[float]
  written: list[tuple[int | None, float]]


def of(module: hlo.Module, computation: hlo.Computation, one: hlo.Instruction) -> Traffic:
  """What the instruction `one` of a computation moves."""
  return _inside(module, _alone(module, computation, one))


def only_moves(module: hlo.Module, one: hlo.Instruction) -> bool:
  """Whether an instruction computes no numbers but small ones, such as places."""
  if one.opcode != 'fusion':
    return one.opcode in _MOVES
  inner = module.computations[one.called[0]]
  least = _count(inner.result) / 8
  return all(part.opcode in _MOVES or _count(part) < least for part in inner.instructions.values())


def gives_partial_sums(module: hlo.Module, computation: hlo.Computation, one: hlo.Instruction
                       ) -> bool:
  """Whether an instruction is a product split over its inner dimension.

  Its result has a part of every sum in each entry of a leading dimension, which whatever reads it
  adds up. XLA splits products that are too small to occupy a GPU.
  """
  users = [user for user in computation.instructions.values() if one.name in user.operands]
  return bool(users) and all(_adds_up(module, user, one.name) for user in users) and (
      flops(module, computation, one) > 0)


def _adds_up(module: hlo.Module, user: hlo.Instruction, name: str) -> bool:
  """Whether all that an instruction does with an operand is to sum over its first dimension."""
  if user.opcode == 'reduce':
    return user.operands[0] == name and user.numbers('dimensions') == [0]
  if user.opcode != 'fusion':
    return False
  inner = module.computations[user.called[0]]
  parameter = inner.parameters()[user.operands.index(name)].name
  readers = [part for part in inner.instructions.values() if parameter in part.operands]
  return bool(readers) and all(_adds_up(module, part, parameter) for part in readers)


def flops(module: hlo.Module, computation: hlo.Computation, one: hlo.Instruction) -> float:
  """Multiplications and additions of the matrix products of an instruction."""
  inner = _alone(module, computation, one).instructions
  found = 0.0
  for part in inner.values():
    library = re.search('gemm|matmul', part.text('custom_call_target') or '')
    if part.opcode in ('dot', 'convolution') or library:
      found += _product(inner, part)
    elif part.opcode == 'fusion':
      found += flops(module, computation, part)
  return found


def _alone(module: hlo.Module, computation: hlo.Computation, one: hlo.Instruction
           ) -> hlo.Computation:
  """What a fusion fuses; a computation of one for any other instruction."""
  if one.opcode == 'fusion':
    return module.computations[one.called[0]]
  parts = {}
  for i, name in enumerate(one.operands):
    arrays = computation.instructions[name].arrays
    parts[str(i)] = hlo.Instruction(str(i), 'parameter', arrays, (), str(i), '')
  arrays = one.arrays
  if one.opcode in ('copy-start', 'slice-start'):
    # Beside what they copy they give their operand and a mark.
    arrays = arrays[:1] if one.opcode == 'copy-start' else arrays[-2:-1]
  if one.opcode == 'custom-call' and len(arrays) > 1:
    arrays = tuple(array for array in arrays if array.dtype != 's8')  # Not its scratch space.
  opcode = one.opcode.removesuffix('-start')
  parts['root'] = one._replace(
      name='root', opcode=opcode, arrays=arrays, operands=tuple(parts))
  return hlo.Computation('', parts, 'root')


def _inside(module: hlo.Module, computation: hlo.Computation) -> Traffic:
  """What a fused computation reads of its parameters and writes."""
  instructions, result = computation.instructions, computation.result
  needed: dict[str, float] = collections.defaultdict(float)
  written: list[tuple[int | None, float]] = []
  for name in result.operands if result.opcode == 'tuple' else (result.name,):
    place, updates = _in_place(computation, name)
    if place is None:
      needed[name] += _count(instructions[name])
      written += [(None, array.bytes) for array in instructions[name].arrays]
      continue
    moved = 0
    for update in updates:
      for operand in update.operands[1:]:
        needed[operand] += _count(instructions[operand])
      moved += _count(instructions[update.operands[1 if update.opcode in _UPDATES[:1] else 2]])
    array = instructions[name].arrays[0]
    written.append((place, array.bytes * min(1, moved / array.size)))
  for one in reversed(instructions.values()):
    if needed[one.name] > 0 and one.opcode != 'parameter':
      for operand, count in _needs(module, instructions, one, needed[one.name]):
        needed[operand] += count
  read = [sum(array.bytes for array in one.arrays) * min(1, needed[one.name] / _count(one))
          for one in computation.parameters()]
  return Traffic(read, written)


def _in_place(computation: hlo.Computation, name: str) -> tuple[int | None, list[hlo.Instruction]]:
  """The parameter that a result updates in place, and the updates; None if it is made anew."""
  updates, one = [], computation.instructions[name]
  while one.opcode in ('bitcast', *_UPDATES):
    if one.opcode != 'bitcast':
      updates.append(one)
    one = computation.instructions[one.operands[0]]
  if updates and one.opcode == 'parameter':
    return int(one.literal), updates
  return None, []


def _needs(module: hlo.Module, instructions: dict[str, hlo.Instruction], one: hlo.Instruction,
           count: float) -> Iterator[tuple[str, float]]:
  """How many elements of every operand `count` elements of a result need."""
  size = lambda name: _count(instructions[name])
  count = min(count, _count(one))
  share = count / _count(one)
  if one.opcode in _SLICES:
    yield one.operands[0], min(size(one.operands[0]), count)
    yield from ((name, size(name)) for name in one.operands[1:])
  elif one.opcode == 'dynamic-update-slice':
    yield one.operands[0], max(0.0, count - size(one.operands[1]))
    yield from ((name, size(name)) for name in one.operands[1:])
  elif one.opcode in _SHARED:
    yield from ((name, share * size(name)) for name in one.operands)
  elif one.opcode == 'fusion':
    inner = module.computations[one.called[0]]
    for name, parameter, read in zip(one.operands, inner.parameters(), _inside(module, inner).read):
      # Nothing is known of arrays in another memory, where it does not matter.
      whole = sum(array.bytes for array in parameter.arrays)
      yield name, share * size(name) * (read / whole if whole else 1)
  elif one.text('custom_call_target') == _TRITON:
    states = size(one.operands[0])
    for name in one.operands:
      dims = instructions[name].arrays[0].dims
      yield name, min(size(name), _ROWS_OF_TABLE * states * dims[-1] if len(dims) == 3 else
                      size(name))
  elif one.opcode in ('sort', 'custom-call', 'scatter'):
    half = one.operands[_KEYS_AND_VALUES] if _reads_live_slots(one) else ()
    yield from ((name, size(name) / (2 if name in half else 1)) for name in one.operands)
  else:
    yield from ((name, min(size(name), count)) for name in one.operands)


def _reads_live_slots(one: hlo.Instruction) -> bool:
  """Whether an instruction is attention that is told how many slots to read."""
  return (one.text('custom_call_target') or '').startswith(_FUSED_ATTENTION) and (
      '"mask_type": "PADDING"' in one.attributes)


def _count(one: hlo.Instruction) -> int:
  """Elements of all that an instruction gives, at least 1."""
  return max(1, sum(array.size for array in one.arrays))


def _product(instructions: dict[str, hlo.Instruction], one: hlo.Instruction) -> float:
  left, right = (instructions[name].arrays[0] for name in one.operands[:2])
  out = one.arrays[0]
  if one.opcode == 'convolution':  # As TPUs have all products.
    return 2 * _convolved(one, left, right, out)
  contracted = one.numbers('lhs_contracting_dims')
  if one.opcode == 'custom-call':
    found = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', one.attributes)
    contracted = [int(number) for number in re.findall(r'\d+', found[1] if found else '')]
  return 2 * out.size * math.prod(left.dims[i] for i in contracted)


def _convolved(one: hlo.Instruction, left: hlo.Array, right: hlo.Array, out: hlo.Array) -> int:
  """Pairs of numbers that a convolution multiplies.

  Batches and heads of a product are spatial dimensions, dilated or padded so that most of a window
  lies on nothing.
  """
  labels = re.findall(r'dim_labels=(\w+)_(\w+)->(\w+)', one.attributes)[0]
  spatial = ''.join(sorted(set(labels[0]) - set('bf')))
  window = re.search(r'window=\{([^}]*)\}', one.attributes)
  given = dict(re.findall(r'(\w+)=(\S+)', window[1] if window else ''))
  pairs = out.size // math.prod(out.dims[labels[2].index(axis)] for axis in spatial)
  pairs *= right.dims[labels[1].index('i')]
  for number, axis in enumerate(spatial):
    stride, before, dilation, spread = (
        int(given[name].split('x')[number].split('_')[0]) if name in given else default
        for name, default in (('stride', 1), ('pad', 0), ('lhs_dilate', 1), ('rhs_dilate', 1)))
    last = (left.dims[labels[0].index(axis)] - 1) * dilation
    places = (i * stride + j * spread - before for i in range(out.dims[labels[2].index(axis)])
              for j in range(right.dims[labels[1].index(axis)]))
    pairs *= sum(0 <= place <= last and place % dilation == 0 for place in places)
  return pairs
