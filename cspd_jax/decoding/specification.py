"""Specifications of decoders of discrete tokens: from a parsed value to a decoder.

A specification (`core.spec`) is a drafter with a verifier, such as
`eagle(tree=LANTERN)+lantern_pp(lam=2)`, or a named decoder, such as `mc_sjd(window=32)`. A drafter
alone is verified by `exact`; before a `+`, the name of a decoder stands for its drafter. `decoders`
fills the tables; parameters, their defaults and their types are those of the signatures.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cspd_jax.core import binding
from cspd_jax.core.spec import Part, Spec, Value, parse
from cspd_jax.decoding import tree_values
from cspd_jax.decoding.base import Drafter, Target, Verifier
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.tree import Tree

# The networks that draft or correct, in words.
DRAFTS = {'model': 'a draft model', 'eagle': 'an EAGLE network', 'medusa': 'Medusa heads',
          'neighbours': 'a network on neighbouring tokens', 'corrector': 'a corrector',
          'layers': "the target's first layers"}

_NONE: Mapping[str, Any] = MappingProxyType({})
_F = TypeVar('_F', bound=Callable[..., Decoder])


class Resources(NamedTuple):
  """The parts of a decoder that no text can hold.

  Attributes:
    drafts: by the keys of `DRAFTS`: a `Target`, a `Network`, `Heads`, and `Corrector`s; the
      first 'layers' of the target are a `Network`.
    codebook: `[V, D]` of the target's image tokenizer, for verifiers that let neighbours
      stand in.
  """

  drafts: Mapping[str, Any] = _NONE
  codebook: np.ndarray | None = None


class DrafterEntry(NamedTuple):
  """A drafter.

  Attributes:
    build: `(...) -> Drafter`.
    summary: one line for tables.
    networks: the networks that it can draft with, by the keys of `DRAFTS`, each with the function
      that turns it into the first argument of `build`. The first is the default; if there are
      several, the parameter `by` names one. Empty if the target drafts for itself.
    auto_tree: `window -> ` the tree that `tree=auto` stands for; None if there is no such value.
    fill: `(arguments, window, length) -> arguments`: values for parameters that are left open,
      None for no value; see `complete`.
  """

  build: Callable[..., Drafter]
  summary: str
  networks: Mapping[str, Callable[[Any], Any]] = _NONE
  auto_tree: Callable[[int], Tree] | None = None
  fill: Callable[[Mapping[str, Value], int | None, int | None], dict[str, Value]] = (
      lambda arguments, window, length: {})

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that a text can give."""
    found = binding.parameters(self.build, {Tree})
    if len(self.networks) < 2:
      return found
    return {'by': inspect.Parameter('by', inspect.Parameter.KEYWORD_ONLY, annotation=str,
                                    default=next(iter(self.networks)))} | found


class VerifierEntry(NamedTuple):
  """A verifier.

  Attributes:
    build: `(...) -> Verifier`.
    summary: one line for tables.
    from_codebook: `(codebook, arguments) -> arguments`: those that are computed from the codebook.
    drafter_defaults: parameters that it requires of the drafter where they are left open.
  """

  build: Callable[..., Verifier]
  summary: str
  from_codebook: Callable[[np.ndarray | None, Mapping[str, Any]], dict[str, Any]] = (
      lambda codebook, arguments: {})
  drafter_defaults: Mapping[str, Value] = _NONE

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that a text can give."""
    return binding.parameters(self.build)


class DecoderEntry(NamedTuple):
  """A named decoder.

  Attributes:
    build: `(target, ...) -> Decoder`.
    summary: one line for tables.
    spec: the drafter and the verifier that it stands for. It fixes the parameters that the drafter
      has here, unless they are also parameters of `build`.
  """

  build: Callable[..., Decoder]
  summary: str
  spec: Spec

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that a text can give."""
    fixed, own = self.spec.parts[0], inspect.signature(self.build).parameters
    return {name: parameter.replace(default=fixed.arguments.get(name, parameter.default))
            for name, parameter in DRAFTERS[fixed.name].parameters.items()
            if name not in fixed.arguments or name in own}


