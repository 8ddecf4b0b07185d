"""The mesh of devices that a model and its images are laid out on."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

# Images are divided over the first axis of a mesh, the parameters of a model over the second.
DATA, MODEL = 'data', 'model'


def make_mesh(data: int = 1, model: int | None = None,
              devices: Sequence[Any] | None = None) -> Mesh:
  """A mesh for `cspd_jax.load(..., sharding=mesh)`.

  Args:
    data: groups of devices; every group makes images of its own.
    model: devices of a group, over which the model is divided; all that there are by default.
    devices: `data * model` of them; those that JAX finds by default.

  Raises:
    ValueError: for sizes below 1, or that do not use all given devices.
  """
  devices = jax.devices() if devices is None else list(devices)
  for name, size in (('data', data), ('model', model)):
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
      raise ValueError(f'{name} is {size!r}; it must be a whole number, at least 1.')
  model = max(len(devices) // data, 1) if model is None else model
  if data * model != len(devices):
    raise ValueError(
        f'data is {data} and model is {model}, which makes {data * model} devices, but there are '
        f'{len(devices)}; choose others, or give the devices to use.')
  return Mesh(np.array(devices).reshape(data, model), (DATA, MODEL), (AxisType.Auto,) * 2)


def check_mesh(mesh: Mesh) -> None:
  """Raises ValueError unless a mesh has the axes of `make_mesh`."""
  if mesh.axis_names != (DATA, MODEL):
    raise ValueError(
        f'sharding is a mesh with the axes {mesh.axis_names}; it must have {(DATA, MODEL)}, as '
        'cspd_jax.sharding.make_mesh makes it.')
