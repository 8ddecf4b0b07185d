"""Acceptance by the mass of a token's neighbours in the codebook (LANTERN, LANTERN++).

Tokens of images are often interchangeable with their neighbours in the tokenizer's codebook, the
latent neighbours. Candidate `x` is accepted with probability `f = min(1, (p(x) + p(A)) / q(x))`,
where `A` is the longest run of `x`'s nearest neighbours whose mass stays within a bound (LANTERN,
arXiv 2410.03355; with a bound relative to `p(x)` LANTERN++, arXiv 2502.06352). `p` is the target's
distribution after the rejections of earlier siblings.

`f` is never below the exact test's probability, so the residual distribution with the smallest
bound on total variation is the exact test's own, `[p - q]+` (Cool-SD, arXiv 2601.09212, Equation
10 and Proposition 1). Those of the paper and of its released code are available for comparison:

  'gstar'             `[p - q]+`, the default
  'paper'             `[p_A - q]+`, where `p_A` is `p` with the mass of `A` moved onto `x`
  'released_llamagen' `[p - q]+` with `q` set to zero on the `k + 1` nearest neighbours
  'released_lumina'   `[p - q]+` with `p` set to zero there
  'released_dynamic'  `p` set to zero there and on `x`

The released ones change `p` and `q` only where `A` is not empty, as the code does. Where no mass
remains the distribution is `p`; the released code continues with the uniform distribution instead.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import fields
from cspd_jax.decoding import accept, row_random
from cspd_jax.decoding.base import Drafter, Layout, Rng, Verdict, Verifier
from cspd_jax.decoding.verifiers.rejection import AcceptanceRule, tree_rejection

RESIDUALS = ('gstar', 'paper', 'released_llamagen', 'released_lumina', 'released_dynamic')
# Whether neighbours are in `A`: `(p_token [..., 1], moved [..., k]) -> bool [..., k]`, where
# `p_token` is `p(x)` and `moved` is the mass of the neighbours up to each of them.
Within = Callable[[jax.Array, jax.Array], jax.Array]


def lantern(table: np.ndarray, delta: float = 0.1, *, k: int | None = None, metric: str = 'tvd',
            residual: str = 'gstar', greedy: bool = False) -> Verifier:
  """Adds neighbours' mass as long as this changes the distribution by at most `delta`.

  Raises ValueError for options outside their range or an invalid table.

  Args:
    table: `[V, K]` neighbours of every token, nearest first, without the token itself; see
      `lantern.neighbour_table`. It must be computed from the target's tokenizer.
    delta: bound on the distance between `p` and `p_A`, at least 0 (exact) and below the largest
      possible distance: 1 for 'tvd', log 2 for 'jsd'.
    k: number of neighbours to use, all `K` by default.
    metric: 'tvd', total variation (the mass moved); or 'jsd', Jensen-Shannon divergence in nats.
    residual: one of `RESIDUALS`.
    greedy: the variant for temperature 0: a candidate is accepted if, with its neighbours' mass, it
      is the most probable token of the distribution at temperature 1 without cuts; the last token
      is the most probable one. Siblings are tested in order, so an earlier neighbour is accepted
      before the most probable token itself. The bound on total variation is then the number of
      accepted tokens that are not the most probable one: the target's distribution has a single
      token, so each adds a total variation of 1. Where `m` tokens are equally probable, accepting
      one of them adds `1 - 1 / m`. Tokens count as equally probable if their probabilities are
      equal in the dtype of the probabilities, although their logits may differ in the last bit.
  """
  fields.check_choice('metric', metric, _METRICS)
  distance, largest = _METRICS[metric]
  fields.require(0 <= delta < largest, 'delta', delta, 'at least 0 (exact) and, with metric '
                 f'{metric!r}, below {largest:.3g}, which would admit every neighbour')
  return _neighbour_verifier(
      table, k, lambda p_token, moved: distance(p_token, moved) <= delta, residual, greedy)


def lantern_pp(table: np.ndarray, lam: float = 2.0, *, k: int | None = None,
               residual: str = 'gstar', greedy: bool = False) -> Verifier:
  """Adds neighbours' mass as long as `p(x) + p(A)` is at most `lam p(x)`.

  Raises ValueError for options outside their range or an invalid table.

  Args:
    table: `[V, K]` neighbours of every token, nearest first, without the token itself; see
      `lantern.neighbour_table`. It must be computed from the target's tokenizer.
    lam: at least 1 (exact), as in the released code: the neighbours add at most `(lam - 1) p(x)`.
      In Cool-SD (arXiv 2601.09212) they add at most `lam p(x)`; its `lam` is smaller by one.
    k: number of neighbours to use, all `K` by default.
    residual: one of `RESIDUALS`.
    greedy: the variant for temperature 0, see `lantern`.
  """
  fields.require(1 <= lam < np.inf, 'lam', lam, 'at least 1 (1 is exact) and finite')
  return _neighbour_verifier(
      table, k, lambda p_token, moved: moved <= (lam - 1) * p_token, residual, greedy)


def _divergence(p_token: jax.Array, moved: jax.Array) -> jax.Array:
  """Jensen-Shannon divergence when mass `moved` goes to a token that has mass `p_token`."""
  # Of the tokens that lose their mass only the sum matters: each halves in the mixture.
  joined, middle = p_token + moved, p_token + moved / 2
  term = lambda mass: jax.scipy.special.xlogy(mass, mass / jnp.where(middle > 0, middle, 1))
  return 0.5 * (moved * np.log(2) + term(p_token) + term(joined))


# The distance `(p_token, moved) -> [...]`, increasing in `moved`, and its supremum.
_METRICS = {'tvd': (lambda p_token, moved: moved, 1.0), 'jsd': (_divergence, float(np.log(2)))}


def _neighbour_verifier(table: np.ndarray, k: int | None, within: Within, residual: str,
                        greedy: bool) -> Verifier:
  test = _NeighbourTest(*_check(table, k, residual, greedy), within, residual)
  if greedy:
    return Verifier(test.verify_greedily, exact=False, needs_probs=False, greedy=True, bounded=True,
                    check=test.check)
  node_test = AcceptanceRule(
      mass=test.mass, residual=test.residual_distribution, gap=test.gap,
      offset=None if residual == 'gstar' else test.offset)
  return tree_rejection(lambda max_depth: node_test, exact=False, bounded=True, check=test.check)


@dataclasses.dataclass(frozen=True, eq=False)
class _NeighbourTest:
  """The functions of an `AcceptanceRule`."""

  table: np.ndarray  # `[V, K]` int32 neighbours.
  k: int  # Number of neighbours in use.
  within: Within  # The bound.
  residual: str  # One of `RESIDUALS`.

  def check(self, drafter: Drafter, vocab_size: int) -> None:
    if len(self.table) != vocab_size:
      raise ValueError(
          f'table has {len(self.table)} rows, but the target has {vocab_size} tokens; build it '
          "from the codebook of the target's tokenizer with lantern.neighbour_table.")

  def _group(self, p: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The neighbours `[..., k]`, which of them are in `A`, and `p(x) + p(A)` `[...]`."""
    near = jnp.asarray(self.table[:, :self.k])[token]
    moved = jnp.cumsum(jnp.take_along_axis(p, near, axis=-1), axis=-1)
    p_token = accept.take(p, token)
    is_member = self.within(p_token[..., None], moved)
    return near, is_member, p_token + jnp.max(jnp.where(is_member, moved, 0), axis=-1)

  def mass(self, p: jax.Array, q: jax.Array, token: jax.Array, depth: jax.Array) -> jax.Array:
    return self._group(p, token)[2]

  def gap(self, p: jax.Array, q: jax.Array, token: jax.Array, depth: jax.Array) -> jax.Array:
    """Estimated from the token alone: the sum over the vocabulary would need `V k` look-ups."""
    drawn = accept.take(q, token)
    share = lambda mass: mass / jnp.where(drawn > 0, drawn, 1)
    accepted = jnp.minimum(1, share(self.mass(p, q, token, depth)))
    return jnp.maximum(accepted - share(accept.take(p, token)), 0)

  def residual_distribution(self, p: jax.Array, q: jax.Array, token: jax.Array, depth: jax.Array
                            ) -> jax.Array:
    if self.residual == 'gstar':
      return accept.residual(p, q)
    near, is_member, joined = self._group(p, token)
    if self.residual == 'paper':
      p_moved = jnp.put_along_axis(_cleared(p, near, is_member), token[..., None],
                                   joined[..., None], axis=-1, inplace=False)
      return accept.normalised(p_moved - q, p)
    zeroed, any_member = jnp.asarray(self.table[:, :self.k + 1])[token], is_member[..., :1]
    if self.residual == 'released_llamagen':
      return accept.normalised(p - _cleared(q, zeroed, any_member), p)
    p_cleared = _cleared(p, zeroed, any_member)
    if self.residual == 'released_lumina':
      return accept.normalised(p_cleared - q, p)
    return accept.normalised(_cleared(p_cleared, token[..., None], True), p)

  def offset(self, p: jax.Array, q: jax.Array, token: jax.Array, depth: jax.Array) -> jax.Array:
    residual = self.residual_distribution(p, q, token, depth)
    return 0.5 * jnp.sum(jnp.abs(residual - accept.residual(p, q)), axis=-1)

  def verify_greedily(self, rng: Rng, layout: Layout, tokens: jax.Array, probs: jax.Array | None,
                      target_probs: jax.Array, positions: jax.Array) -> Verdict:
    tree = accept.topology(layout)
    parents = jnp.maximum(jnp.asarray(tree.parents), 0)
    p = target_probs[parents]
    mass = self._group(p, jnp.maximum(tokens, 0))[2]
    accepted = (tokens >= 0) & (mass >= jnp.max(p, axis=-1))
    node = accept.last_accepted(accepted, tree)
    # The target draws one of the most probable tokens, all with the same probability.
    is_best = target_probs == jnp.max(target_probs, axis=-1, keepdims=True)
    best_probs = is_best / jnp.sum(is_best, axis=-1, keepdims=True)
    token = rng.draw(best_probs[node][None])[0]
    on_path = jnp.asarray(tree.ancestors)[node].at[0].set(False)
    tv_bound = jnp.where(on_path, 1 - best_probs[parents, jnp.maximum(tokens, 0)], 0)
    return Verdict(node, token, row_random.winner(target_probs).at[node].set(token),
                   tv_bound.astype(target_probs.dtype))