# Filled by `decoders`.
DRAFTERS: dict[str, DrafterEntry] = {}
VERIFIERS: dict[str, VerifierEntry] = {}
DECODERS: dict[str, DecoderEntry] = {}


def named(text: str, summary: str) -> Callable[[_F], _F]:
  """Names the decoder that a specification describes: a decorator.

  The decorated function has no body. Its signature says what callers may give: `target`, the
  network if the drafter needs one, and parameters of the drafter. A default that is not None
  replaces the drafter's.

  Args:
    text: of the drafter and the verifier.
    summary: one line for tables.

  Raises:
    ValueError: for a text that `expand` refuses, or a parameter that the drafter does not have.
  """
  drafter, verifier = expand(text)

  def register(function: _F) -> _F:
    name, signature = function.__name__, inspect.signature(function)
    target, *own = signature.parameters
    network = own.pop(0) if DRAFTERS[drafter.name].networks else None
    allowed = DRAFTERS[drafter.name].parameters
    binding.check_names(Part(name, dict.fromkeys(own)), allowed)
    defaults = {key: signature.parameters[key].default for key in own}
    replaced = {key: value for key, value in defaults.items()
                if value not in (None, inspect.Parameter.empty, allowed[key].default)}

    @functools.wraps(function)
    def decoder(*args, **kwargs) -> Decoder:
      given = signature.bind(*args, **kwargs).arguments
      drafts = {} if network is None else {needs(name): given.pop(network)}
      first = given.pop(target)
      return build(Spec((Part(name, given),)), first, Resources(drafts))

    DECODERS[name] = DecoderEntry(decoder, summary, Spec((
        Part(drafter.name, {**drafter.arguments, **replaced}), verifier)))
    return decoder  # type: ignore[return-value]

  return register


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """Builds the decoder of a specification.

  Args:
    spec: a specification or its text.
    target: the target.
    resources: the parts that no text can hold.

  Raises:
    ValueError: if there is no such decoder, a parameter is unknown or out of range, a network or
      the codebook is missing, or the parts do not fit each other or the target.
  """
  drafter, verifier = expand(complete(spec))
  return make_decoder(target, _drafter(drafter, resources), _verifier(verifier, resources))


def expand(spec: str | Spec) -> tuple[Part, Part]:
  """Returns the drafter and the verifier of a specification.

  Raises:
    ValueError: for an unknown name, or a parameter that a named decoder does not have.
  """
  spec = parse(spec)
  first, *rest = spec.parts
  binding.check_names(first, parameters(spec))
  if rest and rest[0].name not in VERIFIERS:
    raise ValueError(
        f'decoder is {str(spec)!r}, but there is no verifier {rest[0].name!r}; it must be one of '
        f'{", ".join(VERIFIERS)}.')
  entry = _entry(spec)
  if isinstance(entry, DrafterEntry):
    return first, rest[0] if rest else Part('exact')
  drafter, verifier = entry.spec.parts
  given = {name: value for name, value in first.arguments.items()
           if value is not None or name not in drafter.arguments}
  return Part(drafter.name, {**drafter.arguments, **given}), rest[0] if rest else verifier


def complete(spec: str | Spec, *, window: int | None = None, length: int | None = None) -> Spec:
  """Fills in sizes that suit the machine where a specification leaves them open.

  Args:
    spec: a specification or its text.
    window: tokens a forward pass should have at most: the window of decoders with one. From
      26 on EAGLE drafts along its published tree, below along a chain. None leaves it open.
    length: length of drafted chains. None leaves it open.

  Raises:
    ValueError: as `expand`.
  """
  spec = parse(spec)
  drafter, verifier = expand(spec)
  entry = DRAFTERS[drafter.name]
  filled = {**entry.fill(drafter.arguments, window, length),
            **VERIFIERS[verifier.name].drafter_defaults}
  open_names = entry.parameters.keys() - drafter.arguments.keys()
  return spec.add({name: value for name, value in filled.items()
                   if value is not None and name in open_names})


