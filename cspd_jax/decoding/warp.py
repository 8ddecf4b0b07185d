"""Turns logits into a distribution: guidance, temperature, top-k, top-p, min-p, forced tokens.

All distributions, of the target, of the drafters and recorded ones, are computed by
`probabilities`, in float32 or better, so that each token is sampled from the recorded distribution.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import rows, sampling as sampling_lib
from cspd_jax.core.sampling import CUTS, SamplingParams

# Below it, float32 has no reciprocal; see `core.sampling.LARGEST`.
_SMALLEST = 1 / sampling_lib.LARGEST


def check(sampling: SamplingParams, num_streams: int, num_rows: int | None = None,
          greedy: bool = False) -> jax.Array:
  """Returns whether all values of a row `[B]` are in range, as `rows.check_options` does.

  A `greedy` decoder requires temperature 0.
  """
  limits: list[rows.Limit] = []
  if greedy:
    limits.append((is_greedy, '0, because the verifier is greedy; use the variant with '
                   'greedy=False to sample'))
  if getattr(sampling, 'top_k', 0) is None:
    limits.append((lambda x: ~is_greedy(x), 'above 0, because greedy decoding needs top_k and it '
                   'is None; set top_k to 0 to decode greedily'))
  return sampling_lib.check(sampling, sampling_lib.DISCRETE, num_streams, num_rows, limits)


def is_greedy(temperature: Any) -> Any:
  """Returns whether each temperature counts as 0; NumPy arrays for NumPy arrays, else JAX's."""
  return (temperature == 0) | (temperature < _SMALLEST)  # float16 rounds the constant to 0.


def not_greedy(sampling: SamplingParams) -> SamplingParams:
  """Returns the options at temperature 1 in place of 0, for drafters."""
  temperature = jnp.asarray(sampling.temperature)
  return sampling._replace(temperature=jnp.where(is_greedy(temperature), 1, temperature))


def without_cuts(sampling: SamplingParams) -> SamplingParams:
  """Returns the options without cuts, and at temperature 1 in place of 0, for drafters."""
  return not_greedy(sampling)._replace(**dict.fromkeys(CUTS))


def guidance_only(sampling: SamplingParams) -> SamplingParams:
  """Returns the options without cuts and temperature: guidance alone."""
  return SamplingParams(guidance_scale=sampling.guidance_scale,
                        guidance_interval=sampling.guidance_interval)


def drop_inactive(sampling: SamplingParams) -> SamplingParams:
  """Returns concrete options with None for cuts that are off, so that programs omit them."""
  greedy = np.any(is_greedy(np.asarray(sampling.temperature)))
  is_cut = sampling.top_p is not None and not np.all(np.asarray(sampling.top_p) >= 1)
  return sampling._replace(
      top_k=sampling.top_k if greedy or np.any(sampling.top_k) else None,
      top_p=sampling.top_p if is_cut else None,
      min_p=sampling.min_p if np.any(sampling.min_p) else None)


def probabilities(logits: jax.Array, sampling: SamplingParams, positions: jax.Array,
                  forced: jax.Array | None = None) -> jax.Array:
  """Returns the distribution that is sampled at every node.

  Args:
    logits: `[S, B, N, V]`; with two streams the conditional one comes first.
    sampling: guidance, temperature and cuts.
    positions: `[B, N]`, or an array that broadcasts to it: the number of the predicted token.
    forced: `[B, N]` the token that the grammar forces, or -1; None without a grammar.

  Returns:
    `[B, N, V]` probabilities, float32 (float64 for float64 logits). All probabilities of a node are
    NaN if one of its logits is NaN or +inf, or all are -inf.
  """
  sampling = SamplingParams(*(None if value is None else _by_row(value) for value in sampling))
  # Cuts compare logits, whose order and distances no temperature rounds away.
  x = guided(logits, sampling, positions)
  if sampling.top_k is not None:
    top_k = jnp.where(is_greedy(sampling.temperature), 1, sampling.top_k)
    x = jax.lax.cond(
        jnp.any(top_k > 0),
        lambda x: jnp.where((top_k == 0) | is_top_k(x, top_k), x, -jnp.inf),
        lambda x: x, x)
  p = jnp.exp(_tempered(x, sampling.temperature))
  p /= jnp.sum(p, axis=-1, keepdims=True)
  if sampling.top_p is not None:
    p = _cut(p, sampling.top_p < 1, lambda p: is_top_p(x, p, sampling.top_p))
  if sampling.min_p is not None:
    p = _cut(p, sampling.min_p > 0, lambda p: is_min_p(x, sampling.temperature, sampling.min_p))
  if forced is not None:
    p = jnp.where(forced[..., None] < 0, p, jax.nn.one_hot(forced, p.shape[-1], dtype=p.dtype))
  return p


