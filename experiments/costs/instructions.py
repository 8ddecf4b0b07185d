"""The cost of one instruction of a compiled program: matrix products and memory traffic.

A device multiplies at a rate that depends on the types: products of float32 at full precision do
not use the tensor cores of a GPU, and take several passes on a TPU.

Traffic: an instruction reads the required part of its operands once and writes its results once.
An update of a part of an operand that the instruction returns is written in place. Fused attention
with the number of live slots as an operand reads half of its keys and values, as on average.
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from experiments.costs import hlo

# The arithmetic of products. Float32 products are TF32 on a GPU, one pass in bfloat16 on a TPU.
BFLOAT16, INT8, FLOAT32, FULL = 'bfloat16', 'int8', 'float32', 'float32 at full precision'
# The kernels of Pallas. Those of `models.fused_head` have a number per state, inputs and a matrix
# as their first operands; their only operand of three dimensions is a table of two rows per state.
_TRITON, _FUSED_HEAD = '__gpu$xla.gpu.triton', 'head_layer'
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
_ROWS_OF_TABLE = 2
# Operations that need the same share of their operands as is needed of their result.
_SHARED = ('reduce', 'dot', 'convolution', 'concatenate', 'pad', 'reduce-window', 'transpose',
           'reshape', 'copy', 'bitcast', 'convert')


def products(module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction
             ) -> Mapping[str, float]:
  """Returns the multiplications and additions of an instruction's products, by arithmetic."""
  counts: dict[str, float] = collections.defaultdict(float)
  for arithmetic, count in _each_product(module, computation, instruction):
    counts[arithmetic] += count
  return counts


def _each_product(module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction
                  ) -> Iterator[tuple[str, float]]:
  """Yields the products of an instruction: their arithmetic, multiplications and additions."""
  inner = hlo.as_computation(module, computation, instruction).instructions
  for part in inner.values():
    target = part.text('custom_call_target') or ''
    operands = [inner[name].arrays[0] for name in part.operands]
    if part.opcode in ('dot', 'convolution') or re.search('gemm|matmul', target):
      yield _arithmetic(part, operands[:2]), _multiplied(inner, part)
    elif target == _TRITON and _FUSED_HEAD in part.attributes:
      matrix = operands[2]
      count = 2.0 * part.arrays[0].size * matrix.dims[0]
      # See `models.diffusion_head`.
      yield (FULL, count) if matrix.dtype == 'f32' else (BFLOAT16, 3 * count)
    elif part.opcode == 'fusion':
      yield from _each_product(module, computation, part)


def _arithmetic(product: hlo.Instruction, operands: list[hlo.Array]) -> str:
  types = {operand.dtype for operand in operands}
  if types <= {'s8', 'u8'}:
    return INT8
  if 'f32' not in types:
    return BFLOAT16
  return FULL if re.search('highest', product.attributes, re.IGNORECASE) else FLOAT32


def _multiplied(instructions: dict[str, hlo.Instruction], product: hlo.Instruction) -> float:
  left, right = (instructions[name].arrays[0] for name in product.operands[:2])
  out = product.arrays[0]
  if product.opcode == 'convolution':  # Programs for TPUs contain all products in this form.
    return 2 * _convolved(product, left, right, out)
  contracted = product.numbers('lhs_contracting_dims')
  if product.opcode == 'custom-call':
    match = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', product.attributes)
    contracted = [int(number) for number in re.findall(r'\d+', match[1] if match else '')]
  return 2 * out.size * math.prod(left.dims[i] for i in contracted)


