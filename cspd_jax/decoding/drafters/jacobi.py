"""Jacobi windows: the target drafts for itself, from its own last forward pass.

Every forward pass returns a distribution at every position of the window. Those after the first
rejected draft are conditioned on drafts that may change, but they are available: tokens drawn from
them, with these distributions recorded, are the drafts of the next round (SJD, arXiv 2410.01699).
Two invariants make every variant exact: the recorded distribution of a draft is its true
distribution given all that is attached to earlier positions, and nothing attached to a position
influences an earlier one.
"""

import functools

import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding.base import Draft, Drafter, Layout, Target
from cspd_jax.decoding.drafters import window as window_lib
from cspd_jax.decoding.tree import Tree, chain, check_size

COUPLINGS = ('redraw', 'maximal', 'noise')


def jacobi(window: int = 16, coupling: str = 'redraw', fresh: str = 'uniform',
           tree: Tree | None = None) -> Drafter:
  """Drafts from the previous forward pass.

  Args:
    window: `W`, tokens per forward pass: the last committed one and `W - 1` drafts. With 1 nothing
      is drafted.
    coupling: how the draft at a position depends on the one of the round before. 'redraw' draws
      from the new distribution (SJD). 'maximal' retains the token with probability `min(1, p / q)`
      and draws from the residual distribution otherwise, so it changes as rarely as the two
      distributions allow (MC-SJD, arXiv 2510.24211; SJD-PAC's adaptive continuation, arXiv
      2603.18599, is the same). 'noise' draws with the noise of the position (Gumbel coupling).
    fresh: distribution of the tokens that enter the window, one of `window.KINDS`.
    tree: topology of the `W - 1` drafts; side nodes hold further candidates drawn without
      replacement from the same distributions (SJD-PAC's proactive drafting). With 'noise' they are
      the runners-up under the position's noise. A chain by default.

  Raises:
    ValueError: if the window is below 1, a name is not supported, or the tree does not fit.
  """
  check_size('window', window, 1)
  tree = chain(window - 1) if tree is None else tree
  if coupling not in COUPLINGS:
    raise ValueError(f'coupling is {coupling!r}; it must be one of {", ".join(COUPLINGS)}.')
  if fresh not in window_lib.KINDS:
    raise ValueError(f'fresh is {fresh!r}; it must be one of {", ".join(window_lib.KINDS)}.')
  check_tree(window, tree)

  def init(env, condition, rng, outcome):
    del condition
    batch, extent = outcome.tokens.shape
    dtype, vocab = outcome.probs.dtype, env.target.vocab_size
    length = tree.main_length
    history = None
    if fresh == 'resample-above':
      history = jnp.zeros((batch, extent + length, vocab), dtype).at[:, 0].set(outcome.probs[:, 0])

    def fill(rng, *args):
      # No draft is carried over: every position after token 0 is fresh.
      none = jnp.zeros((length + 1,), jnp.int32), jnp.zeros((length + 1, vocab), dtype)
      return window_lib.fill(rng, env, tree, coupling, fresh, none, length + 1, *args)

    return env.rowwise(fill)(rng, outcome.probs[:, 0], outcome.tokens, outcome.count, history)

  def propose(env, state, rng, root, start):
    del env, root, start
    return rng, state, Draft(jnp.concatenate([state.tokens, state.side], axis=1), state.probs)

  def update(env, state, rng, outcome):
    row = functools.partial(
        window_lib.update, env=env, tree=tree, coupling=coupling, fresh=fresh)
    return env.rowwise(row)(rng, state, outcome._replace(features=None))

  return Drafter(
      layout(tree), init, propose, update, check=functools.partial(check_length, window, tree))


def check_tree(window: int, tree: Tree) -> None:
  """Raises ValueError for a tree that does not fill the window."""
  if tree.num_nodes != window - 1:
    raise ValueError(
        f'tree has {tree.num_nodes} draft nodes, but window is {window}: with the last '
        f'committed token the tree must fill it, so it must have {window - 1} nodes.')
  if tree.max_depth > tree.main_length:
    raise ValueError(
        f'tree has side nodes at depth {tree.max_depth}, beyond the main chain of '
        f'{tree.main_length}; a Jacobi window has distributions for the main chain only.')


def check_length(window: int, tree: Tree, target: Target) -> None:
  """Raises ValueError if the main chain is longer than an image has room for."""
  if tree.main_length >= target.num_tokens:
    raise ValueError(
        f'window is {window} with a main chain of {tree.main_length} drafts, but an image has '
        f'{target.num_tokens} tokens; the chain may have at most {target.num_tokens - 1}.')


def layout(tree: Tree) -> Layout:
  """The layout of a window with side nodes.

  Every position has one distribution, and the main token of a position is also a candidate after a
  side branch that ends before it. If it is accepted there, the drafts after it stay in their
  context.
  """
  is_leaf = tree.children[:, 0] < 0
  leaf_candidate = np.where(is_leaf & (tree.depth < tree.main_length), tree.depth + 1, -1)
  return Layout(
      tree, tuple(int(depth) for depth in np.maximum(tree.depth - 1, 0)),
      tuple(int(node) for node in leaf_candidate))