def log_probs(probs: jax.Array, nodes: jax.Array, tokens: jax.Array) -> jax.Array:
  """Returns the log-probabilities `[B, n]` of `tokens` after `nodes`, by `probs` `[B, N, V]`."""
  return jnp.log(_take(probs, nodes, tokens))


def log_probs_of_logits(logits: jax.Array, sampling: SamplingParams, positions: jax.Array,
                    forced: jax.Array | None, nodes: jax.Array, tokens: jax.Array) -> jax.Array:
  """Returns as `log_probs` for the distributions of `probabilities` without cuts.

  They are computed from logits, so that tokens of any probability have finite values and gradients.
  """
  x = _tempered(guided(logits, sampling, positions), _by_row(sampling.temperature))
  log_probs = _take(x, nodes, tokens) - jnp.take_along_axis(
      jnp.log(jnp.sum(jnp.exp(x), axis=-1)), nodes, axis=1)
  if forced is None:
    return log_probs
  only = jnp.take_along_axis(jnp.broadcast_to(forced, x.shape[:2]), nodes, axis=1)
  return jnp.where(only < 0, log_probs, jnp.where(tokens == only, 0, -jnp.inf))


def _take(values: jax.Array, nodes: jax.Array, tokens: jax.Array) -> jax.Array:
  """`values[b, nodes[b, i], tokens[b, i]]`, `[B, n]`, without a copy of the nodes' rows."""
  pick = lambda values, nodes, tokens: values.at[nodes, tokens].get(mode='clip')
  return jax.vmap(pick)(values, nodes, tokens)


def is_distribution(p: jax.Array) -> jax.Array:
  """Returns whether entries of `p` `[..., V]` are finite and not negative, and sum to about 1."""
  total = jnp.sum(jnp.where(p >= 0, p, jnp.nan), axis=-1)
  return jnp.abs(total - 1) < np.sqrt(jnp.finfo(p.dtype).eps)


def guided(streams: jax.Array, sampling: SamplingParams, positions: jax.Array) -> jax.Array:
  """Returns streams `[S, B, N, D]` after guidance, `[B, N, D]`, in float32 or better.

  Streams are logits, or what a matrix maps to them. The options and `positions` are as for
  `probabilities`.
  """
  streams = streams.astype(jnp.promote_types(streams.dtype, jnp.float32))
  x = streams[0]
  scale, interval = _by_row(sampling.guidance_scale), _by_row(sampling.guidance_interval)
  scale = scale.astype(x.dtype)
  if streams.shape[0] == 2:
    is_guided = (interval < 0) | (positions[..., None] - 1 <= interval)
    x = jnp.where(is_guided, _combined(x, streams[1], scale), x)
  return x


def _by_row(value: Any) -> jax.Array:
  """An option as `[.., 1, 1]`, which broadcasts to values of all nodes and tokens."""
  return jnp.reshape(jnp.asarray(value), (-1, 1, 1))


