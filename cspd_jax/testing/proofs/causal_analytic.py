"""A causal model of continuous tokens whose distribution has a closed form, with its moments.

It is for tests of decoders of `Target.cached`. Its cache notices reads of slots that were not
written, and writes past the end.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.base import Cached, Target
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.testing.proofs import analytic
from cspd_jax.testing.proofs.analytic import Analytic, Mixture, pack, unpack


class LinearParams(NamedTuple):
  """Parameters of `causal_chain`."""

  weights: jax.Array  # `[T, T]` of the tokens before a token; zero from the diagonal on.
  mix: jax.Array  # `[C, C]` maps the numbers of an earlier token to those of a later one.
  stds: jax.Array  # `[T]` standard deviation of a token given those before it.
  # `[num_classes + 1]` mean of every number of a class; the last is that of the null class.
  means: jax.Array


class Moments(NamedTuple):
  """Mean `[T C]` and covariance `[T C, T C]` of the tokens of an image, float64."""

  mean: np.ndarray
  covariance: np.ndarray


def causal_chain(num_tokens: int = 8, token_dim: int = 2, *, schedule: Schedule | None = None,
                 means: tuple[float, ...] = (0.0,), null: float | None = None) -> Analytic:
  """A causal model with a cache whose tokens, `T` of length `C`, are jointly normal.

  A token is normal given those before it, with a mean that is linear in all of them. Slots of the
  cache hold NaN until they are written, so that a decoder that reads a slot too early, or writes
  past the last one, samples NaN. `means` has the mean of every number of a token for every class,
  `null` that of the null class, None for a model without guidance. The schedule, of a flow or not,
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

  denoise = analytic.exact_denoise if np.all(np.isfinite(schedule.alpha_bar)) else _exact_velocity
  target = Target(None, denoise(schedule, token_dim), num_tokens, token_dim, num_streams,
                  analytic.check_classes(len(means)), cached=Cached(prefill, score))
  return Analytic(target, params, schedule)


def causal_moments(model: Analytic, label: int, scale: float = 1.0) -> Moments:
  """Returns mean and covariance of the tokens of a `causal_chain`, if the last kernel has noise.

  Every kernel of the head is linear in the state and in the mean of the token, with a standard
  deviation that depends on neither. So the token is normal, with a variance and a multiple of the
  mean that follow kernel by kernel. Guided noise is that of a Gaussian with the guided mean; the
  `scale` of guidance is constant over the tokens.
  """
  params = LinearParams(*(np.asarray(leaf, np.float64) for leaf in model.params))
  gain, variance = _linear_chain(model.schedule, params.stds)
  size = params.mix.shape[0]
  mean = scale * params.means[label] + (1 - scale) * params.means[-1]
  # x = gain (mean + weights mix (x - mean)) + noise.
  weights = np.kron(params.weights, params.mix)
  gain, variance = np.repeat(gain, size), np.repeat(variance, size)
  solve = np.linalg.inv(np.eye(len(gain)) - gain[:, None] * weights)
  return Moments(solve @ (gain * mean * (1 - weights.sum(axis=1))),
                 (solve * variance) @ solve.T)


def _linear_chain(schedule: Schedule, stds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the multiple `[T]` of a token's mean, and its variance `[T]`, after all kernels."""
  square = stds * stds
  gain, variance = np.zeros_like(stds), np.ones_like(stds)
  for level in range(schedule.num_levels - 1, -1, -1):
    flow = np.isnan(schedule.alpha_bar[level])
    keep = schedule.steps[level] if flow else np.sqrt(schedule.alpha_bar[level])
    noise = 1 - keep if flow else np.sqrt(1 - schedule.alpha_bar[level])
    total = keep * keep * square + noise * noise
    # The head's answer is `of_x (x - keep mean)`, plus the mean if it is a velocity.
    of_x = ((keep * square if flow else 0) - noise * (1 if flow else -1)) / total
    of_mean = flow - of_x * keep
    weight = schedule.x0_to_mean[level]
    by_answer = -weight * schedule.eps_to_x0[level]
    by_x = weight * schedule.x_to_x0[level] + schedule.x_to_mean[level] + by_answer * of_x
    gain = by_x * gain + by_answer * of_mean
    least = np.exp(schedule.min_log_variance[level])
    added = least
    if not flow:
      added = (least if level else 0) + np.square(noise * weight) * square / total
    variance = by_x * by_x * variance + added
  return gain, variance


def _exact_velocity(schedule: Schedule, token_dim: int) -> Callable:
  """The head of a flow, `Target.denoise`, of a model whose `z` are packed Gaussians."""
  del schedule  # The step is the time.

  def denoise(params, x, step, z):
    del params
    mixture, time = unpack(z, token_dim), step[:, None]
    mean, square = mixture.means[:, 0], jnp.square(mixture.stds)
    total = time * time * square + jnp.square(1 - time)
    velocity = mean + (time * square - (1 - time)) / total * (x - time * mean)
    return velocity, jnp.zeros_like(velocity)

  return denoise
