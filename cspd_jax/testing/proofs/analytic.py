"""Models of continuous tokens with analytic distributions: exact heads for Gaussian mixtures.

If a clean token is a mixture of Gaussians, so is every noisy state, and the best prediction of the
noise has a closed form. The transformer of such a model only has to return the mixture of every
position; `z` is its parameters, packed. Draft models are the same model with other parameters.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.base import Cached, Target
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.models import conditions
from cspd_jax.testing import tabular


class Mixture(NamedTuple):
  """A mixture of `K` isotropic Gaussians."""

  log_weights: jax.Array  # `[..., K]`, up to a constant.
  means: jax.Array  # `[..., K, C]`.
  stds: jax.Array  # `[..., K]`.


class Analytic(NamedTuple):
  """A model with an exact head."""

  target: Target  # The model; its condition is one class per row, `[B]`.
  params: NamedTuple  # Its parameters.
  schedule: Schedule  # The levels for which the head is exact.


class ContextParams(NamedTuple):
  """Parameters of `mixtures`; `E` is the length of a context vector."""

  classes: jax.Array  # `[num_classes + 1, E]` the last row is the null class.
  positions: jax.Array  # `[T, E]`.
  tokens: jax.Array  # `[C, E]` maps the mean of the visible tokens to a context.
  log_weights: jax.Array  # `[E, K]`.
  means: jax.Array  # `[K, C]`.
  shifts: jax.Array  # `[E, K, C]` maps a context to shifts of the means.
  stds: jax.Array  # `[K]`.


class ChainParams(NamedTuple):
  """Parameters of `gaussian_chain`."""

  correlation: jax.Array  # `[]` of neighbours in raster order.
  means: jax.Array  # `[num_classes]` mean of every token of a class.


class VarianceParams(NamedTuple):
  """Parameters of `variance_chain`."""

  mean: jax.Array  # `[]` mean of every token.
  slope: jax.Array  # `[]` of `v`, by the state.
  offset: jax.Array  # `[]` of `v`; not 0 only for drafts.


class LinearParams(NamedTuple):
  """Parameters of `causal_chain`."""

  weights: jax.Array  # `[T, T]` of the tokens before a token; zero from the diagonal on.
  mix: jax.Array  # `[C, C]` maps the numbers of an earlier token to a later one's.
  stds: jax.Array  # `[T]` standard deviation of a token given those before it.
  # `[num_classes + 1]` mean of every number of a class; the last is the null class's.
  means: jax.Array


def pack(mixture: Mixture) -> jax.Array:
  """Packs the parameters into one vector, `[..., K (C + 2)]`."""
  flat = mixture.means.reshape(*mixture.means.shape[:-2], -1)
  return jnp.concatenate([mixture.log_weights, flat, mixture.stds], axis=-1)


def unpack(z: jax.Array, token_dim: int) -> Mixture:
  """The inverse of `pack`."""
  num = z.shape[-1] // (token_dim + 2)
  log_weights, means, stds = jnp.split(z, [num, num * (token_dim + 1)], axis=-1)
  return Mixture(log_weights, means.reshape(*z.shape[:-1], num, token_dim), stds)


def exact_denoise(schedule: Schedule, token_dim: int) -> Callable:
  """The head, `Target.denoise`, of a model whose `z` are packed mixtures.

  `eps` is the expected noise given the state. `v` sets the variance of the kernel to the one of the
  next state given this one, averaged over dimensions. For a single Gaussian the chain then has the
  token's distribution exactly for any number of levels, except for the variance of about 4e-5 that
  is lost because the last kernel adds no noise.
  """
  level_of_step = np.full(schedule_lib.NUM_STEPS, -1)
  level_of_step[schedule.steps] = np.arange(schedule.num_levels)
  tables = [jnp.asarray(table, jnp.float32) for table in (
      schedule.alpha_bar, 1 - schedule.alpha_bar, schedule.x0_to_mean,
      schedule.min_log_variance, schedule.max_log_variance - schedule.min_log_variance)]

  def denoise(params, x, step, z):
    del params  # They went into z.
    level = jnp.asarray(level_of_step)[step]
    keep, noise, weight, log_least, span = (table[level][:, None] for table in tables)
    mixture = unpack(z, token_dim)
    variance = jnp.square(mixture.stds)
    total = keep * variance + noise  # [N, K] variance of the state.
    gap = x[:, None] - jnp.sqrt(keep)[..., None] * mixture.means
    share = jax.nn.softmax(mixture.log_weights - 0.5 * (
        jnp.sum(gap * gap, axis=-1) / total + token_dim * jnp.log(total)), axis=-1)[..., None]
    eps_of = jnp.sqrt(noise)[..., None] * gap / total[..., None]
    eps = jnp.sum(share * eps_of, axis=1)
    # Variance of the token given the state: within the components and between them.
    spread = (noise / keep)[..., None] * jnp.square(eps_of - eps[:, None])
    inner = (variance * noise / total)[..., None]
    token_variance = jnp.mean(jnp.sum(share * (inner + spread), axis=1), axis=-1, keepdims=True)
    # Variance of the kernel relative to the minimum; at level 0 it is the token's only.
    over_least = token_variance * jnp.square(weight) * jnp.exp(-log_least)
    log_variance = jnp.where(level[:, None] > 0, jnp.log1p(over_least), jnp.log(over_least))
    v = 2 * log_variance / span - 1
    return eps, jnp.broadcast_to(v, eps.shape)

  return denoise


def mixtures(key: jax.Array, num_tokens: int = 4, token_dim: int = 16, *,
             schedule: Schedule | None = None, guided: bool = False, num_classes: int = 3,
             components: int = 4, context_dim: int = 8) -> Analytic:
  """A random model with a mixture per context: class, position and the visible tokens.

  It has `T = num_tokens` tokens of length `C = token_dim` (100 levels by default), mixtures of
  `K = components`, and a null stream if it is `guided`.
  """
  schedule = schedule_lib.make() if schedule is None else schedule
  keys = jax.random.split(key, 6)
  normal = lambda key, scale, *shape: jnp.asarray(scale * tabular.normal(key, shape))
  params = ContextParams(
      classes=normal(keys[0], 1.0, num_classes + 1, context_dim),
      positions=normal(keys[1], 1.0, num_tokens, context_dim),
      tokens=normal(keys[2], 1.0, token_dim, context_dim),
      log_weights=normal(keys[3], 0.3, context_dim, components),
      means=normal(keys[4], 0.9, components, token_dim),
      shifts=normal(keys[5], 0.1, context_dim, components, token_dim),
      stds=jnp.linspace(0.12, 0.32, components))

  def transform(params, condition, tokens, visible):
    visible_tokens = jnp.where(visible[..., None], tokens, 0)
    mean = visible_tokens.sum(axis=1) / jnp.maximum(visible.sum(axis=1), 1)[:, None]
    null = jnp.full_like(condition, num_classes)
    labels = jnp.stack([condition, null] if guided else [condition])
    context = jnp.tanh(
        params.classes[labels][:, :, None] + params.positions + (mean @ params.tokens)[:, None])
    return pack(Mixture(
        context @ params.log_weights,
        params.means + jnp.einsum('sbte,ekc->sbtkc', context, params.shifts),
        jnp.broadcast_to(params.stds, (*context.shape[:3], components))))

  target = Target(transform, exact_denoise(schedule, token_dim), num_tokens, token_dim,
                  2 if guided else 1, check_classes(num_classes))
  return Analytic(target, params, schedule)


def gaussian_chain(num_tokens: int = 16, correlation: float = 0.9, *,
                   schedule: Schedule | None = None,
                   means: tuple[float, ...] = (0.0,)) -> Analytic:
  """Scalar tokens, jointly normal with correlation `correlation**|i - j|` and variance 1.

  Sampling one token per step, in any order, yields exactly this distribution. `means` has the mean
  of the tokens for every class; there are 100 noise levels by default.
  """
  schedule = schedule_lib.make() if schedule is None else schedule

  def neighbour(visible, tokens):
    """The nearest visible token before each position, and its distance; `[B, T]` each."""
    index = jnp.where(visible, jnp.arange(num_tokens), -1)
    nearest = jnp.pad(jax.lax.cummax(index, axis=1), [(0, 0), (1, 0)], constant_values=-1)[:, :-1]
    value = jnp.take_along_axis(tokens, jnp.maximum(nearest, 0), axis=1)
    distance = jnp.arange(num_tokens) - nearest
    return jnp.where(nearest >= 0, value, 0), jnp.where(nearest >= 0, distance, jnp.inf)

  def transform(params, condition, tokens, visible):
    # The distribution is Markov: only the nearest visible token on either side matters.
    shift = params.means[condition][:, None]
    centred = tokens[..., 0] - shift
    before, left = neighbour(visible, centred)
    after, right = (leaf[:, ::-1] for leaf in neighbour(visible[:, ::-1], centred[:, ::-1]))
    a, b = params.correlation**left, params.correlation**right
    scale = 1 - jnp.square(a * b)
    mean = (a * (1 - b * b) * before + b * (1 - a * a) * after) / scale
    std = jnp.sqrt((1 - a * a) * (1 - b * b) / scale)
    return pack(Mixture(jnp.zeros_like(mean)[..., None], (mean + shift)[..., None, None],
                        std[..., None]))[None]

  target = Target(transform, exact_denoise(schedule, 1), num_tokens, 1, 1,
                  check_classes(len(means)))
  return Analytic(target, ChainParams(jnp.float32(correlation), jnp.asarray(means)), schedule)


def variance_chain(num_tokens: int = 1, num_levels: int = 6, mean: float = 0.0,
                   slope: float = 1.0) -> Analytic:
  """Independent scalar tokens of a mean from a chain with wide, learned standard deviations.

  All kernels, including the last one, have standard deviations from 0.2 to 0.4 that depend on the
  state through `v = offset + slope tanh(x)`. On this model, treatments of learned variances differ.
  """
  schedule = schedule_lib.make(num_levels)
  schedule = schedule._replace(min_log_variance=np.full(num_levels, 2 * np.log(0.2)),
                               max_log_variance=np.full(num_levels, 2 * np.log(0.4)))
  exact = exact_denoise(schedule, 1)

  def transform(params, condition, tokens, visible):
    z = jnp.stack(params)
    return jnp.broadcast_to(z, (1, condition.shape[0], tokens.shape[1], 3))

  def denoise(params, x, step, z):
    mixture = Mixture(jnp.zeros_like(z[:, :1]), z[:, :1, None], jnp.full_like(z[:, :1], 0.5))
    eps, _ = exact(params, x, step, pack(mixture))
    return eps, z[:, 2:] + z[:, 1:2] * jnp.tanh(x)

  target = Target(transform, denoise, num_tokens, 1, 1, check_classes(1))
  return Analytic(target, VarianceParams(*map(jnp.float32, (mean, slope, 0))), schedule)


def causal_chain(num_tokens: int = 8, token_dim: int = 2, *, schedule: Schedule | None = None,
                 means: tuple[float, ...] = (0.0,), null: float | None = None) -> Analytic:
  """A causal model with a cache whose tokens, `T` of length `C`, are jointly normal.

  A token is normal given those before it, with a mean that is linear in all of them. Slots of the
  cache hold NaN until they are written, so that a decoder that reads a slot too early, or writes
  past the last one, samples NaN. `means` has the mean of every number of a token for every class,
  `null` is the null class's, None for a model without guidance. The schedule, of a flow or not,
  has 100 levels of the cosine process by default.
  """
  schedule = schedule_lib.make() if schedule is None else schedule
  num_streams = 1 if null is None else 2
  distance = np.arange(num_tokens)[:, None] - np.arange(num_tokens)
  weights = np.where(distance > 0, 0.15, 0) + 0.45 * (distance == 1)
  params = LinearParams(*map(jnp.float32, (
      weights, np.roll(np.eye(token_dim), 1, axis=0), np.linspace(0.5, 0.8, num_tokens),
      (*means, 0.0 if null is None else null))))

  def mixture(params, slots, condition, index):
    """The mixtures `[S, B, n]` of tokens number `index` `[B, n]` given `slots` `[B, R, C]`."""
    labels = jnp.stack([condition, jnp.full_like(condition, len(means))][:num_streams])
    shift = params.means[labels][..., None, None]
    at = jnp.minimum(index, num_tokens - 1)
    earlier = jnp.arange(num_tokens) < at[..., None]
    centred = slots[:, None, :num_tokens] - shift[..., None]
    centred = jnp.where(earlier[..., None], centred, 0)
    mean = shift + jnp.einsum('bnk,sbnkc,dc->sbnd', params.weights[at], centred, params.mix)
    stds = jnp.broadcast_to(params.stds[at][..., None], (*mean.shape[:3], 1))
    return pack(Mixture(jnp.zeros_like(stds), mean[..., None, :], stds))

  def prefill(params, condition, num_slots):
    rows = condition.shape[0]
    slots = jnp.full((rows, num_slots, token_dim), jnp.nan, jnp.float32)
    first = mixture(params, slots, condition, jnp.zeros((rows, 1), jnp.int32))
    return first[:, :, 0], (slots, condition)

  def score(params, cache, tokens, start):
    slots, condition = cache
    inside = start + tokens.shape[1] <= slots.shape[1]
    tokens = jnp.where(inside[:, None, None], tokens, jnp.nan)
    slots = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice_in_dim(row, new, at, 0))(
        slots, tokens.astype(slots.dtype), start)
    index = start[:, None] + 1 + jnp.arange(tokens.shape[1])
    return mixture(params, slots, condition, index), (slots, condition)

  denoise = exact_denoise if np.all(np.isfinite(schedule.alpha_bar)) else _exact_velocity
  target = Target(None, denoise(schedule, token_dim), num_tokens, token_dim, num_streams,
                  check_classes(len(means)), cached=Cached(prefill, score))
  return Analytic(target, params, schedule)


def _exact_velocity(schedule: Schedule, token_dim: int) -> Callable:
  """The head of a flow, `Target.denoise`, of a model whose `z` are packed Gaussians."""
  del schedule  # The step is the time.

  def denoise(params, x, step, z):
    mixture, time = unpack(z, token_dim), step[:, None]
    mean, square = mixture.means[:, 0], jnp.square(mixture.stds)
    total = time * time * square + jnp.square(1 - time)
    velocity = mean + (time * square - (1 - time)) / total * (x - time * mean)
    return velocity, jnp.zeros_like(velocity)

  return denoise


def check_classes(num_classes: int) -> Callable[[Any], Any]:
  """Returns a `Target.check_condition` for class labels."""
  return functools.partial(conditions.check_class_labels, num_classes=num_classes)