def _convolved(convolution: hlo.Instruction, left: hlo.Array, right: hlo.Array, out: hlo.Array
               ) -> int:
  """Returns the number of pairs of numbers that a convolution multiplies.

  Batches and attention heads of a product are spatial dimensions, dilated or padded so that most of
  a window covers padding, which does not count.
  """
  labels = re.findall(r'dim_labels=(\w+)_(\w+)->(\w+)', convolution.attributes)[0]
  spatial = ''.join(sorted(set(labels[0]) - set('bf')))
  window = re.search(r'window=\{([^}]*)\}', convolution.attributes)
  options = dict(re.findall(r'(\w+)=(\S+)', window[1] if window else ''))
  pairs = out.size // math.prod(out.dims[labels[2].index(axis)] for axis in spatial)
  pairs *= right.dims[labels[1].index('i')]
  for number, axis in enumerate(spatial):
    stride, before, dilation, spread = (
        int(options[name].split('x')[number].split('_')[0]) if name in options else default
        for name, default in (('stride', 1), ('pad', 0), ('lhs_dilate', 1), ('rhs_dilate', 1)))
    last = (left.dims[labels[0].index(axis)] - 1) * dilation
    positions = (i * stride + j * spread - before for i in range(out.dims[labels[2].index(axis)])
                 for j in range(right.dims[labels[1].index(axis)]))
    pairs *= sum(0 <= position <= last and position % dilation == 0 for position in positions)
  return pairs


class Traffic(NamedTuple):
  """The memory traffic of an instruction."""

  read: list[float]  # Bytes read of every operand.
  # For every result, the operand that it updates in place or None, and the bytes written.
  written: list[tuple[int | None, float]]


def traffic(module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction
            ) -> Traffic:
  """Returns the memory traffic of an instruction of a computation."""
  return _inside(module, hlo.as_computation(module, computation, instruction))


def only_moves(module: hlo.Module, instruction: hlo.Instruction) -> bool:
  """Returns whether an instruction only moves numbers, except for small arrays such as indices."""
  if instruction.opcode != 'fusion':
    return instruction.opcode in _MOVES
  inner = module.computations[instruction.called]
  least = _count(inner.result) / 8
  return all(part.opcode in _MOVES or _count(part) < least for part in inner.instructions.values())


def is_split_product(module: hlo.Module, computation: hlo.Computation,
                       instruction: hlo.Instruction) -> bool:
  """Returns whether an instruction is a matrix product split over its inner dimension.

  Its result has a leading dimension of partial sums, which every reader adds up; XLA splits
  products that are too small to occupy a GPU.
  """
  name = instruction.name
  users = [user for user in computation.instructions.values() if name in user.operands]
  return bool(users) and all(_adds_up(module, user, name) for user in users) and (
      sum(products(module, computation, instruction).values()) > 0)


def _adds_up(module: hlo.Module, user: hlo.Instruction, name: str) -> bool:
  """Returns whether an instruction uses an operand only to sum over its first dimension."""
  if user.opcode == 'reduce':
    return user.operands[0] == name and user.numbers('dimensions') == [0]
  if user.opcode != 'fusion':
    return False
  inner = module.computations[user.called]
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
    inner = module.computations[instruction.called]
    for name, parameter, read in zip(operands, inner.parameters(), _inside(module, inner).read):
      # Arrays in another memory have no bytes here; their count does not matter.
      whole = sum(array.bytes for array in parameter.arrays)
      yield name, share * size(name) * (read / whole if whole else 1)
  elif instruction.text('custom_call_target') == _TRITON:
    states = size(operands[0])
    for name in operands:
      dims = instructions[name].arrays[0].dims
      yield name, min(size(name), _ROWS_OF_TABLE * states * dims[-1] if len(dims) == 3 else
                      size(name))
  elif instruction.opcode in ('sort', 'custom-call', 'scatter'):
    # Fused attention that reads only the live slots.
    is_live = (instruction.text('custom_call_target') or '').startswith(_FUSED_ATTENTION) and (
        '"mask_type": "PADDING"' in instruction.attributes)
    half = operands[_KEYS_AND_VALUES] if is_live else ()
    yield from ((name, size(name) / (2 if name in half else 1)) for name in operands)
  else:
    yield from ((name, min(size(name), count)) for name in operands)


def _count(instruction: hlo.Instruction) -> int:
  """Returns the number of elements of all results of an instruction, at least 1."""
  return max(1, sum(array.size for array in instruction.arrays))
