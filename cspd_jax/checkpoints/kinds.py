"""Kinds of networks, as the families register them."""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

from cspd_jax.core import registry

Params = Any

# Where this is done, and the numbers of a row of a tile: what is narrower is padded to so many in
# any order but XLA's own.
_PLATFORMS, _LANES = ('tpu',), 128


class Kind(NamedTuple):
  """A kind of network.

  Attributes:
    config: the dataclass with its sizes.
    init: `(config, key) -> params`, from which the expected shapes are taken.
    split: what of the parameters can be divided over devices; see `sharding.split`.
    matrices: which of them can be of 8 bits, by regular expressions for their names, and how many
      of their axes are inputs; see `checkpoints.int8`.
    orders: how the axes of which lie in the memory of a TPU; see `placement`.
  """

  config: type[Any]
  init: Callable[[Any, jax.Array], Params]
  split: Mapping[str, int] = MappingProxyType({})
  matrices: Mapping[str, int] = MappingProxyType({})
  orders: Mapping[str, tuple[int, ...]] = MappingProxyType({})


# What `kind` may be; families add theirs with `register`.
KINDS: dict[str, Kind] = {}

# Kinds of networks and families that had other names when folders were written, by these names.
# Folders are read for ever, so that no entry is removed.
RENAMED = {'unified': 'early_fusion'}


def current(name: str) -> str:
  """The name of today of a kind or a family that a folder may have by its old one."""
  return RENAMED.get(name, name)


def check_new(what: str, name: str) -> None:
  """Raises ValueError if a name is one that folders have for something else."""
  if name in RENAMED:
    raise ValueError(f'{what} is {name!r}, which folders of earlier versions call what is '
                     f'{RENAMED[name]!r} now; choose another name.')


def register(name: str, kind: Kind) -> None:
  """Registers a kind of network.

  Raises:
    ValueError: if another kind has this name, or had it.
  """
  check_new('kind', name)
  registry.add(KINDS, 'kind', name, kind)


def expected(kind: Kind, config: Any) -> Params:
  """Shapes and dtypes of the parameters of a network."""
  return jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))


def placement(name: str, leaf: Any, where: Any, orders: Mapping[str, tuple[int, ...]]) -> Any:
  """Where and how a parameter lies, for `jax.device_put` or a described argument.

  Args:
    name: its path, with slashes.
    leaf: the parameter, or what describes it.
    where: a device, a `jax.sharding.Sharding`, or None for the default device.
    orders: patterns of paths, and the axes of what they match, those that change most slowly first.

  Returns:
    `where` itself, or with the order of the axes.
  """
  order = next((order for pattern, order in orders.items() if re.fullmatch(pattern, name)), None)
  if order is None or len(order) != leaf.ndim or leaf.shape[-1] % _LANES:
    return where
  if not isinstance(where, jax.sharding.Sharding):
    where = jax.sharding.SingleDeviceSharding(where or jax.device_put(np.zeros(())).device)
  is_meant = all(device.platform in _PLATFORMS for device in where.device_set)
  return Format(Layout(order), where) if is_meant else where
