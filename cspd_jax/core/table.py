"""Tables of decoders: what the names of a specification stand for, and their parameters.

Each kind of tokens has one, in its module `specification`. Text sets the parameters of the function
of an entry, by its signature; the caller passes the target and trained networks.
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

_NONE: Mapping[Any, Any] = MappingProxyType({})
# Types that text can represent, with descriptions.
_TEXT_TYPES = {int: 'a whole number', float: 'a number', bool: 'True or False', str: 'a string',
               type(None): 'None'}
_NUMBERS = {int: numbers.Integral, float: numbers.Real}
# For other types, `(name, value) -> object`; it raises ValueError with the name of the parameter.
Converters = Mapping[type, Callable[[str, Value], Any]]


class Entry(NamedTuple):
  """A function that text can name: a decoder `(target, ...)`, a drafter or a verifier `(...)`.

  Attributes:
    build: the function. Text sets its parameters, but for `target`, a network and arrays.
    summary: one line for tables.
    parts: the drafter and the verifier that a decoder joins, if it does.
    networks: what can be the network, the first parameter, by keys of `Table.networks`, the default
      first: each with the function that turns it into the argument. Text selects one of several.
    sizes: `(arguments, sizes) -> parameters`: those that follow from the sizes `window` and
      `length` of a round, if `arguments` are set.
    refuses: maps a target to why the decoder cannot decode it, or to None if it can.
  """

  build: Callable[..., Any]
  summary: str
  parts: Spec | None = None
  networks: Mapping[str, Callable[[Any], Any]] = _NONE
  sizes: Callable[[Mapping[str, Value], dict[str, Any]], dict[str, Value]] = (
      lambda arguments, sizes: sizes)
  refuses: Callable[[Any], str | None] = lambda target: None

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that text can set."""
    own = dict(inspect.signature(self.build, eval_str=True).parameters)
    own.pop('target', None)
    if self.networks:
      name, network = next(iter(own.items()))
      del own[name]
      if len(self.networks) > 1:
        own = {name: network.replace(annotation=str, default=next(iter(self.networks)))} | own
    return {name: parameter for name, parameter in own.items()
            if np.ndarray not in _kinds(parameter.annotation)}

  @property
  def defaults(self) -> dict[str, Any]:
    """The defaults of `parameters`."""
    return {name: parameter.default for name, parameter in self.parameters.items()
            if parameter.default is not parameter.empty}

  def network(self, part: Call) -> tuple[str, str] | None:
    """Returns the parameter that is a network, and the key of the one that `part` selects."""
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


class Table(NamedTuple):
  """The decoders of one kind of tokens by name, what they are made of, and what a model chooses.

  A name that stands alone is a decoder's, a name before a `+` a drafter's.

  Attributes:
    tokens: 'discrete' or 'continuous'.
    decoders: the named decoders.
    drafters: the drafters, if text can join them with a verifier.
    verifiers: the verifiers.
    networks: what drafts or corrects, in words, by its key in `Model.drafts`.
    options: the fields of `SamplingParams` that the models have.
    baseline: the named decoder that all others are compared with.
    candidates: named decoders that may be a model's default, the best first.
    on_cpu: the defaults on a CPU, for one image at a time and for several; None for the same.
    seed_exact: whether decoders can repeat the tokens of the baseline, one per pass.
  """

  tokens: str
  decoders: dict[str, Entry]
  drafters: dict[str, Entry]
  verifiers: dict[str, Entry]
  networks: Mapping[str, str]
  options: tuple[str, ...]
  baseline: str
  candidates: tuple[str, ...]
  on_cpu: tuple[str, str] | None
  seed_exact: bool

  def entry(self, spec: str | Spec) -> Entry:
    """Returns the entry of the first part; raises ValueError for unknown names and parameters."""
    first, *rest = parse(spec).parts
    entry, problem = (self.drafters if rest else self.decoders).get(first.name), None
    if rest and not self.verifiers:
      problem = f'decoders of {self.tokens} tokens have one part.'
    elif entry is None:
      problem = self._unknown(first.name, *rest)
    elif rest and rest[0].name not in self.verifiers:
      problem = (f'no verifier is called {rest[0].name!r}; it must be one of '
                 f'{", ".join(self.verifiers)}.')
    if problem is not None or entry is None:
      raise ValueError(f'decoder is {str(spec)!r}, but {problem}')
    entry.check(first)
    return entry

  def parameters(self, spec: str | Spec) -> dict[str, inspect.Parameter]:
    """Returns the parameters that the first part may set; raises the errors of `entry`."""
    return self.entry(spec).parameters

  def needs(self, spec: str | Spec) -> str | None:
    """Returns the key of the network that a specification drafts with, or None."""
    needed = self.entry(spec).network(parse(spec).parts[0])
    return None if needed is None else needed[1]

  def refuses(self, spec: str | Spec, target: Any) -> str | None:
    """Returns why the decoder of a specification cannot decode a target, or None if it can."""
    return self.entry(spec).refuses(target)

  def complete(self, spec: str | Spec, **sizes: Any) -> Spec:
    """Fills in the parameters that a specification leaves open: sizes that suit the machine.

    `window` is the most tokens that a forward pass should have, `length` the most of a chain;
    other sizes are parameters by name. One that is None or that the decoder does not have is
    ignored.
    """
    spec, entry = parse(spec), self.entry(spec)
    given = {name: size for name, size in sizes.items() if size is not None}
    taken = spec.parts[0].arguments
    return spec.add({name: size for name, size in entry.sizes(taken, given).items()
                     if name in entry.parameters and name not in taken})

  def arguments(self, spec: str | Spec, drafts: Mapping[str, Any], converters: Converters = _NONE
                ) -> dict[str, Any]:
    """Returns the arguments of the first part, its network among `drafts`; ValueError without it.
    """
    entry, part = self.entry(spec), parse(spec).parts[0]
    arguments, needed = entry.bind(part, converters), entry.network(part)
    if needed is None:
      return arguments
    name, key = needed
    if key not in drafts:
      raise ValueError(f'{part.name} drafts with {self.networks[key]}, which is missing; pass '
                       f'drafts[{key!r}].')
    return arguments | {name: entry.networks[key](drafts[key])}

  def _unknown(self, name: str, verifier: Call | None = None) -> str:
    if name in self.verifiers:
      return f'{name!r} is a verifier; write it after a drafter, such as jacobi(window=16)+{name}.'
    if name in self.drafters:
      return f'{name!r} is a drafter; write a verifier after it, such as {name}+rejection.'
    if name in self.decoders:
      parts = self.decoders[name].parts or parse('jacobi+rejection')
      return (f'{name!r} is a decoder, like {parts}; write a drafter before +, such as '
              f'{parts.parts[0]}+{verifier}.')
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
  words = [_TEXT_TYPES[kind] for kind in kinds if kind in _TEXT_TYPES]
  raise ValueError(f'{name} is {value!r}; it must be {" or ".join(words)}.')
