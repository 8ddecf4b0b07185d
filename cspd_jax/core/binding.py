"""Binds the parameters of a specification to the signature of the function that builds a part."""

import inspect
import numbers
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.core import naming
from cspd_jax.core.spec import Part, Value

# Types that text can represent, with descriptions.
_TEXT_TYPES = {int: 'a whole number', float: 'a number', bool: 'True or False', str: 'a string',
               tuple: 'numbers in parentheses', type(None): 'None'}
_NUMBERS = {int: numbers.Integral, float: numbers.Real}


class Resources(NamedTuple):
  """The parts of a decoder that text cannot represent.

  Attributes:
    drafts: what drafts or corrects, by the keys of `decoding.specification.SOURCES`: a `Target`, a
      `Network`, `Heads` or a `Corrector`; the target's first 'layers' are a `Network`. A draft
      model of continuous tokens has the key 'model'.
    codebook: `[V, D]` of the target's image tokenizer, for verifiers with latent neighbours.
    rho: `schedule -> [levels]` or None: the blend of a diffusion head's drafter that was fitted to
      the target; by default `head_drafter.default_rho`.
  """

  drafts: Mapping[str, Any] = types.MappingProxyType({})
  codebook: np.ndarray | None = None
  rho: Callable[[Any], np.ndarray | None] | None = None


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

  Parameters that the part leaves open are absent from the result.

  Raises:
    ValueError: for an unknown or a missing parameter, or a value of a wrong type.
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
