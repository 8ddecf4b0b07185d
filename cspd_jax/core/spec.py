"""Specifications: decoders as text.

A specification is one part, or two parts joined by `+`; a part is a name with parameters in
parentheses, in the syntax of Python:

  mc_sjd(window=32)
  eagle(tree=LANTERN)+lantern_pp(lam=2)
  jacobi(window=16, coupling=maximal, tree=kary(3, 3))+rejection

Text is parsed once, into a frozen value, and never evaluated. The module `specification` of each
engine defines the names, and binds the parameters to the signatures of the functions of its parts.
"""

import ast
import dataclasses
import inspect
import keyword
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from cspd_jax.core import naming

# Text without quotes: names, which hyphens may join.
_BARE = re.compile(r'[A-Za-z_]\w*(-[A-Za-z_]\w*)*', re.ASCII)
_MAX_LENGTH = 1000
_VALUES = ('a number, True, False, None, a name, a string in quotes, a call such as kary(3, 3), or '
           'numbers in parentheses')


@dataclasses.dataclass(frozen=True, repr=False)
class Call:
  """A value that is a call, such as the tree `kary(3, 3)`: a name and its arguments."""

  name: str
  positional: tuple['Value', ...]
  arguments: Mapping[str, 'Value']

  def __repr__(self) -> str:
    named = [f'{name}={_text(value)}' for name, value in sorted(self.arguments.items())]
    return f'{self.name}({", ".join([_text(value) for value in self.positional] + named)})'


Value = int | float | bool | None | str | tuple[int | float, ...] | Call


@dataclasses.dataclass(frozen=True)
class Part:
  """The name of a decoder, a drafter or a verifier, with its parameters by name, read-only."""

  name: str
  arguments: Mapping[str, Value] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    object.__setattr__(self, 'arguments', types.MappingProxyType(dict(self.arguments)))

  def __str__(self) -> str:
    return str(Call(self.name, (), self.arguments)) if self.arguments else self.name


@dataclasses.dataclass(frozen=True)
class Spec:
  """A named decoder, a drafter, or a drafter and a verifier; `parse` reads its `str`."""

  parts: tuple[Part, ...]

  def __str__(self) -> str:
    return '+'.join(map(str, self.parts))

  def __hash__(self) -> int:  # Of names alone: values such as mappings have no hash.
    return hash(tuple((part.name, *sorted(part.arguments)) for part in self.parts))

  def __reduce__(self):  # A `MappingProxyType` cannot be pickled.
    return parse, (str(self),)

  def add(self, arguments: Mapping[str, Value]) -> 'Spec':
    """Returns the specification with `arguments` added to its first part."""
    first, *rest = self.parts
    return Spec((Part(first.name, {**first.arguments, **arguments}), *rest))


def parse(text: str | Spec) -> Spec:
  """Parses a specification, or returns a `Spec` unchanged; raises ValueError with what is wrong."""
  if isinstance(text, Spec):
    return text
  if callable(text):
    raise ValueError(
        f'decoder is {text!r:.80}; it must be a string such as mc_sjd(window=32): pass the name of '
        'a decoder that has one, and call one that you have built, decoder(model.params, '
        'model.condition(prompts), jax.random.key(0), model.sampling()).')
  if not isinstance(text, str) or len(text) > _MAX_LENGTH:
    raise ValueError(
        f'decoder is {text!r:.80}; it must be a string of at most {_MAX_LENGTH} characters, such '
        'as mc_sjd(window=32).')
  node = _expression(text, f'decoder is {text!r}, which is not of a form like mc_sjd(window=32) or '
                     'eagle(tree=LANTERN)+rejection.')
  return _Reader(text.strip()).spec(node)


def _expression(text: str, message: str) -> ast.expr:
  """The syntax tree of an expression; raises ValueError with a message for other text."""
  try:
    return ast.parse(text.strip(), mode='eval').body
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    raise ValueError(message) from error


def value(name: str, argument: object) -> Value:
  """Returns what a caller passes for a parameter as a value of a specification.

  It is numbers, True, False, None, or the text of any value; anything else raises ValueError.
  """
  if isinstance(argument, str):
    node = _expression(argument, f'{name} is {argument!r:.80}; it must be {_VALUES}.')
    return _Reader(argument.strip()).value(name, node)
  if hasattr(argument, 'tolist'):  # Numbers and arrays of NumPy.
    argument = argument.tolist()
  if argument is None or isinstance(argument, bool):
    return argument
  if isinstance(argument, list | tuple):
    return tuple(_number(name, number, number) for number in argument)
  return _number(name, argument, argument)


def _number(name: str, number: object, source: object) -> int | float:
  """Returns a number of the parameter `name` after a check; `source` is it in errors."""
  if isinstance(number, bool) or not isinstance(number, int | float):
    raise ValueError(f'{name} is {str(source):.80}; it must be {_VALUES}.')
  if not (abs(number) < 2**63 if isinstance(number, int) else math.isfinite(number)):
    raise ValueError(f'{name} is {str(source):.80}; it must be finite and below 2**63.')
  return number


