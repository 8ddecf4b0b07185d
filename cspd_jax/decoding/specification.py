"""The decoders, drafters and verifiers of discrete tokens by name, and decoders built from text.

A specification (`core.spec`) is a named decoder, such as `mc_sjd(window=32)`, or a drafter with a
verifier, such as `eagle(tree=LANTERN)+lantern_pp(lam=2)`. Parameters have the names, types and
defaults of the signatures.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from cspd_jax.core import sampling
from cspd_jax.core.spec import Call, Spec, Value, parse
from cspd_jax.core.table import Converters, Entry, Table
from cspd_jax.decoding import decoders, tree as trees
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.drafters import Corrector, from_model, from_network
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.drafters.draft_model import model
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.drafters.jacobi import ancestral, jacobi, reuse
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers import block, cool, grouped, kseq, lantern, match, rejection

__all__ = ['CORRECTORS', 'DECODERS', 'DRAFTERS', 'FROM_CODEBOOK', 'TABLE', 'TREES', 'VERIFIERS',
           'Entry', 'build', 'complete', 'expand', 'in_full', 'joined', 'needs', 'parameters',
           'reads_codebook', 'usage']

_as_is = lambda network: network
# Turn each network that can correct windows into a `Corrector`. The error of the target's first
# layers is the same in both contexts up to what changed, so that all of it carries over (decay 0).
CORRECTORS: dict[str, Callable[[Any], Corrector]] = {
    'corrector': _as_is,
    'neighbours': _as_is,
    'local': _as_is,
    'eagle': from_network,
    'model': from_model,
    'layers': lambda network: from_network(network, decay=0.0),
}


def _eagle_tree(arguments: Mapping[str, Value], sizes: dict[str, Any]) -> dict[str, Value]:
  """EAGLE's published tree if it fits in a forward pass of `window` tokens, else a chain."""
  if 'window' not in sizes:
    return {}
  window = sizes['window']
  chain = Call('chain', positional=(sizes.get('length', max(window - 1, 1)),))
  return {'tree': 'EAGLE' if window > trees.EAGLE.num_nodes else chain}


