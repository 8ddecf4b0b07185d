"""The tables of decoders, drafters and verifiers of discrete tokens, by the names of text.

`cspd_jax`, the programs, the documentation and the tests read these tables. The signature of a
function defines the parameters that text can set; parameters that are networks are filled by type.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cspd_jax.core.entries import Entry
from cspd_jax.core.spec import Call, Spec, Value, parse
from cspd_jax.decoding import decoders, tree as trees
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.drafters import Corrector, Heads, Network, from_model, from_network
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.drafters.draft_model import model
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.drafters.jacobi import ancestral, jacobi, reuse
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers import block, cool, grouped, kseq, lantern, match, rejection

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


class _Entry(Entry):
  """An entry of a table of discrete tokens."""

  converted = (Tree,)
  networks_of = {Target: {'model': _as_is}, Network: {'eagle': _as_is}, Heads: {'medusa': _as_is},
                 Corrector: CORRECTORS}


@dataclasses.dataclass(frozen=True)
class DrafterEntry(_Entry):
  """A drafter; `build` is `(...) -> Drafter`.

  Attributes:
    auto_tree: `window -> Tree`, the tree that `tree=auto` selects; None if `auto` is not supported.
    default_sizes: `(arguments, window, length) -> sizes`: values for parameters that `arguments`
      does not set, by the desired `window` and `length`. None leaves a parameter open.
  """

  auto_tree: Callable[[int], Tree] | None = None
  default_sizes: Callable[[Mapping[str, Value], int | None, int | None], dict[str, Value]] = (
      lambda arguments, window, length: {})


@dataclasses.dataclass(frozen=True)
class VerifierEntry(_Entry):
  """A verifier; `build` is `(...) -> Verifier`.

  Attributes:
    codebook_arguments: `(codebook, arguments) -> arguments`: those of `build` that the vectors of
      the image tokenizer determine; None if it does not read them.
    drafter_defaults: with this verifier, defaults of the drafter's parameters.
  """

  codebook_arguments: Callable[[np.ndarray | None, Mapping[str, Any]], dict[str, Any]] | None = None
  drafter_defaults: Mapping[str, Value] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DecoderEntry(_Entry):
  """A named decoder; `build` is `(target, ...) -> Decoder`.

  Attributes:
    parts: the drafter and the verifier that the function joins, as text. Sizes and `tree=auto` are
      those of the drafter's entry.
  """

  parts: str

  def __post_init__(self):
    _ = self.spec  # A mistake in the text is an error where the entry is written.

  @functools.cached_property
  def spec(self) -> Spec:
    """The specification that `parts` is."""
    return parse(self.parts)

  @property
  def parameters(self) -> dict[str, inspect.Parameter]:
    """The parameters that text can set; `parts` has what None stands for."""
    fixed, parameters = self.spec.parts[0].arguments, super().parameters
    return parameters | {
        name: parameter.replace(default=fixed[name]) for name, parameter in parameters.items()
        if parameter.default is None and name in fixed}


_window_size = lambda arguments, window, length: {'window': window}
_chain_length = lambda arguments, window, length: {} if 'tree' in arguments else {'length': length}


def _eagle_tree(
    arguments: Mapping[str, Value], window: int | None, length: int | None) -> dict[str, Value]:
  """EAGLE's published tree if it fits in a forward pass of `window` tokens, else a chain."""
  if window is None:
    return {}
  chain = Call('chain', (max(window - 1, 1) if length is None else length,), {})
  return {'tree': 'EAGLE' if window > trees.EAGLE.num_nodes else chain}


