"""The types every decoder is built from.

In the shape descriptions, `B` is the number of rows (images), `S` the number
of guidance streams (1, or 2: conditional then unconditional), `N` the number of
draft tokens of a round, `T` the number of tokens of an image, `V` the size of
the image vocabulary and `D` the largest depth of the draft tree.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax

from cspd_jax.decoding.tree import Budget, RuntimeTree, Tree

Params = Any
Condition = Any
Cache = Any
Features: TypeAlias = jax.Array | None
TreeLike = Tree | RuntimeTree
# Random numbers of one row (`random.RowRandom`, or what a test puts in its place), and their
# state, in which every leaf has a leading `B`.
Rng = Any
RngState = Any


class Prefill(Protocol):
  """Reads the condition; see `Target.prefill`."""

  def __call__(self, params: Params, condition: Condition, num_slots: int,
               /) -> tuple[jax.Array, Features, Cache]:
    ...


class Score(Protocol):
  """Scores draft nodes in one forward pass; see `Target.score`."""

  def __call__(self, params: Params, cache: Cache, tokens: jax.Array, start: jax.Array,
               tree: TreeLike, /) -> tuple[jax.Array, Features, Cache]:
    ...


class Commit(Protocol):
  """Moves an accepted path to where it belongs; see `Target.commit`."""

  def __call__(self, cache: Cache, start: jax.Array, path: jax.Array, /) -> Cache:
    ...


class Target(NamedTuple):
  """An autoregressive model over image tokens, as pure functions.

  The cache is any pytree with one slot per token (a transformer keeps keys and
  values there). After a prefill no slot of it is filled; token `k` of the image
  belongs in slot `k`. Slots at or after the first token that is not committed
  hold leftovers of rejected drafts and must be ignored. For rows that take the next image
  (`decoding.refill`) every leaf has one axis of rows: `B`, or `S B` with row `b` of stream `s`
  at `s B + b`; so have the leaves of a drafter's state.

  Attributes:
    prefill: `(params, condition, num_slots) -> (logits [S, B, V], features, cache)`:
      reads the condition and returns the logits of token 0, the features of the
      condition's tokens `[S, B, C, F]`, and a cache with room for `num_slots` image
      tokens (a static int).
    score: `(params, cache, tokens [B, N + 1], start [B], tree) ->
      (logits [S, B, N + 1, V], features, cache)`: one forward pass. `tokens[b, 0]`
      is the committed token number `start[b]`, the others are draft nodes of
      the static `tree`; node `i` is token number `start + tree.depth[i]`, sees
      the committed tokens `0 .. start - 1` and its own ancestors (`tree` may also
      be a `RuntimeTree`), and its logits
      predict the token that follows it. Node `i` is written to slot
      `start + i`. Token numbers at or past `num_tokens` occur at the end of
      an image; their logits are ignored but must be finite. Both streams read
      the same tokens. `features`: what a drafter may read, `[S, B, N + 1, F]`: the
      hidden states the logits are computed from. None if there are none, here and
      in `prefill`.
    commit: `(cache, start [B], path [B, D]) -> cache`: moves the entry of node
      `path[b, d - 1]` into slot `start[b] + d` for every `d` in `1 .. D`, where
      `D` is the tree's `side_depth`. Entries for which `path[b, d - 1] == d`
      stay. Never called for a chain.
    vocab_size: `V`.
    num_tokens: `T`, tokens of one image.
    row_width: tokens of one image row (in raster order).
    num_streams: `S`; 2 if the model has a null condition for guidance.
    forced: None, or `positions -> tokens` (both int32 of one shape) that
      gives the token the grammar forces at a position, or -1 where it is free.
    check_condition: `condition -> [B]` bool, which rows the model knows, or None for all of
      them; raises ValueError for a condition of a form it does not know, and for rows too if
      their values are known (`core.tracing.is_concrete`), for under `jit` they are traced.
  """

  prefill: Prefill
  score: Score
  commit: Commit
  vocab_size: int
  num_tokens: int
  row_width: int
  num_streams: int = 1
  forced: Callable[[jax.Array], jax.Array] | None = None
  check_condition: Callable[[Condition], Any] = lambda condition: None


# How siblings come about: drawn one after the other without replacement, drawn
# independently of each other, or chosen without randomness.
DRAWS = ('distinct', 'iid', 'fixed')


class Layout(NamedTuple):
  """How the drafts of a round hang together; static.

  Attributes:
    tree: which draft follows which; a `Budget` if that is known at run time only.
    probs_rows: row of `Draft.probs` for every node; length `N + 1`, entry 0 unused.
    leaf_candidate: for every leaf of a side branch, a node whose token is one more
      candidate there although it was not scored in that place, or -1; length
      `N + 1`. Its distribution must be true given all that is attached to the positions
      before it, the side branch included.
    draws: one of `DRAWS`. A 'fixed' token has a one-hot distribution, and no other is recorded.
  """

  tree: Tree | Budget
  probs_rows: tuple[int, ...]
  leaf_candidate: tuple[int, ...]
  draws: str = 'distinct'


class Draft(NamedTuple):
  """The proposal of one round.

  Attributes:
    tokens: `[B, N]` the token of every draft node; -1 is no candidate.
    probs: `[B, M, V]` distributions the tokens were drawn from, or None if the verifier
      does not ask for them. Node `i` and its siblings use row
      `layout.probs_rows[i]`; `M` is one more than the largest of these. A token that has no
      probability there was not drawn but chosen, without chance; it counts as one-hot.
    tree: the topology, if the layout gives its budget only; its draws must be 'fixed'.
  """

  tokens: jax.Array
  probs: jax.Array | None
  tree: RuntimeTree | None = None


class Verdict(NamedTuple):
  """What the verifier decided for one row.

  Attributes:
    node: `[]` the last node of the accepted path; its depth is the number of
      accepted drafts.
    token: `[]` the one more token: residual or bonus.
    samples: `[N + 1]` the target's own token after every node, if the verifier
      drew one; None otherwise.
    tv_bound: `[N + 1]` what testing this node adds to the bound on total variation;
      0 where the walk did not come. None if the verifier is exact, or knows no bound.
  """

  node: jax.Array
  token: jax.Array
  samples: jax.Array | None = None
  tv_bound: jax.Array | None = None


class Verify(Protocol):
  """Decides about the drafts of one row; see `Verifier.verify`."""

  def __call__(self, rng: Rng, layout: Layout, tokens: jax.Array, probs: jax.Array | None,
               target_probs: jax.Array, positions: jax.Array, /) -> Verdict:
    ...


class Verifier(NamedTuple):
  """Which drafts are accepted, and what follows the last of them.

  Attributes:
    verify: `(rng, layout, tokens [N + 1], probs [M, V], target_probs [N + 1, V],
      positions [N + 1]) -> Verdict`, for one row. `tokens[0]` is the
      root; `target_probs[i]` is the distribution of the token after node `i`, which is
      token number `positions[i]`. Vectorised over the rows by the loop.
    exact: whether the output follows the target's distribution.
    needs_probs: whether the drafter has to record the distributions of its tokens.
    seed_exact: whether the output equals, token for token, that of `vanilla(window=N)`
      with the same key; see `specification.guarantee`.
    greedy: whether it decides, at temperature 0, by the target's distribution at
      temperature 1 without cuts; it is then defined for temperature 0 only.
    takes_fixed: if it needs them, whether it also verifies 'fixed' drafts, without any.
    check: `(drafter, vocab_size) -> None`; raises ValueError if it cannot verify
      the drafts of this drafter, with the reason.
  """

  verify: Verify
  exact: bool
  needs_probs: bool
  seed_exact: bool = False
  greedy: bool = False
  takes_fixed: bool = False
  check: Callable[['Drafter', int], None] = lambda drafter, vocab_size: None


class Rowwise(Protocol):
  """Vectorises `fn(rng, ...) -> result` over rows; see `Env.rowwise`."""

  def __call__(self, fn: Callable[..., Any], /) -> Callable[..., tuple[RngState, Any]]:
    ...


class Env(NamedTuple):
  """What a drafter can rely on during one decode.

  Attributes:
    target: the target.
    needs_probs: whether the verifier wants the distributions of the drafts.
    seed_exact: whether drafts should be drawn with the noise of their position.
    rowwise: turns a function of one row's random numbers and arguments into one of the
      random numbers' state and the arguments of all rows, which returns the new state
      and the result.
    warp: the sampling options.
    params: the drafter's own parameters (None if it has none).
  """

  target: Target
  needs_probs: bool
  seed_exact: bool
  rowwise: Rowwise
  warp: Any
  params: Params


class Outcome(NamedTuple):
  """What a drafter learns from a round.

  Attributes:
    tokens: `[B, T']` the image tokens, the new ones included (`T' > T`; what
      lies at or beyond `count` is not committed).
    count: `[B]` number of committed tokens.
    accepted: `[B]` number of drafts accepted in this round.
    nodes: `[B, N + 1]` the tokens that were scored.
    probs: `[B, N + 1, V]` the target's distribution after every node.
    uncut: `[B, N + 1, V]` the same before cuts and grammar, at temperature 1 if it is 0.
    features: what the target's score, or its prefill, returned for drafters.
    path: `[B, D + 1]` the accepted path, node by node from the root; entries
      beyond `accepted` mean nothing.
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
    """The number `[B]` of the round's root: the token before the first draft."""
    return self.count - self.accepted - 2


