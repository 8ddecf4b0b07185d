"""The decoders of discrete tokens: one list of drafters, one of verifiers, names for pairs.

A decoder is asked for by a specification (`core.spec`): a drafter and a verifier, such as
`eagle(tree=LANTERN)+lantern_pp(lam=2)`, or a named decoder, such as `mc_sjd(window=32)`. A drafter
alone is verified by `exact`; before a `+`, the name of a decoder stands for its drafter. The
parameters, their defaults and their types are those of the functions that build the parts.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cspd_jax.core import registry as core
from cspd_jax.core.spec import Call, Part, Spec, Value, parse
from cspd_jax.decoding import correctors, published_trees, tree_values
from cspd_jax.decoding.base import Drafter, Target, Verifier
from cspd_jax.decoding.decoders import corrected_tree, default_tree
from cspd_jax.decoding.drafters.ancestral import ancestral
from cspd_jax.decoding.drafters.dynamic import eagle2
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.drafters.model import model
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers.block import block
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.decoding.verifiers.grouped import grouped
from cspd_jax.decoding.verifiers.kseq import kseq
from cspd_jax.decoding.verifiers.lantern import lantern, lantern_pp
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.neighbours import neighbour_table
from cspd_jax.decoding.verifiers.typical import typical

# What drafts or corrects, in words.
DRAFTS = {'model': 'a draft model', 'eagle': 'an EAGLE network', 'medusa': 'Medusa heads',
          'neighbours': 'a network on neighbouring tokens', 'corrector': 'a corrector',
          'layers': "the target's first layers"}


class Resources(NamedTuple):
  """What parts are made from beside the target.

  Attributes:
    drafts: by the keys of `DRAFTS`: a `Target`, a `Network`, `Heads`, and `Corrector`s; the
      first 'layers' of the target are a `Network`.
    codebook: `[V, D]` of the target's image tokenizer, for verifiers that let neighbours
      stand in.
  """

  drafts: Mapping[str, Any] = MappingProxyType({})
  codebook: np.ndarray | None = None


class DrafterEntry(NamedTuple):
  """A drafter.

  Attributes:
    build: `(...) -> Drafter`; its signature gives the parameters.
    summary: one line for tables.
    needs: a key of `DRAFTS`, or None if the target drafts for itself.
    takes: the parameter of `build` that gets what it needs.
    chooses: the parameter whose value says what it needs, if there is one; `needs` is its
      default then.
    auto: `window -> ` the tree that `auto` stands for.
    sizes: `(arguments, window, length) -> arguments` for parameters that are left open; see
      `complete`.
  """

  build: Callable[..., Drafter]
  summary: str
  needs: str | None = None
  takes: str | None = None
  chooses: str | None = None
  auto: Callable[[int], Tree] = default_tree
  sizes: Callable[[Mapping[str, Value], int | None, int | None], dict[str, Value]] = (
      lambda arguments, window, length: {})


class VerifierEntry(NamedTuple):
  """A verifier.

  Attributes:
    build: `(...) -> Verifier`; its signature gives the parameters.
    summary: one line for tables.
    takes: the parameter of `build` that is made from the codebook, if there is one.
    supply: `(codebook, arguments) -> arguments`: that one and what goes with it.
    asks: parameters of the drafter that suit it, where they are left open.
  """

  build: Callable[..., Verifier]
  summary: str
  takes: str | None = None
  supply: Callable[[np.ndarray | None, Mapping[str, Any]], dict[str, Any]] = (
      lambda codebook, arguments: {})
  asks: Mapping[str, Value] = MappingProxyType({})


class DecoderEntry(NamedTuple):
  """A name for a drafter with a verifier.

  Attributes:
    spec: what it expands to. Parameters of the drafter that it gives are fixed.
    summary: one line for tables.
    open: those that are not.
  """

  spec: str
  summary: str
  open: tuple[str, ...] = ()


def _eagle_sizes(arguments, window, length):
  """EAGLE's published tree where a forward pass has room for it, a chain elsewhere."""
  if window is None or 'tree' in arguments:
    return {}
  if window > published_trees.EAGLE.num_nodes:
    return {'tree': 'EAGLE'}
  return {'tree': Call('chain', (max(window - 1, 1) if length is None else length,), {})}


