"""The types from which decoders are built.

In the shape descriptions, `B` is the number of rows (images), `S` the number of guidance streams
(1, or 2: conditional then unconditional), `N` the number of draft tokens of a round, `T` the number
of tokens of an image, `V` the size of the image vocabulary and `D` the largest depth of the draft
tree.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

from cspd_jax.core import decoder
from cspd_jax.decoding.tree import Budget, RuntimeTree, Tree

Params = Any
Condition = Any
Cache = Any
Features: TypeAlias = jax.Array | None
TreeLike = Tree | RuntimeTree
# Random numbers of one row (`row_random.RowRandom`), and their state, with a leading `B`.
Rng = Any
RngState = Any


class Target(NamedTuple):
  """An autoregressive model over image tokens, as pure functions.

  The cache is any pytree with one slot per token (for a transformer, its keys and values). A
  prefill fills no slot; token `k` of the image belongs in slot `k`. Slots at or after the first
  token that is not committed hold leftovers of rejected drafts and must be ignored. For continuous
  batching (`decoding.continuous_batching`) every leaf has one axis of rows, of size `B`, or `S B`
  with row `b` of stream `s` at `s B + b`, and so do the leaves of a drafter's state.

  Attributes:
    prefill: `(params, condition, num_slots) -> (logits [S, B, V], features, cache)`: reads the
      condition and returns the logits of token 0, the features `[S, B, C, F]` of the condition's
      tokens, and a cache with `num_slots` slots for image tokens (a static int).
    score: `(params, cache, tokens [B, N + 1], start [B], tree) ->
      (logits [S, B, N + 1, V], features, cache)`: one forward pass. `tokens[b, 0]` is the committed
      token number `start[b]`, the others are the draft nodes of `tree`, a static `Tree` or a
      `RuntimeTree`. Node `i` is token number `start + tree.depth[i]`, attends to the committed
      tokens `0 .. start - 1`, its ancestors and itself, and its logits predict the token that
      follows it. It is written to slot `start + i`. Token numbers at or past `num_tokens` occur at
      the end of an image; their logits are ignored but must be finite. Both streams read the same
      tokens. `features` `[S, B, N + 1, F]` are for drafters: the hidden states from which the
      logits are computed; here and in `prefill`, None if the model provides none.
    commit: `(cache, start [B], path [B, D]) -> cache`: moves the entry of node `path[b, d - 1]`
      into slot `start[b] + d` for every `d` in `1 .. D`, where `D` is the tree's `side_depth`.
      Entries with `path[b, d - 1] == d` do not move. Never called for a chain.
    vocab_size: `V`.
    num_tokens: `T`, tokens of one image.
    row_width: tokens of one image row (in raster order).
    num_streams: `S`; 2 if the model has a null condition for guidance.
    forced: None, or `positions -> tokens` (both int32 of one shape), which returns the token that
      the grammar forces at a position, or -1 if the position is free.
    check_condition: `condition -> [B]` bool: which rows the model supports; None for all of them.
      Raises ValueError for an unsupported form, and for unsupported rows if their values are
      concrete (`core.tracing.is_concrete`); under `jit` they are traced.
    small: None, or `positions -> positions` (both int32 of one shape) for images that are drawn
      twice: the earlier token that shows the place of a token in a smaller image, or -1 if none
      does.
    supports_trees: whether `score` accepts trees that are not chains. `make_decoder` refuses their
      drafters for a target without trees, such as a recurrent model.
  """

  prefill: Callable[[Params, Condition, int], tuple[jax.Array, Features, Cache]]
  score: Callable[[Params, Cache, jax.Array, jax.Array, TreeLike],
                  tuple[jax.Array, Features, Cache]]
  commit: Callable[[Cache, jax.Array, jax.Array], Cache]
  vocab_size: int
  num_tokens: int
  row_width: int
  num_streams: int = 1
  forced: Callable[[jax.Array], jax.Array] | None = None
  check_condition: Callable[[Condition], Any] = lambda condition: None
  small: Callable[[jax.Array], jax.Array] | None = None
  supports_trees: bool = True

  def __repr__(self) -> str:
    return (f'Target(vocab_size={self.vocab_size}, num_tokens={self.num_tokens}, '
            f'row_width={self.row_width}, num_streams={self.num_streams})')


# How siblings are generated: drawn without replacement, independently, or selected.
DRAWS = ('distinct', 'iid', 'fixed')


class Layout(NamedTuple):
  """The static structure of the drafts of a round.

  Attributes:
    tree: the parent of every draft; a `Budget` if the topology depends on the drafts.
    probs_rows: row of `Draft.probs` for every node; length `N + 1`, entry 0 unused.
    leaf_candidate: for every leaf of a side branch, a node of the main chain whose token may follow
      it, or -1; length `N + 1`. For example, if a side branch ends at depth 1, its leaf may have
      the main chain's node of depth 2: its token was drawn for that position, but not scored there.
      Its record must be exact given all that is attached to earlier positions and the branch.
    draws: one of `DRAWS`. A 'fixed' token has a one-hot distribution, which is not recorded.
  """

  tree: Tree | Budget
  probs_rows: tuple[int, ...]
  leaf_candidate: tuple[int, ...]
  draws: str = 'distinct'


class Draft(NamedTuple):
  """The proposal of one round.

  Attributes:
    tokens: `[B, N]` the token of every draft node; -1 for a node without a candidate.
    probs: `[B, M, V]` the distributions from which the tokens were drawn, or None if the verifier
      does not need them. Node `i` and its siblings use row `layout.probs_rows[i]`; `M` is one more
      than the largest of these. A token of probability 0 was selected: it is one-hot.
    tree: the topology, if the layout has a `Budget`; its draws must be 'fixed'.
  """

  tokens: jax.Array
  probs: jax.Array | None
  tree: RuntimeTree | None = None


class Verdict(NamedTuple):
  """The verifier's decision for one row.

  Attributes:
    node: `[]` the last node of the accepted path; its depth is the number of accepted drafts.
    token: `[]` the additional token: residual or bonus.
    samples: `[N + 1]` the target's draw after every node, if the verifier draws one; else None.
    tv_bound: `[N + 1]` what the test of each node adds to the bound on total variation; 0 for nodes
      that were not tested. None if the verifier is exact or has no bound.
  """

  node: jax.Array
  token: jax.Array
  samples: jax.Array | None = None
  tv_bound: jax.Array | None = None


class Verifier(NamedTuple):
  """Accepts drafts, and draws the token that follows the last accepted one.

  Attributes:
    verify: `(rng, layout, tokens [N + 1], probs [M, V], target_probs [N + 1, V],
      positions [N + 1]) -> Verdict`, for one row. `tokens[0]` is the root; `target_probs[i]` is the
      distribution of the token after node `i`, which is token number `positions[i]`. The loop
      vectorises it over the rows.
    exact: whether the output follows the target's distribution.
    needs_probs: whether the drafter must record the distributions of its tokens.
    seed_exact: whether the output equals `vanilla(window=N)`'s with the same key.
    greedy: whether it decides, at temperature 0, by the target's distribution at temperature 1
      without cuts; it is then defined for temperature 0 only.
    bounded: of a verifier that is not exact, whether its verdicts have a `tv_bound`.
    verifies_fixed: if `needs_probs`, whether it also verifies 'fixed' drafts, which record none.
    check: `(drafter, vocab_size) -> None`; raises ValueError if it cannot verify its drafts.
  """

  verify: Callable[[Rng, Layout, jax.Array, jax.Array | None, jax.Array, jax.Array], Verdict]
  exact: bool
  needs_probs: bool
  seed_exact: bool = False
  greedy: bool = False
  bounded: bool = False
  verifies_fixed: bool = False
  check: Callable[['Drafter', int], None] = lambda drafter, vocab_size: None


class DecodeContext(NamedTuple):
  """The environment of a drafter during one decode.

  Attributes:
    target: the target.
    needs_probs: whether the verifier needs the distributions of the drafts.
    seed_exact: whether drafts should be drawn with the noise of their position.
    rowwise: vectorises a function `(rng, ...) -> result` of one row's random numbers and arguments:
      returns `(rng_state, ...) -> (rng_state, result)` for the states and arguments of all rows.
    sampling: the sampling options.
    params: the drafter's parameters; None if it has none.
  """

  target: Target
  needs_probs: bool
  seed_exact: bool
  rowwise: Callable[[Callable[..., Any]], Callable[..., tuple[RngState, Any]]]
  sampling: Any
  params: Params


class RoundResult(NamedTuple):
  """The outcome of a round, for the drafter.

  Attributes:
    tokens: `[B, T']` the image tokens, `T' > T`; those at or beyond `count` are not committed.
    count: `[B]` number of committed tokens.
    accepted: `[B]` number of drafts accepted in this round: the tokens committed, without the last.
    nodes: `[B, N + 1]` the tokens that were scored.
    probs: `[B, N + 1, V]` the target's distribution after every node.
    uncut: `[B, N + 1, V]` the same before cuts and grammar, and at temperature 1 in place of 0.
    features: the features that the target's `score`, or its `prefill`, returned.
    path: `[B, D + 1]` the accepted path from the root; entries beyond `accepted` are undefined.
    verdict: the verdict, all fields with a leading `B`.
  """

  tokens: jax.Array
  count: jax.Array
  accepted: jax.Array
  nodes: jax.Array
  probs: jax.Array
  uncut: jax.Array
  features: Features
  path: jax.Array
  verdict: Verdict

  @property
  def root(self) -> jax.Array:
    """The token number `[B]` of the round's root, the token before the first draft."""
    return self.count - self.accepted - 2


