"""Matrix products of one instruction of a compiled program, by their arithmetic.

A device multiplies at a rate that depends on the types: products of float32 at full precision do
not use the tensor cores of a GPU, and take several passes on a TPU.
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping

from experiments.costs import hlo

# The arithmetic of products. Float32 products have the device's default precision: TF32 on a GPU,
# one pass in bfloat16 on a TPU.
BFLOAT16, INT8, FLOAT32, FULL = 'bfloat16', 'int8', 'float32', 'float32 at full precision'
# The kernels of Pallas. Those of `models.fused_head` have a number per state, inputs and a matrix
# as their first operands.
TRITON, _FUSED_HEAD = '__gpu$xla.gpu.triton', 'head_layer'


def of(module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction
       ) -> Mapping[str, float]:
  """Returns the multiplications and additions of an instruction's products, by arithmetic."""
  counts: dict[str, float] = collections.defaultdict(float)
  for arithmetic, count in _products(module, computation, instruction):
    counts[arithmetic] += count
  return counts


def _products(module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction
              ) -> Iterator[tuple[str, float]]:
  """Yields the products of an instruction: their arithmetic, multiplications and additions."""
  inner = hlo.as_computation(module, computation, instruction).instructions
  for part in inner.values():
    target = part.text('custom_call_target') or ''
    operands = [inner[name].arrays[0] for name in part.operands]
    if part.opcode in ('dot', 'convolution') or re.search('gemm|matmul', target):
      yield _arithmetic(part, operands[:2]), _count(inner, part)
    elif target == TRITON and _FUSED_HEAD in part.attributes:
      matrix = operands[2]
      count = 2.0 * part.arrays[0].size * matrix.dims[0]
      # See `models.diffusion_head`.
      yield (FULL, count) if matrix.dtype == 'f32' else (BFLOAT16, 3 * count)
    elif part.opcode == 'fusion':
      yield from _products(module, computation, part)


def _arithmetic(product: hlo.Instruction, operands: list[hlo.Array]) -> str:
  """Returns the arithmetic of a matrix product."""
  types = {operand.dtype for operand in operands}
  if types <= {'s8', 'u8'}:
    return INT8
  if 'f32' not in types:
    return BFLOAT16
  return FULL if re.search('highest', product.attributes, re.IGNORECASE) else FLOAT32


def _count(instructions: dict[str, hlo.Instruction], product: hlo.Instruction) -> float:
  """Returns the multiplications and additions of a matrix product."""
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
