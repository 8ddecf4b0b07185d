"""The named decoders of discrete tokens: a drafter and a verifier for a target.

The decoders `jacobi`, `corrected`, `eagle` and `medusa` join drafters of the same names.

Each function returns a `Decoder`, itself a function of arrays that is jitted as a whole:
`(params, condition, key, sampling, draft_params) -> Decoded`, with tokens `[B, T]`. `specification`
lists them for text, such as `mc_sjd(window=32)`. All raise ValueError for an option out of its
range, and for a network, a tree or a window that does not fit the target.

For a model of `cspd_jax.load`, `target` is `model.target(guided=True)`, `params` are
`model.params`, `condition` is `model.condition(prompts)`, and a network and its `draft_params` are
`model.drafts['eagle'].build(True)` and `model.drafts['eagle'].params`.

What the decoders with a window share:

  window: `W`, tokens per forward pass: the last committed one and `W - 1` drafts. 16 suits several
    images at once. For one or a few, pass 64 on an accelerator, where a pass over 64 tokens takes
    hardly longer, and 4 on a CPU, which computes each of them, or 8 with a corrector.
  tree: topology of the `W - 1` drafts, such as `caterpillar(3, 1, W - 1)` of `decoding.tree`: side
    nodes hold further candidates, drawn without replacement from the same distributions.
  initialization: which tokens fill the end of the window, where there are no drafts yet: 'uniform'
    ones, or the neighbour in the image, copied ('repeat-left', 'repeat-above') or drawn again from
    its distribution ('resample-left', 'resample-above'); for targets that draw a small image first
    also 'repeat-small' and 'resample-small'. All are exact; in short windows, those above commit
    more tokens.
"""

from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.base import Target
from cspd_jax.decoding.drafters import Corrector, Heads, Network
from cspd_jax.decoding.drafters.corrected import corrected as draft_corrected
from cspd_jax.decoding.drafters.draft_model import model as draft_model
from cspd_jax.decoding.drafters.eagle import eagle as draft_eagle, eagle2 as draft_eagle2
from cspd_jax.decoding.drafters.jacobi import ancestral, jacobi as draft_jacobi, reuse
from cspd_jax.decoding.drafters.medusa import medusa as draft_medusa
from cspd_jax.decoding.loop import Decoder, make_decoder
from cspd_jax.decoding.tree import Tree
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection


def default_tree(window: int) -> Tree:
  """Returns the tree of `sjd_pac` for a window.

  Selected by measurement on the embedded model (`experiments.sweep`): for a long window the
  full ternary tree with three levels of SJD-PAC's released code, for a medium one three candidates
  for the first token, and for a short one a chain, which needs all the tokens there.
  """
  trees.check_size('window', window, 1)
  if window >= 48:
    return trees.kary(3, 3, window - 1)
  if window >= 16:
    return trees.caterpillar(3, 1, window - 1)
  return trees.chain(window - 1)


def corrected_tree(window: int) -> Tree:
  """Returns the tree of `corrected` for a window.

  Selected as for `default_tree`: the longer the window, the more candidates for the first
  tokens, whose rejection shortens a round most.
  """
  trees.check_size('window', window, 1)
  if window >= 48:
    return trees.caterpillar(4, 6, window - 1)
  if window >= 24:
    return trees.caterpillar(3, 3, window - 1)
  return trees.chain(window - 1)


def vanilla(target: Target, window: int = 1) -> Decoder:
  """Decodes one token per forward pass: the baseline.

  Seed-exact: each token is drawn from the target's distribution with the noise of its position, and
  these are the tokens that seed-exact decoders repeat.

  Args:
    target: the model whose distribution is sampled.
    window: `W`, tokens per forward pass, of which all but the first are padding. It changes how
      sums are rounded: with the `W` of a seed-exact decoder the tokens are the same bit for bit.

  Example:
    decode = cspd_jax.jit(cspd_jax.vanilla(target))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9))
  """
  return make_decoder(target, ancestral(window), match())


