"""Corrected windows: the target's stale answers and a cheap model's own error.

After a round the target has answered at every place of the window. Behind the first refusal its
answers are stale: the right model in a slightly wrong context. A cheap model, the corrector, is
asked about both contexts; where it says the same the stale answer stands, where it does not its own
change is carried over.

All places are read at once, in a few passes: a pass reads the tokens of the pass before, and its
tokens are maximally coupled with them. It is exact for the reason that Jacobi windows are: the
recorded distribution of a token is its true distribution given all that is attached to earlier
positions, in every pass, and nothing attached to a position influences an earlier one.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import contract, warp as warp_lib
from cspd_jax.decoding.base import Draft, Drafter, Env, Outcome
from cspd_jax.decoding.drafters import window as window_lib
from cspd_jax.decoding.drafters.corrector import Corrector, Said
from cspd_jax.decoding.drafters.jacobi import check_length, check_tree, layout
from cspd_jax.decoding.tree import Tree, chain, check_size


class CorrectedState(NamedTuple):
  """What a window knows from one round to the next; places are those right behind the root.

  Attributes:
    tokens: `[B, L]` carried tokens.
    probs: `[B, L, V]` the distribution each was drawn from.
    stale: `[B, L, ...]` the target's answers of the last round.
    known: `[B, L]` which places have one; the others repeat the last.
    accepted: `[B]` drafts accepted in the last round.
    memory: the corrector's.
  """

  tokens: jax.Array
  probs: jax.Array
  stale: Said
  known: jax.Array
  accepted: jax.Array
  memory: Any


def corrected(corrector: Corrector, window: int = 16, passes: int | None = None,
              tree: Tree | None = None, reads: int | None = None) -> Drafter:
  """Drafts from the target's last pass, corrected by a cheap model.

  Args:
    corrector: the cheap model; its parameters are the decoder's `draft_params`.
    window: `W`, tokens per forward pass: the last committed one and `W - 1` drafts.
    passes: how often the corrector reads the window, at least 1. By default 4 from a window of 32
      on and 2 below: the more places there are, the more passes pay.
    tree: topology of the `W - 1` drafts; side nodes are leaves beside the main chain and hold
      further candidates from the same distributions. A chain by default.
    reads: places that the corrector reads, all of the main chain by default. Those behind keep
      the stale distributions.

  Raises:
    ValueError: for sizes below 1, or a tree that does not fit.
  """
  check_size('window', window, 1)
  passes = (4 if window >= 32 else 2) if passes is None else passes
  check_size('passes', passes, 1)
  tree = chain(window - 1) if tree is None else tree
  check_tree(window, tree)
  _check_leaves(tree)
  length = tree.main_length
  if reads is not None:
    check_size('reads', reads, 1)
  reads = length if reads is None else min(reads, length)

  def init(env, condition, rng, outcome):
    memory = corrector.init(env, condition, outcome, length)
    return rng, _nothing_known(env, outcome, corrector.answers(outcome), length, memory)

  def propose(env, state, rng, root, start):
    del root
    if length:
      rng, state = _read(corrector, passes, reads, env, state, rng, start)
    positions = start[:, None] + 1 + jnp.arange(length)
    rng, side = env.rowwise(functools.partial(_siblings, env, tree))(
        rng, state.tokens, state.probs, positions)
    return rng, state, Draft(
        jnp.concatenate([state.tokens, side], axis=1), state.probs if env.needs_probs else None)

  def update(env, state, rng, outcome):
    memory = corrector.took(env, state.memory, outcome)
    answers = jax.tree.map(lambda x: x[:, :length + 1], corrector.answers(outcome))
    rng, state = env.rowwise(functools.partial(_shift, env, length))(
        rng, state._replace(memory=None), outcome._replace(features=None), answers)
    return rng, state._replace(memory=memory)

  def check(target):
    check_length(window, tree, target)
    corrector.check(target)

  return Drafter(layout=layout(tree), init=init, propose=propose, update=update,
                 check=check, reuses_drafts=True)


def _read(corrector: Corrector, passes: int, reads: int, env: Env, state: CorrectedState, rng: Any,
          start: jax.Array) -> tuple[Any, CorrectedState]:
  """Reads the first places of a window in a few passes and draws their tokens anew."""
  positions = start[:, None] + 1 + jnp.arange(reads)
  tokens, probs, stale, known = jax.tree.map(
      lambda x: x[:, :reads], (state.tokens, state.probs, state.stale, state.known))
  said, old, memory = corrector.open(env, state.memory, tokens, stale, start)
  # Of the places behind the old main nodes, those of the new window.
  last = state.tokens.shape[1] - 1
  index = jnp.minimum(state.accepted[:, None] + jnp.arange(reads), last)
  old = jax.tree.map(lambda x: jax.vmap(lambda row, at: row[at])(x, index), old)
  hints = stale
  for number in range(passes):
    if number:
      said, memory = corrector.read(env, memory, tokens, hints, start)
    found, hints = corrector.correct(env, said, old, stale, known, positions)
    found = _cut(env, found, positions)
    rng, tokens = env.rowwise(functools.partial(_redraw, env))(
        rng, tokens, probs, found, positions)
    probs = found
  return rng, state._replace(
      tokens=jnp.concatenate([tokens, state.tokens[:, reads:]], axis=1),
      probs=jnp.concatenate([probs, state.probs[:, reads:]], axis=1), memory=memory)


def _check_leaves(tree: Tree) -> None:
  """Raises ValueError unless every side node is a leaf beside the main chain."""
  if np.any(np.asarray(tree.parents) > tree.main_length):
    raise ValueError(
        'tree has side nodes with children; in a corrected window they must be leaves beside the '
        'main chain, such as caterpillar(4, 6) has.')


def _nothing_known(env: Env, outcome: Outcome, answers: Said, length: int,
                   memory: Any) -> CorrectedState:
  """The state after the prefill: all places repeat token 0."""
  tokens = jnp.repeat(outcome.tokens[:, :1], length, axis=1)
  probs = jax.nn.one_hot(tokens, env.target.vocab_size, dtype=outcome.probs.dtype)
  stale = jax.tree.map(lambda x: jnp.repeat(x[:, -1:], length, axis=1), answers)
  return CorrectedState(
      tokens, probs, stale, jnp.zeros(tokens.shape, bool), jnp.zeros_like(outcome.count), memory)


def _cut(env: Env, probs: jax.Array, positions: jax.Array) -> jax.Array:
  """The cuts and the grammar of the target on a draft distribution."""
  warp = env.warp
  greedy = jnp.asarray(warp.temperature) == 0
  cuts = warp_lib.Warp(
      temperature=jnp.where(greedy, 0.0, 1.0), top_k=warp.top_k, top_p=warp.top_p)
  forced = contract.forced_tokens(env.target, positions)
  return warp_lib.probabilities(jnp.log(probs)[None], cuts, positions, forced)


def _redraw(env: Env, rng, tokens, probs, found, positions) -> jax.Array:
  """Tokens `[L]` from `found`, as rarely other than `tokens` as the distributions allow."""
  if env.seed_exact:
    return rng.draw_at(positions, found)
  return window_lib.coupled(rng, tokens, probs, found)


def _siblings(env: Env, tree: Tree, rng, tokens, probs, positions) -> jax.Array:
  coupling = 'noise' if env.seed_exact else 'maximal'
  return window_lib.side_tokens(
      rng, tree, coupling, tokens, probs, positions, jnp.zeros(tokens.shape, bool))


def _shift(env: Env, length: int, rng, state: CorrectedState, outcome: Outcome,
           answers: Said) -> CorrectedState:
  """The state of one row behind its new root: the target's answers, and tokens drawn from them."""
  if not length:
    return state
  probs = outcome.probs[:length + 1]
  first = outcome.root + 1  # The place after the old root.
  if env.seed_exact:
    tokens = rng.draw_at(first + jnp.arange(length + 1), probs)
  else:
    tokens = window_lib.coupled(rng, state.tokens, state.probs, probs)
  at = outcome.accepted + 1 + jnp.arange(length)
  known = at <= length
  moved = lambda x: x[jnp.minimum(at, length)]
  # Places without an answer repeat the last token before them, until the corrector fills them.
  filler = jnp.where(known[0], tokens[-1], outcome.tokens[outcome.count - 1])
  tokens = jnp.where(known, moved(tokens), filler)
  one_hot = jax.nn.one_hot(tokens, probs.shape[-1], dtype=probs.dtype)
  return state._replace(
      tokens=tokens, probs=jnp.where(known[:, None], moved(probs), one_hot),
      stale=jax.tree.map(moved, answers), known=known, accepted=outcome.accepted)