def parameters(spec: str | Spec) -> dict[str, inspect.Parameter]:
  """Returns the parameters that the first part of a specification may have.

  Raises:
    ValueError: if there is no such decoder.
  """
  return _entry(parse(spec)).parameters


def needs(spec: str | Spec) -> str | None:
  """Returns the key of `DRAFTS` that a specification needs in `Resources.drafts`, or None."""
  return _network(expand(spec)[0])


def guarantee(decoder: Decoder) -> str:
  """Returns how the images of a decoder relate to the target's distribution.

  Returns:
    'seed-exact': the tokens of `vanilla(window=N)` with the same key, where `N` is the number of
    tokens of a forward pass: bit for bit in any dtype for chains, up to rounding for trees; and
    those of `vanilla` up to rounding. 'exact': the target's distribution. 'relaxed': neither;
    `Decoded.tv_bound` bounds the total variation.
  """
  if decoder.verifier.seed_exact:
    return 'seed-exact'
  return 'exact' if decoder.verifier.exact else 'relaxed'


def usage(name: str) -> str:
  """Returns a decoder, drafter or verifier with its parameters and their defaults."""
  allowed = VERIFIERS[name].parameters if name in VERIFIERS else parameters(name)
  trees = {tree: key for key, tree in tree_values.PUBLISHED.items()}
  shown = [f'{key}={trees.get(value.default, value.default)}' for key, value in allowed.items()]
  return f'{name}({", ".join(shown)})'


def _entry(spec: Spec) -> DrafterEntry | DecoderEntry:
  """The entry of the first part: of two parts the drafter goes first, alone the decoder."""
  name = spec.parts[0].name
  tables = (DECODERS, DRAFTERS) if len(spec.parts) == 1 else (DRAFTERS, DECODERS)
  for table in tables:
    if name in table:
      return table[name]
  raise ValueError(
      f'decoder is {str(spec)!r}, but there is no {name!r}; it must be one of '
      f'{", ".join(DECODERS)}, or a drafter, one of {", ".join(DRAFTERS)}, with a verifier, one '
      f'of {", ".join(VERIFIERS)}, such as jacobi(window=16)+exact.')


def _network(drafter: Part) -> str | None:
  networks = DRAFTERS[drafter.name].networks
  if not networks:
    return None
  name = drafter.arguments.get('by', next(iter(networks)))
  if name not in networks:
    raise ValueError(f'by is {name!r}; it must be one of {", ".join(networks)}.')
  return str(name)


def _drafter(part: Part, resources: Resources) -> Drafter:
  entry, allowed = DRAFTERS[part.name], DRAFTERS[part.name].parameters
  window = None
  if 'window' in allowed:
    window = part.arguments.get('window', allowed['window'].default)
    window = window if isinstance(window, int | np.integer) and window >= 1 else None
  tree = lambda name, value: tree_values.tree(name, value, window, entry.auto_tree)
  arguments = binding.bind(part, allowed, {Tree: binding.Converter(tree_values.WORDS, tree)})
  network = _network(part)
  if network is None:
    return entry.build(**arguments)
  arguments.pop('by', None)
  if network not in resources.drafts:
    raise ValueError(
        f'{part.name} drafts with {DRAFTS[network]}, and there is none; give drafts[{network!r}].')
  return entry.build(entry.networks[network](resources.drafts[network]), **arguments)


def _verifier(part: Part, resources: Resources) -> Verifier:
  entry = VERIFIERS[part.name]
  arguments = binding.bind(part, entry.parameters)
  return entry.build(**arguments | entry.from_codebook(resources.codebook, arguments))
