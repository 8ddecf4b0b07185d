"""Enumerates a verifier's verdicts on small layouts, for `check_verifier`."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import contracts, programs
from cspd_jax.decoding.base import Drafter, Layout, Verdict, Verifier
from cspd_jax.decoding.tree import Budget, Tree, runtime_tree
from cspd_jax.testing.enumerate import outcome
from cspd_jax.testing.tabular import first_prefix, prefix_number

_START = 4  # Token number of the root.
# The most outcomes of the randomness of one verdict, and of all of a layout.
_MAX_OUTCOMES, _MAX_IN_ALL = 2**12, 2**24


class StageDrafts(NamedTuple):
  """All drafts that a layout can have, for several pairs of models; `n` of them per pair."""

  tokens: np.ndarray  # `[n, N]`, -1 for no candidate.
  weight: np.ndarray  # `[C, n]` the probability of the drafts.
  probs: np.ndarray  # `[C, n, M, V]` the distributions that they are drawn from.
  target: np.ndarray  # `[C, n, N + 1, V]` the target's distribution after every node.


class Verdicts(NamedTuple):
  """The verdicts on `StageDrafts`, for all `O` outcomes of the verifier's randomness."""

  weight: np.ndarray  # `[C, n, O]` the probability of the outcome, given the drafts.
  node: np.ndarray  # `[C, n, O]`.
  token: np.ndarray  # `[C, n, O]`.
  samples: np.ndarray | None  # `[C, n, O, N + 1]`, or None.
  tv_bound: np.ndarray | None  # `[C, n, O]` sum over the nodes, or None.


@dataclasses.dataclass(frozen=True)
class Arrangement:
  """A layout on which verifiers are checked."""

  name: str  # For sentences, after "with".
  parents: tuple[int, ...]  # The topology.
  draws: str = 'distinct'  # How siblings are selected.
  # Whether the distribution of a node depends on its depth alone, as in a window.
  by_depth: bool = False
  leaf_candidate: tuple[int, ...] | None = None  # Of the layout; none by default.
  at_run_time: bool = False  # Whether the verifier has to read the topology from arrays.

  @property
  def tree(self) -> Tree:
    """The topology."""
    return Tree(self.parents)

  @property
  def probs_rows(self) -> tuple[int, ...]:
    """Row of the recorded distributions for every node."""
    if self.by_depth:
      return tuple(int(row) for row in np.maximum(self.tree.depth - 1, 0))
    inner = sorted(set(self.parents[1:]))
    return (0, *(inner.index(parent) for parent in self.parents[1:]))

  def layout(self, tree: Any = None) -> Layout:
    """The layout, with the tree of one row in place of its `Budget`, if one is passed."""
    size = len(self.parents)
    if tree is None:
      tree = self.budget if self.at_run_time else self.tree
    leaf_candidate = self.leaf_candidate or (-1,) * size
    return Layout(tree, self.probs_rows, leaf_candidate, self.draws)

  @property
  def budget(self) -> Budget:
    """The size of the tree."""
    return Budget(self.tree.num_nodes, self.tree.max_depth, self.tree.children.shape[1])

  def refusal(self, verifier: Verifier, vocab_size: int) -> str | None:
    """Returns why the verifier refuses such drafts, or None."""
    nothing: Callable[..., Any] = lambda *args: None
    drafter = Drafter(self.layout(), nothing, nothing, nothing, reuses_drafts=self.by_depth)
    try:
      verifier.check(drafter, vocab_size)
    except ValueError as error:
      return str(error)
    if verifier.needs_probs and self.draws == 'fixed' and not verifier.verifies_fixed:
      return 'fixed drafts have no recorded distributions'
    return None

  def paths(self, tokens: np.ndarray) -> list[np.ndarray]:
    """The tokens `[n, d]` on the path to every node, from `tokens` `[n, N]`."""
    result = [tokens[:, :0]]
    for node in range(1, len(self.parents)):
      result.append(np.concatenate([result[self.parents[node]], tokens[:, node - 1:node]], axis=1))
    return result


