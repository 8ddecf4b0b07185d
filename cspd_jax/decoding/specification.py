"""Builds decoders of discrete tokens from their specifications.

A specification (`core.spec`) is a drafter with a verifier, such as
`eagle(tree=LANTERN)+lantern_pp(lam=2)`, or a named decoder, such as `mc_sjd(window=32)`. A drafter
alone is verified by `exact`; before a `+`, the name of a decoder denotes its drafter. `decoders`
fills the tables; parameters, their defaults and their types are those of the signatures.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cspd_jax.core import fields, naming, spec as spec_lib
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.core.spec import Call, Part, Resources, Spec, Value, parse
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.base import Drafter, Target, Verifier
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.tree import Tree

# What drafts or corrects, in words.
SOURCES = {'model': 'a draft model', 'eagle': 'an EAGLE network', 'medusa': 'Medusa heads',
           'neighbours': 'a network on neighbouring tokens', 'corrector': 'a corrector',
           'layers': "the target's first layers"}

_EMPTY: Mapping[str, Any] = MappingProxyType({})
_F = TypeVar('_F', bound=Callable[..., Decoder])


class DrafterEntry(NamedTuple):
  """A registered drafter.

  Attributes:
    build: `(...) -> Drafter`.
    summary: one line for tables.
    networks: the networks that it can draft with, by the keys of `SOURCES`, each with the function
      that turns it into the first argument of `build`. The first is the default; if there are
      several, the parameter `by` selects one. Empty if the target drafts for itself.
    auto_tree: `window -> Tree`, the tree that `tree=auto` selects; None if `auto` is not supported.
    default_sizes: `(arguments, window, length) -> sizes`: values for parameters that `arguments`
      does not set, by the desired `window` and `length`. None leaves a parameter open.
  """

  build: Callable[..., Drafter]
  summary: str
  networks: Mapping[str, Callable[[Any], Any]] = _EMPTY
  auto_tree: Callable[[int], Tree] | None = None
  default_sizes: Callable[[Mapping[str, Value], int | None, int | None], dict[str, Value]] = (
      lambda arguments, window, length: {})

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that text can set."""
    parameters = spec_lib.parameters(self.build, {Tree})
    if len(self.networks) < 2:
      return parameters
    return {'by': inspect.Parameter('by', inspect.Parameter.KEYWORD_ONLY, annotation=str,
                                    default=next(iter(self.networks)))} | parameters


class VerifierEntry(NamedTuple):
  """A registered verifier.

  Attributes:
    build: `(...) -> Verifier`.
    summary: one line for tables.
    codebook_arguments: `(codebook, arguments) -> arguments`: those of `build` that it determines.
    drafter_defaults: with this verifier, defaults of the drafter's parameters.
  """

  build: Callable[..., Verifier]
  summary: str
  codebook_arguments: Callable[[np.ndarray | None, Mapping[str, Any]], dict[str, Any]] = (
      lambda codebook, arguments: {})
  drafter_defaults: Mapping[str, Value] = _EMPTY

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that text can set."""
    return spec_lib.parameters(self.build)


class DecoderEntry(NamedTuple):
  """A named decoder.

  Attributes:
    build: `(target, ...) -> Decoder`.
    summary: one line for tables.
    spec: its drafter and verifier. Arguments in it are fixed, unless `build` has them too.
  """

  build: Callable[..., Decoder]
  summary: str
  spec: Spec

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that text can set."""
    drafter, options = self.spec.parts[0], inspect.signature(self.build).parameters
    return {name: parameter.replace(default=drafter.arguments.get(name, parameter.default))
            for name, parameter in DRAFTERS[drafter.name].parameters.items()
            if name not in drafter.arguments or name in options}


# Filled by `decoders`.
DRAFTERS: dict[str, DrafterEntry] = {}
VERIFIERS: dict[str, VerifierEntry] = {}
DECODERS: dict[str, DecoderEntry] = {}