def _cleared(distribution: jax.Array, tokens: jax.Array, where: jax.typing.ArrayLike) -> jax.Array:
  """`distribution` `[..., V]` with zeros at `tokens` `[..., n]` where `where` is True."""
  values = jnp.where(where, 0, jnp.take_along_axis(distribution, tokens, axis=-1))
  return jnp.put_along_axis(distribution, tokens, values, axis=-1, inplace=False)


def _check(table: np.ndarray, k: int | None, residual: str, greedy: bool) -> tuple[np.ndarray, int]:
  """The table in int32 and `k`; raises ValueError for a wrong table or option."""
  table = np.asarray(table)
  if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer) or not table.size:
    raise ValueError(
        f'table has shape {table.shape} and type {table.dtype}; it must be integers [V, K].')
  size, width = table.shape
  if table.min() < 0 or table.max() >= size:
    raise ValueError(
        f'table has entries from {table.min()} to {table.max()}; with {size} rows they must be '
        f'tokens, 0 to {size - 1}.')
  itself = np.flatnonzero(np.any(table == np.arange(size)[:, None], axis=1))
  if itself.size:
    raise ValueError(
        f'table row {itself[0]} contains {itself[0]} itself; its mass would count twice; leave '
        'tokens out of their own rows.')
  ordered = np.sort(table, axis=1)
  repeated = np.flatnonzero(np.any(ordered[:, 1:] == ordered[:, :-1], axis=1))
  if repeated.size:
    raise ValueError(f'table row {repeated[0]} lists a neighbour twice, which would count its '
                     'mass twice; list every neighbour once.')
  fields.check_choice('residual', residual, RESIDUALS)
  if greedy and residual != 'gstar':
    raise ValueError(
        f'residual is {residual!r}, but greedy decoding does not draw from a residual '
        'distribution; leave it out.')
  k = width if k is None else k
  most = width - residual.startswith('released')
  if not 1 <= k <= most:
    raise ValueError(
        f'k is {k}; with a table of {width} neighbours per token (of {size - 1} possible) and '
        f'residual {residual!r} it must be 1 to {most}'
        + (', because the released code sets k + 1 neighbours to zero.' if most < width else '.'))
  return table.astype(np.int32), k


