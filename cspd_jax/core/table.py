"""Tables of decoders: what the names of a specification stand for, and their parameters.

Each kind of tokens has one, in its module `specification`. Text sets the parameters of the function
of an entry, by its signature; `Resources` fill the one that is a network.
"""

import inspect
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.core import fields, guesses, naming
from cspd_jax.core.spec import Call, Spec, Value, parse

# What drafts or corrects, in words, by the keys of `Resources.drafts`.
SOURCES = {'model': 'a draft model', 'eagle': 'an EAGLE network', 'medusa': 'Medusa heads',
           'neighbours': 'a network on neighbouring tokens',
           'local': 'a network on neighbouring tokens and features', 'corrector': 'a corrector',
           'layers': "the target's first layers"}
_NONE: Mapping[Any, Any] = MappingProxyType({})
# Types that text can represent, with descriptions.
_TEXT_TYPES = {int: 'a whole number', float: 'a number', bool: 'True or False', str: 'a string',
               type(None): 'None'}
_NUMBERS = {int: numbers.Integral, float: numbers.Real}
# For other types, `(name, value) -> object`; it raises ValueError with the name of the parameter.
Converters = Mapping[type, Callable[[str, Value], Any]]


class Resources(NamedTuple):
  """The parts of a decoder that text cannot represent.

  Attributes:
    drafts: what drafts or corrects, by the keys of `SOURCES`: a `Target`, a `Network`, `Heads` or a
      `Corrector`; the target's first 'layers' are a `Network`. A draft model of continuous tokens
      has the key 'model'.
    codebook: `[V, D]` of the target's image tokenizer, for verifiers with latent neighbours.
    rho: `schedule -> [levels]` or None: the blend of a diffusion head's drafter that was fitted to
      the target; by default `head_drafter.default_rho`.
  """

  drafts: Mapping[str, Any] = _NONE
  codebook: np.ndarray | None = None
  rho: Callable[[Any], np.ndarray | None] | None = None


