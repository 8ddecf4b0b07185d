"""Specifications: decoders as text.

A specification is a decoder, or a drafter and a verifier joined by `+`; each is a name with
parameters in parentheses, in the syntax of Python:

  mc_sjd(window=32)
  eagle(tree=LANTERN)+lantern_pp(lam=2)
  jacobi(window=16, coupling=maximal, tree=kary(3, 3))+rejection

Text is parsed once, into a frozen value, and never evaluated. `core.table` looks up its names and
binds its parameters to signatures.
"""

import ast
import dataclasses
import keyword
import math
import re
import types
from collections.abc import Mapping

# Text without quotes: names, which hyphens may join.
_BARE = re.compile(r'[A-Za-z_]\w*(-[A-Za-z_]\w*)*', re.ASCII)
_MAX_LENGTH = 1000
_VALUES = ('a number, True, False, None, a name, a string in quotes, a call such as kary(3, 3), or '
           'numbers in parentheses')


@dataclasses.dataclass(frozen=True, repr=False)
class Call:
  """A name with parameters, read-only: a part, or a value such as the tree `kary(3, 3)`.

  Only values have `positional` parameters.
  """

  name: str
  arguments: Mapping[str, 'Value'] = dataclasses.field(default_factory=dict)
  positional: tuple['Value', ...] = ()

  def __post_init__(self):
    object.__setattr__(self, 'arguments', types.MappingProxyType(dict(self.arguments)))

  def __repr__(self) -> str:
    values = [*map(_text, self.positional),
              *(f'{name}={_text(value)}' for name, value in sorted(self.arguments.items()))]
    return f'{self.name}({", ".join(values)})'

  def __str__(self) -> str:
    return repr(self).removesuffix('()')


Value = int | float | bool | None | str | tuple[int | float, ...] | Call


@dataclasses.dataclass(frozen=True)
class Spec:
  """A decoder, or a drafter and a verifier; `parse` reads its `str`."""

  parts: tuple[Call, ...]

  def __str__(self) -> str:
    return '+'.join(map(str, self.parts))

  def __hash__(self) -> int:  # Mappings have no hash.
    return hash(tuple(part.name for part in self.parts))

  def __reduce__(self):  # A `MappingProxyType` cannot be pickled.
    return parse, (str(self),)

  def add(self, arguments: Mapping[str, Value]) -> 'Spec':
    """Returns the specification with `arguments` added to its first part."""
    first, *rest = self.parts
    return Spec((Call(first.name, {**first.arguments, **arguments}), *rest))


def parse(text: str | Spec) -> Spec:
  """Parses a specification, or returns a `Spec` unchanged; raises ValueError with what is wrong."""
  if isinstance(text, Spec):
    return text
  if not isinstance(text, str) or len(text) > _MAX_LENGTH:
    raise ValueError(
        f'decoder is {text!r:.80}; it must be a string of at most {_MAX_LENGTH} characters, such '
        'as mc_sjd(window=32)' + ('.' if not callable(text) else (
            ': pass the name of a decoder that has one, and call one that you have built, '
            'decoder(model.params, model.condition(prompts), jax.random.key(0), '
            'model.sampling()).')))
  text = text.strip()
  nodes = [_expression(text, f'decoder is {text!r}, which is not of a form like mc_sjd(window=32) '
                       'or eagle(tree=LANTERN)+rejection.')]
  while isinstance(nodes[0], ast.BinOp) and isinstance(nodes[0].op, ast.Add):
    nodes[:1] = [nodes[0].left, nodes[0].right]
  if len(nodes) > 2:
    raise ValueError(f'decoder is {text!r}; it has at most two parts, a drafter and a verifier.')
  for node in nodes:
    function = node.func if isinstance(node, ast.Call) and not node.args else node
    if not isinstance(function, ast.Name):
      raise ValueError(
          f'decoder is {text!r}; {_source(text, node)!r} must be a name, or a name with '
          'parameters, each with its name, such as mc_sjd(window=32).')
  return Spec(tuple(Call(node.id) if isinstance(node, ast.Name) else _call(text, node)
                    for node in nodes))


def value(name: str, argument: object) -> Value:
  """Returns what a caller passes for a parameter as a value of a specification.

  It is numbers, True, False, None, or the text of any value; anything else raises ValueError.
  """
  if not isinstance(argument, str):  # Numbers and arrays of NumPy have `tolist`.
    argument = repr(argument.tolist() if hasattr(argument, 'tolist') else argument)
  message = f'{name} is {argument!r:.80}; it must be {_VALUES}.'
  return _value(argument.strip(), name, _expression(argument, message))


def _expression(text: str, message: str) -> ast.expr:
  """The syntax tree of an expression; other text is a ValueError with this message."""
  try:
    return ast.parse(text.strip(), mode='eval').body
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    raise ValueError(message) from error


def _source(text: str, node: ast.AST) -> str:
  return ast.get_source_segment(text, node) or ''


def _call(text: str, node: ast.expr) -> Call:
  """Converts the syntax tree of a name with parameters; `text` is its source."""
  assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
  values = {argument.arg or '': argument.value for argument in node.keywords}
  if '' in values or len(values) < len(node.keywords):
    raise ValueError(
        f'{_source(text, node)!r} must have name=value once for every parameter that it sets.')
  name = node.func.id
  return Call(name, {key: _value(text, key, value) for key, value in values.items()},
              tuple(_value(text, name, argument) for argument in node.args))


def _value(text: str, name: str, node: ast.expr) -> Value:
  """Converts the syntax tree of a value of the parameter `name`."""
  if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
    return _call(text, node)
  if isinstance(node, ast.Tuple | ast.List):
    return tuple(_number(text, name, element) for element in node.elts)
  if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool | str)):
    return node.value
  bare = re.sub(r'\s', '', _source(text, node))
  return bare if _BARE.fullmatch(bare) else _number(text, name, node)


def _number(text: str, name: str, node: ast.expr) -> int | float:
  try:
    number = ast.literal_eval(node)  # A constant, with a sign.
  except (ValueError, TypeError):
    number = None
  if isinstance(number, bool) or not isinstance(number, int | float):
    raise ValueError(f'{name} is {_source(text, node)!r:.80}; it must be {_VALUES}.')
  if not (abs(number) < 2**63 if isinstance(number, int) else math.isfinite(number)):
    raise ValueError(f'{name} is {_source(text, node)!r:.80}; it must be finite and below 2**63.')
  return number


def _text(value: Value) -> str:
  """Formats a value so that `parse` can read it."""
  if isinstance(value, str):
    is_bare = _BARE.fullmatch(value) and not any(map(keyword.iskeyword, value.split('-')))
    return value if is_bare else repr(value)
  return f'[{", ".join(map(_text, value))}]' if isinstance(value, tuple) else repr(value)