@dataclasses.dataclass(frozen=True)
class _Reader:
  """Converts syntax trees to values; `text` is for errors."""

  text: str

  def spec(self, node: ast.expr) -> Spec:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
      return Spec((self.part(node),))
    if isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Add):
      raise ValueError(
          f'decoder is {self.text!r}; it has at most two parts, a drafter and a verifier.')
    return Spec((self.part(node.left), self.part(node.right)))

  def part(self, node: ast.expr) -> Part:
    if isinstance(node, ast.Name):
      return Part(node.id)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
      raise ValueError(
          f'decoder is {self.text!r}; {self.source(node)} must be a name, or a name with '
          'parameters, such as mc_sjd(window=32).')
    if node.args:
      raise ValueError(
          f'decoder is {self.text!r}; {self.source(node.args[0])} has no name: pass parameters '
          f'by name, such as {node.func.id}(window=32).')
    return Part(node.func.id, self.arguments(node))

  def arguments(self, node: ast.Call) -> dict[str, Value]:
    arguments = {}
    for argument in node.keywords:
      if argument.arg is None or argument.arg in arguments:
        raise ValueError(
            f'{self.source(node)} must have name=value once for every parameter that it sets.')
      arguments[argument.arg] = self.value(argument.arg, argument.value)
    return arguments

  def value(self, name: str, node: ast.expr) -> Value:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
      positional = tuple(self.value(name, argument) for argument in node.args)
      return Call(node.func.id, positional, self.arguments(node))
    if isinstance(node, ast.Tuple | ast.List):
      return tuple(self.number(name, element) for element in node.elts)
    if isinstance(node, ast.Constant) and (
        node.value is None or isinstance(node.value, bool | str)):
      return node.value
    source = re.sub(r'\s', '', ast.get_source_segment(self.text, node) or '')
    return source if _BARE.fullmatch(source) else self.number(name, node)

  def number(self, name: str, node: ast.expr) -> int | float:
    sign, operand = 1, node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
      sign, operand = (-1 if isinstance(node.op, ast.USub) else 1), node.operand
    number = operand.value if isinstance(operand, ast.Constant) else None
    return sign * _number(name, number, self.source(node))

  def source(self, node: ast.AST) -> str:
    return repr(ast.get_source_segment(self.text, node))


def _text(value: Value) -> str:
  """Formats a value so that `parse` can read it."""
  if isinstance(value, str):
    is_bare = _BARE.fullmatch(value) and not any(map(keyword.iskeyword, value.split('-')))
    return value if is_bare else repr(value)
  if isinstance(value, tuple):
    return f'[{", ".join(map(_text, value))}]'
  return str(value)


# Types that text can represent, with descriptions.
_TEXT_TYPES = {int: 'a whole number', float: 'a number', bool: 'True or False', str: 'a string',
               tuple: 'numbers in parentheses', type(None): 'None'}
_NUMBERS = {int: numbers.Integral, float: numbers.Real}


class Converter(NamedTuple):
  """Converts a value of a specification to a type that text cannot represent.

  Attributes:
    words: a description of the values that it accepts, for errors.
    convert: `(name, value) -> object`; raises ValueError naming the parameter.
  """

  words: str
  convert: Callable[[str, Value], Any]


_NO_CONVERTERS: Mapping[type, Converter] = types.MappingProxyType({})


def parameters(build: Callable, converted: Collection[type] = ()) -> dict[str, inspect.Parameter]:
  """Returns the parameters of `build` that text can set, by the types of its signature.

  Parameters of other types than those of text and of `converted`, such as a network, are left out.
  """
  signature = inspect.signature(build, eval_str=True)
  return {name: parameter for name, parameter in signature.parameters.items()
          if all(kind in _TEXT_TYPES or kind in converted for kind in _kinds(parameter.annotation))}


def bind(part: Part, allowed: Mapping[str, inspect.Parameter],
         converters: Mapping[type, Converter] = _NO_CONVERTERS) -> dict[str, Any]:
  """Checks the arguments of a part and converts them to the types of the signature.

  Parameters that the part leaves open are absent from the result. Raises ValueError for an unknown
  or a missing parameter, or a value of a wrong type.
  """
  check_names(part, allowed)
  for name, parameter in allowed.items():
    if parameter.default is parameter.empty and name not in part.arguments:
      raise ValueError(f'{part.name} needs {name}; pass it as {part.name}({name}=...).')
  return {name: _convert(name, value, _kinds(allowed[name].annotation), converters)
          for name, value in part.arguments.items()}


def check_names(part: Part, allowed: Collection[str]) -> None:
  """Raises ValueError for a parameter that is not allowed."""
  for name in part.arguments:
    if name not in allowed:
      raise ValueError(
          f'{part.name} has no parameter {name!r}; it has {", ".join(allowed) or "none"}'
          + naming.suggestion(name, allowed))


def _kinds(annotation: Any) -> list[type]:
  """The types of an annotation: the members of a union, or the annotation itself."""
  is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
  return [typing.get_origin(kind) or kind
          for kind in (typing.get_args(annotation) if is_union else (annotation,))]


def _convert(name: str, value: Any, kinds: list[type], converters: Mapping[type, Converter]) -> Any:
  for kind in kinds:
    if kind in converters and value is not None:
      return converters[kind].convert(name, value)
    if isinstance(value, _NUMBERS.get(kind, kind)) and (kind is bool) == isinstance(value, bool):
      return kind(value) if kind in _NUMBERS else value
  words = [converters[kind].words if kind in converters else
           _TEXT_TYPES.get(kind, kind.__name__) for kind in kinds]
  raise ValueError(f'{name} is {value!r}; it must be {" or ".join(words)}.')
