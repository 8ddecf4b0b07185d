"""Models and batches of images divided over a mesh of devices, of one process or of several."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Params = Any
# Images are divided over the first axis of a mesh, the parameters of a model over the second.
DATA, MODEL = 'data', 'model'


def make_mesh(data: int = 1, model: int | None = None,
              devices: Sequence[Any] | None = None) -> Mesh:
  """Builds a mesh for `cspd_jax.load(..., sharding=mesh)`.

  Args:
    data: number of device groups; every group generates its own images.
    model: devices per group, over which the model is divided; by default all that are available.
    devices: `data * model` devices; by default all of `jax.devices()`.

  Raises:
    ValueError: for sizes below 1, or sizes that do not use all devices.
  """
  devices = jax.devices() if devices is None else list(devices)
  for name, size in (('data', data), ('model', model)):
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
      raise ValueError(f'{name} is {size!r}; it must be a whole number, at least 1.')
  model = max(len(devices) // data, 1) if model is None else model
  if data * model != len(devices):
    raise ValueError(
        f'data is {data} and model is {model}, which requires {data * model} devices, but there '
        f'are {len(devices)}; choose other sizes, or pass the devices to use.')
  return Mesh(np.array(devices).reshape(data, model), (DATA, MODEL), (AxisType.Auto,) * 2)


def check_mesh(mesh: Mesh) -> None:
  """Raises ValueError unless a mesh has the axes of `make_mesh`."""
  if mesh.axis_names != (DATA, MODEL):
    raise ValueError(
        f'sharding is a mesh with the axes {mesh.axis_names}; it must have {(DATA, MODEL)}; build '
        'it with cspd_jax.sharding.make_mesh.')


def split(shapes: Params, axes: Mapping[str, int], mesh: Mesh) -> Params:
  """Returns the sharding of every parameter of a model, a `NamedSharding` per leaf.

  Args:
    shapes: parameters, or their shapes.
    axes: axis that is divided over the devices of a group, by pattern of the paths of leaves, such
      as '.*/query'. Leaves that match no pattern are replicated on every device.
    mesh: a mesh from `make_mesh`.

  Raises:
    ValueError: if an axis of a leaf cannot be divided evenly.
  """
  check_mesh(mesh)
  patterns = [(re.compile(pattern), axis) for pattern, axis in axes.items()]

  def divided(path):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    return name, next((axis for pattern, axis in patterns if pattern.fullmatch(name)), None)

  sizes = {name: leaf.shape[axis] for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
           for name, axis in [divided(path)] if axis is not None}

  def sharding(path, leaf):
    name, axis = divided(path)
    if axis is None:
      return NamedSharding(mesh, PartitionSpec())
    if leaf.shape[axis] % mesh.shape[MODEL]:
      common = math.gcd(*sizes.values())
      counts = [count for count in range(1, common + 1) if common % count == 0]
      raise ValueError(
          f'sharding divides a model over {mesh.shape[MODEL]} devices, but axis {axis} of its '
          f'{name} has size {leaf.shape[axis]}; it can be divided over '
          f'{" or ".join(map(str, counts))}, by make_mesh(1, {counts[-1]}) or '
          f'--mesh=1x{counts[-1]}.')
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, MODEL))

  return jax.tree_util.tree_map_with_path(sharding, shapes)


def over_images(decode: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
  """Divides the images of a decoder over the device groups of a mesh.

  Every group decodes its own images without waiting for another group. Within a group XLA divides
  the work as the parameters are divided. An image does not depend on the other images of its batch,
  so the tokens are the same as on one device, except for rounding.

  `decode` is a decoder: it maps `(params, condition, keys [B], sampling, draft_params)` to arrays
  with a leading axis `B`, which the number of groups must divide. So does the result, to be jitted.
  """
  replicated, divided = PartitionSpec(), PartitionSpec(DATA)
  rows = lambda tree: jax.tree.map(lambda leaf: divided if jnp.ndim(leaf) else replicated, tree)

  def run(params, condition, keys, sampling, draft_params):
    # Groups run different numbers of rounds, which the check of varying values does not support.
    return jax.shard_map(
        decode, mesh=mesh, in_specs=(replicated, rows(condition), divided, rows(sampling),
                                     replicated),
        out_specs=divided, axis_names={DATA}, check_vma=False)(
            params, condition, keys, sampling, draft_params)

  return run


def devices_of(params: Params) -> list[Any]:
  """Returns the devices that parameters are on, by number; the default one if they are on none."""
  leaf = next(iter(jax.tree.leaves(params)), None)
  return sorted(leaf.devices(), key=lambda device: device.id) if isinstance(
      leaf, jax.Array) else jax.devices()[:1]


def in_words(devices: Sequence[Any]) -> str:
  """Returns devices in words, such as `cpu` or `4 x NVIDIA H100`."""
  kind = devices[0].device_kind
  return f'{len(devices)} x {kind}' if len(devices) > 1 else kind


def least(value: float) -> float:
  """Returns the smallest of the numbers of all processes of `jax.distributed`."""
  if jax.process_count() == 1:
    return value
  return float(np.min(multihost_utils.process_allgather(np.float32(value))))


def gathered(tree: Any) -> Any:
  """Returns whole arrays as NumPy arrays, in every process of `jax.distributed`."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  return multihost_utils.process_allgather(tree, tiled=True)
