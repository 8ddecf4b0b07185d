"""Entries of tables: the functions that specifications name, such as decoders.

What both engines have in common: text sets the parameters of a function by its signature, and
`Resources` fill the parameters that are networks.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cspd_jax.core import fields, spec as spec_lib
from cspd_jax.core.spec import Converter, Part

# What drafts or corrects, in words, by the keys of `Resources.drafts`.
SOURCES = {'model': 'a draft model', 'eagle': 'an EAGLE network', 'medusa': 'Medusa heads',
           'neighbours': 'a network on neighbouring tokens',
           'local': 'a network on neighbouring tokens and features', 'corrector': 'a corrector',
           'layers': "the target's first layers"}

class Resources(NamedTuple):
  """The parts of a decoder that text cannot represent.

  Attributes:
    drafts: what drafts or corrects, by the keys of `core.entries.SOURCES`: a `Target`, a
      `Network`, `Heads` or a `Corrector`; the target's first 'layers' are a `Network`. A draft
      model of continuous tokens has the key 'model'.
    codebook: `[V, D]` of the target's image tokenizer, for verifiers with latent neighbours.
    rho: `schedule -> [levels]` or None: the blend of a diffusion head's drafter that was fitted to
      the target; by default `head_drafter.default_rho`.
  """

  drafts: Mapping[str, Any] = MappingProxyType({})
  codebook: np.ndarray | None = None
  rho: Callable[[Any], np.ndarray | None] | None = None


# The networks that can fill a parameter, by keys of `SOURCES`, the default first: each with the
# function that turns it into an argument.
Networks = Mapping[str, Callable[[Any], Any]]
_NONE: Networks = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Entry:
  """A function that text can name; an engine's entries say which types its parameters may have.

  Attributes:
    build: the function. Text sets its parameters of types that text can represent.
    summary: one line for tables.
    converted: further types that text can represent, each in a way of its own.
    networks_of: by type, the networks that fill a parameter of this type; but for `target`.
  """

  build: Callable[..., Any]
  summary: str
  converted: ClassVar[Collection[type]] = ()
  networks_of: ClassVar[Mapping[type, Networks]] = MappingProxyType({})

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that text can set; one of several networks is selected by its name."""
    parameters = spec_lib.parameters(self.build, self.converted)
    name, networks = self._network
    if len(networks) < 2:
      return parameters
    return {name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=str,
                                    default=next(iter(networks)))} | parameters

  @property
  def networks(self) -> Networks:
    """The networks that can fill the parameter for one; empty if the target drafts for itself."""
    return self._network[1]

  @property
  def _network(self) -> tuple[str, Networks]:
    """The name of the parameter that a network fills, and `networks`."""
    for name, parameter in inspect.signature(self.build, eval_str=True).parameters.items():
      for kind in (parameter.annotation, *typing.get_args(parameter.annotation)):
        if name != 'target' and kind in self.networks_of:
          return name, self.networks_of[kind]
    return '', _NONE

  def needs(self, part: Part) -> str | None:
    """Returns the key of `SOURCES` that `part`, a call of this entry, needs; None for none."""
    name, networks = self._network
    if not networks:
      return None
    key = part.arguments.get(name, next(iter(networks)))
    fields.check_choice(name, key, networks)
    return str(key)

  def arguments(self, part: Part, converters: Mapping[type, Converter] = MappingProxyType({}),
                resources: Resources = Resources()) -> dict[str, Any]:
    """Returns the arguments of `build` that a part sets, and the network that it needs.

    Raises ValueError for unknown parameters, wrong values and a missing network.
    """
    arguments, key = spec_lib.bind(part, self.parameters, converters), self.needs(part)
    if key is None:
      return arguments
    if key not in resources.drafts:
      raise ValueError(
          f'{part.name} drafts with {SOURCES[key]}, which is missing; pass drafts[{key!r}].')
    name, networks = self._network
    return arguments | {name: networks[key](resources.drafts[key])}
