"""One round of a compiled decode: its kernels, and what each reads and writes.

A round is the body of the decoding loop. Of a branch that is taken at run time the false one
counts, which is that of sampling options that are off.
"""

import pathlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from experiments.costs import hlo, traffic as traffic_lib

# What passes arrays on without a kernel, and what has none.
_PASSING = frozenset((
    'bitcast', 'opt-barrier', 'after-all', 'copy-done', 'slice-done', 'async-done'))
_STILL = frozenset(('constant', 'iota', 'partition-id', 'replica-id'))
# Calls that only say something about arrays, such as that parts lie behind each other on a TPU.
_REMARKS = frozenset((
    'ConcatBitcast', 'AssumeGatherIndicesInBound', 'GatherScatterIndicesBitpacked'))
# Kernels even if they give one number; anything else with one is arithmetic beside the kernels.
_ALWAYS = frozenset(('fusion', 'custom-call', 'sort', 'scatter', 'reduce', 'copy'))
# What a part of a model does, by what its scope is called.
_SCOPES = {'_attention': 'attention', '_feed_forward': 'feed-forward', '_norm': 'norms',
           '.logits': 'logits', '.embed': 'embedding'}
_PACKAGE = 'cspd_jax'
# The kind of what a split product hands on.
PARTIAL_SUMS = 'partial sums'
# How far from an instruction a line of the source is looked for.
_HOPS = 4


class Label(NamedTuple):
  """What an array is.

  Attributes:
    kind: 'weights', 'drafter weights', 'cache', 'state', 'constants', 'partial sums' of split
      products; empty for anything else that a round makes.
    name: which one.
    size: bytes of all of it, for parameters.
  """

  kind: str = ''
  name: str = ''
  size: float = 0

  @property
  def is_weights(self) -> bool:
    """Whether these are parameters."""
    return self.kind.endswith('weights')


class Moved(NamedTuple):
  """Attributes: what an array is, and how many bytes of it are read and written."""

  label: Label
  read: float
  written: float


class Kernel(NamedTuple):
  """A kernel of a round.

  Attributes:
    name: of the instruction.
    part: what its source belongs to: 'target', 'drafter', 'verifier' or 'loop'.
    scope: what it does there, such as 'attention', or the file of its source.
    source: the line of the source, such as 'models/causal.py:180'.
    arrays: what it gives, in words.
    moved: one entry per operand and result.
    flops: of its matrix products.
    times: how often it runs in a round.
    moves: whether it only moves numbers, to where they were not yet.
    beside: whether it is a copy that goes on beside the kernels, and no kernel itself.
  """

  name: str
  part: str
  scope: str
  source: str
  arrays: str
  moved: tuple[Moved, ...]
  flops: float
  times: int
  moves: bool
  beside: bool = False

  @property
  def bytes(self) -> float:
    """Bytes that one run moves."""
    return sum(one.read + one.written for one in self.moved)

  @property
  def written(self) -> float:
    """Bytes that one run writes."""
    return sum(one.written for one in self.moved)


class Round(NamedTuple):
  """What one round runs.

  Attributes:
    kernels: in order.
    conditionals: branches that are taken at run time, on a GPU by the host.
    loops: loops inside of the round.
    copied: bytes of the cache that the round does not hand on in place.
  """

  kernels: list[Kernel]
  conditionals: int
  loops: int
  copied: float