def _eagle2_sizes(
    arguments: Mapping[str, Value], window: int | None, length: int | None) -> dict[str, Value]:
  if window is None or arguments.keys() & {'num_nodes', 'width', 'depth'}:
    return {}
  if window > trees.EAGLE.num_nodes:
    return {'num_nodes': window - 1, 'width': 10, 'depth': 5}
  return {'num_nodes': max(window - 1, 1), 'width': max(window // 2, 1), 'depth': 3}


DRAFTERS: dict[str, DrafterEntry] = {
    'ancestral': DrafterEntry(ancestral, 'no drafts'),
    'model': DrafterEntry(
        model, 'a chain drawn by a smaller model', default_sizes=_chain_length),
    'jacobi': DrafterEntry(
        jacobi, "a window of the target's draws of the last round", decoders.default_tree,
        _window_size),
    'reuse': DrafterEntry(
        reuse, 'the same, each retained while it is probable enough', decoders.default_tree,
        _window_size),
    'eagle': DrafterEntry(
        eagle, "a layer that extrapolates the target's features", default_sizes=_eagle_tree),
    'eagle2': DrafterEntry(
        eagle2, 'the same along its most probable paths', default_sizes=_eagle2_sizes),
    'medusa': DrafterEntry(
        medusa, "heads on the target's last feature", default_sizes=_chain_length),
    'corrected': DrafterEntry(
        corrected, "the target's last predictions, corrected by a cheap model",
        decoders.corrected_tree, _window_size),
}

VERIFIERS: dict[str, VerifierEntry] = {
    'rejection': VerifierEntry(
        rejection.rejection, 'min(1, p / q), then the residual distribution'),
    'match': VerifierEntry(match.match, "a draft is accepted if the target's draw equals it"),
    'block': VerifierEntry(block.block, 'the drafts of a chain are accepted together'),
    'kseq': VerifierEntry(
        kseq.kseq, 'the first of several independent candidates that passes',
        drafter_defaults={'draws': 'iid'}),
    'uniform': VerifierEntry(cool.uniform, 'one factor on the acceptance at every depth'),
    'cool': VerifierEntry(cool.cool, 'factors that fall exponentially with depth'),
    'cool_linear': VerifierEntry(
        cool.cool_linear, 'factors that fall linearly with depth'),
    'lantern': VerifierEntry(
        lantern.lantern, "latent neighbours add to a draft's probability, up to a distance",
        lantern.from_codebook(lambda vocab_size: min(1000, vocab_size // 16))),
    'lantern_pp': VerifierEntry(
        lantern.lantern_pp, "latent neighbours add to a draft's probability, up to a factor",
        lantern.from_codebook(lambda vocab_size: 10)),
    'grouped': VerifierEntry(
        grouped.grouped, 'tokens of similar probability are accepted as a group',
        lantern.embeddings),
    'typical': VerifierEntry(rejection.typical, 'drafts that are probable enough are accepted'),
}

DECODERS: dict[str, DecoderEntry] = {
    'vanilla': DecoderEntry(decoders.vanilla, 'one token per forward pass', 'ancestral+match'),
    'speculative': DecoderEntry(decoders.speculative, 'a smaller model drafts', 'model+rejection'),
    'jacobi': DecoderEntry(
        decoders.jacobi, 'a draft is accepted if a fresh draw equals it',
        'jacobi(coupling=independent)+match(seed_exact=False)'),
    'sjd': DecoderEntry(
        decoders.sjd, 'Jacobi window, probabilistic acceptance',
        'jacobi(coupling=independent)+rejection'),
    'mc_sjd': DecoderEntry(
        decoders.mc_sjd, 'SJD with maximally coupled drafts', 'jacobi(coupling=maximal)+rejection'),
    'sjd_pp': DecoderEntry(
        decoders.sjd_pp, 'SJD that reuses drafts while they are probable', 'reuse+rejection'),
    'sjd_pac': DecoderEntry(
        decoders.sjd_pac, 'coupled drafts and a candidate tree',
        'jacobi(coupling=maximal, tree=auto)+rejection'),
    'seed_exact': DecoderEntry(
        decoders.seed_exact, 'the same image as vanilla',
        'jacobi(coupling=gumbel)+match'),
    'corrected': DecoderEntry(
        decoders.corrected, "the target's last predictions, corrected by a cheap model",
        'corrected(tree=auto)+rejection'),
    'corrected_seed_exact': DecoderEntry(
        decoders.corrected_seed_exact, 'the same image as vanilla, by corrected predictions',
        'corrected+match'),
    'eagle': DecoderEntry(
        decoders.eagle, "a layer on the target's features drafts", 'eagle+rejection'),
    'eagle2': DecoderEntry(decoders.eagle2, 'EAGLE along its most probable paths', 'eagle2+match'),
    'medusa': DecoderEntry(
        decoders.medusa, "heads on the target's last feature draft", 'medusa+rejection'),
}
