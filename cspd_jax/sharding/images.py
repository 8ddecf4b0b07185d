"""Images divided over groups of devices, of one process or of several."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

from cspd_jax.sharding.mesh import DATA


def over_images(decode: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
  """A decoder whose images are divided over the groups of a mesh.

  Every group decodes its own images and waits for no other one. Inside of a group XLA divides the
  work as the parameters are divided. An image does not depend on the other images of its batch, so
  the tokens are those of one device, but for rounding.

  Args:
    decode: a decoder: `(params, condition, keys [B], sampling, draft_params) -> ` arrays with a
      leading axis `B`.
    mesh: of `make_mesh`; its number of groups divides `B`.

  Returns:
    The same function, to be jitted.
  """
  everywhere, divided = PartitionSpec(), PartitionSpec(DATA)
  rows = lambda tree: jax.tree.map(lambda leaf: divided if jnp.ndim(leaf) else everywhere, tree)

  def run(params, condition, keys, sampling, draft_params):
    # Groups loop for different numbers of rounds, which a check of varying values cannot follow.
    return jax.shard_map(
        decode, mesh=mesh, in_specs=(everywhere, rows(condition), divided, rows(sampling),
                                     everywhere),
        out_specs=divided, axis_names={DATA}, check_vma=False)(
            params, condition, keys, sampling, draft_params)

  return run


def gathered(tree: Any) -> Any:
  """Arrays as NumPy arrays, whole in every process of `jax.distributed`."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return multihost_utils.process_allgather(tree, tiled=True)