def read(module: hlo.Module, caches: Collection[tuple[int, ...]]) -> Round:
  """The round of a compiled decoder.

  Args:
    module: the whole decoder.
    caches: shapes of the arrays of the target's cache.

  Raises:
    ValueError: if the program has no loop.
  """
  try:
    _Walk(module).run(module.entry, (), 1, seeks_loop=True)
  except _Found as found:
    loop, labels = found.args
  else:
    raise ValueError('text has no loop in its ENTRY computation; give that of a whole decoder.')
  body = module.computations[loop.calls('body')[0]]
  before: list[Label] = []
  for place, (array, label) in enumerate(zip(loop.arrays, labels)):
    if _is_kept(body, place):
      before.append(label if label.is_weights else Label('constants', str(place)))
    else:
      before.append(Label('cache' if array.dims in caches else 'state', str(place)))
  walk = _Walk(module)
  after = walk.run(body.name, (tuple(before),), 1)
  walk.run(loop.calls('condition')[0], (tuple(before),), 1)
  copied = sum(array.bytes for array, old, new in zip(loop.arrays, before, after)
               if old.kind == 'cache' and new != old)
  return Round(walk.kernels, walk.conditionals, walk.loops, copied)


class _Found(Exception):
  """Ends a walk at the decoding loop; its arguments are the loop and the labels it begins with."""


def _is_kept(body: hlo.Computation, place: int) -> bool:
  """Whether a loop hands on what it carries at a place as it was."""
  given = body.instructions[body.result.operands[place]]
  return (given.opcode == 'get-tuple-element' and given.text('index') == str(place)
          and body.instructions[given.operands[0]].opcode == 'parameter')


class _Walk:
  """Runs computations in thought and notes their kernels."""

  def __init__(self, module: hlo.Module):
    self.module = module
    self.kernels: list[Kernel] = []
    self.conditionals = self.loops = 0
    self._callers: list[hlo.Instruction] = []

  def run(self, name: str, arguments: Sequence[Any], times: int, seeks_loop: bool = False) -> Any:
    """Walks through a computation.

    Args:
      name: of the computation.
      arguments: of each parameter its label or, for a tuple, those of its parts; none for the
        parameters of the program.
      times: how often it runs.
      seeks_loop: whether to end at the loop that carries most, with `_Found`.

    Returns:
      The label of the result or those of its parts.
    """
    computation, values = self.module.computations[name], {}
    loops = [one for one in computation.instructions.values() if one.opcode == 'while']
    largest = max(loops, default=None, key=lambda one: sum(array.bytes for array in one.arrays))
    for one in computation.instructions.values():
      operands = [values[operand] for operand in one.operands if operand in values]
      if one.opcode == 'parameter':
        values[one.name] = arguments[int(one.literal)] if arguments else _given(one)
      elif seeks_loop and one is largest:
        raise _Found(one, operands[0])
      else:
        values[one.name] = self._step(computation, one, operands, times)
    return values[computation.root]

  def _step(self, computation: hlo.Computation, one: hlo.Instruction, operands: list[Any],
            times: int) -> Any:
    if one.opcode == 'get-tuple-element':
      return _parts(operands[0])[int(one.text('index'))] if _parts(operands[0]) else operands[0]
    if one.opcode == 'tuple':
      return tuple(operands)
    if one.opcode in _PASSING or one.text('custom_call_target') in _REMARKS:
      return operands[0] if operands else Label()
    if one.opcode in _STILL:
      return Label('constants')
    if one.opcode == 'while':
      return self._loop(one, operands[0], times)
    if one.opcode == 'conditional':
      self.conditionals += times
      false, number = one.calls('false_computation'), 2
      if not false:
        false, number = one.calls('branch_computations'), 1
      return self._call(one, false[0], operands[number:number + 1], times)
    if one.opcode in ('call', 'async-start'):
      return self._call(one, one.called[0], operands, times)
    return self._kernel(computation, one, operands, times)

  def _call(self, one: hlo.Instruction, name: str, operands: Sequence[Any], times: int) -> Any:
    self._callers.append(one)
    result = self.run(name, operands, times)
    self._callers.pop()
    return result

  def _loop(self, one: hlo.Instruction, carried: Any, times: int) -> Any:
    self.loops += times
    times *= self.module.trips(one) or 1
    body = self.module.computations[one.calls('body')[0]]
    if one.trips is None:  # Else nothing asks at run time.
      self._call(one, one.calls('condition')[0], (carried,), times)
    return self._call(one, body.name, (carried,), times)

  def _kernel(self, computation: hlo.Computation, one: hlo.Instruction, operands: list[Any],
              times: int) -> Any:
    found = traffic_lib.of(self.module, computation, one)
    only_moves = traffic_lib.only_moves(self.module, one)
    # What updates a part of an operand in place copies nothing.
    moves = only_moves and any(place is None for place, _ in found.written)
    labels = [_first(operand) for operand in operands]
    made = Label()
    if traffic_lib.gives_partial_sums(self.module, computation, one):
      made = Label(PARTIAL_SUMS, one.name)
    results = []
    for place, _ in found.written:
      label = made if place is None else labels[place]
      # Weights that are laid out anew, and what goes to a faster memory, stay what they are.
      stays = labels and (labels[0].is_weights or one.opcode.endswith('-start'))
      if place is None and only_moves and stays:
        label = labels[0]
      results.append(label)
    if one.opcode in _ALWAYS or max(array.size for array in one.arrays) > 1:
      moved = [Moved(label, size, 0) for label, size in zip(labels, found.read)]
      moved += [Moved(label, 0, size) for label, (_, size) in zip(results, found.written)]
      lines = self._lines(computation, one)
      self.kernels.append(Kernel(
          one.name, _part(lines), _scope(one, lines), _place(lines),
          ', '.join(map(str, one.arrays[:len(found.written)])), tuple(moved),
          traffic_lib.flops(self.module, computation, one), times, moves,
          one.opcode.endswith('-start')))
    return tuple(results) if len(results) > 1 else results[0]

  def _lines(self, computation: hlo.Computation, one: hlo.Instruction) -> list[hlo.Line]:
    """The lines of an instruction; what XLA added has those of what takes it, or of a caller."""
    if lines := self.module.stack(one):
      return lines
    users: dict[str, hlo.Instruction] = {}
    for user in computation.instructions.values():
      for operand in user.operands:
        users.setdefault(operand, user)
    seen = [one]
    while len(seen) <= _HOPS and seen[-1].name in users:
      seen.append(users[seen[-1].name])
    return next(filter(None, map(self.module.stack, (*seen, *reversed(self._callers)))), [])


