"""From logits to a distribution: guidance, temperature, top-k, top-p, forced tokens.

Target, draft model and every stored distribution go through the one function `probabilities`, in
float32 or better, so that what is recorded is what was sampled from.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core.tracing import is_concrete


class Warp(NamedTuple):
  """How logits are turned into the distribution that is sampled.

  Every field is a scalar or has one value per row, `[B]`; all are run-time
  values: changing them does not compile anew. A cut that may be on costs a branch
  at run time, for which a GPU waits for its host; one that is None costs nothing.

  Attributes:
    guidance_scale: `g` in `u + g (c - u)` with conditional and unconditional
      logits `c` and `u`; 1 is no guidance. Where `c` or `u` is -inf the logit is `c`: a token
      that the condition makes impossible stays so, whatever the null condition says.
    temperature: divides the guided logits; 0 is greedy decoding.
    top_k: keeps the `k` largest logits (and ties with the last); 0 keeps all, and so
      does None, with which no temperature may be 0.
    top_p: keeps the most probable tokens up to this mass, the one that crosses
      it included; 1 keeps all, and so does None.
    guidance_interval: LlamaGen's `cfg_interval` `i`: the first `i + 2` tokens of an image
      are guided, the others drawn with the conditional logits alone; -1 guides all.
  """

  guidance_scale: jax.typing.ArrayLike = 1.0
  temperature: jax.typing.ArrayLike = 1.0
  top_k: jax.typing.ArrayLike | None = 0
  top_p: jax.typing.ArrayLike | None = 1.0
  guidance_interval: jax.typing.ArrayLike = -1


_is_whole = lambda x, least: (x >= least) & (x == x // 1)
# What a value may be, in code that reads traced values too, and in words.
_LIMITS: dict[str, tuple[Callable[[Any], Any], str]] = dict(
    guidance_scale=(lambda x: abs(x) < np.inf, 'finite'),
    temperature=(lambda x: (x >= 0) & (x < np.inf), 'finite and at least 0'),
    top_k=(lambda x: _is_whole(x, 0), 'a whole number, at least 0 (0 keeps all)'),
    top_p=(lambda x: (x > 0) & (x <= 1), 'above 0 and at most 1 (1 keeps all)'),
    guidance_interval=(lambda x: _is_whole(x, -1),
                       'a whole number, at least -1 (-1 guides all tokens)'))


def check(warp: Warp, num_streams: int, num_rows: int, greedy: bool = False) -> jax.Array:
  """Checks the options: values that are known now raise, traced ones tell later.

  Args:
    warp: the options.
    num_streams: guidance streams of the target.
    num_rows: `B`.
    greedy: whether the decoder is defined for temperature 0 only.

  Returns:
    `[B]` bool, which rows have values in their range.

  Raises:
    ValueError: for a value that is no number or none for each row, or outside its range.
  """
  valid = np.ones(num_rows, bool)
  for name, value in warp._asdict().items():
    if value is None and name in ('top_k', 'top_p'):
      continue
    value = _numbers(name, value, num_rows)
    limits = [_LIMITS[name]]
    if name == 'guidance_scale' and num_streams == 1:
      limits.append((lambda x: x == 1, '1, for the model has no null condition to guide away '
                     'from; build the target with guidance, or leave it out'))
    if name == 'temperature' and greedy:
      limits.append((lambda x: x == 0, '0, for the verifier is the greedy variant of its rule; '
                     'take the variant for sampling otherwise'))
    if name == 'temperature' and warp.top_k is None:
      limits.append((lambda x: x != 0, 'above 0, for top_k is None, which leaves no way to decode '
                     'greedily; set top_k to 0 otherwise'))
    for is_valid, words in limits:
      holds = is_valid(value)
      if is_concrete(value) and not np.all(holds):
        raise ValueError(f'{name} is {value}; it must be {words}.')
      valid = valid & holds
  return jnp.asarray(valid)


def _numbers(name: str, value: Any, num_rows: int) -> Any:
  """An option as an array, a scalar or `[num_rows]`; of NumPy if its value is known."""
  shown = f'{name} is {value!r:.80}'
  try:
    value = np.asarray(value) if is_concrete(value) else jnp.asarray(value)
  except (TypeError, ValueError) as error:
    raise ValueError(f'{shown}; it must be a number, or one number per row.') from error
  if value.dtype == bool or not (
      jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)):
    raise ValueError(f'{shown}; it must be a number, or one number per row.')
  if value.shape not in ((), (num_rows,)):
    raise ValueError(f'{name} has shape {value.shape}; it must be a number or, for these '
                     f'{num_rows} rows, have shape ({num_rows},).')
  return value


def uncut(warp: Warp) -> Warp:
  """The options without cuts, and at temperature 1 if they are greedy: what drafters look at."""
  temperature = jnp.asarray(warp.temperature)
  return warp._replace(
      temperature=jnp.where(temperature == 0, 1, temperature), top_k=None, top_p=None)


def settled(warp: Warp) -> Warp:
  """The options with None for cuts that are off, which become no part of a program.

  For concrete values.
  """
  greedy = np.any(np.asarray(warp.temperature) == 0)
  return warp._replace(
      top_k=warp.top_k if greedy or np.any(warp.top_k) else None,
      top_p=None if warp.top_p is None or np.all(np.asarray(warp.top_p) >= 1) else warp.top_p)


def probabilities(logits: jax.Array, warp: Warp, positions: jax.Array,
                  forced: jax.Array | None = None) -> jax.Array:
  """The distribution that is sampled at every node.

  Args:
    logits: `[S, B, N, V]`; with two streams the conditional one comes first.
    warp: guidance, temperature and cuts.
    positions: `[B, N]`, or what broadcasts to it: the number in the image of the token that
      the logits are for.
    forced: `[B, N]` token forced by the grammar or -1; None where there is none.

  Returns:
    `[B, N, V]` probabilities, float32 (float64 for float64 logits). All of a node are NaN if a
    logit of it is NaN or +inf, or all are -inf; see `is_distribution`.
  """
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  warp = Warp(*(None if value is None else jnp.reshape(jnp.asarray(value), (-1, 1, 1))
                for value in warp))
  x = logits[0]
  if logits.shape[0] == 2:
    last = warp.guidance_interval + 1
    is_guided = (last == 0) | (positions[..., None] <= last)
    x = jnp.where(is_guided, _guided(x, logits[1], warp.guidance_scale), x)
  greedy = warp.temperature == 0
  x = x / jnp.where(greedy, 1, warp.temperature)
  # Cuts that turn out to be off cost no more than the choice of a branch.
  if warp.top_k is not None:
    top_k = jnp.where(greedy, 1, warp.top_k)
    x = jax.lax.cond(
        jnp.any(top_k > 0),
        lambda x: jnp.where((top_k == 0) | is_top_k(x, top_k), x, -jnp.inf),
        lambda x: x, x)
  p = jax.nn.softmax(x)
  if warp.top_p is not None:
    p = jax.lax.cond(
        jnp.any(warp.top_p < 1),
        lambda p: _normalise(jnp.where((warp.top_p >= 1) | is_top_p(p, warp.top_p), p, 0)),
        lambda p: p, p)
  if forced is not None:
    p = jnp.where(forced[..., None] < 0, p, jax.nn.one_hot(forced, p.shape[-1], dtype=p.dtype))
  return p


def is_distribution(p: jax.Array) -> jax.Array:
  """Whether `p` `[..., V]`, as `probabilities` returns it, is a distribution; bool `[...]`."""
  return ~jnp.isnan(p[..., 0])  # If one entry is NaN all are.


def _guided(conditional: jax.Array, null: jax.Array, scale: jax.Array) -> jax.Array:
  """`u + g (c - u)`, or `c` where one of them is -inf, for then the difference means nothing."""
  both = (conditional > -jnp.inf) & ~(null == -jnp.inf)  # NaN remains.
  c, u = jnp.where(both, conditional, 0), jnp.where(both, null, 0)
  return jnp.where(both, u + scale * (c - u), conditional)


def is_top_k(x: jax.Array, k: jax.Array) -> jax.Array:
  """Which entries of `x` `[..., V]` are among the `k` largest, ties included.

  A bitwise search for the `k`-th largest value: no sort, `k` may be traced.
  """
  order = _ordered_bits(x)
  threshold = _largest_with(
      lambda t: jnp.sum(order >= t, axis=-1, keepdims=True) >= k, order)
  return order >= threshold


def is_top_p(p: jax.Array, mass: jax.Array) -> jax.Array:
  """Which entries of the distribution `p` `[..., V]` have at most `mass` before them.

  "Before" are the strictly more probable ones, so that ties stay together.
  """
  order = _ordered_bits(p)
  too_much_above = lambda t: (
      jnp.sum(jnp.where(order > t, p, 0), axis=-1, keepdims=True) > mass)
  return order > _largest_with(too_much_above, order)


def _ordered_bits(x: jax.Array) -> jax.Array:
  """Unsigned integers, all positive, in the order of the floats `x`; NaN comes last, and stays."""
  bits = jnp.finfo(x.dtype).bits
  unsigned = jnp.dtype(f'uint{bits}')
  sign = unsigned.type(1 << (bits - 1))
  raw = jax.lax.bitcast_convert_type(x + 0.0, unsigned)  # `+ 0` turns -0 into 0.
  order = jnp.where(raw >= sign, ~raw, raw | sign)
  return jnp.where(jnp.isnan(x), ~unsigned.type(0), order)


def _largest_with(holds, order: jax.Array) -> jax.Array:
  """Largest unsigned `t` with `holds(t)`, built bit by bit; 0 if none holds.

  `holds` is true up to some `t` and false after it.
  """
  bits = jnp.iinfo(order.dtype).bits
  start = jnp.zeros(order.shape[:-1] + (1,), order.dtype)

  def set_bit(i, t):
    bit = jnp.asarray(1, order.dtype) << (bits - 1 - i).astype(order.dtype)
    return jnp.where(holds(t | bit), t | bit, t)

  return jax.lax.fori_loop(0, bits, set_bit, start)


def _normalise(p: jax.Array) -> jax.Array:
  return p / jnp.sum(p, axis=-1, keepdims=True)
