"""One round of a compiled decode: its kernels, with the memory traffic of each.

A round is the body of the decoding loop. Of a conditional only the false branch counts, which runs
when the sampling options are off.
"""

import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.costs import hlo, instructions

# Operations that return their operand without a kernel, and constants without a kernel.
_PASSING = frozenset((
    'bitcast', 'opt-barrier', 'after-all', 'copy-done', 'slice-done', 'async-done'))
_CONSTANTS = frozenset(('constant', 'iota', 'partition-id', 'replica-id'))
# Custom calls that only annotate arrays, for example that parts are contiguous on a TPU.
_ANNOTATIONS = frozenset((
    'ConcatBitcast', 'AssumeGatherIndicesInBound', 'GatherScatterIndicesBitpacked'))
# Operations that are kernels even with a scalar result; other scalar operations are not kernels.
_ALWAYS = frozenset(('fusion', 'custom-call', 'sort', 'scatter', 'reduce', 'copy'))
# Parts of a model by the names of their scopes.
_SCOPES = {'_attention': 'attention', '_feed_forward': 'feed-forward', '_norm': 'norms',
           '.logits': 'logits', '.embed': 'embedding'}
_PACKAGE = 'cspd_jax'
PARTIAL_SUMS = 'partial sums'  # The kind of the result of a split product.
_HOPS = 4  # Number of users of an instruction that are searched for a source line.


class Label(NamedTuple):
  """The role of an array."""

  # 'weights', 'drafter weights', 'cache', 'state', 'constants', 'partial sums' of split
  # products; empty for other intermediate results.
  kind: str = ''
  name: str = ''  # Name of the array.
  size: float = 0  # Bytes of the whole array, for parameters.

  @property
  def is_weights(self) -> bool:
    """Whether the array is a parameter of a network."""
    return self.kind.endswith('weights')


class Moved(NamedTuple):
  """The traffic of an array: its role, bytes read and bytes written."""

  label: Label
  read: float
  written: float


class Kernel(NamedTuple):
  """A kernel of a round."""

  name: str  # Name of the instruction.
  part: str  # The part of the decoder with its source: 'target', 'drafter', 'verifier' or 'loop'.
  scope: str  # The part of the network, such as 'attention', or the file of its source.
  source: str  # The source line, such as 'models/causal.py:180'.
  arrays: str  # Types and shapes of its results.
  moved: tuple[Moved, ...]  # Traffic, one entry per operand and result.
  # Multiplications and additions of its matrix products, by arithmetic.
  products: Mapping[str, float]
  times: float  # Number of runs in a round.
  moves: bool  # Whether it only copies numbers to a new array.
  # Whether it is a copy that runs in parallel with kernels and has no launch itself.
  overlapped: bool = False

  @property
  def bytes(self) -> float:
    """Bytes that one run moves."""
    return sum(array.read + array.written for array in self.moved)

  @property
  def flops(self) -> float:
    """Multiplications and additions of its matrix products."""
    return sum(self.products.values())

  @property
  def written(self) -> float:
    """Bytes that one run writes."""
    return sum(array.written for array in self.moved)


class Round(NamedTuple):
  """The contents of one round."""

  kernels: list[Kernel]  # Kernels in order.
  conditionals: int  # Branches selected at run time; on a GPU, by the host.
  loops: int  # Loops inside the round.
  copied: float  # Bytes of the cache that the round does not update in place.


def read(module: hlo.Module, caches: Collection[tuple[int, ...]], iterations: float = 1) -> Round:
  """Extracts the round of the program of a whole decoder; one without a loop raises ValueError.

  `caches` are the shapes of the arrays in the target's cache, `iterations` those of loops inside
  the round that end by run-time values.
  """
  try:
    _Walk(module, iterations).run(module.entry, (), 1, seeks_loop=True)
  except _LoopReached as reached:
    loop, labels = reached.args
  else:
    raise ValueError('text has no loop in its ENTRY computation; pass the text of a whole decoder.')
  body = module.computations[loop.calls('body')[0]]
  before: list[Label] = []
  for index, (array, label) in enumerate(zip(loop.arrays, labels)):
    if _is_unchanged(body, index):
      before.append(label if label.is_weights else Label('constants', str(index)))
    else:
      before.append(Label('cache' if array.dims in caches else 'state', str(index)))
  walk = _Walk(module, iterations)
  after = walk.run(body.name, (tuple(before),), 1)
  walk.run(loop.calls('condition')[0], (tuple(before),), 1)
  copied = sum(array.bytes for array, old, new in zip(loop.arrays, before, after)
               if old.kind == 'cache' and new != old)
  return Round(walk.kernels, walk.conditionals, walk.loops, copied)