def named(text: str, summary: str) -> Callable[[_F], _F]:
  """Registers the decoder that a specification describes: a decorator.

  The decorated function has no body. Its name becomes the name of the decoder, and its signature
  lists what callers may pass: `target`, the network if the drafter needs one, and parameters of the
  drafter. A default that is not None replaces the drafter's. `summary` is one line for tables.
  Raises ValueError if `expand` rejects the text, or the drafter lacks one of the parameters.
  """
  drafter, verifier = expand(text)
  allowed, network = DRAFTERS[drafter.name].parameters, _network(drafter)

  def register(function: _F) -> _F:
    name, signature = function.__name__, inspect.signature(function)
    target_name, *options = signature.parameters
    network_name = options.pop(0) if network else ''
    spec_lib.check_names(Part(name, dict.fromkeys(options)), allowed)
    defaults = {option: signature.parameters[option].default for option in options}
    replaced = {option: default for option, default in defaults.items()
                if default not in (None, inspect.Parameter.empty, allowed[option].default)}

    @functools.wraps(function)
    def decoder(*args, **kwargs) -> Decoder:
      arguments = signature.bind(*args, **kwargs).arguments
      target = arguments.pop(target_name)
      drafts = {network: arguments.pop(network_name)} if network else {}
      return build(Spec((Part(name, arguments),)), target, Resources(drafts))

    DECODERS[name] = DecoderEntry(decoder, summary, Spec((
        Part(drafter.name, {**drafter.arguments, **replaced}), verifier)))
    return decoder  # type: ignore[return-value]

  return register


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """Builds the decoder of a specification; `resources` are parts that text cannot represent.

  Raises ValueError if a name is not registered, a parameter is unknown or out of range, a network
  or the codebook is missing, or the parts do not fit each other or the target.
  """
  drafter, verifier = expand(spec)
  entry = VERIFIERS[verifier.name]
  arguments = spec_lib.bind(verifier, entry.parameters)
  return make_decoder(target, _drafter(drafter, resources), entry.build(
      **arguments | entry.codebook_arguments(resources.codebook, arguments)))


def reads_codebook(spec: str | Spec) -> bool:
  """Returns whether the verifier of a specification reads the vectors of the image tokenizer."""
  entry = VERIFIERS[expand(spec)[1].name]
  return entry.codebook_arguments is not VerifierEntry._field_defaults['codebook_arguments']


def expand(spec: str | Spec) -> tuple[Part, Part]:
  """Returns drafter and verifier of a specification; raises ValueError for unknown ones."""
  spec = parse(spec)
  first, *rest = spec.parts
  entry = _entry(spec)
  spec_lib.check_names(first, entry.parameters)
  if rest and rest[0].name not in VERIFIERS:
    raise ValueError(
        f'decoder is {str(spec)!r}, but no verifier is called {rest[0].name!r}; it must be '
        f'one of {", ".join(VERIFIERS)}.')
  if isinstance(entry, DrafterEntry):
    drafter, verifier = first, Part('exact')
  else:
    drafter, verifier = entry.spec.parts
    overrides = {name: value for name, value in first.arguments.items()
                 if value is not None or name not in drafter.arguments}
    drafter = Part(drafter.name, {**drafter.arguments, **overrides})
  verifier = rest[0] if rest else verifier
  defaults = {name: value for name, value in VERIFIERS[verifier.name].drafter_defaults.items()
              if name in DRAFTERS[drafter.name].parameters}
  return Part(drafter.name, {**defaults, **drafter.arguments}), verifier


def complete(spec: str | Spec, *, window: int | None = None, length: int | None = None) -> Spec:
  """Fills in the parameters that a specification leaves open: sizes that suit the machine.

  `window` is the most tokens that a forward pass should have: the window of decoders with one.
  EAGLE drafts along its published tree from 26 on and along a chain below. `length` is that of
  drafted chains. None leaves a size open. Raises ValueError as `expand`.
  """
  spec = parse(spec)
  drafter, _ = expand(spec)
  entry = DRAFTERS[drafter.name]
  open_names = entry.parameters.keys() - drafter.arguments.keys()
  sizes = entry.default_sizes(drafter.arguments, window, length)
  return spec.add({name: value for name, value in sizes.items()
                   if value is not None and name in open_names})


def parameters(spec: str | Spec) -> dict[str, inspect.Parameter]:
  """Returns the parameters of a specification's first part; raises ValueError for unknown names."""
  return _entry(parse(spec)).parameters


def needs(spec: str | Spec) -> str | None:
  """Returns the key of `SOURCES` that a specification needs in `Resources.drafts`, or None."""
  return _network(expand(spec)[0])


def guarantee(decoder: Decoder) -> Guarantee:
  """Returns how the images of a decoder relate to the target's distribution.

  'seed-exact': the tokens of `vanilla(window=N)` with the same key and batch size, where `N` is the
  number of tokens of a forward pass: bit for bit in any dtype for chains, up to rounding for trees;
  and those of `vanilla` up to rounding. 'exact': the target's distribution. 'bounded': neither; the
  mean of `Decoded.tv_bound` bounds the total variation. 'biased': that is NaN.
  """
  verifier = decoder.verifier
  if verifier.seed_exact:
    return Guarantee.SEED_EXACT
  if verifier.exact:
    return Guarantee.EXACT
  return Guarantee.BOUNDED if verifier.bounded else Guarantee.BIASED


