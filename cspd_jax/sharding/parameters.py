"""Which part of a model's parameters every device holds."""

import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cspd_jax.sharding.mesh import MODEL, check_mesh

Params = Any


def split(shapes: Params, axes: Mapping[str, int], mesh: Mesh) -> Params:
  """Where parameters go.

  Args:
    shapes: parameters, or their shapes.
    axes: a table of what is divided over the devices of a group: patterns of the paths of leaves,
      such as '.*/query', and the axis of theirs that is divided. Other leaves are held by every
      device.
    mesh: of `make_mesh`.

  Returns:
    A `NamedSharding` per leaf.

  Raises:
    ValueError: if an axis cannot be divided evenly, naming the leaf.
  """
  check_mesh(mesh)
  patterns = [(re.compile(pattern), axis) for pattern, axis in axes.items()]

  def place(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    axis = next((axis for pattern, axis in patterns if pattern.fullmatch(name)), None)
    if axis is None:
      return NamedSharding(mesh, PartitionSpec())
    if leaf.shape[axis] % mesh.shape[MODEL]:
      raise ValueError(
          f'sharding divides a model over {mesh.shape[MODEL]} devices, but axis {axis} of its '
          f'{name} has size {leaf.shape[axis]}; take a mesh whose {MODEL!r} axis divides that.')
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, MODEL))

  return jax.tree_util.tree_map_with_path(place, shapes)