def speculative(target: Target, draft_target: Target, length: int = 4) -> Decoder:
  """Speculative sampling with a draft model (Leviathan et al., arXiv 2211.17192).

  Exact: the tokens follow the target's distribution, whatever the draft model is.

  Args:
    target: the model whose distribution is sampled.
    draft_target: the draft model, with the vocabulary and the grid of the target. It reads the same
      condition; its parameters are the decoder's `draft_params`.
    length: tokens that it drafts per round, at least 1, in a forward pass each.

  Example:
    decode = cspd_jax.jit(cspd_jax.speculative(target, draft_target, length=4))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9),
                     draft_params)
  """
  return make_decoder(target, draft_model(draft_target, length), rejection())


def jacobi(target: Target, window: int = 16, tree: Tree | None = None, *,
           initialization: str = 'uniform') -> Decoder:
  """Jacobi decoding with sampling (Song et al., arXiv 2002.03629).

  In every round the target's draws of the last forward pass are the drafts. One is accepted if a
  new draw equals it. Exact: every committed token is a draw from the target's distribution.

  Args:
    target: the model whose distribution is sampled.
    window: `W`, tokens per forward pass, see `help(cspd_jax.decoding.decoders)`.
    tree: topology of the `W - 1` drafts, see there. A chain by default.
    initialization: which tokens fill the end of the window, see there.

  Example:
    decode = cspd_jax.jit(cspd_jax.jacobi(target, window=16))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9))
  """
  return make_decoder(target, draft_jacobi(window, 'independent', initialization, tree),
                      match(seed_exact=False))


def sjd(target: Target, window: int = 16, tree: Tree | None = None, *,
        initialization: str = 'uniform') -> Decoder:
  """Speculative Jacobi decoding (SJD, arXiv 2410.01699).

  The drafts are the target's draws of the last forward pass, with the distributions `q` that they
  were drawn from. One is accepted with probability `min(1, p / q)`. Exact.

  Args:
    target: the model whose distribution is sampled.
    window: `W`, tokens per forward pass, see `help(cspd_jax.decoding.decoders)`.
    tree: topology of the `W - 1` drafts, see there. A chain by default.
    initialization: which tokens fill the end of the window, see there.

  Example:
    decode = cspd_jax.jit(cspd_jax.sjd(target, window=16))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9))
  """
  return make_decoder(target, draft_jacobi(window, 'independent', initialization, tree),
                      rejection())


def mc_sjd(target: Target, window: int = 16, tree: Tree | None = None, *,
           initialization: str = 'uniform') -> Decoder:
  """SJD whose drafts change as rarely as possible (MC-SJD, arXiv 2510.24211).

  The draft of a position is maximally coupled with its draft of the round before: it is retained
  with probability `min(1, p / q)`, else drawn from the residual. Exact, and nothing is trained.

  Args:
    target: the model whose distribution is sampled.
    window: `W`, tokens per forward pass, see `help(cspd_jax.decoding.decoders)`.
    tree: topology of the `W - 1` drafts, see there. A chain by default.
    initialization: which tokens fill the end of the window, see there.

  Example:
    decode = cspd_jax.jit(cspd_jax.mc_sjd(target, window=32))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9))
  """
  return make_decoder(target, draft_jacobi(window, 'maximal', initialization, tree), rejection())


def sjd_pp(target: Target, window: int = 16, threshold: float = 0.5, tree: Tree | None = None, *,
           initialization: str = 'uniform') -> Decoder:
  """SJD that reuses drafts after a rejection while they are probable (SJD++, arXiv 2512.07503).

  A reused draft follows a mixture of the old and the new distribution, which is recorded, so that
  the decoder is exact.

  Args:
    target: the model whose distribution is sampled.
    window: `W`, tokens per forward pass, see `help(cspd_jax.decoding.decoders)`.
    threshold: a draft is retained if its probability is at least this share of the one with which
      it was drawn, above 0 and at most 1.
    tree: topology of the `W - 1` drafts, see there. A chain by default.
    initialization: which tokens fill the end of the window, see there.

  Example:
    decode = cspd_jax.jit(cspd_jax.sjd_pp(target, window=16, threshold=0.5))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9))
  """
  return make_decoder(target, reuse(window, threshold, initialization, tree), rejection())


