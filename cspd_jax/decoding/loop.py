"""The decoding loop: draft, score, verify and commit until every row is complete."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts, rows
from cspd_jax.core.decoder import AnyDecoder
from cspd_jax.core.guarantees import Guarantee, of_verifier
from cspd_jax.core.random import as_row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.decoding import base, warp as warp_lib
from cspd_jax.decoding.row_random import RowRandom
from cspd_jax.decoding.tree import Budget, Tree, chain

# Arrays of probabilities of all nodes that a compiled round holds at once: the logits of the
# streams, those after guidance, and what the cuts, the verifier and the next drafts make of them.
_PROBABILITIES = 5


class LogProbs(NamedTuple):
  """Log-probabilities `[B, n]` of tokens."""

  sampled: jax.Array  # Under the distributions that are sampled.
  raw: jax.Array | None  # Under those after guidance alone; None without `Decoder.raw_log_probs`.


class State(NamedTuple):
  """The state of a decode, carried from round to round.

  Attributes:
    count: `[B]` number of committed tokens.
    tokens: `[B, T']` image tokens; entries at or beyond `count` are undefined.
    round_of_token: `[B, T']` the round that committed each token.
    rounds: `[B]` forward passes so far, including the prefill.
    accepted: `[B, D + 2]` histogram of tokens committed per round.
    tv_bound: `[B]` the bound on total variation so far.
    valid: `[B]` whether the row is valid so far.
    log_probs: `[B, T']` the log-probabilities of the tokens.
    cache: the target's cache.
    drafter: the drafter's state.
    rng: the random state of the rows.
  """

  count: jax.Array
  tokens: jax.Array
  round_of_token: jax.Array
  rounds: jax.Array
  accepted: jax.Array
  tv_bound: jax.Array
  valid: jax.Array
  log_probs: LogProbs
  cache: Any
  drafter: Any
  rng: Any


@dataclasses.dataclass(frozen=True, repr=False)
class Decoder(AnyDecoder):
  """A target with a drafter and a verifier: `decoder(params, condition, key)`.

  `start` runs the prefill and commits token 0 of every row.

  Attributes:
    target: the model whose distribution is sampled.
    drafter: proposes tokens.
    verifier: accepts or rejects them.
    open_rng: `state -> rng`: the random numbers of one row in one step; tests replace it.
    raw_log_probs: whether the result has `Decoded.raw_log_probs`, for which a round reads the
      logits once more. Set it by `dataclasses.replace(decoder, raw_log_probs=True)`.
  """

  target: base.Target
  drafter: base.Drafter
  verifier: base.Verifier
  open_rng: Callable = RowRandom
  raw_log_probs: bool = False

  failure = ('no valid probabilities (its logits, or the guided ones, contain NaN or infinity, or '
             'exclude every token)')

  def __repr__(self) -> str:
    tree = self.drafter.tree
    kind = 'chain' if tree.is_chain else 'tree'
    return (f'Decoder({self.target}, a {kind} of {tree.num_nodes} drafts per round, '
            f'{self.guarantee})')

  @property
  def guarantee(self) -> Guarantee:
    """How the tokens relate to the target's distribution.

    'seed-exact': the tokens of `vanilla(window=N)` with the same key and batch size, bit for bit in
    any dtype, where `N` is the number of tokens of a forward pass; and those of `vanilla` up to
    rounding. 'seed-exact up to rounding': both up to rounding, if the drafts are a tree. 'exact':
    the target's distribution. 'bounded': neither; the mean of `Decoded.tv_bound` bounds the total
    variation. 'biased': that is NaN.
    """
    verifier = self.verifier
    result = of_verifier(
        exact=verifier.exact, bounded=verifier.bounded, seed_exact=verifier.seed_exact)
    # The key of an accepted side node was scored in another slot than the one where it stays, so
    # that its sums have another order than the baseline's.
    return result if self.drafter.tree.is_chain else result.rounded

  def check_condition(self, condition: base.Condition) -> jax.Array:
    return contracts.supported_rows(self.target, condition)

  def check_sampling(self, sampling: SamplingParams, num_rows: int | None = None) -> jax.Array:
    return warp_lib.check(sampling, self.target.num_streams, num_rows, self.verifier.greedy)

  @property
  def phases(self):
    return [(self.target.num_tokens, self.round)]

  def intermediate(self, num_rows: int) -> float:
    probabilities = (self.drafter.tree.num_nodes + 1) * self.target.vocab_size
    num_arrays = _PROBABILITIES + self.drafter.num_arrays
    return float(num_rows * num_arrays * probabilities * np.dtype(np.float32).itemsize)

  @usual_promotion
  def start(self, params: base.Params, condition: base.Condition, key: Any,
            sampling: SamplingParams = SamplingParams(),
            draft_params: base.Params = None) -> State:
    rng = as_row_keys(key, rows.count(condition))
    valid = self.check(condition, sampling)
    target, tree = self.target, self.drafter.tree
    context = self._context(sampling, draft_params)
    logits, features, cache = contracts.prefill(
        target, params, condition, target.num_tokens + tree.num_nodes)
    batch = logits.shape[1]
    # A tree of its root alone, after which token 0 is drawn: node, path and position are all 0.
    zero = jnp.zeros((batch, 1), jnp.int32)
    logits = logits[:, :, None]
    probs = self._probs(logits, zero, sampling)
    no_drafts = base.Draft(zero[:, :0], probs[:, :0] if self.verifier.needs_probs else None)
    rng, verdict = self._verify(rng, base.Layout(chain(0), (0,), (-1,)), no_drafts, zero, logits,
                                probs, zero, sampling)

    extent = target.num_tokens + tree.max_depth + 1
    tokens = jnp.zeros((batch, extent), jnp.int32).at[:, 0].set(verdict.token)
    count = jnp.ones((batch,), jnp.int32)
    result = base.RoundResult(
        tokens=tokens, count=count, accepted=jnp.zeros_like(count), nodes=zero,
        probs=probs, uncut=warp_lib.probabilities(logits, warp_lib.without_cuts(sampling), zero),
        features=features, path=zero, verdict=verdict)
    rng, drafter_state = self.drafter.init(context, condition, rng, result)
    first = self._log_probs(logits, probs, zero, sampling, zero, verdict.token[:, None])
    return State(
        count=count, tokens=tokens, round_of_token=jnp.zeros_like(tokens), rounds=count,
        accepted=jnp.zeros((batch, tree.max_depth + 2), jnp.int32),
        tv_bound=jnp.zeros((batch,), probs.dtype),
        valid=valid & warp_lib.is_distribution(probs[:, 0]),
        log_probs=jax.tree.map(
            lambda value: jnp.zeros((batch, extent), value.dtype).at[:, :1].set(value), first),
        cache=cache, drafter=drafter_state, rng=rng)

  @usual_promotion
  def round(self, params, state: State, sampling=SamplingParams(), draft_params=None) -> State:
    target, drafter = self.target, self.drafter
    context = self._context(sampling, draft_params)
    batch = state.count.shape[0]
    start = state.count - 1
    root = jnp.take_along_axis(state.tokens, start[:, None], axis=1)

    # Draft and score.
    rng, drafter_state, draft = drafter.propose(
        context, state.drafter, state.rng, root[:, 0], start)
    contracts.check_draft(
        draft, drafter.layout, self.verifier.needs_probs, batch, target.vocab_size)
    tree = drafter.layout.tree if draft.tree is None else draft.tree
    if isinstance(tree, Budget):
      raise contracts.ContractError(
          'propose of the drafter returned a draft without a tree; it must return one in every '
          'round, because layout.tree is a Budget.')
    nodes = jnp.concatenate([root, draft.tokens], axis=1)
    logits, features, cache = contracts.score(
        target, params, state.cache, jnp.maximum(nodes, 0), start, tree)
    positions = start[:, None] + 1 + tree.depth
    probs = self._probs(logits, positions, sampling)

    # Verify, and commit the accepted path and one more token.
    rng, verdict = self._verify(rng, drafter.layout, draft, nodes, logits, probs, positions,
                                sampling)
    accepted, path = tree.reach(verdict.node)
    new = jnp.take_along_axis(nodes, path[:, 1:], axis=1)
    new = jnp.concatenate([new, verdict.token[:, None]], axis=1)
    is_last = jnp.arange(tree.max_depth + 1) == accepted[:, None]
    new = jnp.where(is_last, verdict.token[:, None], new)
    length = self._length(state.count, accepted)
    count = state.count + length
    # Written in one pass over the rows: on GPUs an in-place update of every row needs more kernels.
    offset = jnp.arange(state.tokens.shape[1]) - state.count[:, None]
    is_new = (offset >= 0) & (offset < length[:, None])
    write = lambda old, values: jnp.where(
        is_new, jnp.take_along_axis(values, offset, axis=1, mode='clip'), old)
    tokens = write(state.tokens, new)
    if not tree.is_chain:
      cache = contracts.commit(target, cache, start, path[:, 1:tree.side_depth + 1])

    result = base.RoundResult(
        tokens=tokens, count=count, accepted=length - 1, nodes=nodes, probs=probs,
        uncut=warp_lib.probabilities(logits, warp_lib.without_cuts(sampling), positions),
        features=features, path=path, verdict=verdict)
    rng, drafter_state = drafter.update(context, drafter_state, rng, result)
    bins = jnp.arange(state.accepted.shape[1])
    return State(
        count=count, tokens=tokens,
        round_of_token=jnp.where(is_new, state.rounds[:, None], state.round_of_token),
        rounds=state.rounds + (length > 0),
        accepted=state.accepted + ((bins == length[:, None]) & (bins > 0)),
        tv_bound=state.tv_bound + self._tv_bound(verdict, positions, length),
        valid=state.valid & _were_distributions(probs, path, length),
        log_probs=jax.tree.map(write, state.log_probs, self._log_probs(
            logits, probs, positions, sampling, path, new)),
        cache=cache, drafter=drafter_state, rng=rng)

  def finish(self, state: State) -> base.Decoded:
    size = self.target.num_tokens
    log_probs = jax.tree.map(lambda values: values[:, :size], state.log_probs)
    return base.Decoded(
        tokens=state.tokens[:, :size], rounds=state.rounds, accepted=state.accepted,
        round_of_token=state.round_of_token[:, :size], tv_bound=state.tv_bound,
        valid=state.valid, log_probs=log_probs.sampled, raw_log_probs=log_probs.raw)

  def _length(self, count, accepted):
    """`[B]` number of tokens to commit: the accepted ones plus one; 0 for a complete row."""
    return jnp.minimum(accepted + 1, self.target.num_tokens - count)

  def _probs(self, logits, positions, sampling):
    forced = contracts.forced_tokens(self.target, positions)
    return warp_lib.probabilities(logits, sampling, positions, forced)

  def _log_probs(self, logits, probs, positions, sampling, path, tokens):
    """The `LogProbs` of tokens `[B, n]`, each after a node of `path` `[B, n]`."""
    sampled = warp_lib.log_probs(probs, path, tokens)
    if not self.raw_log_probs:
      return LogProbs(sampled, None)
    forced = contracts.forced_tokens(self.target, positions)
    return LogProbs(sampled, warp_lib.log_probs_of_logits(
        logits, warp_lib.guidance_only(sampling), positions, forced, path, tokens))

  def _tv_bound(self, verdict, positions, length):
    """`[B]` what this round adds to the bound, without drafts past the last token."""
    if verdict.tv_bound is None:
      return jnp.where(self.verifier.exact | (length == 0), 0, jnp.nan)
    counts = (positions <= self.target.num_tokens) & (length > 0)[:, None]
    return jnp.sum(jnp.where(counts, verdict.tv_bound, 0), axis=1)

  def _verify(self, rng, layout, draft, nodes, logits, probs, positions, sampling):
    if self.verifier.greedy:
      probs = self._probs(logits, positions, warp_lib.guidance_only(sampling))

    def verify(rng, tree, *args):
      # A static tree is not an array, so it is passed in the layout.
      row = layout if tree is None else layout._replace(tree=tree)
      return self.verifier.verify(rng, row, *args)
    rng, verdict = self._rowwise(verify)(rng, draft.tree, nodes, draft.probs, probs, positions)
    contracts.check_verdict(verdict, *nodes.shape)
    return rng, verdict

  def _rowwise(self, fn):
    """Vectorises `fn(rng, ...) -> result` over rows."""
    def row(state, *args):
      rng = self.open_rng(state)
      result = fn(rng, *args)
      return rng.state, result
    return jax.vmap(row)

  def _context(self, sampling, draft_params):
    return base.DecodeContext(self.target, self.verifier.needs_probs, self.verifier.seed_exact,
                              self._rowwise, sampling, draft_params)


def make_decoder(target: base.Target, drafter: base.Drafter, verifier: base.Verifier) -> Decoder:
  """Builds a decoder from its parts; raises ValueError if they do not fit each other.

  Args:
    target: the model whose distribution is sampled.
    drafter: proposes tokens, one of `decoding.drafters` or your own.
    verifier: accepts or rejects them, one of `decoding.verifiers` or your own.

  Example:
    decode = cspd_jax.jit(make_decoder(target, jacobi(window=16, coupling='maximal'), rejection()))
    decoded = decode(params, condition, jax.random.key(0))
  """
  contracts.check_part('target', target, base.Target)
  if not (target.supports_trees or drafter.tree.is_chain):
    raise ValueError(
        f'the drafter proposes {_described(drafter.tree)}, but the target has supports_trees=False '
        'and scores chains only; pass tree=chain(LENGTH) to the drafter, or use a drafter of '
        'chains.')
  drafter.check(target)
  verifier.check(drafter, target.vocab_size)
  if drafter.tree.max_depth >= target.num_tokens:
    raise ValueError(
        f'the tree of drafts has depth {drafter.tree.max_depth}, but an image has '
        f'{target.num_tokens} tokens; pass a length or a tree of depth at most '
        f'{target.num_tokens - 1}.')
  if verifier.needs_probs and drafter.layout.draws == 'fixed' and not verifier.verifies_fixed:
    raise ValueError(
        "the verifier needs the distributions of the drafts, but the drafter's draws is 'fixed', "
        'so it records none; use another verifier, such as rejection(), or another drafter.')
  return Decoder(target, drafter, verifier)


def _were_distributions(probs: jax.Array, path: jax.Array, length: jax.Array) -> jax.Array:
  """`[B]` bool, whether all tokens committed in a round were drawn from valid distributions."""
  on_path = jnp.take_along_axis(warp_lib.is_distribution(probs), path, axis=1)
  return jnp.all(on_path | (jnp.arange(path.shape[1]) >= length[:, None]), axis=1)


def _described(tree: Tree | Budget) -> str:
  return (f'the tree {tree.parents}' if isinstance(tree, Tree) else
          f'trees of {tree.num_nodes} nodes whose topology depends on the drafts')
