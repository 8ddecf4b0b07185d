"""The named decoders: well-known combinations of a drafter and a verifier."""

from collections.abc import Callable
from typing import NamedTuple

from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.drafters.ancestral import ancestral
from cspd_jax.decoding.drafters.jacobi import jacobi as jacobi_drafter
from cspd_jax.decoding.drafters.model import model
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.decoding.verifiers.match import match


def vanilla(target: Target) -> Decoder:
  """One token per forward pass, drawn with the noise of its position."""
  return make_decoder(target, ancestral(), match())


def speculative(target: Target, draft_target: Target, length: int = 4) -> Decoder:
  """Speculative sampling with a draft model (Leviathan et al., arXiv 2211.17192).

  Call the decoder with `draft_params`.
  """
  return make_decoder(target, model(draft_target, length), exact())


def jacobi(target: Target, window: int = 16) -> Decoder:
  """Jacobi decoding with sampling: a draft stays if a fresh draw equals it."""
  return make_decoder(target, jacobi_drafter(window), match(seed_exact=False))


def sjd(target: Target, window: int = 16) -> Decoder:
  """Speculative Jacobi decoding (arXiv 2410.01699)."""
  return make_decoder(target, jacobi_drafter(window), exact())


def mc_sjd(target: Target, window: int = 16) -> Decoder:
  """SJD whose drafts are maximally coupled from round to round (arXiv 2510.24211)."""
  return make_decoder(target, jacobi_drafter(window, 'maximal'), exact())


def sjd_pac(target: Target, window: int = 16, tree: Tree | None = None) -> Decoder:
  """Adaptive continuation and proactive drafting (SJD-PAC, arXiv 2603.18599).

  Args:
    target: the target.
    window: tokens per forward pass.
    tree: topology of the `window - 1` drafts; `default_tree(window)` by default.
  """
  tree = default_tree(window) if tree is None else tree
  return make_decoder(target, jacobi_drafter(window, 'maximal', tree=tree), exact())


def seed_exact(target: Target, window: int = 16, tree: Tree | None = None) -> Decoder:
  """Jacobi windows under the noise of each position: the tokens of `vanilla`.

  Predictive sampling (arXiv 2002.09928) with a window, and a tree whose side
  nodes hold the runners-up under the same noise. Arguments as for `sjd_pac`.
  """
  tree = default_tree(window) if tree is None else tree
  return make_decoder(target, jacobi_drafter(window, 'noise', tree=tree), match())


def default_tree(window: int) -> Tree:
  """The tree of `sjd_pac` and `seed_exact` for a window.

  Chosen by measurement on the embedded model (`experiments.topologies`): in a long
  window the full ternary tree with three levels of SJD-PAC's released code, in a
  middling one three candidates for the first token, in a short one none, because
  there the main chain needs all the tokens.
  """
  if window >= 48:
    return trees.kary(3, 3, window - 1)
  if window >= 16:
    return trees.caterpillar(3, 1, window - 1)
  return trees.chain(window - 1)


class Named(NamedTuple):
  """An entry of the registry.

  Attributes:
    build: the function of this module that builds the decoder.
    guarantee: 'exact', the output has the target's law; or 'seed-exact', it
      equals the output of `vanilla` with the same key, token for token.
    needs_draft_model: whether `build` takes a draft model instead of a window.
    summary: one line for tables.
  """

  build: Callable[..., Decoder]
  guarantee: str
  needs_draft_model: bool
  summary: str


DECODERS = {
    'vanilla': Named(vanilla, 'seed-exact', False, 'one token per forward pass'),
    'speculative': Named(speculative, 'exact', True, 'a smaller model drafts'),
    'jacobi': Named(jacobi, 'exact', False, 'drafts kept if redrawn alike'),
    'sjd': Named(sjd, 'exact', False, 'Jacobi window, probabilistic acceptance'),
    'mc_sjd': Named(mc_sjd, 'exact', False, 'SJD with maximally coupled drafts'),
    'sjd_pac': Named(sjd_pac, 'exact', False, 'coupled drafts and a candidate tree'),
    'seed_exact': Named(seed_exact, 'seed-exact', False, 'the same image as vanilla'),
}


def build(name: str, target: Target, *, window: int = 16, draft_target: Target | None = None,
          draft_length: int = 4) -> Decoder:
  """Builds a decoder of the registry by name.

  Raises:
    ValueError: for an unknown name, a missing draft model or options that do
      not fit the target.
  """
  if name not in DECODERS:
    raise ValueError(f'decoder is {name!r}; it must be one of {", ".join(DECODERS)}.')
  named = DECODERS[name]
  if named.needs_draft_model:
    if draft_target is None:
      raise ValueError(f'decoder {name} needs a draft model; give draft_target.')
    return named.build(target, draft_target, draft_length)
  return named.build(target) if named.build is vanilla else named.build(target, window)