def sjd_pac(target: Target, window: int = 16, tree: Tree | None = None, *,
            initialization: str = 'uniform') -> Decoder:
  """SJD with coupled drafts and a tree of candidates (SJD-PAC, arXiv 2603.18599).

  Adaptive continuation, which is the coupling of `mc_sjd`, and proactive drafting: several
  candidates for the first tokens of the window. Exact.

  Args:
    target: the model whose distribution is sampled.
    window: `W`, tokens per forward pass, see `help(cspd_jax.decoding.decoders)`.
    tree: topology of the `W - 1` drafts, see there. `default_tree(window)` by default, a chain
      below 16 tokens; the target must score trees unless it is a chain.
    initialization: which tokens fill the end of the window, see there.

  Example:
    decode = cspd_jax.jit(cspd_jax.sjd_pac(target, window=32))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9))
  """
  tree = default_tree(window) if tree is None else tree
  return make_decoder(target, draft_jacobi(window, 'maximal', initialization, tree), rejection())


def seed_exact(target: Target, window: int = 16, tree: Tree | None = None, *,
               initialization: str = 'uniform') -> Decoder:
  """Jacobi windows under the noise of each position: the tokens of `vanilla(window=window)`.

  Predictive sampling (Wiggers and Hoogeboom, arXiv 2002.09928) with a window. Seed-exact: with the
  same key and batch size, the tokens are equal bit for bit in any dtype. With another `tree` than a
  chain it is seed-exact up to rounding.

  Args:
    target: the model whose distribution is sampled.
    window: `W`, tokens per forward pass, see `help(cspd_jax.decoding.decoders)`.
    tree: topology of the `W - 1` drafts, see there; side nodes hold the runners-up under the noise
      of the position. A chain by default; `default_tree(window)` commits most tokens.
    initialization: which tokens fill the end of the window, see there.

  Example:
    decode = cspd_jax.jit(cspd_jax.seed_exact(target, window=16))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9))
  """
  return make_decoder(target, draft_jacobi(window, 'gumbel', initialization, tree), match())


def corrected(target: Target, corrector: Corrector | None = None, window: int = 16,
              iterations: int | None = None, tree: Tree | None = None, *,
              num_corrected: int | None = None) -> Decoder:
  """Windows of the target's last predictions, corrected by a cheap model.

  After a rejection these predictions are stale: the corrector scores the old and the new context
  and adds the difference (`docs/corrected_windows.md`). Exact, whatever the corrector is.

  Args:
    target: the model whose distribution is sampled.
    corrector: the cheap model, required: one that `cspd_jax.training.fit_corrector` has fitted to
      the target, or such as `drafters.from_network(network)`. Its parameters are the decoder's
      `draft_params`.
    window: `W`, tokens per forward pass, see `help(cspd_jax.decoding.decoders)`.
    iterations: how often the corrector scores the window in a round, at least 1. By default 4 for
      windows of 32 or more and 2 for smaller ones.
    tree: topology of the `W - 1` drafts; side nodes are leaves next to the main chain and hold
      further candidates from the same distributions. `corrected_tree(window)` by default, a chain
      below 24 tokens; the target must score trees unless it is a chain.
    num_corrected: number of positions that the corrector scores, by default the whole main chain.
      The positions after them keep the target's last predictions.

  Example:
    decode = cspd_jax.jit(cspd_jax.corrected(target, corrector, window=64, iterations=4))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9),
                     draft_params)
  """
  tree = corrected_tree(window) if tree is None else tree
  return make_decoder(target, draft_corrected(corrector, window, iterations, tree, num_corrected),
                      rejection())