class Drafter(NamedTuple):
  """Proposes drafts.

  Attributes:
    layout: the static structure of a round's drafts.
    init: `(context, condition, rng, result) -> (rng, state)`: the state after the prefill, which
      committed token 0. The outcome has one node, the prefill.
    propose: `(context, state, rng, root [B], start [B]) -> (rng, state, Draft)`. `root` is the last
      committed token, number `start`.
    update: `(context, state, rng, result) -> (rng, state)`: the state after a round.
    check: `target -> None`; raises ValueError if the target does not fit.
    reuses_drafts: whether drafts of one round can return in the next. Block verification requires
      False: it is exact only if all drafts of a round are new.
    num_arrays: arrays of probabilities of all drafts that `propose` and `update` hold at once,
      without those they record; for estimates of memory.
  """

  layout: Layout
  init: Callable[[DecodeContext, Condition, RngState, RoundResult], tuple[RngState, Any]]
  propose: Callable[[DecodeContext, Any, RngState, jax.Array, jax.Array],
                    tuple[RngState, Any, Draft]]
  update: Callable[[DecodeContext, Any, RngState, RoundResult], tuple[RngState, Any]]
  check: Callable[[Target], None] = lambda target: None
  reuses_drafts: bool = True
  num_arrays: int = 0

  @property
  def tree(self) -> Tree | Budget:
    """The topology of the drafts; a `Budget` if it differs from round to round."""
    return self.layout.tree