def _eagle2_sizes(arguments, window, length):
  del length
  if window is None or arguments.keys() & {'num_nodes', 'width', 'depth'}:
    return {}
  if window > published_trees.EAGLE.num_nodes:
    return {'num_nodes': window - 1, 'width': 10, 'depth': 5}
  return {'num_nodes': max(window - 1, 1), 'width': max(window // 2, 1), 'depth': 3}


def _medusa_sizes(arguments, window, length):
  del window
  return {} if length is None or 'tree' in arguments else {'length': length}


def _neighbours(default: Callable[[int], int]):
  """Supplies `table` and `k`; by default as many neighbours as `default(V)`."""

  def supply(codebook, arguments):
    if codebook is None:
      raise ValueError(
          'codebook is None, but the verifier lets neighbours in the codebook stand in; give the '
          "codebook of the target's image tokenizer.")
    codebook = np.asarray(codebook)
    # The released residuals look at one neighbour more.
    spare = str(arguments.get('residual')).startswith('released')
    most = len(codebook) - 1
    k = arguments.get('k')
    k = max(1, min(default(len(codebook)), most - spare)) if k is None else k
    width = min(k + spare, max(k, most))
    return {'table': _table(codebook.tobytes(), codebook.shape, codebook.dtype.str, width), 'k': k}

  return supply


@functools.lru_cache(maxsize=8)
def _table(codebook: bytes, shape: tuple[int, ...], dtype: str, k: int) -> np.ndarray:
  return neighbour_table(np.frombuffer(codebook, dtype).reshape(shape), k)


def _embeddings(codebook, arguments):
  if arguments.get('d_threshold') is None:
    return {}
  if codebook is None:
    raise ValueError(
        'codebook is None, but d_threshold needs distances in it; give the codebook of the '
        "target's image tokenizer, or leave d_threshold out.")
  return {'embeddings': codebook}


DRAFTERS: dict[str, DrafterEntry] = {
    'ancestral': DrafterEntry(ancestral, 'no drafts'),
    'model': DrafterEntry(
        model, 'a chain drawn by a smaller model', 'model', 'draft_target',
        sizes=lambda arguments, window, length: {'length': length}),
    'jacobi': DrafterEntry(
        jacobi, "a window of the target's own last draws",
        sizes=lambda arguments, window, length: {'window': window}),
    'eagle': DrafterEntry(
        eagle, "a layer that continues the target's features", 'eagle', 'network',
        sizes=_eagle_sizes),
    'eagle2': DrafterEntry(
        eagle2, 'the same along its most probable paths', 'eagle', 'network',
        sizes=_eagle2_sizes),
    'medusa': DrafterEntry(
        medusa, "heads on the target's last feature", 'medusa', 'heads',
        sizes=_medusa_sizes),
    'corrected': DrafterEntry(
        correctors.build, "the target's last answers, corrected by a cheap model", 'corrector',
        'made', 'by', corrected_tree, lambda arguments, window, length: {'window': window}),
}

VERIFIERS: dict[str, VerifierEntry] = {
    'exact': VerifierEntry(exact, 'min(1, p / q), then the residual distribution'),
    'match': VerifierEntry(match, "a draft stays if the target's own draw equals it"),
    'block': VerifierEntry(block, 'the drafts of a chain are accepted together'),
    'kseq': VerifierEntry(
        kseq, 'the first of several independent candidates that passes', asks={'draws': 'iid'}),
    'uniform': VerifierEntry(uniform, 'one factor on the acceptance at every depth'),
    'cool': VerifierEntry(cool, 'factors that fall exponentially with depth'),
    'cool_linear': VerifierEntry(cool_linear, 'factors that fall linearly with depth'),
    'lantern': VerifierEntry(
        lantern, 'neighbours in the codebook stand in, up to a distance', 'table',
        _neighbours(lambda vocab_size: min(1000, vocab_size // 16))),
    'lantern_pp': VerifierEntry(
        lantern_pp, 'neighbours in the codebook stand in, up to a factor', 'table',
        _neighbours(lambda vocab_size: 10)),
    'grouped': VerifierEntry(
        grouped, 'tokens about as probable stand in', 'embeddings', _embeddings),
    'typical': VerifierEntry(typical, 'whatever is probable enough stays'),
}

DECODERS: dict[str, DecoderEntry] = {
    'vanilla': DecoderEntry('ancestral+match', 'one token per forward pass'),
    'speculative': DecoderEntry('model+exact', 'a smaller model drafts'),
    'jacobi': DecoderEntry('jacobi+match(seed_exact=False)', 'drafts kept if redrawn alike'),
    'sjd': DecoderEntry(
        'jacobi(coupling=redraw)+exact', 'Jacobi window, probabilistic acceptance'),
    'mc_sjd': DecoderEntry(
        'jacobi(coupling=maximal)+exact', 'SJD with maximally coupled drafts'),
    'sjd_pac': DecoderEntry(
        'jacobi(coupling=maximal, tree=auto)+exact', 'coupled drafts and a candidate tree',
        open=('tree',)),
    'seed_exact': DecoderEntry(
        'jacobi(coupling=noise, tree=auto)+match', 'the same image as vanilla', open=('tree',)),
    'corrected': DecoderEntry(
        'corrected(tree=auto)+exact', "the target's last answers, corrected by a cheap model",
        open=('tree',)),
    'corrected_seed_exact': DecoderEntry(
        'corrected(tree=auto)+match', 'the same image as vanilla, by corrected answers',
        open=('tree',)),
    'eagle': DecoderEntry('eagle+exact', "a layer on the target's features drafts"),
    'eagle2': DecoderEntry('eagle2+match', 'EAGLE along its most probable paths'),
    'medusa': DecoderEntry('medusa+exact', "heads on the target's last feature draft"),
}


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """The decoder of a specification.

  Args:
    spec: a specification or its text.
    target: the target.
    resources: what parts are made from beside it.

  Raises:
    ValueError: if there is no such decoder, a parameter is unknown or out of range, something
      it is made from is missing, or the parts do not fit each other or the target.
  """
  drafter, verifier = expand(complete(spec))
  return make_decoder(target, _drafter(drafter, resources), _verifier(verifier, resources))


def expand(spec: str | Spec) -> tuple[Part, Part]:
  """The drafter and the verifier of a specification.

  Raises:
    ValueError: for an unknown name, or a parameter that a named decoder does not have.
  """
  spec = parse(spec)
  first, *rest = spec.parts
  if first.name not in DRAFTERS and first.name not in DECODERS:
    raise ValueError(
        f'decoder is {str(spec)!r}, but there is no {first.name!r}; it must be one of '
        f'{", ".join(DECODERS)}, or a drafter, one of {", ".join(DRAFTERS)}, with a verifier, one '
        f'of {", ".join(VERIFIERS)}, such as jacobi(window=16)+exact.')
  if rest and rest[0].name not in VERIFIERS:
    raise ValueError(
        f'decoder is {str(spec)!r}, but there is no verifier {rest[0].name!r}; it must be one of '
        f'{", ".join(VERIFIERS)}.')
  is_drafter = first.name in DRAFTERS and (rest or first.name not in DECODERS)
  core.check_names(first, _parameters(first.name, is_drafter))
  if is_drafter:
    return first, rest[0] if rest else Part('exact')
  drafter, verifier = parse(DECODERS[first.name].spec).parts
  drafter = Part(drafter.name, drafter.arguments | first.arguments)
  return drafter, rest[0] if rest else verifier


def complete(spec: str | Spec, *, window: int | None = None, length: int | None = None) -> Spec:
  """The specification with sizes that suit the machine where the text leaves them open.

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
  entry, first = DRAFTERS[drafter.name], spec.parts[0]
  found = entry.sizes(drafter.arguments, window, length) | dict(VERIFIERS[verifier.name].asks)
  allowed = _parameters(drafter.name, True)
  found = {name: value for name, value in found.items() if value is not None
           and name in allowed and name not in drafter.arguments}
  return Spec((Part(first.name, first.arguments | found), *spec.parts[1:]))


def needs(spec: str | Spec) -> str | None:
  """The key of `DRAFTS` that a specification needs in `Resources.drafts`, or None."""
  return _needs(expand(spec)[0])


def _needs(drafter: Part) -> str | None:
  entry = DRAFTERS[drafter.name]
  if entry.chooses is None:
    return entry.needs
  chosen = drafter.arguments.get(entry.chooses, entry.needs)
  if chosen not in correctors.CORRECTORS:
    raise ValueError(
        f'{entry.chooses} is {chosen!r}; it must be one of {", ".join(correctors.CORRECTORS)}.')
  return str(chosen)


def guarantee(decoder: Decoder) -> str:
  """What a decoder promises.

  Returns:
    'seed-exact': the tokens of `vanilla(window=N)` with the same key, where `N` is the number of
    tokens of a forward pass: bit for bit in any dtype for chains, up to rounding for trees; and
    those of `vanilla` up to rounding. 'exact': the target's distribution. 'relaxed': neither;
    `Decoded.tv_bound` bounds the total variation.
  """
  if decoder.verifier.seed_exact:
    return 'seed-exact'
  return 'exact' if decoder.verifier.exact else 'relaxed'


def parameters(spec: str | Spec) -> list[str]:
  """Names of the parameters that the first part of a specification may give."""
  spec = parse(spec)
  expand(spec)
  first = spec.parts[0].name
  is_drafter = first in DRAFTERS and (len(spec.parts) > 1 or first not in DECODERS)
  return list(_parameters(first, is_drafter))


def usage(name: str) -> str:
  """A decoder, drafter or verifier with its parameters and their defaults, for help texts."""
  allowed = _parameters(name, name not in DECODERS)
  names = {tree: name for name, tree in tree_values.PUBLISHED.items()}
  given = [f'{key}={names.get(value.default, value.default)}' for key, value in allowed.items()]
  return f'{name}({", ".join(given)})'


def _parameters(name: str, is_part: bool) -> dict[str, inspect.Parameter]:
  """What may be given to a part, or else to the named decoder."""
  if not is_part:
    named = DECODERS[name]
    drafter = parse(named.spec).parts[0]
    return {key: value for key, value in _parameters(drafter.name, True).items()
            if key not in drafter.arguments or key in named.open}
  entry = DRAFTERS[name] if name in DRAFTERS else VERIFIERS[name]
  return core.parameters(entry.build, {entry.takes})


def _drafter(part: Part, resources: Resources) -> Drafter:
  entry, allowed = DRAFTERS[part.name], _parameters(part.name, True)
  window = None
  if 'window' in allowed:
    window = part.arguments.get('window', allowed['window'].default)
    window = window if isinstance(window, int) and window >= 1 else None
  tree = lambda name, value: tree_values.tree(name, value, window, entry.auto)
  arguments = core.bind(part, allowed, {Tree: core.Converter(tree_values.WORDS, tree)})
  needed = _needs(part)
  if needed is None:
    return entry.build(**arguments)
  if needed not in resources.drafts:
    raise ValueError(
        f'{part.name} drafts with {DRAFTS[needed]}, and there is none; give drafts[{needed!r}].')
  return entry.build(**arguments, **{entry.takes: resources.drafts[needed]})


def _verifier(part: Part, resources: Resources) -> Verifier:
  entry = VERIFIERS[part.name]
  arguments = core.bind(part, _parameters(part.name, True))
  return entry.build(**arguments | entry.supply(resources.codebook, arguments))
