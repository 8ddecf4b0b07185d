"""The loop that drafts denoising chains, one kernel after the other.

A draft depends on the one before it, so this is a loop with a few operations on short vectors in
every step. XLA launches half a dozen GPU kernels per step, which take longer than the calls of the
diffusion head that the drafts save. On NVIDIA GPUs a single kernel runs the same operations, with a
thread block for every chain.

In the shape descriptions, `N` is the number of chains and `K` of their denoising kernels.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from cspd_jax.continuous import coupling
from cspd_jax.continuous.chains import prediction
from cspd_jax.continuous.chains.prediction import Predicted
from cspd_jax.continuous.coupling import Gaussian, Moved
from cspd_jax.core import kernels

# The value 'plain' disables the GPU kernel. Read once, because compiled programs do not change.
_VARIABLE = 'CSPD_JAX_HEAD'
_TOLERANCE = 1e-4  # Largest rounding error of states of standard deviation 1.


class Steps(NamedTuple):
  """The inputs of the steps, leaves `[N, K, ...]`."""

  exist: jax.Array  # `[N, K]` whether a token has an old chain, the same for all kernels.
  final: jax.Array  # `[N, K]` whether the state after a kernel is final.
  settled: Moved  # Final states, and before the chains part, old states moved to the true kernels.
  predicted: Predicted  # The kernels of the drafts.
  old: jax.Array  # The states of the old chains.
  old_kernels: Gaussian  # The kernels that they were drawn from.
  fresh: jax.Array  # `[N, K, C]` noise of drafts without an old chain.
  split: jax.Array | None  # `[N, K, C]` and
  log_uniform: jax.Array  # `[N, K]` of the moves from old chains.


class Followed(NamedTuple):
  """Chains to their ends, `[N, K]`."""

  x: jax.Array  # `[N, K, C]` the state after a kernel.
  kept: jax.Array  # Whether it is the old chain's.
  parted: jax.Array  # Whether it is a draft.


def follow(first: jax.Array, steps: Steps) -> Followed:
  """Follows chains from states `first` `[N, C]`: settled ones, drafts where they have parted."""
  size = first.shape[1]
  # Triton's vectors are powers of two.
  if size >= 2 and size & (size - 1) == 0 and is_available():
    return jax.lax.platform_dependent(first, steps, cuda=fused, default=plain)
  return plain(first, steps)


def plain(first: jax.Array, steps: Steps) -> Followed:
  """Runs the loop as operations of XLA."""
  def step(carry, i):
    followed = _step(carry, jax.tree.map(lambda leaf: leaf[:, i], steps))
    return Moved(followed.x, followed.kept), followed

  followed = jax.lax.scan(step, Moved(first, steps.exist[:, 0]), jnp.arange(steps.old.shape[1]))[1]
  return jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), followed)


def fused(first: jax.Array, steps: Steps, *, interpret: bool = False) -> Followed:
  """Runs the loop as one GPU kernel, or in Pallas's interpreter on any device."""
  # Arrays of bool have no layout that all versions of Triton agree on.
  whole = lambda leaf: leaf.astype(jnp.int32) if leaf.dtype == bool else leaf
  leaves, tree = jax.tree.flatten(steps)
  logical = [leaf.dtype == bool for leaf in leaves]
  shape = steps.old.shape

  def kernel(first, *refs):
    *inputs, x, kept, parted = refs
    row = pl.ds(pl.program_id(0), 1)

    def at(i):
      values = [ref[row, i] for ref in inputs]
      return jax.tree.unflatten(tree, [
          value != 0 if is_bool else value for value, is_bool in zip(values, logical)])

    def step(i, carry):
      followed = _step(carry, at(i))
      x[row, i] = followed.x
      kept[row, i], parted[row, i] = (
          leaf.astype(jnp.int32) for leaf in (followed.kept, followed.parted))
      return Moved(followed.x, followed.kept)

    jax.lax.fori_loop(0, shape[1], step, Moved(first[row], at(0).exist))

  integers = jax.ShapeDtypeStruct(shape[:2], jnp.int32)
  x, kept, parted = pl.pallas_call(
      kernel, (jax.ShapeDtypeStruct(shape, jnp.float32), integers, integers),
      grid=(shape[0],), interpret=interpret, compiler_params=triton.CompilerParams(num_warps=1),
      name='draft_loop')(first, *map(whole, leaves))
  return Followed(x, kept != 0, parted != 0)


def _step(before: Moved, steps: Steps) -> Followed:
  """Returns the transitions `[N]` of one kernel from the states `before` it; inputs `[N, ...]`."""
  predicted = prediction.kernel(steps.predicted, before.x)
  compared = coupling.compare(steps.old, steps.old_kernels, predicted, steps.split)
  moved = coupling.move(steps.old, compared, steps.log_uniform)
  # Without an old chain the draft is a draw from the predicted kernel.
  drawn = predicted.mean + predicted.std * steps.fresh
  draft = jnp.where(steps.exist[:, None], moved.x, drawn)
  parted = ~before.kept & ~steps.final
  return Followed(jnp.where(parted[:, None], draft, steps.settled.x),
                  jnp.where(parted, moved.kept & steps.exist, steps.settled.kept), parted)


@functools.cache
def is_available() -> bool:
  """Whether this process has a GPU on which `fused` returns the same as `plain`.

  A small example is run once; if it fails, a warning is logged and plain operations are used.
  Raises ValueError if the environment variable CSPD_JAX_HEAD is neither 'auto' nor 'plain'.
  """
  return kernels.work('The fused loop of drafts', _VARIABLE, difference, _TOLERANCE)


def difference(device: jax.Device, interpret: bool = False) -> float:
  """Largest difference between `fused` and `plain` on a small example, run on a device."""
  num, levels, size = 6, 12, 16
  rng = np.random.default_rng(0)
  normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
  states, row, number = (num, levels, size), (num, levels), jnp.arange(num)[:, None]
  positive = lambda: jnp.exp(0.1 * normal(*states))
  exist = jnp.broadcast_to(number > 0, row)
  steps = Steps(
      exist=exist, final=jnp.arange(levels) < 2 * number - 2,
      settled=Moved(normal(*states), exist & (rng.random(row) < 0.8)),
      predicted=Predicted(0.3 * normal(*states), 0.5 * jnp.ones((*row, 1)), positive()),
      old=normal(*states), old_kernels=Gaussian(0.3 * normal(*states), positive()),
      fresh=normal(*states), split=normal(*states),
      log_uniform=jnp.asarray(np.log(rng.random(row)), jnp.float32))
  first = normal(num, size)
  with jax.default_device(device):
    pairs = [(jax.jit(functools.partial(fused, interpret=interpret))(first, inputs),
              jax.jit(plain)(first, inputs)) for inputs in (steps, steps._replace(split=None))]
  differences = jax.tree.map(
      lambda a, b: float(jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)).max()),
      *map(list, zip(*pairs)))
  return max(jax.tree.leaves(differences))
