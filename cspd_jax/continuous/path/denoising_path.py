"""Denoising paths of tokens: the states of the denoising chain from some kernel on.

Draft model and target share the noise of the first kernels, which determines the state of each
before kernel `split`; the kernels `split .. 0` are a path with a density, whose last state is the
token. Kernel 0 must add its noise, else the path has no density.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.continuous import coupling, head as head_lib, noise as noise_lib
from cspd_jax.continuous.base import Params, Target
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.continuous.span import TokenBatch


class PathStart(NamedTuple):
  """A model's chain before kernel `split`.

  Attributes:
    x: `[N, C]` its state.
    log_std: `[N]` sum of the logarithms of all standard deviations of the kernels above.
  """

  x: jax.Array
  log_std: jax.Array


class Path(NamedTuple):
  """The states that the kernels `split .. 0` generated.

  Attributes:
    states: `[N, split + 1, C]` the state after each kernel; the last is the token.
    log_density: `[N]` under the model that drew it, without the constant.
  """

  states: jax.Array
  log_density: jax.Array


def start(target: Target, schedule: Schedule, params: Params, batch: TokenBatch, split: int,
          aligned: bool = True) -> PathStart:
  """Runs the kernels above `split`.

  Args:
    target: the model.
    schedule: the levels.
    params: its parameters.
    batch: the tokens `[N]`.
    split: the first kernel that is not run.
    aligned: whether the noise is that of the positions, which the target uses; else it is separate
      noise of the drafter.
  """
  purpose = noise_lib.STEP if aligned else noise_lib.DRAFT
  batch = head_lib.modulated(target, schedule, params, batch)

  levels = schedule.num_levels
  noise = noise_lib.chain_normal(batch.keys, purpose, levels, target.token_dim)

  def step(i, carry):
    x, log_std = carry
    level = levels - 1 - i
    k = head_lib.kernel(target, schedule, params, batch, x, jnp.full(x.shape[:1], level))
    x = k.mean + k.std * noise[:, level]
    return PathStart(x, log_std + jnp.sum(jnp.log(k.std), axis=-1))

  if aligned:
    x = head_lib.start(batch, target)
  else:
    x = noise_lib.normal(batch.keys, purpose, levels, target.token_dim)
  return jax.lax.fori_loop(
      0, levels - 1 - split, step, PathStart(x, jnp.zeros(x.shape[:1], x.dtype)))


def draw(target: Target, schedule: Schedule, params: Params, batch: TokenBatch, x: jax.Array,
         split: int, purpose: int, trial: jax.typing.ArrayLike = 0) -> Path:
  """Draws a path of the model from its state `x` `[N, C]`.

  Args:
    target: the model.
    schedule: the levels.
    params: its parameters.
    batch: the tokens `[N]`.
    x: the states before kernel `split`.
    split: the first kernel of the path.
    purpose: what the noise is for.
    trial: a number or `[N]`; which of several paths.
  """
  noise = noise_lib.chain_normal(batch.keys, purpose, split + 1, target.token_dim, trial)

  def step(x, level):
    k = head_lib.kernel(target, schedule, params, batch, x, jnp.full(x.shape[:1], level))
    x = k.mean + k.std * noise[:, level]
    return x, (x, coupling.log_density_of_draw(x, k.mean, k.std))

  states, log_density = jax.lax.scan(step, x, jnp.arange(split, -1, -1))[1]
  return Path(states.swapaxes(0, 1), jnp.sum(log_density, axis=0))


def score(target: Target, schedule: Schedule, params: Params, batch: TokenBatch, x: jax.Array,
          states: jax.Array) -> jax.Array:
  """Returns the log density `[N]` of another model's path under this model; one head call.

  Args:
    target: the model.
    schedule: the levels.
    params: its parameters.
    batch: the tokens `[N]`.
    x: `[N, C]` this model's own state before the first kernel of the path.
    states: `[N, split + 1, C]` the path.
  """
  before = jnp.concatenate([x[:, None], states[:, :-1]], axis=1)
  level = jnp.broadcast_to(jnp.arange(states.shape[1] - 1, -1, -1), states.shape[:2])
  k = head_lib.kernel(target, schedule, params, batch, before, level)
  return jnp.sum(coupling.log_density(states, k.mean, k.std), axis=1)


def repeat(batch: TokenBatch, num: int) -> TokenBatch:
  """Repeats every token of `batch` `num` times in a row."""
  return jax.tree.map(lambda leaf: jnp.repeat(leaf, num, axis=0), batch._replace(
      z=batch.z.swapaxes(0, 1)))._replace(z=jnp.repeat(batch.z, num, axis=1))
