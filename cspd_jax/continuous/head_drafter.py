"""The drafter of the diffusion head: extrapolates its last true output to lower levels.

The head's prediction of a token changes slowly along the chain. At high levels the predicted clean
token barely moves, at low levels the predicted noise barely does; a drafter that keeps one of the
two constant is good at one end only. The blend is

    x0 = rho x0_last + (1 - rho) (x - sqrt(1 - alpha_bar) eps_last) / sqrt(alpha_bar)

with one number `rho` per level. `rho` determines the speed only, never the distribution. The frozen
drafter without the blend is from De Bortoli et al., 2025 (arXiv:2501.05370).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.continuous import sampling as sampling_lib, schedule as schedule_lib
from cspd_jax.continuous.base import Condition, Params
from cspd_jax.continuous.head import Head, pick
from cspd_jax.continuous.loop import Decoder
from cspd_jax.continuous.noise import STEP, chain_normal
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import step_of, token_batch
from cspd_jax.continuous.visibility import causal_contexts
from cspd_jax.core import contracts
from cspd_jax.core.random import as_key, row_keys
from cspd_jax.core.sampling import SamplingParams

# Least-squares fit on heads trained on mixtures of Gaussians in 16 dimensions: step, rho.
_DEFAULT = np.array([(0, 0), (20, .08), (50, .25), (101, .52), (202, .80), (303, .90),
                     (505, .96), (706, .98), (908, 1), (999, 1)])
_METADATA = 'head_drafter'  # The entry of a checkpoint's metadata that holds its blends.


class Frozen(NamedTuple):
  """An answer of the head for a token, leaves `[N, C]`: the drafter's only input."""

  eps: jax.Array  # The guided noise.
  x0: jax.Array  # The clean token that the noise implies.
  v: jax.Array  # The log-variance in its range, from -1 to 1.


def frozen_start(x: jax.Array) -> Frozen:
  """Output before the first call: the first state `x` `[N, C]` is all noise, the token is 0."""
  return Frozen(x, jnp.zeros_like(x), jnp.zeros_like(x))


