"""Jacobi windows: the model drafts for itself, from its own last forward pass.

Every forward pass gives a distribution at every position of the window. Those behind the
first refusal are conditioned on drafts that may change, but they are known distributions:
tokens drawn from them, recorded with them, are the drafts of the next round
(SJD, arXiv 2410.01699). Two invariants make every variant exact: the recorded
distribution of a draft is its true distribution given all that is attached to earlier positions,
and nothing attached to a position influences an earlier one.
"""

import functools

import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding.base import Draft, Drafter, Layout, Target
from cspd_jax.decoding.drafters import fresh as fresh_lib, window as window_lib
from cspd_jax.decoding.tree import Tree, chain, check_size

COUPLINGS = ('redraw', 'maximal', 'noise')


def jacobi(window: int = 16, coupling: str = 'redraw', fresh: str = 'uniform',
           tree: Tree | None = None) -> Drafter:
  """Drafts from the previous forward pass.

  Args:
    window: `W`, tokens per forward pass: the last committed one and `W - 1`
      drafts. 1 drafts nothing.
    coupling: how the draft at a position follows its predecessor there.
      'redraw' draws anew from the new distribution (SJD). 'maximal' keeps the token with
      probability `min(1, p / q)` and draws from the residual distribution otherwise, so
      that it changes as rarely as the two distributions allow (MC-SJD, arXiv 2510.24211;
      the same rule is SJD-PAC's adaptive continuation, arXiv 2603.18599).
      'noise' draws with the noise that belongs to the position (Gumbel
      coupling).
    fresh: distribution of the tokens that enter the window, one of `fresh.KINDS`.
    tree: topology of the `W - 1` drafts; side nodes hold further candidates
      drawn without replacement from the same distributions (SJD-PAC's proactive
      drafting). With 'noise' they are the runners-up under the position's
      noise. A chain by default.

  Raises:
    ValueError: for a window below 1, unknown names, or a tree that does not fit.
  """
  check_size('window', window, 1)
  tree = chain(window - 1) if tree is None else tree
  _check_options(window, coupling, fresh, tree)

  def init(env, condition, rng, outcome):
    del condition
    batch, extent = outcome.tokens.shape
    dtype, vocab = outcome.probs.dtype, env.target.vocab_size
    length = tree.main_length
    history = None
    if fresh == 'resample-above':
      history = jnp.zeros((batch, extent + length, vocab), dtype).at[:, 0].set(outcome.probs[:, 0])

    def refill(rng, *args):
      # Nothing is carried over: token 0 is the last known one.
      none = jnp.zeros((length + 1,), jnp.int32), jnp.zeros((length + 1, vocab), dtype)
      return window_lib.refill(rng, env, tree, coupling, fresh, none, length + 1, *args)

    rng, state = env.rowwise(refill)(
        rng, outcome.probs[:, 0], outcome.tokens, outcome.count, history)
    return rng, state

  def propose(env, state, rng, root, start):
    del env, root, start
    return rng, state, Draft(
        jnp.concatenate([state.tokens, state.side], axis=1), state.probs)

  def update(env, state, rng, outcome):
    row = functools.partial(
        window_lib.update, env=env, tree=tree, coupling=coupling, fresh=fresh)
    return env.rowwise(row)(rng, state, outcome._replace(features=None))

  return Drafter(
      layout=layout(tree),
      init=init, propose=propose, update=update,
      check=functools.partial(check_length, window, tree), reuses_drafts=True)


def _check_options(window: int, coupling: str, fresh: str, tree: Tree) -> None:
  """Raises ValueError for unknown names, or a tree that does not fit the window."""
  if coupling not in COUPLINGS:
    raise ValueError(f'coupling is {coupling!r}; it must be one of {", ".join(COUPLINGS)}.')
  if fresh not in fresh_lib.KINDS:
    raise ValueError(f'fresh is {fresh!r}; it must be one of {", ".join(fresh_lib.KINDS)}.')
  check_tree(window, tree)


def check_tree(window: int, tree: Tree) -> None:
  """Raises ValueError for a tree that does not fill the window."""
  if tree.num_nodes != window - 1:
    raise ValueError(
        f'tree has {tree.num_nodes} draft nodes, but window is {window}: with the last '
        f'committed token the tree must fill it, so give it {window - 1} nodes.')
  if tree.max_depth > tree.main_length:
    raise ValueError(
        f'tree has side nodes at depth {tree.max_depth}, beyond the main chain of '
        f'{tree.main_length}; a Jacobi window has distributions for the main chain only.')


def check_length(window: int, tree: Tree, target: Target) -> None:
  """Raises ValueError for a main chain that no image has room for."""
  if tree.main_length >= target.num_tokens:
    raise ValueError(
        f'window is {window} with a main chain of {tree.main_length} drafts, but an image has '
        f'{target.num_tokens} tokens; the chain may have at most {target.num_tokens - 1}.')


def layout(tree: Tree) -> Layout:
  """A position has one distribution, and its main token is a candidate after every side branch.

  Keeping that token where a branch ends keeps the context of the drafts behind it.
  """
  is_leaf = tree.children[:, 0] < 0
  leaf_candidate = np.where(is_leaf & (tree.depth < tree.main_length), tree.depth + 1, -1)
  return Layout(
      tree, tuple(int(depth) for depth in np.maximum(tree.depth - 1, 0)),
      tuple(int(node) for node in leaf_candidate))