def corrected_seed_exact(target: Target, corrector: Corrector | None = None, window: int = 16,
                         iterations: int | None = None, tree: Tree | None = None, *,
                         num_corrected: int | None = None) -> Decoder:
  """Corrected windows under the noise of each position: the tokens of `vanilla(window=window)`.

  The drafts of `corrected` are verified by equality. Seed-exact: with the same key and batch
  size, the tokens are equal bit for bit in any dtype. With another `tree` than a chain it is
  seed-exact up to rounding.

  Args:
    target: the model whose distribution is sampled.
    corrector: the cheap model, required: one that `cspd_jax.training.fit_corrector` has fitted to
      the target, or such as `drafters.from_network(network)`. Its parameters are the decoder's
      `draft_params`.
    window: `W`, tokens per forward pass, see `help(cspd_jax.decoding.decoders)`.
    iterations: how often the corrector scores the window in a round, at least 1. By default 4 for
      windows of 32 or more and 2 for smaller ones.
    tree: topology of the `W - 1` drafts; side nodes are leaves next to the main chain and hold
      further candidates, the runners-up. A chain by default; `corrected_tree(window)` is the one
      that commits most tokens.
    num_corrected: number of positions that the corrector scores, by default the whole main chain.
      The positions after them keep the target's last predictions.

  Example:
    decode = cspd_jax.jit(cspd_jax.corrected_seed_exact(target, corrector, window=64, iterations=4))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9),
                     draft_params)
  """
  return make_decoder(target, draft_corrected(corrector, window, iterations, tree, num_corrected),
                      match())


def eagle(target: Target, network: Network, tree: Tree = trees.EAGLE, *,
          draws: str = 'distinct') -> Decoder:
  """Drafts of a network that extrapolates the target's features (EAGLE, arXiv 2401.15077).

  Exact, whatever the network is.

  Args:
    target: the model whose distribution is sampled.
    network: a network trained for the target, which must return features; its parameters are the
      decoder's `draft_params`.
    tree: topology of the drafts, at least one; by default EAGLE-1's, with 25. Pass
      `decoding.tree.LANTERN`, with 57, for more tokens per pass, or on a CPU `chain(4)`.
    draws: how siblings are selected: 'distinct' draws them without replacement, 'iid'
      independently, 'fixed' takes the most probable ones.

  Example:
    decode = cspd_jax.jit(cspd_jax.eagle(target, network, chain(4)))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9),
                     draft_params)
  """
  return make_decoder(target, draft_eagle(network, tree, draws), rejection())


def eagle2(target: Target, network: Network, num_nodes: int = 58, width: int = 10,
           depth: int = 5) -> Decoder:
  """EAGLE with a new tree in every round, of the most probable paths (EAGLE-2, arXiv 2406.16858).

  The drafts are chosen, not drawn. They are verified by drawing the target's token and looking for
  it among them. Seed-exact up to rounding: in trees, sums have another order than in `vanilla`.

  Args:
    target: the model whose distribution is sampled.
    network: a network trained for the target, which must return features and score trees; its
      parameters are the decoder's `draft_params`.
    num_nodes: drafts per round, at most as many as tokens in the beam.
    width: size of the beam of paths, and the most children that a node may have.
    depth: depth of the tree.

  Example:
    decode = cspd_jax.jit(cspd_jax.eagle2(target, network, num_nodes=5, width=2, depth=3))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9),
                     draft_params)
  """
  return make_decoder(target, draft_eagle2(network, num_nodes, width, depth), match())


def medusa(target: Target, heads: Heads, tree: Tree | None = None, *, draws: str = 'distinct',
           length: int | None = None) -> Decoder:
  """Drafts of heads on the target's last feature (Medusa, arXiv 2401.10774).

  Exact, whatever the heads are.

  Args:
    target: the model whose distribution is sampled.
    heads: `H` heads, trained for the target, which must return features; their parameters are the
      decoder's `draft_params`.
    tree: topology of the drafts, at most `H` deep, such as `decoding.tree.MEDUSA`. A chain by
      default.
    draws: how siblings are selected: 'distinct' draws them without replacement, 'iid'
      independently, 'fixed' takes the most probable ones, as the paper does.
    length: length of the chain, if `tree` is None; at most `H`, which is the default.

  Example:
    decode = cspd_jax.jit(cspd_jax.medusa(target, heads))
    decoded = decode(params, condition, jax.random.key(0), SamplingParams(temperature=0.9),
                     draft_params)
  """
  return make_decoder(target, draft_medusa(heads, tree, draws, length), rejection())