class _LoopReached(Exception):
  """Ends a walk at the decoding loop; its arguments are the loop and the labels of its operands."""


def _is_unchanged(body: hlo.Computation, index: int) -> bool:
  """Returns whether the body of a loop returns the element `index` of its state unchanged."""
  element = body.instructions[body.result.operands[index]]
  return (element.opcode == 'get-tuple-element' and element.text('index') == str(index)
          and body.instructions[element.operands[0]].opcode == 'parameter')


class _Walk:
  """Traces computations with labels in place of arrays, and records their kernels."""

  def __init__(self, module: hlo.Module, iterations: float):
    self.module, self.iterations = module, iterations
    self.kernels: list[Kernel] = []
    self.conditionals = self.loops = 0
    self._callers: list[hlo.Instruction] = []

  def run(self, name: str, arguments: Sequence[Any], times: float, seeks_loop: bool = False) -> Any:
    """Traces a computation that runs `times` times; returns the label of its result.

    Labels of tuples are those of their elements; the entry computation has no arguments. With
    `seeks_loop` the loop with the largest state raises `_LoopReached`.
    """
    computation = self.module.computations[name]
    values: dict[str, Any] = {}
    loops = [each for each in computation.instructions.values() if each.opcode == 'while']
    largest = max(loops, default=None, key=lambda loop: sum(array.bytes for array in loop.arrays))
    for instruction in computation.instructions.values():
      operands = [values[operand] for operand in instruction.operands if operand in values]
      if instruction.opcode == 'parameter':
        values[instruction.name] = (
            arguments[int(instruction.literal)] if arguments else _label_of_parameter(instruction))
      elif seeks_loop and instruction is largest:
        raise _LoopReached(instruction, operands[0])
      else:
        values[instruction.name] = self._step(computation, instruction, operands, times)
    return values[computation.root]

  def _step(self, computation: hlo.Computation, instruction: hlo.Instruction, operands: list[Any],
            times: float) -> Any:
    """Traces an instruction; returns the label of its result, or those of its elements."""
    opcode = instruction.opcode
    if opcode == 'get-tuple-element':
      value = operands[0]
      return value if isinstance(value, Label) else value[int(instruction.text('index'))]
    if opcode == 'tuple':
      return tuple(operands)
    if opcode in _PASSING or instruction.text('custom_call_target') in _ANNOTATIONS:
      return operands[0] if operands else Label()
    if opcode in _CONSTANTS:
      return Label('constants')
    if opcode == 'while':
      return self._loop(instruction, operands[0], times)
    if opcode == 'conditional':
      self.conditionals += times
      false, number = instruction.calls('false_computation'), 2
      if not false:
        false, number = instruction.calls('branch_computations'), 1
      return self._call(instruction, false[0], operands[number:number + 1], times)
    if opcode in ('call', 'async-start'):
      return self._call(instruction, instruction.called, operands, times)
    return self._kernel(computation, instruction, operands, times)

  def _call(self, caller: hlo.Instruction, name: str, operands: Sequence[Any], times: float) -> Any:
    self._callers.append(caller)
    result = self.run(name, operands, times)
    self._callers.pop()
    return result

  def _loop(self, loop: hlo.Instruction, state: Any, times: float) -> Any:
    self.loops += times
    times *= self.module.trips(loop) or self.iterations
    body = self.module.computations[loop.calls('body')[0]]
    if loop.trips is None:  # Otherwise the condition is not evaluated at run time.
      self._call(loop, loop.calls('condition')[0], (state,), times)
    return self._call(loop, body.name, (state,), times)

  def _kernel(self, computation: hlo.Computation, instruction: hlo.Instruction,
              operands: list[Any], times: float) -> Any:
    traffic = instructions.traffic(self.module, computation, instruction)
    only_moves = instructions.only_moves(self.module, instruction)
    # An update of a part of an operand in place is not a copy.
    moves = only_moves and any(updated is None for updated, _ in traffic.written)
    labels = [_first(operand) for operand in operands]
    new = Label()
    if instructions.is_split_product(self.module, computation, instruction):
      new = Label(PARTIAL_SUMS, instruction.name)
    overlapped = instruction.opcode.endswith('-start')
    results = []
    for updated, _ in traffic.written:
      label = new if updated is None else labels[updated]
      # Weights in another layout, and arrays copied to a faster memory, retain their label.
      retains_label = labels and (labels[0].is_weights or overlapped)
      if updated is None and only_moves and retains_label:
        label = labels[0]
      results.append(label)
    if instruction.opcode in _ALWAYS or max(array.size for array in instruction.arrays) > 1:
      moved = [Moved(label, size, 0) for label, size in zip(labels, traffic.read)]
      moved += [Moved(label, 0, size) for label, (_, size) in zip(results, traffic.written)]
      lines = self._lines(computation, instruction)
      self.kernels.append(Kernel(
          instruction.name, _part(lines), _scope(instruction, lines), _innermost(lines),
          ', '.join(map(str, instruction.arrays[:len(traffic.written)])), tuple(moved),
          instructions.products(self.module, computation, instruction), times, moves, overlapped))
    return tuple(results) if len(results) > 1 else results[0]

  def _lines(self, computation: hlo.Computation, instruction: hlo.Instruction) -> list[hlo.Line]:
    """Returns the source lines of an instruction.

    Instructions that XLA added have none; they get those of a user of their result, or of a caller.
    """
    if lines := self.module.stack(instruction):
      return lines
    users: dict[str, hlo.Instruction] = {}
    for user in computation.instructions.values():
      for operand in user.operands:
        users.setdefault(operand, user)
    chain = [instruction]
    while len(chain) <= _HOPS and chain[-1].name in users:
      chain.append(users[chain[-1].name])
    return next(filter(None, map(self.module.stack, (*chain, *reversed(self._callers)))), [])