def draft_kernel(schedule: Schedule, rho: np.ndarray, frozen: Frozen, x: jax.Array,
                 level: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the drafter's kernel at `x` `[..., C]`, `level` `[...]`: mean and std `[..., C]`."""
  share = jnp.asarray(rho, jnp.float32)[level][..., None]
  x0 = share * frozen.x0 + (1 - share) * schedule_lib.predict_x0(schedule, level, x, frozen.eps)
  return (schedule_lib.mean(schedule, level, x, x0),
          jnp.exp(0.5 * schedule_lib.log_variance(schedule, level, frozen.v)))


def slope(schedule: Schedule, rho: np.ndarray, level: jax.Array) -> jax.Array:
  """Returns the slope `[..., 1]` of the mean of `draft_kernel` in `x` at `level` `[...]`."""
  table = schedule.x_to_mean + schedule.x0_to_mean * (1 - rho) * schedule.x_to_x0
  return jnp.asarray(table, jnp.float32)[level][..., None]


def default_rho(schedule: Schedule) -> np.ndarray:
  """Returns a blend `[num_levels]` for heads to which none was fitted."""
  return np.interp(schedule_lib.noise_steps(schedule), *_DEFAULT.T)


def stored_rho(schedule: Schedule, metadata: Mapping[str, Any], guided: bool) -> np.ndarray | None:
  """Returns the blend `[num_levels]` that was fitted to a checkpoint; None if none was.

  It is interpolated between the levels that it was fitted at; `metadata` is in the format of
  `describe_rho`. Raises ValueError for another format.
  """
  blends, name = metadata.get(_METADATA, {}), 'guided' if guided else 'plain'
  blend = blends.get(name) if isinstance(blends, Mapping) else blends
  if not blend:
    return None
  try:
    steps, rho = (np.asarray(blend[name], np.float64) for name in ('steps', 'rho'))
    if not np.isfinite(steps).all() or not np.isfinite(rho).all():
      raise ValueError
    order = np.argsort(steps)  # The times of a flow fall with the level.
    return np.interp(schedule.steps, steps[order], rho[order])
  except (KeyError, ValueError, TypeError, IndexError) as error:
    raise ValueError(f'{_METADATA} of the target is {blends!r:.80}; it must have equally many '
                     "numbers as 'steps' and 'rho': fit it again.") from error


def describe_rho(schedule: Schedule, plain: np.ndarray, guided: np.ndarray) -> dict[str, Any]:
  """Returns metadata for a checkpoint from blends `[num_levels]` without and with guidance."""
  entry = lambda rho: {'steps': schedule.steps.tolist(), 'rho': np.round(rho, 4).tolist()}
  return {_METADATA: {'plain': entry(plain), 'guided': entry(guided)}}


class Trajectories(NamedTuple):
  """Ancestral chains of a head: states and guided noise at every level, `[num_levels, N, C]`."""

  x: jax.Array
  eps: jax.Array


def record(decoder: Decoder, params: Params, condition: Condition, key: jax.Array,
           sampling: SamplingParams = SamplingParams()) -> Trajectories:
  """Records ancestral chains of a model: one token per row, of a random rank in its own image.

  The decoder is `decoders.mar` for the model, with the number of steps that will be used, and so
  are the sampling options. A few hundred rows are enough.
  """
  target, schedule = decoder.target, decoder.schedule
  decoded = decoder(params, condition, key, sampling)
  num_rows, size = decoded.order.shape
  rows = row_keys(key, num_rows)
  rank = jax.vmap(lambda words: jax.random.randint(as_key(words, 0, 1), (1,), 0, size))(rows.stream)
  positions = jnp.take_along_axis(decoded.order, rank, axis=1)
  begin, end = step_of(
      rank, jnp.array([stop for stage in decoder.stages for stop in stage.stops]), size)
  if target.cached is None:
    visible = jnp.argsort(decoded.order, axis=1) < begin
    z = contracts.transform(target, params, condition, decoded.tokens, visible)
  else:
    z = causal_contexts(target, params, condition, decoded.tokens)
  scale = sampling_lib.scale(sampling, decoder.guidance, size, size - end)
  batch = token_batch(rows, pick(z, positions), positions, scale,
                      sampling.temperature, jnp.ones(positions.shape, bool))
  noise = chain_normal(batch.keys, STEP, schedule.num_levels, target.token_dim)
  head = Head(target, schedule, params)

  def denoise(x, level):
    k = head.kernel(batch, x, level)
    return k.mean + k.std * noise[:, level], Trajectories(x, k.eps)

  levels = jnp.arange(schedule.num_levels - 1, -1, -1)
  trajectories = jax.lax.scan(denoise, head.start(batch), levels)[1]
  return jax.tree.map(lambda leaf: leaf[::-1], trajectories)


def fit_rho(schedule: Schedule, trajectories: Trajectories, reach: int = 2) -> np.ndarray:
  """Fits the blend `[num_levels]` by least squares; the last entry, which no level precedes, is 1.

  For every level the clean token that the head's output implies is predicted from its output 1 to
  `reach` levels above. About 300 chains of the model, from `record`, are enough. A short reach is
  best, as most drafts fail early.
  """
  x, eps = (np.asarray(leaf, np.float64) for leaf in trajectories)
  assert len(x) == schedule.num_levels, (len(x), schedule.num_levels)
  token = lambda level, eps: schedule.x_to_x0[level] * x[level] - schedule.eps_to_x0[level] * eps
  rho = np.ones(len(x))
  for level in range(len(x) - 1):
    above = range(level + 1, min(level + reach, len(x) - 1) + 1)
    by_noise = np.stack([token(level, eps[i]) for i in above])
    direction = np.stack([token(i, eps[i]) for i in above]) - by_noise
    gap = token(level, eps[level]) - by_noise
    rho[level] = np.sum(gap * direction) / np.maximum(np.sum(direction * direction), 1e-30)
  return rho
