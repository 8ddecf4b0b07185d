"""Kinds of networks, and the description of a stored one, `model.json`, read before other files."""

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

from cspd_jax.core import naming
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.files import atomic, paths, reading, weights

FILE = 'model.json'
FORMAT = 1
REMEDY = 'copy or convert the model again'
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
  """Registers a kind of network; raises ValueError if another kind has this name."""
  naming.add(KINDS, 'kind', name, kind)


@usual_promotion
def expected(kind: Kind, config: Any) -> Params:
  """Returns the shapes and dtypes of the parameters of a network."""
  return jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))


def placement(name: str, leaf: Any, where: Any, orders: Mapping[str, tuple[int, ...]]) -> Any:
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


class CheckpointError(ValueError):
  """A checkpoint that cannot be saved or loaded; the message lists all problems."""


class Description(NamedTuple):
  """The content of `model.json`: a key of `KINDS`, the config, and the argument `extra` of `save`.

  `digests` are those of the files of parameters, by name.
  """

  kind: str
  config: Any
  metadata: dict[str, Any]
  digests: dict[str, str]


def verify(folder: pathlib.Path, digests: Mapping[str, str]) -> None:
  """Raises CheckpointError if a file does not have its digest."""
  actual = weights.digests(folder, digests)
  if wrong := [name for name in digests if actual[name] != digests[name]]:
    raise damaged(folder, f'{", ".join(wrong)}: other bytes than were saved')


def read(folder: pathlib.Path) -> Description:
  """Reads `model.json`, and compares the sizes of the files with it."""
  with refused():
    content = reading.json(folder / FILE, REMEDY)
  try:
    version, kind = content['format'], reading.entry(content, 'kind', str)
    fields, metadata = (reading.entry(content, name, dict) for name in ('config', 'metadata'))
    if version == FORMAT:
      sizes_by_name = reading.entry(content, 'files', dict)
      saved_sizes = {name: int(size) for name, size in sizes_by_name.items()}
      digests = reading.entry(content, 'blake2b', dict)
      _check_names(folder, list(saved_sizes), links=True)
      if unlisted := sorted(digests.keys() ^ saved_sizes.keys()):
        raise ValueError(f'{unlisted[0]!r} has no size or no digest')
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise damaged(folder / FILE, f'{type(error).__name__}: {error}') from error
  if version != FORMAT:
    raise CheckpointError(
        f'{folder} has format {version!r:.80}; this version of cspd_jax reads format {FORMAT}, so '
        f'{REMEDY}.')
  sizes = weights.file_sizes(folder)
  if wrong := [_other_than_saved(folder / name, name, sizes.get(name), size)
               for name, size in saved_sizes.items() if sizes.get(name) != size]:
    raise damaged(folder, '; '.join(wrong))
  config_class = kind_of(kind, f'{folder}: ').config
  supported = {field.name for field in dataclasses.fields(config_class)}
  if unknown := sorted(set(fields) - supported):
    raise CheckpointError(
        f'{folder}: its config has fields that {config_class.__name__} does not have: '
        f'{", ".join(unknown)}; supported are: {", ".join(sorted(supported))}.')
  try:
    return Description(kind, config_class(**fields), metadata, digests)
  except (TypeError, ValueError) as error:
    raise CheckpointError(f'{folder}: its config is not valid: {str(error):.1000}') from error


def _other_than_saved(path: pathlib.Path, name: str, size: int | None, saved: int) -> str:
  """Returns what is wrong with a file that does not have the size with which it was saved."""
  if size is None:
    return f'{name} is missing'
  return f'{name} {reading.placeholder(path) or f"has {size} bytes instead of {saved}"}'


def listed(folder: pathlib.Path) -> list[str]:
  """Lists the files that `save` wrote into a folder; raises CheckpointError for other folders."""
  try:
    content = reading.json(folder / FILE, 'save did not write it')
    if not isinstance(content['kind'], str):
      raise ValueError('its kind is not a string')
    names = list(content['files'])
    _check_names(folder, names)
  except (ValueError, KeyError, TypeError) as error:
    raise CheckpointError(
        f'path is {folder}, which exists and is not a checkpoint; choose another folder or remove '
        f'it ({type(error).__name__}: {error}).') from error
  left = [path.name for path in atomic.leftovers(folder / FILE)]
  return [*names, *left, FILE]


def _check_names(folder: pathlib.Path, names: Sequence[Any], links: bool = False) -> None:
  """Raises ValueError unless these are names of files of parameters in a folder."""
  for name in names:
    paths.inside(folder, name, folder / FILE, links=links)
    if not weights.NAMES.fullmatch(name):
      raise ValueError(f'{folder / FILE} holds the name {paths.shown(name)}, which is not a file '
                       'of parameters')


def kind_of(kind: str, where: str = '') -> Kind:
  """Returns the kind of this name; raises CheckpointError if no family registered it."""
  if kind not in KINDS:
    raise CheckpointError(
        f'{where}kind is {kind!r:.80}; it must be one of: {", ".join(sorted(KINDS))}.')
  return KINDS[kind]


@contextlib.contextmanager
def refused(where: str = '') -> Iterator[None]:
  """Turns ValueErrors of the block into CheckpointErrors."""
  try:
    yield
  except CheckpointError:
    raise
  except ValueError as error:
    raise CheckpointError(f'{where}{error}') from error


def damaged(path: pathlib.Path, reason: str) -> CheckpointError:
  """Returns the error for a file that cannot be read."""
  return CheckpointError(
      f'{path} is damaged or incomplete ({reason[:1000]}); {REMEDY}.')
