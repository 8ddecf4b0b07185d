"""Where parameters are on devices, and in which order of axes."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

from cspd_jax import sharding as sharding_lib
from cspd_jax.core import fields
from cspd_jax.files import weights

Params = Any

# Platforms where programs read parameters in the order of `Kind.orders`, and the numbers in a row
# of a tile there: narrower rows are padded to it in any order but XLA's own.
_PLATFORMS, _LANES = ('tpu',), 128
# What `sharding` consists of.
_PLACES = jax.sharding.Mesh, jax.sharding.Sharding, jax.Device


def of(name: str, leaf: Any, where: Any, orders: Mapping[str, tuple[int, ...]]) -> Any:
  """Returns the device and the order in memory of a parameter, for `jax.device_put`.

  A program whose loop reads a parameter in another order than it was passed in copies it before the
  loop and stores the copy: 96 MiB more per layer for a transformer of 7 billion parameters.
  `orders` are axes, the slowest varying first, by patterns of paths with slashes; `where` is a
  device, a `jax.sharding.Sharding`, or None for the default device.
  """
  order = next((order for pattern, order in orders.items() if re.fullmatch(pattern, name)), None)
  if order is None or len(order) != len(leaf.shape) or leaf.shape[-1] % _LANES:
    return where
  if not isinstance(where, jax.sharding.Sharding):
    where = jax.sharding.SingleDeviceSharding(where or jax.device_put(np.zeros(())).device)
  applies = all(device.platform in _PLATFORMS for device in where.device_set)
  return Format(Layout(order), where) if applies else where


def places(sharding: Any, expected: Params, axes: Mapping[str, int]) -> dict[str, Any]:
  """Returns device or sharding of parameters by name; ValueError for a wrong or uneven `sharding`.
  """
  for place in jax.tree.leaves(sharding):
    fields.require(isinstance(place, _PLACES), 'sharding', place,
                   'a mesh of make_mesh, a device, a jax.sharding.Sharding or a tree of those')
  if isinstance(sharding, jax.sharding.Mesh):
    sharding = sharding_lib.split(expected, axes, sharding)
  return {} if sharding is None else weights.named(jax.tree.broadcast(sharding, expected))


def is_one_cpu(where: Any) -> bool:
  """Whether a device, a sharding without a mesh, or with None the default device, is one CPU."""
  if isinstance(where, jax.sharding.NamedSharding):  # It divides the axes of the array as stored.
    return False
  where = where or jax.device_put(np.zeros(())).device
  devices = getattr(where, 'device_set', {where})
  return len(devices) == 1 and next(iter(devices)).platform == 'cpu'