_BRANCH = (-1, 0, 1, 0)
# 'iid', so that verifiers of independent siblings accept it: a single draft is drawn in one way.
ONE = Arrangement('one draft', (-1, 0), 'iid')
# Of several paths, the later one is the longer.
TWO = Arrangement('two siblings drawn without replacement, the second with a child', (-1, 0, 0, 2))
ARRANGEMENTS = (
    ONE,
    Arrangement('a chain of three drafts', (-1, 0, 1, 2), 'iid'),
    TWO,
    Arrangement('two siblings drawn independently', (-1, 0, 0), 'iid'),
    Arrangement('two siblings that are chosen, not drawn', (-1, 0, 0), 'fixed'),
    Arrangement('a window whose side branch has a candidate after its leaf', _BRANCH,
                by_depth=True, leaf_candidate=(-1, -1, -1, 2)),
    Arrangement('a side branch in a RuntimeTree', _BRANCH, 'fixed', at_run_time=True),
)


def models(vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
  """Random distributions `[C, P, V]` of target and drafter after every prefix of up to 3 tokens.

  In some pairs, tokens are impossible or certain, both distributions are equal, or after half of
  the prefixes the drafter has no candidate: its distribution is 0.
  """
  rng, prefixes = np.random.default_rng(0), first_prefix(4, vocab_size)
  p, q = (rng.dirichlet(np.full(vocab_size, 0.9), (8, prefixes)) for _ in range(2))
  p[3, :, 0] = q[4, :, 1] = 0
  q[5], p[6] = np.eye(vocab_size)[rng.integers(vocab_size, size=(2, prefixes))]
  p[7] = q[7]
  p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
  q[4, ::2] = 0
  return p, q


def drafts(arrangement: Arrangement, p: np.ndarray, q: np.ndarray) -> StageDrafts:
  """All drafts of an arrangement with their probabilities, under `models`."""
  vocab_size, parents = p.shape[-1], arrangement.parents
  tokens = np.array(list(itertools.product(range(-1, vocab_size), repeat=len(parents) - 1)))
  # A missing token counts as token 0.
  numbers = [prefix_number(np.maximum(path, 0), vocab_size) for path in arrangement.paths(tokens)]
  # The distribution of a node, by its parent: after the path to it, or of its depth.
  depth = arrangement.tree.depth
  of_parent = [q[:, np.full(len(tokens), depth[node]) if arrangement.by_depth else index]
               for node, index in enumerate(numbers)]
  weight = np.ones((len(p), len(tokens)))
  left = dict(enumerate(of_parent))
  for node in range(1, len(parents)):
    parent, token = parents[node], tokens[:, node - 1]
    weight *= _probability(arrangement, left[parent], token, tokens, parent)
    if arrangement.draws != 'iid':  # Chosen siblings differ, too.
      left[parent] = np.where(np.arange(vocab_size) == token[:, None], 0, left[parent])
  rows = [next(parents[node] for node in range(1, len(parents))
               if arrangement.probs_rows[node] == row)
          for row in range(max(arrangement.probs_rows) + 1)]
  return StageDrafts(tokens, weight, np.stack([of_parent[node] for node in rows], axis=2),
                     np.stack([p[:, index] for index in numbers], axis=2))


def _probability(arrangement: Arrangement, q: np.ndarray, token: np.ndarray, tokens: np.ndarray,
                 parent: int) -> np.ndarray:
  """`[C, n]`: how probable a token is among what is left of the distributions `q` `[C, n, V]`."""
  is_missing = token < 0
  if arrangement.draws == 'fixed':
    best = np.where(q.max(-1) > 0, q.argmax(-1), -1)
    probability = (best == token).astype(float)
  else:
    mass = q.sum(axis=-1)
    drawn = np.take_along_axis(
        q, np.broadcast_to(np.maximum(token, 0)[:, None], (*q.shape[:2], 1)), axis=-1)[..., 0]
    probability = np.where(is_missing, mass <= 0, drawn / np.where(mass > 0, mass, 1))
  if parent:  # No candidate follows a missing one.
    probability = np.where(tokens[:, parent - 1] < 0, is_missing, probability)
  return probability


def verify(verifier: Verifier, arrangement: Arrangement, made: StageDrafts) -> Verdicts | None:
  """All verdicts on the drafts; None if they have too many outcomes to enumerate."""
  radices: list[int] = []
  tree = None
  if arrangement.at_run_time:
    tree = jax.tree.map(
        lambda x: x[0], runtime_tree(jnp.asarray([arrangement.parents]), arrangement.budget))
  layout = arrangement.layout(tree)
  positions = jnp.asarray(_START + 1 + arrangement.tree.depth)
  recorded = verifier.needs_probs and arrangement.draws != 'fixed'

  def run(index: jax.Array, tokens: jax.Array, probs: jax.Array, target: jax.Array
          ) -> tuple[jax.Array, Verdict]:
    radices.clear()
    rng = outcome(radices, index, target.dtype)
    verdict = verifier.verify(rng, layout, jnp.append(0, tokens).astype(jnp.int32),
                              probs if recorded else None, target, positions)
    return rng.state.weight, verdict

  arguments = [jnp.asarray(made.tokens), jnp.asarray(made.probs), jnp.asarray(made.target)]
  rows = jax.eval_shape(jax.vmap(run), jnp.arange(1), arguments[0][:1], *(
      x[0, :1] for x in arguments[1:]))[1]
  contracts.check_verdict(rows, 1, len(arrangement.parents))
  total = int(np.prod([float(radix) for radix in radices]))
  if total > _MAX_OUTCOMES or total * made.weight.size > _MAX_IN_ALL:
    return None
  outcomes = jax.vmap(run, (0, None, None, None))
  every = jax.vmap(jax.vmap(outcomes, (None, 0, 0, 0)), (None, None, 0, 0))
  weight, verdict = programs.jit(every, options=programs.UNOPTIMISED)(jnp.arange(total), *arguments)
  bound = None if verdict.tv_bound is None else verdict.tv_bound.sum(axis=-1)
  return Verdicts(*jax.tree.map(
      np.asarray, (weight, verdict.node, verdict.token, verdict.samples, bound)))


class EnumeratedStage(NamedTuple):
  """The exact result of verifying one group of siblings, for `n` pairs of distributions.

  Attributes:
    distribution: `[n, V]` distribution of the resulting token.
    tv_bound: `[n]` mean of the verifier's bound on total variation; if it returns none, 0 for exact
      verifiers and NaN for others.
    accepted: `[n]` probability that a candidate is accepted.
  """

  distribution: np.ndarray
  tv_bound: np.ndarray
  accepted: np.ndarray


def enumerate_stage(verifier: Verifier, p: np.ndarray, q: np.ndarray, count: int = 1,
                    draws: str = 'distinct') -> EnumeratedStage:
  """Enumerates all outcomes of a verifier on one group of `count` siblings.

  A quick check of an accept test for many distributions at once; `enumerate_rounds` checks whole
  decoders. Siblings are drawn from `q` `[n, V]` as `draws`, one of `base.DRAWS`, says; the target's
  distributions are `p` `[n, V]`. More outcomes than can be enumerated raise ValueError.
  """
  vocab_size = p.shape[-1]
  arrangement = Arrangement('siblings', (-1,) + (0,) * count, draws)
  after_all = lambda x: np.repeat(np.asarray(x)[:, None], 1 + vocab_size, axis=1)
  made = drafts(arrangement, after_all(p), after_all(q))
  result = verify(verifier, arrangement, made)
  if result is None:
    raise ValueError(f'{count} siblings of {vocab_size} tokens have too many outcomes; use fewer.')
  weight = made.weight[..., None] * result.weight
  accepted = result.node > 0
  candidates = np.take_along_axis(
      np.broadcast_to(made.tokens, (len(p), *made.tokens.shape)), np.maximum(result.node - 1, 0), 2)
  is_token = np.where(accepted, candidates, result.token)[..., None] == np.arange(vocab_size)
  unknown = 0.0 if verifier.exact else np.nan
  tv_bound = np.full(weight.shape, unknown) if result.tv_bound is None else result.tv_bound
  mean = lambda values: np.einsum('cno,cno->c', weight, values)
  return EnumeratedStage(np.einsum('cno,cnov->cv', weight, is_token), mean(tv_bound),
                         mean(accepted))
