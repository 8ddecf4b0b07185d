"""Kinds of networks, which the families register."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

from cspd_jax.core import naming

Params = Any

# Platforms where programs read parameters in the order of `Kind.orders`, and the numbers in a row
# of a tile there: narrower rows are padded to it in any order but XLA's own.
_PLATFORMS, _LANES = ('tpu',), 128


class Kind(NamedTuple):
  """A kind of network.

  Attributes:
    config: the dataclass with its sizes.
    init: `(config, key) -> params`, which determines the expected shapes.
    split: which parameters can be divided over devices.
    matrices: which parameters can be int8, by regular expressions for their names, and the number
      of their input axes.
    orders: the order of axes in the memory of a TPU, by regular expressions for names; see
      `placement`.
  """

  config: type[Any]
  init: Callable[[Any, jax.Array], Params]
  split: Mapping[str, int] = MappingProxyType({})
  matrices: Mapping[str, int] = MappingProxyType({})
  orders: Mapping[str, tuple[int, ...]] = MappingProxyType({})


# Kinds by name; families add theirs with `register`.
KINDS: dict[str, Kind] = {}


def register(name: str, kind: Kind) -> None:
  """Registers a kind of network.

  Raises:
    ValueError: if another kind has this name.
  """
  naming.add(KINDS, 'kind', name, kind)


def expected(kind: Kind, config: Any) -> Params:
  """Returns the shapes and dtypes of the parameters of a network."""
  return jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))


def placement(name: str, leaf: Any, where: Any, orders: Mapping[str, tuple[int, ...]]) -> Any:
  """Returns the device and the order in memory of a parameter, for `jax.device_put`.

  A program whose loop reads a parameter in another order than it was passed in copies it before the
  loop and stores the copy: 96 MiB more per layer for a transformer of 7 billion parameters.

  Args:
    name: path of the parameter, with slashes.
    leaf: the parameter, or its shape and dtype.
    where: a device, a `jax.sharding.Sharding`, or None for the default device.
    orders: axes, the slowest varying first, by patterns of paths.

  Returns:
    `where` itself, or with the order of the axes.
  """
  order = next((order for pattern, order in orders.items() if re.fullmatch(pattern, name)), None)
  if order is None or len(order) != len(leaf.shape) or leaf.shape[-1] % _LANES:
    return where
  if not isinstance(where, jax.sharding.Sharding):
    where = jax.sharding.SingleDeviceSharding(where or jax.device_put(np.zeros(())).device)
  applies = all(device.platform in _PLATFORMS for device in where.device_set)
  return Format(Layout(order), where) if applies else where
