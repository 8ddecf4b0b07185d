"""Kinds of networks, and networks saved and loaded, each in a folder of its own.

A folder holds `model.json` (the kind of network, the sizes in its config, the format version,
metadata and a list of the other files with their digests), which is read first, and the parameters
as safetensors; see `files.weights`. `families.folder` builds models from them.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import safetensors

from cspd_jax.core import matrices, naming
from cspd_jax.core.tracing import usual_promotion
from cspd_jax.files import atomic, output, paths, placement, reading, weights

FILE, _FORMAT = 'model.json', 1
_REMEDY = 'copy or convert the model again'
Params = Any

ASSETS = pathlib.Path(__file__).parents[1] / 'assets'
DEFAULT = 'emoji'  # The shipped model that is loaded by default.


class Kind(NamedTuple):
  """A kind of network; properties of parameters are by regular expressions for their names."""

  config: type[Any]  # The dataclass with its sizes.
  init: Callable[[Any, jax.Array], Params]  # `(config, key)`; determines the expected shapes.
  split: Mapping[str, int] = MappingProxyType({})  # Which can be divided over devices.
  matrices: Mapping[str, int] = MappingProxyType({})  # Which can be int8: number of input axes.
  orders: Mapping[str, tuple[int, ...]] = MappingProxyType({})  # For TPUs; see `placement.of`.
  # Which a decoder multiplies by few rows: number of input axes; see `for_decoding`.
  products: Mapping[str, int] = MappingProxyType({})


# Kinds by name; families add theirs with `register`.
KINDS: dict[str, Kind] = {}


def register(name: str, kind: Kind) -> None:
  """Registers a kind of network; raises ValueError if another kind has this name."""
  naming.add(KINDS, 'kind', name, kind)


@usual_promotion
def _expected(kind: Kind, config: Any) -> Params:
  """Returns the shapes and dtypes of the parameters of a network."""
  return jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))


def for_decoding(kind: str, params: Params) -> Params:
  """Returns parameters of a network as decoders read them fastest on the device that holds them.

  On one CPU, the matrices of `Kind.products` are in the forms of `matrices.by_outputs`.
  """
  is_on_cpu = all(isinstance(leaf, jax.Array) and placement.is_one_cpu(leaf.sharding)
                  for leaf in jax.tree.leaves(params))
  products = matrices.inputs(KINDS[kind].products)
  return matrices.by_outputs(params, products) if is_on_cpu else params


class CheckpointError(ValueError):
  """A checkpoint that cannot be saved or loaded; the message lists all problems."""


def _described(folder: pathlib.Path) -> tuple[str, Any, dict[str, Any], dict[str, str]]:
  """Returns kind, config, metadata and digests in `model.json`; compares the sizes of the files."""
  with _refused():
    content = reading.json(folder / FILE, _REMEDY)
  try:
    version, kind = content['format'], reading.entry(content, 'kind', str)
    fields, metadata = (reading.entry(content, name, dict) for name in ('config', 'metadata'))
    if version == _FORMAT:
      sizes_by_name = reading.entry(content, 'files', dict)
      saved_sizes = {name: int(size) for name, size in sizes_by_name.items()}
      digests = reading.entry(content, 'blake2b', dict)
      _check_names(folder, list(saved_sizes), links=True)
      if unlisted := sorted(digests.keys() ^ saved_sizes.keys()):
        raise ValueError(f'{unlisted[0]!r} has no size or no digest')
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise _damaged(folder / FILE, f'{type(error).__name__}: {error}') from error
  if version != _FORMAT:
    raise CheckpointError(f'{folder} has format {version!r:.80}; this version of cspd_jax reads '
                          f'format {_FORMAT}, so {_REMEDY}.')
  sizes = weights.file_sizes(folder)
  wrong = [f'{name} ' + ('is missing' if name not in sizes else reading.placeholder(folder / name)
                         or f'has {sizes[name]} bytes instead of {size}')
           for name, size in saved_sizes.items() if sizes.get(name) != size]
  if wrong:
    raise _damaged(folder, '; '.join(wrong))
  config_class = _kind_of(kind, f'{folder}: ').config
  supported = {field.name for field in dataclasses.fields(config_class)}
  if unknown := sorted(set(fields) - supported):
    raise CheckpointError(
        f'{folder}: its config has fields that {config_class.__name__} does not have: '
        f'{", ".join(unknown)}; supported are: {", ".join(sorted(supported))}.')
  try:
    return kind, config_class(**fields), metadata, digests
  except (TypeError, ValueError) as error:
    raise CheckpointError(f'{folder}: its config is not valid: {str(error):.1000}') from error


def _own(folder: pathlib.Path) -> list[str]:
  """Lists the files that `save` wrote into a folder; CheckpointError if another file is FILE."""
  if not os.path.lexists(folder / FILE):
    return []
  try:
    content = reading.json(folder / FILE, 'no network was saved there')
    if not isinstance(content['kind'], str):
      raise ValueError('its kind is not a string')
    names = list(content['files'])
    _check_names(folder, names)
  except (ValueError, KeyError, TypeError) as error:
    raise CheckpointError(f'path is {folder}, which exists and is not a checkpoint; choose another '
                          f'folder or remove it ({type(error).__name__}: {error}).') from error
  return [*names, FILE]


def _entries(folder: pathlib.Path, parts: Iterable[str]) -> dict[str, Any]:
  """Returns, for `output`, the files of networks in a folder, and what is or may be in their way.

  The parts are folders in it; '.' is the folder itself.
  """
  earlier, names = dict[str, str](), list[str]()
  for part in parts:
    place, path = folder / part, pathlib.PurePath(part)
    names.append((path / FILE).as_posix())
    if place.is_dir() and not place.is_symlink():
      earlier |= dict.fromkeys(((path / name).as_posix() for name in _own(place)), '')
      names += [(path / name).as_posix() for name in os.listdir(place)
                if weights.NAMES.fullmatch(name)]
  return dict(names=names, earlier=earlier)


def _check_names(folder: pathlib.Path, names: Sequence[Any], links: bool = False) -> None:
  """Raises ValueError unless these are names of files of parameters in a folder."""
  for name in names:
    paths.inside(folder, name, folder / FILE, links=links)
    if not weights.NAMES.fullmatch(name):
      raise ValueError(f'{folder / FILE} holds the name {paths.shown(name)}, which is not a file '
                       'of parameters')


def _kind_of(kind: str, where: str = '') -> Kind:
  """Returns the kind of this name; raises CheckpointError if no family registered it."""
  if kind not in KINDS:
    raise CheckpointError(
        f'{where}kind is {kind!r:.80}; it must be one of: {", ".join(sorted(KINDS))}.')
  return KINDS[kind]


@contextlib.contextmanager
def _refused(where: str = '') -> Iterator[None]:
  """Turns ValueErrors of the block into CheckpointErrors."""
  try:
    yield
  except CheckpointError:
    raise
  except ValueError as error:
    raise CheckpointError(f'{where}{error}') from error


def _damaged(path: pathlib.Path, reason: str) -> CheckpointError:
  return CheckpointError(f'{path} is damaged or incomplete ({reason[:1000]}); {_REMEDY}.')


class Loaded(NamedTuple):
  """A loaded network of a kind of `KINDS`; metadata is the argument `extra` of `save`."""

  kind: str
  config: Any
  params: Params
  metadata: dict[str, Any]


def shipped() -> list[str]:
  """Returns the names of the networks in the package, such as 'demo/target'."""
  return sorted(file.parent.relative_to(ASSETS).as_posix() for file in ASSETS.glob(f'*/*/{FILE}'))


def save(path: str | os.PathLike, kind: str, config: Any, params: Params, *, dtype: Any = None,
         extra: Mapping[str, Any] | None = None, allow_nonfinite: bool = False) -> None:
  """Saves a network, and replaces an older one in the same folder, completely or not at all.

  The kind is a key of `KINDS`, and the config has the network's sizes. `dtype` is the stored dtype
  of floating-point parameters, None preserves theirs; `extra` are JSON values by name, which `load`
  returns as metadata; `allow_nonfinite` is whether parameters may be NaN or infinite.

  Raises:
    CheckpointError: if the parameters do not belong to the config or are not finite, `dtype` is not
      a floating-point dtype, or another process is writing there, and for a file in the way that
      `save` did not write; others in the folder stay.
  """
  _check_config(kind, config)
  params = matrices.plain(params)
  _check_shapes(f'params for a {kind!r} model', _expected(KINDS[kind], config), params)
  save_groups(path, kind, config, weights.divided(params), dtype=dtype, extra=extra,
              allow_nonfinite=allow_nonfinite)


def save_groups(
    path: str | os.PathLike, kind: str, config: Any, groups: Sequence[weights.Group], *,
    state: Mapping[str, Any] | None = None, dtype: Any = None,
    extra: Mapping[str, Any] | None = None, allow_nonfinite: bool = False,
    progress: Callable[[int, int], None] | None = None) -> None:
  """Saves a network like `save`, but builds one group of parameters after the other.

  The groups are functions that each return a part of the parameters' tree. Those that a killed
  process wrote are reused by the next one with the same `state`, JSON values by name on which they
  depend, and a network that is there with this state stays; None starts again. `progress`
  is called with the numbers of groups so far and of all.
  """
  _check_config(kind, config)
  try:
    json.dumps(extra)
  except TypeError as error:
    raise CheckpointError(f'extra must hold JSON values only: {error}.') from error
  with _refused():
    weights.checked_dtype(dtype)
    folder = paths.folder('path', path).resolve()
    recover(folder)
    if state is not None and _is_written(folder, state):
      return
    with output.filling(folder, {} if state is None else dict(state), last=FILE,
                        **_entries(folder, ['.'])) as new:
      write(new, kind, config, groups, extra, state=state, dtype=dtype,
            allow_nonfinite=allow_nonfinite, progress=progress)


def write(folder: pathlib.Path, kind: str, config: Any, groups: Sequence[weights.Group],
          extra: Mapping[str, Any] | None = None, *, state: Mapping[str, Any] | None = None,
          **options: Any) -> None:
  """Writes a network, as `save_groups`, into a folder of `joining` unless it is complete there."""
  if (folder / FILE).exists():
    return
  digests = weights.write(folder, _expected(KINDS[kind], config), groups, **options)
  made_of = {} if state is None else dict(state=_digest(state))
  atomic.write_json(folder / FILE, {
      'format': _FORMAT, 'kind': kind, 'config': dataclasses.asdict(config),
      'metadata': dict(extra or {}), 'files': weights.file_sizes(folder), 'blake2b': digests,
      **made_of})


def _digest(state: Mapping[str, Any]) -> str:
  return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _is_written(folder: pathlib.Path, state: Mapping[str, Any]) -> bool:
  """Whether a folder holds the network of a state, every file as it was saved."""
  try:
    content = reading.json(folder / FILE, _REMEDY)
    names = list(content['blake2b'])
    _check_names(folder, names)
    return content.get('state') == _digest(state) and (
        weights.digests(folder, names) == content['blake2b'])
  except (ValueError, KeyError, TypeError, OSError):
    return False


@contextlib.contextmanager
def joining(folder: pathlib.Path, states: Mapping[str, Mapping[str, Any]], file: str,
            content: Callable[[], Any]) -> Iterator[dict[str, pathlib.Path]]:
  """Yields folders to `write` networks into, which are moved into a folder when the block ends.

  Args:
    folder: absolute; the folders in it that exist are filled.
    states: all that determines each network, by the name of its folder. One that is there with its
      state stays, and is not among the folders.
    file: the name of a file in the folder, which is moved last.
    content: returns its JSON content when all networks are complete.
  """
  with _refused():
    recover(folder)
    states = {name: state for name, state in states.items()
              if not _is_written(folder / name, state)}
    entries = _entries(folder, states)
    entries['earlier'][file] = ''
    with output.filling(folder, dict(states), last=file, **entries) as work:
      for name in states:
        (work / name).mkdir(exist_ok=True)
      yield {name: work / name for name in states}
      atomic.write_json(work / file, content())


def recover(folder: pathlib.Path) -> None:
  """Completes the moves of a program that was killed in a folder of networks or of a model."""
  with _refused():
    for place in (folder.parent, folder):
      output.finish(place)


def check_place(path: str | os.PathLike, parts: Iterable[str] = ('.',),
                resumes: bool = False) -> None:
  """Raises CheckpointError if networks cannot be saved in these folders in a folder.

  With `resumes` it may hold unfinished work of a run with a state.
  """
  with _refused():
    folder = paths.folder('path', path).resolve()
    recover(folder)
    output.check(folder, None if resumes else {}, **_entries(folder, parts))


def load(path_or_name: str | os.PathLike, *, dtype: Any = None, quantize: str | None = None,
         sharding: Any = None, verify: bool = True, allow_nonfinite: bool = False,
         for_decoding: bool = False, name: str = 'path_or_name') -> Loaded:
  """Loads a network: a folder written by `save`, or a shipped network by its name.

  Args:
    dtype: the dtype of the floating-point parameters; None preserves the stored one.
    quantize: 'int8' turns the matrices of the layers into `matrices.Int8`; None leaves them.
    sharding: a device, a `jax.sharding.Sharding`, a tree of those like the parameters, or a mesh of
      `sharding.make_mesh`, divided as their kind specifies. None means the default device.
    verify: whether to read every file twice and compare its digest with the stored one.
    allow_nonfinite: whether parameters may be NaN or infinite.
    for_decoding: whether the function `for_decoding` converts the parameters.
    name: name of the argument that specifies the network, for messages.

  Raises:
    CheckpointError: if it does not exist or is damaged, or its parameters do not belong to its
      config or are not finite.
    ValueError: for parameters that cannot be divided over the mesh or have no int8 matrices,
      another `dtype` or `sharding`, or without a device.
  """
  weights.checked_dtype(dtype, in_jax=True)
  folder = _find(path_or_name, name)
  kind, config, metadata, digests = _described(folder)
  expected = _expected(KINDS[kind], config)
  inputs = matrices.check(quantize, kind, KINDS[kind].matrices)
  devices = placement.places(sharding, expected, KINDS[kind].split)
  is_for_cpu = for_decoding and all(map(placement.is_one_cpu, {*devices.values()} or {None}))
  forms = expected
  if is_for_cpu:  # Shapes in the forms of a CPU, but of int8 matrices.
    products = matrices.inputs(KINDS[kind].products)
    forms = jax.eval_shape(lambda params: matrices.by_outputs(
        params, lambda name: None if inputs(name) else products(name)), expected)
  stored = _stored(folder, kind, expected, digests, verify)

  def read(leaf, index=None, dtype=None):
    with _readable(folder):
      array = leaf.read(index)
    with _refused(f'{folder}: '):
      return weights.cast({leaf.name: array}, dtype, allow_nonfinite=allow_nonfinite)[leaf.name]

  def put(path, node):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    if isinstance(node, matrices.Joined):
      layer = name.removesuffix(matrices.joined_name(node.names))
      return jax.device_put(matrices.joined({
          each: read(stored[layer + each], dtype=dtype) for each in node.names}),
                            devices.get(layer + node.names[0]))
    if matrices.is_form(node):
      return jax.device_put(matrices.output_major(
          read(stored[name], dtype=dtype), node.num_inputs), devices.get(name))
    leaf, where = stored[name], devices.get(name)
    if num_inputs := inputs(name):
      return matrices.put(matrices.quantized(read(leaf), num_inputs), num_inputs, where)
    place = placement.of(leaf.name, leaf, where, KINDS[kind].orders)
    if isinstance(where, jax.sharding.Sharding) and not where.is_fully_replicated:
      # Every process reads the slices of its own devices only.
      return jax.make_array_from_callback(leaf.shape, place, lambda index: read(leaf, index, dtype))
    return jax.device_put(read(leaf, dtype=dtype), place)

  params = jax.tree_util.tree_map_with_path(put, forms, is_leaf=matrices.is_form)
  return Loaded(kind, config, params, metadata)


def opened(path_or_name: str | os.PathLike) -> Loaded:
  """Opens a network: its parameters are `weights.Leaf` by name, which are read when they are used.

  Arguments and errors as for `load`, which also compares the files with their digests.
  """
  folder = _find(path_or_name)
  kind, config, metadata, digests = _described(folder)
  stored = _stored(folder, kind, _expected(KINDS[kind], config), digests, verify=True)
  return Loaded(kind, config, stored, metadata)


def _stored(folder: pathlib.Path, kind: str, expected: Params, digests: Mapping[str, str],
            verify: bool) -> dict[str, weights.Leaf]:
  """Returns the parameters in the files of a folder by name; only headers are read."""
  actual = weights.digests(folder, digests) if verify else digests
  if wrong := [name for name in digests if actual[name] != digests[name]]:
    raise _damaged(folder, f'{", ".join(wrong)}: other bytes than were saved')
  with _readable(folder):
    stored = weights.opened(folder, digests)
  _check_shapes(f'{folder}, a {kind!r} model', expected, stored)
  return stored


def describe(path_or_name: str | os.PathLike, *, name: str = 'path_or_name',
             remedy: str | None = None) -> Loaded:
  """Describes a network: its parameters are the shapes and dtypes that its config requires.

  Arguments and errors as for `load`. `remedy` is what to do without a network there, where no
  shipped one serves; None names those.
  """
  kind, config, metadata, *_ = _described(_find(path_or_name, name, remedy))
  return Loaded(kind, config, _expected(KINDS[kind], config), metadata)


def sketch(kind: str, config: Any) -> Loaded:
  """Describes a network that is not stored; CheckpointError if the kind is not registered."""
  return Loaded(kind, config, _expected(_kind_of(kind), config), {})


def _find(path_or_name: str | os.PathLike, name: str = 'path_or_name', remedy: str | None = None
          ) -> pathlib.Path:
  """Returns the folder of a checkpoint; a shipped name has priority over a folder of that name."""
  names = remedy or f'shipped models: {", ".join(shipped()) or "none"}'
  if str(path_or_name) in shipped():
    return ASSETS / str(path_or_name)
  with _refused():
    folder = paths.find(name, path_or_name)
    recover(folder)
  if not folder.exists():
    raise CheckpointError(
        f'{name} is {paths.shown(path_or_name)}: there is no such folder'
        f'{"" if remedy else ", and no shipped model of that name"}; {names}.')
  if not (folder / FILE).is_file():
    raise CheckpointError(f'{name} is {paths.shown(path_or_name)}, which is not a checkpoint '
                          'folder: it has no model.json; published .pt and .safetensors files are '
                          f'converted with `cspd-convert`; {names}.')
  return folder


def _check_config(kind: str, config: Any) -> None:
  config_class = _kind_of(kind).config
  if not isinstance(config, config_class):
    raise CheckpointError(f'config is a {type(config).__name__}; a {kind!r} model requires a '
                          f'{config_class.__name__}.')


@contextlib.contextmanager
def _readable(folder: pathlib.Path) -> Iterator[None]:
  """Turns errors of files that cannot be read into CheckpointErrors."""
  try:
    yield
  except (safetensors.SafetensorError, OSError, ValueError) as error:
    raise _damaged(folder, str(error)) from error


def _check_shapes(network: str, expected: Params, params: Params) -> None:
  """Raises one CheckpointError with every difference between the shapes of two trees."""
  if problems := weights.differences(expected, params):
    raise CheckpointError(f'{network}: parameters do not belong to the config:\n  ' +
                          '\n  '.join(problems))