def _combined(conditional: jax.Array, null: jax.Array, scale: jax.Array) -> jax.Array:
  """`u + g (c - u)`, or `c` where one of them is -inf and the difference is meaningless."""
  is_possible = (conditional > -jnp.inf) & ~(null == -jnp.inf)  # NaN propagates.
  c, u = jnp.where(is_possible, conditional, 0), jnp.where(is_possible, null, 0)
  return jnp.where(is_possible, u + scale * (c - u), conditional)


def _tempered(x: jax.Array, temperature: jax.Array) -> jax.Array:
  """Divides logits `x` `[..., V]` by the temperature; the largest quotient is 0."""
  # Subtracts first: the rounding errors of large quotients would exceed what separates them.
  return _below_largest(x) / _divisor(x, temperature)


def _below_largest(x: jax.Array) -> jax.Array:
  return x - jax.lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))


def _divisor(x: jax.Array, temperature: jax.Array) -> jax.Array:
  """The temperature in the dtype of logits `x`; a tiny number in place of 0."""
  return jnp.maximum(temperature.astype(x.dtype), _SMALLEST)


def is_top_k(x: jax.Array, k: jax.Array) -> jax.Array:
  """Returns which entries of `x` `[..., V]` are among the `k` largest, including ties."""
  # A search bit by bit, without a sort, so that `k` may be traced.
  order = _ordered_bits(x)
  threshold = _largest_with(lambda t: jnp.sum(order >= t, axis=-1, keepdims=True) >= k, order)
  return order >= threshold


def is_top_p(x: jax.Array, p: jax.Array, mass: jax.Array) -> jax.Array:
  """Returns which tokens have at most `mass` before them.

  "Before" are the tokens with strictly larger logits `x` `[..., V]`, which have an order even where
  rounding makes the probabilities `p` `[..., V]` equal; so ties are treated alike.
  """
  order = _ordered_bits(x)
  too_much_above = lambda t: jnp.sum(jnp.where(order > t, p, 0), axis=-1, keepdims=True) > mass
  return order > _largest_with(too_much_above, order)


def is_min_p(x: jax.Array, temperature: jax.Array, share: jax.Array) -> jax.Array:
  """Returns which entries of `x` `[..., V]` have at least `share` of the largest probability."""
  return _below_largest(x) >= _divisor(x, temperature) * jnp.log(share.astype(x.dtype))


def _ordered_bits(x: jax.Array) -> jax.Array:
  """Maps floats `x` to positive unsigned integers of the same order; NaN becomes the largest."""
  bits = jnp.finfo(x.dtype).bits
  unsigned = jnp.dtype(f'uint{bits}')
  sign = unsigned.type(1 << (bits - 1))
  raw = jax.lax.bitcast_convert_type(x + 0.0, unsigned)  # `+ 0` turns -0 into 0.
  order = jnp.where(raw >= sign, ~raw, raw | sign)
  return jnp.where(jnp.isnan(x), ~unsigned.type(0), order)


def _largest_with(holds, order: jax.Array) -> jax.Array:
  """Returns the largest unsigned `t` with `holds(t)`, which is false beyond it; 0 without one."""
  bits = jnp.iinfo(order.dtype).bits
  start = jnp.zeros(order.shape[:-1] + (1,), order.dtype)

  def set_bit(i, t):
    bit = jnp.asarray(1, order.dtype) << (bits - 1 - i).astype(order.dtype)
    return jnp.where(holds(t | bit), t | bit, t)

  return jax.lax.fori_loop(0, bits, set_bit, start)


def _cut(p: jax.Array, where: jax.Array, kept: Callable[[jax.Array], jax.Array]) -> jax.Array:
  """Normalises the `kept(p)` entries of `p` in the rows `where`; other rows keep their bits."""
  def normalised(p):
    p = jnp.where(~where | kept(p), p, 0)
    return p / jnp.where(where, jnp.sum(p, axis=-1, keepdims=True), 1)

  return jax.lax.cond(jnp.any(where), normalised, lambda p: p, p)
