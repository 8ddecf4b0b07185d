"""Corrected windows: the target's stale answers and a cheap model's own error.

After a round the target has answered at every place of the window. Behind the first refusal its
answers are stale: the right model in a slightly wrong context. A cheap model, the corrector, is
asked about both contexts; where it says the same the stale answer stands, where it does not its own
change is carried over,

    log q = log new + g (log stale - log old),    g = sum_x min(new(x), old(x)).

All places are read at once, in a few passes: a pass reads the tokens of the pass before, and its
tokens are maximally coupled with them. It is exact for the reason that Jacobi windows are: the
recorded distribution of a token is its true distribution given all that is attached to earlier
positions, in every pass, and nothing attached to a position influences an earlier one.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.decoding import contract, warp as warp_lib
from cspd_jax.decoding.base import Draft, Drafter, Env, Outcome
from cspd_jax.decoding.drafters import window as window_lib
from cspd_jax.decoding.drafters.corrector import Corrector
from cspd_jax.decoding.drafters.jacobi import check_length, check_tree, layout
from cspd_jax.decoding.tree import Tree, chain, check_size

# Below this a probability does not matter, and its logarithm would.
_TINY = 1e-20


class CorrectedState(NamedTuple):
  """What a window knows from one round to the next; places are those right behind the root.

  Attributes:
    tokens: `[B, L]` carried tokens.
    probs: `[B, L, V]` the distribution each was drawn from.
    stale: `[B, L, V]` the target's answers of the last round, before cuts.
    old: `[B, L, V]` what the corrector said in the context of those answers.
    known: `[B, L]` which places have both.
    said: `[B, L + 1, V]` what the corrector said last, for the places behind the root before.
    memory: the corrector's.
  """

  tokens: jax.Array
  probs: jax.Array
  stale: jax.Array
  old: jax.Array
  known: jax.Array
  said: jax.Array
  memory: Any


def corrected(corrector: Corrector, window: int = 16, passes: int = 3,
              tree: Tree | None = None) -> Drafter:
  """Drafts from the target's last pass, corrected by a cheap model.

  Args:
    corrector: the cheap model; its parameters are the decoder's `draft_params`.
    window: `W`, tokens per forward pass: the last committed one and `W - 1` drafts.
    passes: reads of the corrector that draft; one more tells what it says of the result.
    tree: topology of the `W - 1` drafts; side nodes hold further candidates from the same
      distributions. A chain by default.

  Raises:
    ValueError: for sizes below 1, or a tree that does not fit.
  """
  check_size('window', window, 1)
  check_size('passes', passes, 1)
  tree = chain(window - 1) if tree is None else tree
  check_tree(window, tree)
  length = tree.main_length

  def init(env, condition, rng, outcome):
    return rng, _nothing_known(
        env, outcome, length, corrector.init(env, condition, outcome, length))

  def propose(env, state, rng, root, start):
    positions = start[:, None] + 1 + jnp.arange(length + 1)

    def say(memory, tokens):
      logits, memory = corrector.read(env, memory, root, tokens, start)
      return _uncut(env, logits, positions), memory

    tokens, probs, memory = state.tokens, state.probs, state.memory
    for _ in range(passes):
      new, memory = say(memory, tokens)
      found = corrected_probs(new[:, :-1], state.old, state.stale, state.known)
      found = _cut(env, found, positions[:, :-1])
      rng, tokens = env.rowwise(functools.partial(_redraw, env))(
          rng, tokens, probs, found, positions[:, :-1])
      probs = found
    rng, side = env.rowwise(functools.partial(_siblings, env, tree))(
        rng, tokens, probs, positions[:, :-1])
    said, memory = say(memory, tokens)
    state = state._replace(tokens=tokens, probs=probs, said=said, memory=memory)
    return rng, state, Draft(
        jnp.concatenate([tokens, side], axis=1), probs if env.needs_probs else None)

  def update(env, state, rng, outcome):
    memory = corrector.took(env, state.memory, outcome)
    outcome = outcome._replace(features=None)
    row = functools.partial(_shift, env, length)
    rng, state = env.rowwise(row)(rng, state._replace(memory=None), outcome)
    return rng, state._replace(memory=memory)

  def check(target):
    check_length(window, tree, target)
    corrector.check(target)

  return Drafter(layout=layout(tree), init=init, propose=propose, update=update,
                 check=check, keeps_drafts=True)


def _nothing_known(env: Env, outcome: Outcome, length: int, memory: Any) -> CorrectedState:
  """The state after the prefill: all places repeat token 0."""
  batch, vocab = outcome.tokens.shape[0], env.target.vocab_size
  tokens = jnp.broadcast_to(outcome.tokens[:, :1], (batch, length))
  none = jnp.zeros((batch, length, vocab), outcome.probs.dtype)
  return CorrectedState(
      tokens, jax.nn.one_hot(tokens, vocab, dtype=none.dtype), none, none,
      jnp.zeros((batch, length), bool), jnp.zeros((batch, length + 1, vocab), none.dtype), memory)


def corrected_probs(new: jax.Array, old: jax.Array, stale: jax.Array,
                    known: jax.Array) -> jax.Array:
  """The corrected distributions `[..., V]` of places; see the module.

  Args:
    new: `[..., V]` what the corrector says in the new context.
    old: `[..., V]` what it said in the context of `stale`.
    stale: `[..., V]` what the target said there.
    known: `[...]` whether it did; `new` is the answer elsewhere.
  """
  agreement = jnp.sum(jnp.minimum(new, old), axis=-1, keepdims=True)
  log = lambda probs: jnp.log(jnp.maximum(probs, _TINY))
  corrected_ = jax.nn.softmax(log(new) + agreement * (log(stale) - log(old)))
  return jnp.where(known[..., None], corrected_, new)


def _uncut(env: Env, logits: jax.Array, positions: jax.Array) -> jax.Array:
  """Guided distributions of the corrector, at temperature 1 if the decode is greedy."""
  warp = warp_lib.uncut(env.warp)
  if logits.shape[0] == 1:  # A corrector without a null condition is not guided.
    warp = warp._replace(guidance_scale=1.0)
  return warp_lib.probabilities(logits, warp, positions)


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


def _shift(env: Env, length: int, rng, state: CorrectedState, outcome: Outcome) -> CorrectedState:
  """The state of one row behind its new root: the target's answers, and tokens drawn from them."""
  if not length:
    return state
  answers = outcome.probs[:length + 1]
  first = outcome.count - outcome.accepted - 1  # The place after the old root.
  shift = outcome.accepted + 1

  def moved(x):
    return jax.lax.dynamic_slice_in_dim(
        jnp.concatenate([x, jnp.zeros((length,) + x.shape[1:], x.dtype)]), shift, length)

  if env.seed_exact:
    tokens = rng.draw_at(first + jnp.arange(length + 1), answers)
  else:
    tokens = window_lib.coupled(rng, state.tokens, state.probs, answers)
  # Places without an answer repeat the last token before them, until the corrector fills them.
  known = moved(jnp.ones(length + 1, bool))
  filler = jnp.where(known[0], tokens[-1], outcome.tokens[outcome.count - 1])
  tokens = jnp.where(known, moved(tokens), filler)
  one_hot = jax.nn.one_hot(tokens, state.probs.shape[-1], dtype=answers.dtype)
  return state._replace(
      tokens=tokens, probs=jnp.where(known[:, None], moved(answers), one_hot),
      stale=moved(outcome.uncut[:length + 1]), old=moved(state.said), known=known)