def _label_of_parameter(parameter: hlo.Instruction) -> Label:
  name = parameter.text('op_name') or parameter.name
  size = sum(array.bytes for array in parameter.arrays)
  if name.startswith('draft_params'):
    return Label('drafter weights', name, size)
  return Label('weights' if name.startswith('params') else 'constants', name, size)


def _first(value: Any) -> Label:
  """Returns a label, or the label of the first element of a tuple."""
  while value and not isinstance(value, Label):
    value = value[0]
  return value or Label()


def _path_in_package(line: hlo.Line) -> str:
  """Returns the path of a file relative to the package; empty for files outside of it."""
  parts = pathlib.PurePath(line.file).parts
  if _PACKAGE not in parts:
    return ''
  last = len(parts) - 1 - parts[::-1].index(_PACKAGE)
  return '/'.join(parts[last + 1:])


def _part(lines: Sequence[hlo.Line]) -> str:
  folders = {_path_in_package(line).rpartition('/')[0] for line in lines}
  for folder, part in (('decoding/drafters', 'drafter'), ('decoding/verifiers', 'verifier'),
                       ('models', 'target')):
    if folder in folders:
      return part
  return 'loop'


def _scope(instruction: hlo.Instruction, lines: Sequence[hlo.Line]) -> str:
  """Returns the part of the network that an instruction belongs to, or its source file."""
  path = instruction.text('op_name') or ''
  for mark, scope in _SCOPES.items():
    if mark in path:
      return scope
  return pathlib.PurePath(_innermost(lines).partition(':')[0]).stem or 'other'


def _innermost(lines: Sequence[hlo.Line]) -> str:
  """Returns the innermost source line in the package, as 'path:number'."""
  return next((f'{_path_in_package(line)}:{line.line}' for line in lines
               if _path_in_package(line)), '')