def usage(name: str) -> str:
  """Returns a decoder, drafter or verifier with its parameters and their defaults as text."""
  allowed = VERIFIERS[name].parameters if name in VERIFIERS else parameters(name)
  trees = {tree: key for key, tree in TREES.items()}
  texts = [f'{key}={trees.get(value.default, value.default)}' for key, value in allowed.items()]
  return f'{name}({", ".join(texts)})'


def _entry(spec: Spec) -> DrafterEntry | DecoderEntry:
  """The entry of the first part: of two parts preferably a drafter, alone a decoder."""
  name = spec.parts[0].name
  tables = (DECODERS, DRAFTERS) if len(spec.parts) == 1 else (DRAFTERS, DECODERS)
  for table in tables:
    if name in table:
      return table[name]
  raise ValueError(
      f'decoder is {str(spec)!r}, but {name!r} is not registered; '
      + naming.question(name, [*DECODERS, *DRAFTERS, *VERIFIERS], (
          f'it must be one of {", ".join(DECODERS)}, or a drafter, one of {", ".join(DRAFTERS)}, '
          f'with a verifier, one of {", ".join(VERIFIERS)}, such as jacobi(window=16)+exact.')))


def _network(drafter: Part) -> str | None:
  """The key of `SOURCES` that a drafter needs; None if the target drafts for itself."""
  networks = DRAFTERS[drafter.name].networks
  if not networks:
    return None
  name = drafter.arguments.get('by', next(iter(networks)))
  fields.check_choice('by', name, networks)
  return str(name)


def _drafter(part: Part, resources: Resources) -> Drafter:
  entry, allowed = DRAFTERS[part.name], DRAFTERS[part.name].parameters
  window = part.arguments.get('window', allowed['window'].default) if 'window' in allowed else None
  # An invalid window is left to `bind`, whose error names it.
  window = int(window) if isinstance(window, int | np.integer) and window >= 1 else None
  tree = lambda name, value: _tree(name, value, window, entry.auto_tree)
  arguments = spec_lib.bind(part, allowed, {Tree: spec_lib.Converter(_TREE_WORDS, tree)})
  network = _network(part)
  if network is None:
    return entry.build(**arguments)
  arguments.pop('by', None)
  if network not in resources.drafts:
    raise ValueError(
        f'{part.name} drafts with {SOURCES[network]}, which is missing; pass drafts[{network!r}].')
  return entry.build(entry.networks[network](resources.drafts[network]), **arguments)


TREES: dict[str, Tree] = {
    name: tree for name, tree in vars(trees).items() if isinstance(tree, Tree)}
_TREE_CALLS = {build.__name__: build for build in (
    trees.chain, trees.paths, trees.caterpillar, trees.kary, trees.branching, trees.cut)}
_TREE_WORDS = (f'a tree by name ({", ".join(TREES)}), by call ({", ".join(_TREE_CALLS)}; such as '
         'kary(3, 3)), by the parents of its nodes, such as (-1, 0, 0), or, in a window, auto')
# The parameter of a call that sets the number of nodes of the tree.
_NUM_NODES = {'chain': 'length', 'paths': 'num_nodes', 'caterpillar': 'num_nodes',
              'kary': 'num_nodes'}


def _tree(name: str, value: Any, window: int | None = None,
         auto: Callable[[int], Tree] | None = None) -> Tree:
  """Returns the tree that a value of a specification is, names, calls, or lists the parents of.

  A drafter's `window` is the default number of nodes of a call, less one for the root; the value
  'auto' becomes `auto(window)`.
  """
  if isinstance(value, Tree):
    return value
  if isinstance(value, str) and value in TREES:
    return TREES[value]
  if value == 'auto' and window is not None and auto is not None:
    return auto(window)
  if isinstance(value, tuple) and all(isinstance(parent, int) for parent in value):
    return Tree(value)
  if not isinstance(value, Call) or value.name not in _TREE_CALLS:
    raise ValueError(f'{name} is {value!r}; it must be {_TREE_WORDS}.')
  build = _TREE_CALLS[value.name]
  allowed = spec_lib.parameters(build, {Tree})
  if len(value.positional) > len(allowed):
    raise ValueError(
        f'{name} is {value}; {value.name} has {len(allowed)} parameters: {", ".join(allowed)}.')
  arguments = dict(zip(allowed, value.positional))
  if twice := sorted(arguments.keys() & value.arguments):
    raise ValueError(f'{name} is {value}, which sets {twice[0]} twice; set it once.')
  arguments |= value.arguments
  if window is not None and value.name in _NUM_NODES:
    arguments.setdefault(_NUM_NODES[value.name], window - 1)
  inner = spec_lib.Converter(_TREE_WORDS, lambda name, value: _tree(name, value, window, auto))
  return build(**spec_lib.bind(Part(value.name, arguments), allowed, {Tree: inner}))