class Init(Protocol):
  """The drafter's state after the prefill; see `Drafter.init`."""

  def __call__(self, env: Env, condition: Condition, rng: RngState, outcome: Outcome,
               /) -> tuple[RngState, Any]:
    ...


class Propose(Protocol):
  """The drafts of a round; see `Drafter.propose`."""

  def __call__(self, env: Env, state: Any, rng: RngState, root: jax.Array, start: jax.Array,
               /) -> tuple[RngState, Any, Draft]:
    ...


class Update(Protocol):
  """The drafter's state after a round; see `Drafter.update`."""

  def __call__(self, env: Env, state: Any, rng: RngState, outcome: Outcome,
               /) -> tuple[RngState, Any]:
    ...


class Drafter(NamedTuple):
  """Where drafts come from.

  Attributes:
    layout: the static topology of a round's drafts.
    init: `(env, condition, rng, outcome) -> (rng, state)`: the state after the
      prefill, which committed token 0. The outcome has one node, the prefill.
    propose: `(env, state, rng, root [B], start [B]) -> (rng, state, Draft)`.
      `root` is the last committed token, number `start`.
    update: `(env, state, rng, outcome) -> (rng, state)`.
    check: `target -> None`; raises ValueError if they do not fit together.
    keeps_drafts: whether drafts of one round return in the next.
  """

  layout: Layout
  init: Init
  propose: Propose
  update: Update
  check: Callable[[Target], None] = lambda target: None
  keeps_drafts: bool = False

  @property
  def tree(self) -> Tree | Budget:
    """The topology of the drafts, or its size if every round has a topology of its own."""
    return self.layout.tree


class Decoded(NamedTuple):
  """The result of a decode.

  Attributes:
    tokens: `[B, T]` int32 the images' tokens.
    rounds: `[B]` int32 forward passes of the target, the prefill included.
    accepted: `[B, D + 2]` int32; entry `n`: rounds after the prefill that
      committed `n` tokens (accepted drafts plus one).
    round_of_token: `[B, T]` int32 the round that fixed a token; 0 is the
      prefill, which fixes the first token.
    tv_bound: `[B]` float32; its mean bounds the total variation between the distribution of
      the image's tokens and the target's. 0 for exact decoders, NaN if the verifier tells none.
      See `verifiers.node_tests`.
    valid: `[B]` bool; False if an option or the condition of the row was out of range, or the
      target's logits gave no distribution (NaN, infinity, no token possible) for one of its
      tokens. The tokens mean nothing then.
  """

  tokens: jax.Array
  rounds: jax.Array
  accepted: jax.Array
  round_of_token: jax.Array
  tv_bound: jax.Array
  valid: jax.Array