class Decoded(NamedTuple):
  """The result of a decode.

  Attributes:
    tokens: `[B, T]` int32; the images' tokens.
    rounds: `[B]` int32; forward passes of the target, including the prefill.
    accepted: `[B, D + 2]` int32; entry `n`: rounds after the prefill that committed `n` tokens.
    round_of_token: `[B, T]` int32; the round that committed each token, 0 for the prefill's.
    tv_bound: `[B]` float32; its mean bounds the total variation between the distribution of the
      image's tokens and the target's. 0 for exact decoders, NaN if the verifier has no bound.
    valid: `[B]` bool; False if an option or the condition of the row was out of range, or the
      target's logits for one of its tokens did not define a distribution (NaN, infinity, no
      possible token). The tokens are meaningless then.
    log_probs: `[B, T]` float32 (float64 for float64 logits); the log-probability of each token
      under the target's distribution after guidance, temperature, cuts and grammar, given the
      tokens before it: the distribution that an exact decoder samples. 0 for a forced token. A
      relaxed decoder samples another one; this is the target's, -inf where the cuts exclude it.
    raw_log_probs: `[B, T]`, the same after guidance and grammar alone: at temperature 1 and without
      cuts. None unless `Decoder.raw_log_probs` is set.
  """

  tokens: jax.Array
  rounds: jax.Array
  accepted: jax.Array
  round_of_token: jax.Array
  tv_bound: jax.Array
  valid: jax.Array
  log_probs: jax.Array
  raw_log_probs: jax.Array | None = None

  def __repr__(self) -> str:
    return decoder.summary(self)
