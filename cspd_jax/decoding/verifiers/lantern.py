"""Acceptance by the mass of a token's neighbours in the codebook (LANTERN, LANTERN++).

Tokens of images are often interchangeable with their neighbours in the tokenizer's
codebook. Candidate `x` is accepted with probability `f = min(1, (p(x) + p(A)) / q(x))`,
where `A` is the longest run of `x`'s nearest neighbours whose mass stays within a bound
(LANTERN, arXiv 2410.03355; with a bound relative to `p(x)` LANTERN++, arXiv 2502.06352).
`p` is what the refusals of earlier siblings have left of the target's distribution.

`f` is never below the exact test's probability, so the residual distribution with the smallest
bound on total variation is the exact test's own, `[p - q]+` (Cool-SD, arXiv 2601.09212, Equation
10 and Proposition 1). The residual distributions of the paper and of its released code differ from
it and from each other; they are here for comparison:

  'gstar'             `[p - q]+`, the default
  'paper'             `[p_A - q]+`, where `p_A` is `p` with the mass of `A` moved onto `x`
  'released_llamagen' `[p - q]+` with `q` set to zero on the `k + 1` nearest neighbours
  'released_lumina'   `[p - q]+` with `p` set to zero there
  'released_dynamic'  `p` set to zero there and on `x`

The released ones change `p` and `q` only where `A` is not empty, as the code does. Where
they leave nothing the distribution stays `p`; the code goes on with the uniform distribution
instead.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import accept, row_random
from cspd_jax.decoding.base import Verdict, Verifier
from cspd_jax.decoding.verifiers import walk
from cspd_jax.decoding.verifiers.node_tests import NodeTest, rejection

RESIDUALS = ('gstar', 'paper', 'released_llamagen', 'released_lumina', 'released_dynamic')


def lantern(table: np.ndarray, delta: float = 0.1, *, k: int | None = None, metric: str = 'tvd',
            residual: str = 'gstar', greedy: bool = False) -> Verifier:
  """Neighbours stand in as long as moving their mass changes the distribution by at most `delta`.

  Args:
    table: `[V, K]` neighbours of every token, nearest first, itself excluded; see
      `neighbours.neighbour_table`. It has to be that of the target's tokenizer.
    delta: bound on the distance between `p` and `p_A`, at least 0 (exact) and below the
      largest distance there is: 1 for 'tvd', log 2 for 'jsd'.
    k: neighbours looked at, all `K` by default.
    metric: 'tvd', total variation, which is the mass moved; or 'jsd', the Jensen-Shannon
      divergence in nats.
    residual: one of `RESIDUALS`.
    greedy: the variant for temperature 0: a candidate is accepted if with its
      neighbours' mass it is the most probable token, by the distribution at temperature 1
      without cuts, and the last token is the most probable one. Siblings are tried in
      order, so an earlier neighbour goes before the most probable token itself. The bound on
      total variation is then the number of accepted tokens that are not the most probable one:
      the target's distribution has a single token, so each adds a total variation of 1. Where
      `m` tokens are equally probable, accepting one of them adds `1 - 1 / m`.

  Raises:
    ValueError: for options outside their range or a table that is none.
  """
  if metric not in _METRICS:
    raise ValueError(f'metric is {metric!r}; it must be one of {", ".join(_METRICS)}.')
  distance, largest = _METRICS[metric]
  if not 0 <= delta < largest:
    raise ValueError(
        f'delta is {delta}; with metric {metric!r} it must be at least 0 (exact) and below '
        f'{largest:.3g}, where every neighbour would do.')
  return _neighbour_test(
      table, k, lambda own, moved: distance(own, moved) <= delta, residual, greedy)


def lantern_pp(table: np.ndarray, lam: float = 2.0, *, k: int | None = None,
               residual: str = 'gstar', greedy: bool = False) -> Verifier:
  """Neighbours stand in as long as `p(x) + p(A)` is at most `lam p(x)`.

  `lam` is that of the released code: the neighbours add at most `(lam - 1) p(x)`.
  Cool-SD (arXiv 2601.09212) reads it as at most `lam p(x)`; its `lam` is one less.

  Args:
    table: see `lantern`.
    lam: the bound, at least 1 (exact).
    k: neighbours looked at, all by default.
    residual: one of `RESIDUALS`.
    greedy: see `lantern`.

  Raises:
    ValueError: for options outside their range or a table that is none.
  """
  if not 1 <= lam < np.inf:
    raise ValueError(f'lam is {lam}; it must be at least 1 (1 is exact) and finite.')
  return _neighbour_test(table, k, lambda own, moved: moved <= (lam - 1) * own, residual, greedy)


def _divergence(own: jax.Array, moved: jax.Array) -> jax.Array:
  """Jensen-Shannon divergence when mass `moved` goes to a token that has mass `own`.

  Only that token and the tokens that lose their mass count, and of these only the sum:
  each of them halves in the mixture.
  """
  joined, middle = own + moved, own + moved / 2
  term = lambda mass: jax.scipy.special.xlogy(mass, mass / jnp.where(middle > 0, middle, 1))
  return 0.5 * (moved * np.log(2) + term(own) + term(joined))


# The distance `(own, moved) -> [...]`, increasing in `moved`, and its supremum.
_METRICS = {'tvd': (lambda own, moved: moved, 1.0), 'jsd': (_divergence, float(np.log(2)))}


def _neighbour_test(table, k: int | None, within: Callable, residual: str,
                    greedy: bool) -> Verifier:
  """The verifier for one bound, `within(own [..., 1], moved [..., k]) -> bool [..., k]`."""
  table, k = _check(table, k, residual, greedy)

  def check(drafter, vocab_size):
    del drafter
    if len(table) != vocab_size:
      raise ValueError(
          f'table has {len(table)} rows, but the target has {vocab_size} tokens; build it from '
          "the codebook of the target's tokenizer with neighbours.neighbour_table.")

  def group(p, token):
    """The neighbours `[..., k]`, which of them are in `A`, and `p(x) + p(A)` `[...]`."""
    near = jnp.asarray(table[:, :k])[token]
    moved = jnp.cumsum(jnp.take_along_axis(p, near, axis=-1), axis=-1)
    own = accept.take(p, token)
    kept = within(own[..., None], moved)
    return near, kept, own + jnp.max(jnp.where(kept, moved, 0), axis=-1)

  mass = lambda p, token: group(p, token)[2]
  if greedy:
    return Verifier(_greedy(mass), exact=False, needs_probs=False, greedy=True, check=check)

  def gap(p, q, token, depth):
    """From the token alone: the sum over the vocabulary would take `V k` look-ups."""
    del depth
    drawn = accept.take(q, token)
    share = lambda mass: mass / jnp.where(drawn > 0, drawn, 1)
    accepted = jnp.minimum(1, share(mass(p, token)))
    return jnp.maximum(accepted - share(accept.take(p, token)), 0)

  def left(p, q, token, depth):
    del depth
    if residual == 'gstar':
      return accept.residual(p, q)
    near, kept, joined = group(p, token)
    if residual == 'paper':
      p_moved = jnp.put_along_axis(_cleared(p, near, kept), token[..., None],
                                   joined[..., None], axis=-1, inplace=False)
      return _distribution(p_moved - q, p)
    zeroed, some = jnp.asarray(table[:, :k + 1])[token], kept[..., :1]
    if residual == 'released_llamagen':
      return _distribution(p - _cleared(q, zeroed, some), p)
    p_cleared = _cleared(p, zeroed, some)
    if residual == 'released_lumina':
      return _distribution(p_cleared - q, p)
    return _distribution(_cleared(p_cleared, token[..., None], True), p)

  def offset(p, q, token, depth):
    return 0.5 * jnp.sum(jnp.abs(left(p, q, token, depth) - accept.residual(p, q)), axis=-1)

  test = NodeTest(mass=lambda p, q, token, depth: mass(p, token), residual=left, gap=gap,
              offset=None if residual == 'gstar' else offset)
  return rejection(lambda max_depth: test, exact=False, check=check)


def _greedy(mass: Callable) -> Callable:
  """`verify` at temperature 0, with `mass(p [..., V], token [...]) -> [...]`."""

  def verify(rng, layout, tokens, probs, target_probs, positions):
    del probs, positions
    tree = layout.tree
    parents = jnp.maximum(jnp.asarray(tree.parents), 0)
    p = target_probs[parents]
    accepted = (tokens >= 0) & (mass(p, jnp.maximum(tokens, 0)) >= jnp.max(p, axis=-1))
    node = walk.deepest(accepted, tree)
    # The target draws one of the most probable tokens, with equal chances.
    is_best = target_probs == jnp.max(target_probs, axis=-1, keepdims=True)
    chances = is_best / jnp.sum(is_best, axis=-1, keepdims=True)
    token = rng.draw(chances[node][None])[0]
    on_path = jnp.asarray(tree.ancestors)[node].at[0].set(False)
    tv_bound = jnp.where(on_path, 1 - chances[parents, jnp.maximum(tokens, 0)], 0)
    return Verdict(node, token, row_random.winner(target_probs).at[node].set(token),
                   tv_bound.astype(target_probs.dtype))

  return verify


def _cleared(distribution: jax.Array, tokens: jax.Array, where) -> jax.Array:
  """`distribution` `[..., V]` with zeros at `tokens` `[..., n]` where it says so."""
  values = jnp.where(where, 0, jnp.take_along_axis(distribution, tokens, axis=-1))
  return jnp.put_along_axis(distribution, tokens, values, axis=-1, inplace=False)


def _distribution(weights: jax.Array, p: jax.Array) -> jax.Array:
  """The positive part of `weights`, normalised; `p` if there is none."""
  weights = jnp.maximum(weights, 0)
  mass = jnp.sum(weights, axis=-1, keepdims=True)
  return jnp.where(mass > 0, weights / jnp.where(mass > 0, mass, 1), p)


def _check(table, k: int | None, residual: str, greedy: bool) -> tuple[np.ndarray, int]:
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
        f'table row {itself[0]} contains {itself[0]} itself; its mass would count twice. Leave '
        'tokens out of their own rows.')
  if residual not in RESIDUALS:
    raise ValueError(f'residual is {residual!r}; it must be one of {", ".join(RESIDUALS)}.')
  if greedy and residual != 'gstar':
    raise ValueError(
        f'residual is {residual!r}, but greedy decoding draws from no residual distribution; '
        'leave it out.')
  k = width if k is None else k
  most = width - residual.startswith('released')
  if not 1 <= k <= most:
    raise ValueError(
        f'k is {k}; with a table of {width} neighbours per token (there are {size - 1}) and '
        f'residual {residual!r} it must be 1 to {most}'
        + (', because the released code sets k + 1 neighbours to zero.' if most < width else '.'))
  return table.astype(np.int32), k
