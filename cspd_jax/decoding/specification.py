"""The decoders, drafters and verifiers of discrete tokens by name, and decoders built from text.

A specification (`core.spec`) is a named decoder, such as `mc_sjd(window=32)`, or a drafter with a
verifier, such as `eagle(tree=LANTERN)+lantern_pp(lam=2)`; `core.table.Table` says what a name
means. Parameters, their defaults and their types are those of the signatures.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cspd_jax.core.guarantees import Guarantee, weakest
from cspd_jax.core.spec import Call, Spec, Value, parse
from cspd_jax.core.table import SOURCES, Converters, Entry, Resources, Table
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

__all__ = ['DECODERS', 'DRAFTERS', 'SOURCES', 'TABLE', 'TREES', 'VERIFIERS', 'Entry', 'Resources',
           'build', 'complete', 'expand', 'guarantee', 'in_full', 'joined', 'needs', 'parameters',
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


def _chain_or_tree(arguments: Mapping[str, Value], sizes: dict[str, Any]) -> dict[str, Value]:
  return {} if 'tree' in arguments else sizes


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
    'jacobi': Entry(
        jacobi, "a window of the target's draws of the last round", tree=decoders.default_tree),
    'reuse': Entry(reuse, 'the same, each retained while it is probable enough',
                   tree=decoders.default_tree),
    'eagle': Entry(eagle, "a layer that extrapolates the target's features",
                   networks={'eagle': _as_is}, sizes=_eagle_tree),
    'eagle2': Entry(eagle2, 'the same along its most probable paths', networks={'eagle': _as_is},
                    sizes=_eagle2_sizes),
    'medusa': Entry(medusa, "heads on the target's last feature", networks={'medusa': _as_is},
                    sizes=_chain_or_tree),
    'corrected': Entry(corrected, "the target's last predictions, corrected by a cheap model",
                       networks=CORRECTORS, tree=decoders.corrected_tree),
}

VERIFIERS: dict[str, Entry] = {
    'rejection': Entry(rejection.rejection, 'min(1, p / q), then the residual distribution'),
    'match': Entry(match.match, "a draft is accepted if the target's draw equals it"),
    'block': Entry(block.block, 'the drafts of a chain are accepted together'),
    'kseq': Entry(kseq.kseq, 'the first of several independent candidates that passes',
                  drafter_defaults={'draws': 'iid'}),
    'uniform': Entry(cool.uniform, 'one factor on the acceptance at every depth'),
    'cool': Entry(cool.cool, 'factors that fall exponentially with depth'),
    'cool_linear': Entry(cool.cool_linear, 'factors that fall linearly with depth'),
    'lantern': Entry(
        lantern.lantern, "latent neighbours add to a draft's probability, up to a distance",
        codebook=lantern.from_codebook(lambda vocab_size: min(1000, vocab_size // 16))),
    'lantern_pp': Entry(
        lantern.lantern_pp, "latent neighbours add to a draft's probability, up to a factor",
        codebook=lantern.from_codebook(lambda vocab_size: 10)),
    'grouped': Entry(grouped.grouped, 'tokens of similar probability are accepted as a group',
                     codebook=lantern.embeddings),
    'typical': Entry(rejection.typical, 'drafts that are probable enough are accepted'),
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
                      'jacobi(coupling=maximal, tree=auto)+rejection'),
    'seed_exact': joined(decoders.seed_exact, 'the same image as vanilla',
                         'jacobi(coupling=gumbel)+match'),
    'corrected': joined(
        decoders.corrected, "the target's last predictions, corrected by a cheap model",
        'corrected(tree=auto)+rejection'),
    'corrected_seed_exact': joined(
        decoders.corrected_seed_exact, 'the same image as vanilla, by corrected predictions',
        'corrected+match'),
    'eagle': joined(decoders.eagle, "a layer on the target's features drafts", 'eagle+rejection'),
    'eagle2': joined(decoders.eagle2, 'EAGLE along its most probable paths', 'eagle2+match'),
    'medusa': joined(decoders.medusa, "heads on the target's last feature draft",
                     'medusa+rejection'),
}

TABLE = Table(DECODERS, DRAFTERS, VERIFIERS)
complete, needs, parameters = TABLE.complete, TABLE.needs, TABLE.parameters


def build(spec: str | Spec, target: Target, resources: Resources = Resources()) -> Decoder:
  """Builds the decoder of a specification; `resources` are parts that text cannot represent.

  Raises ValueError if a name is not registered, a parameter is unknown or out of range, a network
  or the codebook is missing, or the parts do not fit each other or the target.
  """
  entry, spec = TABLE.entry(spec), parse(spec)
  drafter, verifier = expand(spec)
  if entry.parts is None:
    made = entry.build(**entry.arguments(drafter, _trees(entry, drafter), resources))
  else:
    first = spec.parts[0]
    decoder = entry.build(target, **entry.arguments(first, _trees(entry, first), resources))
    if len(spec.parts) == 1:
      return decoder
    made = decoder.drafter
  accepts = VERIFIERS[verifier.name]
  arguments = accepts.bind(verifier)
  if accepts.codebook is not None:
    arguments |= accepts.codebook(resources.codebook, arguments)
  return make_decoder(target, made, accepts.build(**arguments))


def expand(spec: str | Spec) -> tuple[Call, Call]:
  """Returns drafter and verifier of a specification; raises ValueError for unknown ones."""
  entry, (first, *rest) = TABLE.entry(spec), parse(spec).parts
  drafter, verifier = (first, Call('rejection')) if entry.parts is None else entry.parts.parts
  verifier = rest[0] if rest else verifier
  defaults = {name: value for name, value in VERIFIERS[verifier.name].drafter_defaults.items()
              if name in DRAFTERS[drafter.name].parameters}
  given = {name: value for name, value in first.arguments.items()
           if value is not None or name not in entry.fixed}
  return Call(drafter.name, {**defaults, **drafter.arguments, **given}), verifier


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
  """Returns whether the verifier of a specification reads the vectors of the image tokenizer."""
  return VERIFIERS[expand(spec)[1].name].codebook is not None


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
  entry = VERIFIERS.get(name) or DECODERS.get(name) or DRAFTERS[name]
  names = {tree: key for key, tree in TREES.items()}
  values = {key: parameter.default for key, parameter in entry.parameters.items()}
  return f'{name}({", ".join(f"{key}={names.get(value, value)}" for key, value in values.items())})'


TREES: dict[str, Tree] = {
    name: tree for name, tree in vars(trees).items() if isinstance(tree, Tree)}
_TREE_CALLS = {build.__name__: build for build in (
    trees.chain, trees.paths, trees.caterpillar, trees.kary, trees.branching, trees.cut)}


def _trees(entry: Entry, part: Call) -> Converters:
  """How a value of `part` becomes a tree, which fills the window of the part unless it has a size.

  It is the name of a tree, with arguments if it has any, or the parents of its nodes.
  """
  window = part.arguments.get('window', entry.defaults.get('window'))
  # An invalid window is left to `bind`, whose error names it.
  window = int(window) if isinstance(window, int | np.integer) and window >= 1 else None

  def convert(name: str, value: Any) -> Any:
    if isinstance(value, Tree):
      return value
    if isinstance(value, tuple) and all(isinstance(parent, int) for parent in value):
      return Tree(value)
    if isinstance(value, str) and value in TREES:
      return TREES[value]
    if value == 'auto' and window is not None and entry.tree is not None:
      return entry.tree(window)
    call = Call(value) if isinstance(value, str) else value
    if not isinstance(call, Call) or call.name not in _TREE_CALLS:
      raise ValueError(
          f'{name} is {value!r}; it must be a tree by name ({", ".join([*TREES, *_TREE_CALLS])}; '
          'such as EAGLE or kary(3, 3)), by the parents of its nodes, such as (-1, 0, 0), or, in a '
          'window, auto.')
    build = Entry(_TREE_CALLS[call.name], '')
    if len(call.positional) > len(build.parameters):
      raise ValueError(f'{name} is {call!r}; {call.name} has {len(build.parameters)} parameters: '
                       f'{", ".join(build.parameters)}.')
    arguments = dict(zip(build.parameters, call.positional))
    if twice := sorted(arguments.keys() & call.arguments):
      raise ValueError(f'{name} is {call!r}, which sets {twice[0]} twice; set it once.')
    arguments |= call.arguments
    for size in {'length', 'num_nodes'} & build.parameters.keys():
      if window is not None:
        arguments.setdefault(size, window - 1)
    return build.build(**build.bind(Call(call.name, arguments), {Tree: convert}))

  return {Tree: convert}
