"""Builds decoders of discrete tokens from their specifications.

A specification (`core.spec`) is a drafter with a verifier, such as
`eagle(tree=LANTERN)+lantern_pp(lam=2)`, or a named decoder, such as `mc_sjd(window=32)`. Before a
`+`, a name is preferably that of a drafter, else the drafter of a named decoder; alone, preferably
that of a decoder, else a drafter that `rejection` verifies. `tables` has the names; parameters,
their defaults and their types are those of the signatures.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from cspd_jax.core import guesses, naming, spec as spec_lib
from cspd_jax.core.entries import SOURCES, Entry, Resources
from cspd_jax.core.guarantees import Guarantee, weakest
from cspd_jax.core.spec import Call, Part, Spec, parse
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.base import Target, Verifier
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.tables import (
  DECODERS,
  DRAFTERS,
  VERIFIERS,
  DecoderEntry,
  DrafterEntry,
  VerifierEntry,
)
from cspd_jax.decoding.tree import Tree

__all__ = ['DECODERS', 'DRAFTERS', 'SOURCES', 'VERIFIERS', 'DecoderEntry', 'DrafterEntry',
           'Resources', 'VerifierEntry', 'build', 'complete', 'expand', 'guarantee', 'in_full',
           'needs', 'parameters', 'reads_codebook', 'usage']


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """Builds the decoder of a specification; `resources` are parts that text cannot represent.

  Raises ValueError if a name is not registered, a parameter is unknown or out of range, a network
  or the codebook is missing, or the parts do not fit each other or the target.
  """
  spec = parse(spec)
  drafter, verifier = expand(spec)
  entry = _entry(spec)
  if isinstance(entry, DecoderEntry) and len(spec.parts) == 1:
    return entry.build(target, **_arguments(entry, spec.parts[0], resources))
  accepts = _verifier(verifier, resources)
  if isinstance(entry, DrafterEntry):
    proposes = entry.build(**_arguments(entry, drafter, resources))
  else:
    proposes = entry.build(target, **_arguments(entry, spec.parts[0], resources)).drafter
  return make_decoder(target, proposes, accepts)


def reads_codebook(spec: str | Spec) -> bool:
  """Returns whether the verifier of a specification reads the vectors of the image tokenizer."""
  return VERIFIERS[expand(spec)[1].name].codebook_arguments is not None


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
    drafter, verifier = first, Part('rejection')
  else:
    drafter, verifier = entry.spec.parts
    overrides = {name: value for name, value in first.arguments.items()
                 if value is not None or name not in drafter.arguments}
    drafter = Part(drafter.name, {**drafter.arguments, **overrides})
  verifier = rest[0] if rest else verifier
  defaults = {name: value for name, value in VERIFIERS[verifier.name].drafter_defaults.items()
              if name in DRAFTERS[drafter.name].parameters}
  return Part(drafter.name, {**defaults, **drafter.arguments}), verifier


def in_full(spec: str | Spec) -> list[tuple[str, dict[str, Any]]]:
  """Returns drafter and verifier with the values of all parameters, defaults included.

  They are equal for two texts of one decoder, such as `vanilla` and `vanilla(window=1)`. Raises
  ValueError as `expand`, and for wrong values.
  """
  spec = parse(spec)
  entry, (first, *rest) = _entry(spec), spec.parts
  if isinstance(entry, DecoderEntry):  # Its defaults may differ from those of its drafter.
    spec = Spec((Part(first.name, {**_defaults(entry), **first.arguments}), *rest))
  drafter, verifier = expand(spec)
  return [(part.name, _defaults(entry) | spec_lib.bind(
      part, entry.parameters, _converters(entry, part)))
          for part, entry in ((drafter, DRAFTERS[drafter.name]),
                              (verifier, VERIFIERS[verifier.name]))]


def _defaults(entry: Entry) -> dict[str, Any]:
  return {name: parameter.default for name, parameter in entry.parameters.items()
          if parameter.default is not parameter.empty}


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
  drafter, _ = expand(spec)
  return DRAFTERS[drafter.name].needs(drafter)


def guarantee(decoder: Decoder) -> Guarantee:
  """Returns how the images of a decoder relate to the target's distribution.

  'seed-exact': the tokens of `vanilla(window=N)` with the same key and batch size, bit for bit in
  any dtype, where `N` is the number of tokens of a forward pass; and those of `vanilla` up to
  rounding. 'seed-exact up to rounding': both up to rounding, if the drafts are a tree. 'exact': the
  target's distribution. 'bounded': neither; the mean of `Decoded.tv_bound` bounds the total
  variation. 'biased': that is NaN.
  """
  return weakest([decoder.verifier], decoder.drafter.tree.is_chain)


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
  if name in VERIFIERS:
    raise ValueError(f'decoder is {str(spec)!r}, but {name!r} is a verifier; write it after a '
                     f'drafter, such as jacobi(window=16)+{name}.')
  raise ValueError(
      f'decoder is {str(spec)!r}, but {name!r} is not registered; '
      + naming.question(name, [*DECODERS, *DRAFTERS, *VERIFIERS], (
          f'it must be one of {", ".join(DECODERS)}, or a drafter, one of {", ".join(DRAFTERS)}, '
          f'with a verifier, one of {", ".join(VERIFIERS)}, such as jacobi(window=16)+rejection.'),
          guesses.ALIASES))


def _arguments(entry: DrafterEntry | DecoderEntry, part: Part, resources: Resources
               ) -> dict[str, Any]:
  """The arguments of an entry's function; trees are those of its window."""
  return entry.arguments(part, _converters(entry, part), resources)


def _converters(entry: Entry, part: Part) -> dict[type, spec_lib.Converter]:
  """How text of a part becomes a tree, of the part's window."""
  drafter = DRAFTERS[entry.spec.parts[0].name] if isinstance(entry, DecoderEntry) else entry
  auto = drafter.auto_tree if isinstance(drafter, DrafterEntry) else None
  allowed, window = entry.parameters, None
  if 'window' in allowed:
    window = part.arguments.get('window', allowed['window'].default)
  # An invalid window is left to `bind`, whose error names it.
  window = int(window) if isinstance(window, int | np.integer) and window >= 1 else None
  return {Tree: spec_lib.Converter(
      _TREE_WORDS, lambda name, value: _tree(name, value, window, auto))}


def _verifier(part: Part, resources: Resources) -> Verifier:
  entry = VERIFIERS[part.name]
  arguments = entry.arguments(part)
  if entry.codebook_arguments is not None:
    arguments |= entry.codebook_arguments(resources.codebook, arguments)
  return entry.build(**arguments)


TREES: dict[str, Tree] = {
    name: tree for name, tree in vars(trees).items() if isinstance(tree, Tree)}
_TREE_CALLS = {build.__name__: build for build in (
    trees.chain, trees.paths, trees.caterpillar, trees.kary, trees.branching, trees.cut)}
_TREE_WORDS = (
    f'a tree by name ({", ".join(TREES)}), by call ({", ".join(_TREE_CALLS)}; such as kary(3, 3)), '
    'by the parents of its nodes, such as (-1, 0, 0), or, in a window, auto')
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