_CHUNK = 2**23  # Number of distances in memory at a time: 64 MiB of float64.


def neighbour_table(codebook: np.ndarray, k: int) -> np.ndarray:
  """The `k` nearest other rows of every row of a codebook `[V, D]`, `[V, k]` int32, nearest first.

  By the distance of the rows as they are. LANTERN's released tables, too, are not normalised,
  although LlamaGen's tokenizer normalises rows when it decodes. Raises ValueError if the codebook
  is not a finite matrix, or `k` is not from 1 to `V - 1`.
  """
  codebook = np.asarray(codebook).astype(np.float64)
  if codebook.ndim != 2 or len(codebook) < 2 or not np.all(np.isfinite(codebook)):
    raise ValueError(
        f'codebook has shape {codebook.shape}; it must be a finite matrix [V, D] with at least '
        '2 rows.')
  if not 1 <= k < len(codebook):
    raise ValueError(
        f'k is {k}; a codebook of {len(codebook)} rows has 1 to {len(codebook) - 1} neighbours '
        'per token.')
  size, squares = len(codebook), np.sum(codebook**2, axis=1)
  table, step = np.empty((size, k), np.int32), max(1, _CHUNK // size)
  for begin in range(0, size, step):
    rows = np.arange(begin, min(begin + step, size))
    # Without the row's own norm, which does not change the order.
    far = squares - 2 * codebook[rows] @ codebook.T
    far[np.arange(len(rows)), rows] = np.inf
    near = np.sort(np.argpartition(far, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(np.take_along_axis(far, near, axis=1), axis=1, kind='stable')
    table[rows] = np.take_along_axis(near, order, axis=1)
  return table


def from_codebook(default: Callable[[int], int]) -> Callable[..., dict[str, Any]]:
  """Returns a function of codebook and arguments: `table` and `k`, `default(V)` if not set."""

  def compute(codebook: np.ndarray | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    if codebook is None:
      raise ValueError(
          'codebook is None, but the verifier accepts neighbours in the codebook; pass that of the '
          "target's image tokenizer.")
    codebook = np.asarray(codebook)
    # The released residuals use one more neighbour.
    spare = str(arguments.get('residual')).startswith('released')
    most = len(codebook) - 1
    k = arguments.get('k')
    k = max(1, min(default(len(codebook)), most - spare)) if k is None else k
    width = min(k + spare, max(k, most))
    return {'table': _table(codebook.tobytes(), codebook.shape, codebook.dtype, width), 'k': k}

  return compute


@functools.lru_cache(maxsize=8)
def _table(codebook: bytes, shape: tuple[int, ...], dtype: np.dtype, k: int) -> np.ndarray:
  return neighbour_table(np.frombuffer(codebook, dtype).reshape(shape), k)


def embeddings(codebook: np.ndarray | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the codebook as `embeddings` if the arguments of `grouped` need distances in it."""
  if arguments.get('d_threshold') is None:
    return {}
  if codebook is None:
    raise ValueError(
        'codebook is None, but d_threshold needs distances in it; pass the codebook of the '
        "target's image tokenizer, or leave d_threshold out.")
  return {'embeddings': codebook}