def _given(one: hlo.Instruction) -> Label:
  """What a parameter of the program is, by its name there."""
  name = one.text('op_name') or one.name
  size = sum(array.bytes for array in one.arrays)
  if name.startswith('draft_params'):
    return Label('drafter weights', name, size)
  return Label('weights' if name.startswith('params') else 'constants', name, size)


def _parts(value: Any) -> tuple:
  """The parts of a tuple; nothing for a label."""
  return () if isinstance(value, Label) else value


def _first(value: Any) -> Label:
  """A label, or that of the first part of a tuple."""
  while parts := _parts(value):
    value = parts[0]
  return value if isinstance(value, Label) else Label()


def _inner(line: hlo.Line) -> str:
  """A file of the package by its path there; empty for any other."""
  parts = pathlib.PurePath(line.file).parts
  if _PACKAGE not in parts:
    return ''
  last = len(parts) - 1 - parts[::-1].index(_PACKAGE)
  return '/'.join(parts[last + 1:])


def _part(lines: Sequence[hlo.Line]) -> str:
  folders = {_inner(line).rpartition('/')[0] for line in lines}
  for folder, part in (('decoding/drafters', 'drafter'), ('decoding/verifiers', 'verifier'),
                       ('models', 'target')):
    if folder in folders:
      return part
  return 'loop'


def _scope(one: hlo.Instruction, lines: Sequence[hlo.Line]) -> str:
  path = one.text('op_name') or ''
  for mark, scope in _SCOPES.items():
    if mark in path:
      return scope
  return pathlib.PurePath(_place(lines).partition(':')[0]).stem or 'other'


def _place(lines: Sequence[hlo.Line]) -> str:
  """The innermost line in the package."""
  return next((f'{_inner(line)}:{line.line}' for line in lines if _inner(line)), '')