def _eagle2_sizes(arguments: Mapping[str, Value], sizes: dict[str, Any]) -> dict[str, Value]:
  if 'window' not in sizes or arguments.keys() & {'num_nodes', 'width', 'depth'}:
    return {}
  window = sizes['window']
  if window > trees.EAGLE.num_nodes:
    return {'num_nodes': window - 1, 'width': 10, 'depth': 5}
  return {'num_nodes': max(window - 1, 1), 'width': max(window // 2, 1), 'depth': 3}


DRAFTERS: dict[str, Entry] = {
    'ancestral': Entry(ancestral, 'no drafts', sizes=lambda arguments, sizes: {}),
    'model': Entry(model, 'a chain drawn by a smaller model', networks={'model': _as_is}),
    'jacobi': Entry(jacobi, "a window of the target's draws of the last round"),
    'reuse': Entry(reuse, 'the same, each retained while it is probable enough'),
    'eagle': Entry(eagle, "a layer that extrapolates the target's features",
                   networks={'eagle': _as_is}, sizes=_eagle_tree),
    'eagle2': Entry(eagle2, 'the same along its most probable paths', networks={'eagle': _as_is},
                    sizes=_eagle2_sizes),
    'medusa': Entry(medusa, "heads on the target's last feature", networks={'medusa': _as_is},
                    sizes=lambda arguments, sizes: {} if 'tree' in arguments else sizes),
    'corrected': Entry(corrected, "the target's last predictions, corrected by a cheap model",
                       networks=CORRECTORS),
}

VERIFIERS: dict[str, Entry] = {
    'rejection': Entry(rejection.rejection, 'min(1, p / q), then the residual distribution'),
    'match': Entry(match.match, "a draft is accepted if the target's draw equals it"),
    'block': Entry(block.block, 'the drafts of a chain are accepted together'),
    'kseq': Entry(kseq.kseq, 'the first of several independent candidates that passes'),
    'uniform': Entry(cool.uniform, 'one factor on the acceptance at every depth'),
    'cool': Entry(cool.cool, 'factors that fall exponentially with depth'),
    'cool_linear': Entry(cool.cool_linear, 'factors that fall linearly with depth'),
    'lantern': Entry(
        lantern.lantern, "latent neighbours add to a draft's probability, up to a distance"),
    'lantern_pp': Entry(
        lantern.lantern_pp, "latent neighbours add to a draft's probability, up to a factor"),
    'grouped': Entry(grouped.grouped, 'tokens of similar probability are accepted as a group'),
    'typical': Entry(rejection.typical, 'drafts that are probable enough are accepted'),
}
# Of a verifier that reads the vectors of the image tokenizer: `(codebook, arguments) -> arguments`,
# further ones.
FROM_CODEBOOK: dict[str, Callable[[np.ndarray | None, Mapping[str, Any]], dict[str, Any]]] = {
    'lantern': lantern.from_codebook(lambda vocab_size: min(1000, vocab_size // 16)),
    'lantern_pp': lantern.from_codebook(lambda vocab_size: 10),
    'grouped': lantern.embeddings,
}


def joined(build: Callable[..., Decoder], summary: str, parts: str) -> Entry:
  """Returns the entry of a function that joins a drafter and a verifier, `parts`, as text."""
  spec = parse(parts)
  return DRAFTERS[spec.parts[0].name]._replace(build=build, summary=summary, parts=spec)


DECODERS: dict[str, Entry] = {
    'vanilla': joined(decoders.vanilla, 'one token per forward pass', 'ancestral+match'),
    'speculative': joined(decoders.speculative, 'a smaller model drafts', 'model+rejection'),
    'jacobi': joined(decoders.jacobi, 'a draft is accepted if a fresh draw equals it',
                     'jacobi(coupling=independent)+match(seed_exact=False)'),
    'sjd': joined(decoders.sjd, 'Jacobi window, probabilistic acceptance',
                  'jacobi(coupling=independent)+rejection'),
    'mc_sjd': joined(decoders.mc_sjd, 'SJD with maximally coupled drafts',
                     'jacobi(coupling=maximal)+rejection'),
    'sjd_pp': joined(decoders.sjd_pp, 'SJD that reuses drafts while they are probable',
                     'reuse+rejection'),
    'sjd_pac': joined(decoders.sjd_pac, 'coupled drafts and a candidate tree',
                      'jacobi(coupling=maximal, tree=default_tree)+rejection'),
    'seed_exact': joined(decoders.seed_exact, 'the same image as vanilla',
                         'jacobi(coupling=gumbel)+match'),
    'corrected': joined(
        decoders.corrected, "the target's last predictions, corrected by a cheap model",
        'corrected(tree=corrected_tree)+rejection'),
    'corrected_seed_exact': joined(
        decoders.corrected_seed_exact, 'the same image as vanilla, by corrected predictions',
        'corrected+match'),
    'eagle': joined(decoders.eagle, "a layer on the target's features drafts", 'eagle+rejection'),
    'eagle2': joined(decoders.eagle2, 'EAGLE along its most probable paths', 'eagle2+match'),
    'medusa': joined(decoders.medusa, "heads on the target's last feature draft",
                     'medusa+rejection'),
}

TABLE = Table(
    'discrete', DECODERS, DRAFTERS, VERIFIERS, networks={
        'model': 'a draft model', 'eagle': 'an EAGLE network', 'medusa': 'Medusa heads',
        'neighbours': 'a network on neighbouring tokens',
        'local': 'a network on neighbouring tokens and features', 'corrector': 'a corrector',
        'layers': "the target's first layers"},
    options=(*sampling.DISCRETE,), baseline='vanilla', candidates=('eagle', 'mc_sjd'),
    # A CPU computes every token of a round, so few of them are worth their cost.
    on_cpu=('mc_sjd(window=4)', 'vanilla'), seed_exact=True)
complete, needs, parameters = TABLE.complete, TABLE.needs, TABLE.parameters

# Trees by name: published ones, and functions of numbers.
TREES: dict[str, Tree | Callable[..., Tree]] = {
    **{name: tree for name, tree in vars(trees).items() if isinstance(tree, Tree)},
    **{function.__name__: function for function in (
        trees.chain, trees.paths, trees.caterpillar, trees.kary, trees.branching,
        decoders.default_tree, decoders.corrected_tree)}}


def build(spec: str | Spec, target: Target, drafts: Mapping[str, Any] = MappingProxyType({}),
          codebook: np.ndarray | None = None) -> Decoder:
  """Builds the decoder of a specification.

  Args:
    spec: the specification.
    target: the model whose distribution is sampled.
    drafts: what drafts or corrects, by the keys of `TABLE.networks`: a `Target`, a `Network`,
      `Heads` or a `Corrector`; the target's first 'layers' are a `Network`.
    codebook: `[V, D]` of the target's image tokenizer, for verifiers with latent neighbours.

  Raises:
    ValueError: if a name is not registered, a parameter is unknown or out of range, a network or
      the codebook is missing, or the parts do not fit each other or the target.
  """
  entry, (first, *rest) = TABLE.entry(spec), parse(spec).parts
  arguments = TABLE.arguments(spec, drafts, _trees(entry, first))
  if not rest:
    return entry.build(target, **arguments)
  accepts, verifier = VERIFIERS[rest[0].name], rest[0]
  accepting = accepts.bind(verifier)
  if verifier.name in FROM_CODEBOOK:
    accepting |= FROM_CODEBOOK[verifier.name](codebook, accepting)
  return make_decoder(target, entry.build(**arguments), accepts.build(**accepting))


def expand(spec: str | Spec) -> tuple[Call, Call]:
  """Returns drafter and verifier of a specification; raises ValueError for unknown ones."""
  entry, (first, *rest) = TABLE.entry(spec), parse(spec).parts
  if rest:
    return first, rest[0]
  if entry.parts is None:
    raise ValueError(f'{first.name} has no drafter and verifier; make its entry with joined().')
  drafter, verifier = entry.parts.parts
  # None is the default of the decoder, which may be another one than the drafter's.
  given = {name: value for name, value in first.arguments.items()
           if value is not None or name not in drafter.arguments}
  return Call(drafter.name, {**drafter.arguments, **given}), verifier


def in_full(spec: str | Spec) -> list[tuple[str, dict[str, Any]]]:
  """Returns drafter and verifier with the values of all parameters, defaults included.

  They are equal for two texts of one decoder, such as `vanilla` and `vanilla(window=1)`. Raises
  ValueError as `build` for names and values.
  """
  drafter, verifier = expand(spec)
  first, second = DRAFTERS[drafter.name], VERIFIERS[verifier.name]
  return [(drafter.name, first.defaults | first.bind(drafter, _trees(first, drafter))),
          (verifier.name, second.defaults | second.bind(verifier))]


def reads_codebook(spec: str | Spec) -> bool:
  """Returns whether a specification names a verifier that reads the image tokenizer's vectors."""
  return any(part.name in FROM_CODEBOOK for part in parse(spec).parts[1:])


def usage(name: str) -> str:
  """Returns a decoder, drafter or verifier with its parameters and their defaults as text."""
  entry = VERIFIERS.get(name) or DECODERS.get(name) or DRAFTERS[name]
  names = {tree: key for key, tree in TREES.items()}
  values = {key: parameter.default for key, parameter in entry.parameters.items()}
  return f'{name}({", ".join(f"{key}={names.get(value, value)}" for key, value in values.items())})'


def _trees(entry: Entry, part: Call) -> Converters:
  """How a value of `part` becomes a tree: a name, with numbers if it has any, or parents.

  The tree fills the window of the part unless the numbers say how large it is.
  """
  window = part.arguments.get('window', entry.defaults.get('window'))
  # An invalid window is left to `bind`, whose error names it.
  window = int(window) if isinstance(window, int | np.integer) and window >= 1 else None

  def convert(name: str, value: Any) -> Tree:
    if isinstance(value, tuple) and all(isinstance(parent, int) for parent in value):
      return Tree(value)
    call = Call(value) if isinstance(value, str) else value
    known = TREES.get(call.name) if isinstance(call, Call) else None
    if known is None or (isinstance(known, Tree) and (call.arguments or call.positional)):
      raise ValueError(
          f'{name} is {value!r}; it must be a tree by name ({", ".join(TREES)}; such as EAGLE or '
          'kary(3, 3)), or the parents of its nodes, such as (-1, 0, 0).')
    if isinstance(known, Tree):
      return known
    signature = inspect.signature(known)
    sizes = {} if window is None else {
        'window': window, 'length': window - 1, 'num_nodes': window - 1}
    try:
      bound = signature.bind_partial(*call.positional, **call.arguments).arguments
      free = {size: sizes[size] for size in sizes if size in signature.parameters}
      arguments = signature.bind(**free | bound).arguments
    except TypeError as error:
      raise ValueError(f'{name} is {call!r}: {error}; {call.name} has the parameters '
                       f'{", ".join(signature.parameters)}.') from error
    return known(**arguments)

  return {Tree: convert}
