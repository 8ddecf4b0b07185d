"""K-SEQ: several candidates drawn independently, one threshold for all (exact)."""

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Drafter, Layout, Rng, Verdict, Verifier
from cspd_jax.decoding.tree import Tree


def kseq() -> Verifier:
  """Accepts the first of `k` independent siblings that passes (SpecTr, arXiv 2310.15141).

  Each passes with probability `min(1, p / (r q))`, with one factor `r` for all. With
  `b = sum_x min(q, p / r)` one is accepted with probability `a = 1 - (1 - b)^k`, and otherwise the
  token follows `p - min(q, p / r) a / b`, normalised. That is a distribution if `a <= r b`; the
  smallest such `r`, between 1 and `k`, accepts most, and no other test accepts more than
  `1 / (1 - 1 / e)` times as often. For drafters with 'iid' draws. Siblings that were chosen, not
  drawn (`base.Draft`), as at temperature 0, are not candidates.
  """
  return Verifier(_verify, exact=True, needs_probs=True, check=_check)


def _verify(rng: Rng, layout: Layout, tokens: jax.Array, probs: jax.Array | None,
            target_probs: jax.Array, positions: jax.Array) -> Verdict:
  tree = accept.topology(layout)
  is_inner = tree.children[:, 0] > 0
  inner = np.flatnonzero(is_inner)
  if not inner.size:
    return Verdict(jnp.int32(0), rng.draw(target_probs[:1])[0])
  assert probs is not None  # The verifier has needs_probs.
  children = tree.children[inner]
  p, q = target_probs[inner], probs[np.asarray(layout.probs_rows)[children[:, 0]]]
  # The test is the same for all siblings, so all nodes are tested in parallel.
  parents, token = np.searchsorted(inner, tree.parents[1:]), jnp.maximum(tokens[1:], 0)
  is_drawn = jnp.append(False, (tokens[1:] >= 0) & (q[parents, token] > 0))
  count = jnp.sum((children > 0) & is_drawn[children], axis=1)
  factor = _factor(p, q, count)
  passed = rng.accept(p[parents, token] / factor[parents], q[parents, token])
  node = accept.last_accepted(jnp.append(False, passed) & is_drawn, tree)
  row = jnp.asarray(np.cumsum(is_inner) - 1)[node]
  # The distribution after all candidates were rejected.
  common, passes, accepted = _overlap(p[row], q[row], factor[row], count[row])
  scale = accepted / jnp.where(passes > 0, passes, 1)
  residual = accept.residual(p[row], common * scale[..., None])
  distribution = jnp.where(jnp.asarray(is_inner)[node], residual, target_probs[node])
  return Verdict(node, rng.draw(distribution[None])[0])


def _overlap(p: jax.Array, q: jax.Array, factor: jax.Array, count: jax.Array
             ) -> tuple[jax.Array, jax.Array, jax.Array]:
  """`min(q, p / r)` `[..., V]`, its sum `b` `[...]`, and `a = 1 - (1 - b)^k` `[...]`."""
  common = jnp.minimum(q, p / factor[..., None])
  passes = jnp.minimum(jnp.sum(common, axis=-1), 1)
  return common, passes, 1 - (1 - passes) ** count


def _factor(p: jax.Array, q: jax.Array, count: jax.Array) -> jax.Array:
  """The smallest `r` `[...]` with `a <= r b`, by bisection, from above.

  `r b = sum_x min(r q, p)` increases with `r` and `a` decreases, so there is one change of sign; at
  `r = k` the inequality is Bernoulli's.
  """
  def halve(_, bounds):
    low, high = bounds
    middle = (low + high) / 2
    _, passes, accepted = _overlap(p, q, middle, count)
    holds = accepted <= middle * passes
    return jnp.where(holds, low, middle), jnp.where(holds, middle, high)

  high = jnp.maximum(count, 1).astype(p.dtype)
  steps = jnp.finfo(p.dtype).nmant + 1
  return jax.lax.fori_loop(0, steps, halve, (jnp.ones_like(high), high))[1]


def _check(drafter: Drafter, vocab_size: int) -> None:
  if drafter.layout.draws != 'iid':
    raise ValueError(
        f"draws of the drafter is {drafter.layout.draws!r}; kseq needs siblings drawn "
        "independently of each other; draft with draws='iid', or verify with rejection.")
  if not isinstance(drafter.tree, Tree):
    raise ValueError(
        f'the drafter has {drafter.tree}, a topology known at run time only; kseq is for static '
        'trees; use rejection().')