class Entry(NamedTuple):
  """A function that text can name: a decoder `(target, ...)`, a drafter or a verifier `(...)`.

  Attributes:
    build: the function. Text sets its parameters, but for `target`, a network and arrays.
    summary: one line for tables.
    parts: the drafter and the verifier that a decoder joins, if it does; the other fields are its
      drafter's.
    networks: what can be the network, the first parameter, by keys of `SOURCES`, the default first:
      each with the function that turns it into the argument. Text selects one of several.
    tree: of a drafter, `window -> Tree`: what `tree=auto` selects; None if it does not exist.
    sizes: of a drafter, `(arguments, sizes) -> parameters`: those that follow from the sizes
      `window` and `length` of a round, if `arguments` are set.
    codebook: of a verifier, `(codebook, arguments) -> arguments`: further ones, from the vectors of
      the image tokenizer; None if it does not read them.
    drafter_defaults: of a verifier: defaults of the drafter's parameters.
  """

  build: Callable[..., Any]
  summary: str
  parts: Spec | None = None
  networks: Mapping[str, Callable[[Any], Any]] = _NONE
  tree: Callable[[int], Any] | None = None
  sizes: Callable[[Mapping[str, Value], dict[str, Any]], dict[str, Value]] = (
      lambda arguments, sizes: sizes)
  codebook: Callable[[np.ndarray | None, Mapping[str, Any]], dict[str, Any]] | None = None
  drafter_defaults: Mapping[str, Value] = _NONE

  @property
  def fixed(self) -> Mapping[str, Value]:
    """The parameters of its drafter that a named decoder sets."""
    return self.parts.parts[0].arguments if self.parts else _NONE

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that text can set; `fixed` has what a default of None stands for."""
    own = dict(inspect.signature(self.build, eval_str=True).parameters)
    own.pop('target', None)
    if self.networks:
      name, network = next(iter(own.items()))
      del own[name]
      if len(self.networks) > 1:
        own = {name: network.replace(annotation=str, default=next(iter(self.networks)))} | own
    return {name: parameter.replace(default=self.fixed[name])
            if parameter.default is None and name in self.fixed else parameter
            for name, parameter in own.items() if np.ndarray not in _kinds(parameter.annotation)}

  @property
  def defaults(self) -> dict[str, Any]:
    """The defaults of `parameters`."""
    return {name: parameter.default for name, parameter in self.parameters.items()
            if parameter.default is not parameter.empty}

  def needs(self, part: Call) -> tuple[str, str] | None:
    """Returns the parameter that is a network, and the key in `SOURCES` of what `part` selects."""
    if not self.networks:
      return None
    name = next(name for name in inspect.signature(self.build).parameters if name != 'target')
    key = part.arguments.get(name, next(iter(self.networks)))
    fields.check_choice(name, key, self.networks)
    return name, str(key)

  def check(self, part: Call) -> None:
    """Raises ValueError for a parameter that does not exist."""
    allowed = self.parameters
    for name in part.arguments:
      if name not in allowed:
        raise ValueError(
            f'{part.name} has no parameter {name!r}; it has {", ".join(allowed) or "none"}'
            + naming.suggestion(name, allowed))

  def bind(self, part: Call, converters: Converters = _NONE) -> dict[str, Any]:
    """Returns the arguments that a part sets, as the types of the signature.

    Raises ValueError for an unknown or a missing parameter, or a value of a wrong type.
    """
    self.check(part)
    bound = {}
    for name, parameter in self.parameters.items():
      if name in part.arguments:
        bound[name] = _convert(
            name, part.arguments[name], _kinds(parameter.annotation), converters)
      elif parameter.default is parameter.empty:
        raise ValueError(f'{part.name} needs {name}; pass it as {part.name}({name}=...).')
    return bound

  def arguments(self, part: Call, converters: Converters, resources: Resources) -> dict[str, Any]:
    """Returns the arguments of `bind` and the network; a missing one is a ValueError."""
    arguments, needed = self.bind(part, converters), self.needs(part)
    if needed is None:
      return arguments
    name, key = needed
    if key not in resources.drafts:
      raise ValueError(
          f'{part.name} drafts with {SOURCES[key]}, which is missing; pass drafts[{key!r}].')
    return arguments | {name: self.networks[key](resources.drafts[key])}


class Table(NamedTuple):
  """The decoders of one kind of tokens, and what they are made of, by name.

  Alone, a name is that of a decoder, or of a drafter, which `rejection` verifies. Before a `+` it
  is that of a drafter, or of a decoder, which then stands for its drafter.
  """

  decoders: dict[str, Entry]
  drafters: dict[str, Entry]
  verifiers: dict[str, Entry]

  def entry(self, spec: str | Spec) -> Entry:
    """Returns the entry of the first part; raises ValueError for unknown names and parameters."""
    spec = parse(spec)
    first, *rest = spec.parts
    tables = (self.drafters, self.decoders) if rest else (self.decoders, self.drafters)
    entry = tables[0].get(first.name) or tables[1].get(first.name)
    if entry is None:
      raise ValueError(f'decoder is {str(spec)!r}, but {self._unknown(first.name)}')
    entry.check(first)
    if rest and rest[0].name not in self.verifiers:
      raise ValueError(
          f'decoder is {str(spec)!r}, but no verifier is called {rest[0].name!r}; ' + (
              f'it must be one of {", ".join(self.verifiers)}.' if self.verifiers else
              'decoders of continuous tokens have one part.'))
    return entry

  def parameters(self, spec: str | Spec) -> dict[str, inspect.Parameter]:
    """Returns the parameters that the first part may set; raises the errors of `entry`."""
    return self.entry(spec).parameters

  def needs(self, spec: str | Spec) -> str | None:
    """Returns the key of `SOURCES` that a specification needs in `Resources.drafts`, or None."""
    needed = self.entry(spec).needs(parse(spec).parts[0])
    return None if needed is None else needed[1]

  def complete(self, spec: str | Spec, **sizes: Any) -> Spec:
    """Fills in the parameters that a specification leaves open: sizes that suit the machine.

    `window` is the most tokens that a forward pass should have, `length` that of drafted chains;
    other sizes are parameters by name. One that is None or that the decoder does not have is
    ignored. EAGLE drafts along its published tree from a window of 26 on, and along a chain below.
    """
    spec, entry = parse(spec), self.entry(spec)
    given = {name: size for name, size in sizes.items() if size is not None}
    taken = {**entry.fixed, **spec.parts[0].arguments}
    return spec.add({name: size for name, size in entry.sizes(taken, given).items()
                     if name in entry.parameters and name not in taken})

  def _unknown(self, name: str) -> str:
    if name in self.verifiers:
      return f'{name!r} is a verifier; write it after a drafter, such as jacobi(window=16)+{name}.'
    words = f'it must be one of {", ".join(self.decoders)}'
    if self.drafters:
      words += (f', or a drafter, one of {", ".join(self.drafters)}, with a verifier, one of '
                f'{", ".join(self.verifiers)}, such as jacobi(window=16)+rejection')
    return f'{name!r} is not registered; ' + naming.question(
        name, [*self.decoders, *self.drafters, *self.verifiers], f'{words}.', guesses.ALIASES)


def _kinds(annotation: Any) -> list[type]:
  """The types of an annotation: the members of a union, or the annotation itself."""
  is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
  return [typing.get_origin(kind) or kind
          for kind in (typing.get_args(annotation) if is_union else (annotation,))]


def _convert(name: str, value: Any, kinds: list[type], converters: Converters) -> Any:
  for kind in kinds:
    if kind in converters and value is not None:
      return converters[kind](name, value)
    if isinstance(value, _NUMBERS.get(kind, kind)) and (kind is bool) == isinstance(value, bool):
      return kind(value) if kind in _NUMBERS else value
  words = [_TEXT_TYPES.get(kind, f'a {kind.__name__}') for kind in kinds]
  raise ValueError(f'{name} is {value!r}; it must be {" or ".join(words)}.')
