"""What the registries of both engines share: parameters are those of a builder's signature."""

import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from cspd_jax.core.spec import Part, Value

_WORDS = {int: 'a whole number', float: 'a number', bool: 'True or False', str: 'a text',
          tuple: 'numbers in parentheses', type(None): 'None'}


class Converter(NamedTuple):
  """How a type that text cannot hold comes from a value of a specification.

  Attributes:
    words: what may be given, for errors.
    convert: `(name, value) -> object`; raises ValueError naming the parameter.
  """

  words: str
  convert: Callable[[str, Value], Any]


def parameters(build: Callable, supplied: Collection[str] = ()) -> dict[str, inspect.Parameter]:
  """The parameters of `build` that a specification may give; not those that are `supplied`."""
  signature = inspect.signature(build, eval_str=True)
  return {name: parameter for name, parameter in signature.parameters.items()
          if name not in supplied}


def bind(part: Part, allowed: Mapping[str, inspect.Parameter],
         converters: Mapping[type, Converter] = types.MappingProxyType({})) -> dict[str, Any]:
  """The arguments of a part, checked against the parameters it may have.

  Args:
    part: a part of a specification.
    allowed: see `parameters`.
    converters: by type.

  Returns:
    The arguments that were given, converted to the types of the signature.

  Raises:
    ValueError: for an unknown parameter, one that is missing, or a value of another type.
  """
  check_names(part, allowed)
  for name, parameter in allowed.items():
    if parameter.default is parameter.empty and name not in part.arguments:
      raise ValueError(f'{part.name} needs {name}; give it as {part.name}({name}=...).')
  return {name: _convert(name, value, allowed[name].annotation, converters)
          for name, value in part.arguments.items()}


def check_names(part: Part, allowed: Collection[str]) -> None:
  """Raises ValueError for a parameter that is not among those allowed."""
  for name in part.arguments:
    if name not in allowed:
      raise ValueError(
          f'{part.name} has no parameter {name!r}; it has {", ".join(allowed) or "none"}.')


def _convert(name: str, value: Value, annotation: Any, converters: Mapping[type, Converter]) -> Any:
  is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
  kinds = [typing.get_origin(kind) or kind
           for kind in (typing.get_args(annotation) if is_union else (annotation,))]
  for kind in kinds:
    if kind in converters and value is not None:
      return converters[kind].convert(name, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
      return float(value)
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
      return value
  words = [converters[kind].words if kind in converters else _WORDS.get(kind, kind.__name__)
           for kind in kinds]
  text = repr(value) if isinstance(value, str) else value
  raise ValueError(f'{name} is {text}; it must be {" or ".join(words)}.')

