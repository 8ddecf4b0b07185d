"""Models on disk: one folder that refers to the networks of a model, and its default decoders.

`families.model_file` describes its file. A network is a folder of `files.store`, inside the
model's folder or elsewhere.
"""

import dataclasses
import functools
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cspd_jax.core import compilations, fields, naming
from cspd_jax.core.decoder import AnyDecoder
from cspd_jax.core.spec import Spec
from cspd_jax.decoding.base import Target
from cspd_jax.families import family as family_lib
from cspd_jax.families.model_file import FILE, read, save
from cspd_jax.files import paths, store, weights
from cspd_jax.files.store import CheckpointError, Loaded
from cspd_jax.generation import defaults as defaults_lib, memory
from cspd_jax.generation.cascade import Cascade
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import Kept
from cspd_jax.models import causal

# Networks that decoding of tokens does not use; they stay on one device.
_ALONE = ('tokenizer', 'text')
# The named arguments of `load`, for suggestions.
_OPTIONS = ('dtype', 'quantize', 'cache_dtype', 'sharding', 'verify', 'allow_nonfinite', 'grid',
            'progress')


def shipped() -> list[str]:
  """Returns the names of the models that are part of the package."""
  return sorted(path.parent.name for path in store.ASSETS.glob(f'*/{FILE}'))


def load(name_or_folder: str | os.PathLike = store.DEFAULT, *, dtype: Any = None,
         quantize: str | None = None, cache_dtype: str | None = None, sharding: Any = None,
         verify: bool = True, allow_nonfinite: bool = False, grid: tuple[int, int] | None = None,
         progress: bool = True, **parts: str | os.PathLike | Loaded | None) -> Model:
  """Loads a model.

  Args:
    name_or_folder: the name of a shipped model, by default the text-to-image model 'emoji', a
      folder that `cspd-convert` or `families.save` wrote, or the folder of a target alone.
    dtype: dtype of the floating-point parameters. None uses the dtype of the model's defaults, or
      else the stored one.
    quantize: 'int8' quantizes the matrices of the layers of the target and of a prior; embeddings,
      norms and the output matrix stay in `dtype`. Exact decoders are exact with respect to the
      result.
    cache_dtype: 'int8' quantizes the keys and values of the target and of a prior, likewise.
    sharding: a mesh of `sharding.make_mesh`: images are divided over its groups of devices, and
      the parameters of target and drafters over the devices of a group. Or the placement of the
      target's parameters: a device, a `jax.sharding.Sharding`, or a tree of these like the
      parameters. None means the default device.
    verify: whether to compare every file with its digest.
    allow_nonfinite: whether parameters may be NaN or infinite.
    grid: rows and columns of tokens of an image, if the model supports several sizes.
    progress: whether a line on stderr reports loading that takes longer than five seconds.
    **parts: networks that replace the model's own, by role, such as `draft=` or `tokenizer=`:
      a folder, a loaded network, or None to leave it out.

  Returns:
    The model.

  Raises:
    CheckpointError: if the model does not exist, has no target yet, or one of its networks is
      missing, damaged or of the wrong kind.
    ValueError: if the networks do not belong together, a role is unknown, `dtype` is not a
      floating-point dtype, the target does not support `quantize` or `cache_dtype`, the model does
      not support `grid`, or a network cannot be divided over the mesh.
  """
  mesh = sharding if isinstance(sharding, jax.sharding.Mesh) else None
  folder = find(name_or_folder)
  description = read(folder)
  family = family_lib.get(description['family'])
  family.check_parts(parts, _OPTIONS)
  resized = _resize(grid, family)
  defaults = dict(description['defaults'])
  stored_dtype = defaults.pop('dtype', None)
  dtype = weights.checked_dtype(stored_dtype if dtype is None else dtype, in_jax=True)
  if quantize is not None and isinstance(parts.get('target'), Loaded):
    raise ValueError(f'quantize is {quantize!r}, but target is loaded already; pass its folder.')
  devices = {'target': sharding} | dict.fromkeys(_ALONE)
  options = dict(dtype=dtype, verify=verify, allow_nonfinite=allow_nonfinite)
  loaded: dict[str, Loaded] = {}
  named = {role: part for role, part in (description['parts'] | parts).items() if part is not None}
  with compilations.told(
      lambda: f'loading {folder.name}: {len(loaded)} of {len(named)} networks loaded', progress):
    for role, part in named.items():
      loaded[role] = _network(
          role, part if role in parts else folder / part, family, **options,
          quantize=quantize if role in ('target', 'prior') else None,
          sharding=devices.get(role, mesh))
  if 'target' in parts and 'target' not in loaded:
    raise ValueError(f'target is None, but model {folder.name!r} requires a target; leave the '
                     'argument out or pass a folder.')
  if 'target' not in loaded:
    raise CheckpointError(f'model {folder.name!r} has no target yet; convert one into its folder '
                          f'with cspd-convert --output={folder}, or pass target=.')
  model = family.build(family_lib.Parts(folder.name, resized(loaded), defaults))
  cached = lambda part: part if cache_dtype is None else with_cache_dtype(part, cache_dtype)
  second = model.second if isinstance(model, Cascade) else model
  second = cached(dataclasses.replace(second, mesh=mesh, remedy=functools.partial(
      family.remedy, str(name_or_folder), second.config)))
  if not isinstance(model, Cascade):
    return second
  # A prior has the advice of `Parts.build_prior`: its networks have other roles in this folder.
  both: Any = Cascade(cached(dataclasses.replace(model.prior, mesh=mesh)), second)
  return both  # With the interface of a model.


def with_cache_dtype(model: Model, dtype: str) -> Model:
  """Returns a model with keys and values in 'int8': another target; ValueError without them."""
  fields.require(dtype == 'int8', 'cache_dtype', dtype,
                 "'int8', or None for the dtype of the parameters")
  if not memory.has_cache(model):
    raise ValueError(f"cache_dtype is 'int8', but a {model.family!r} model has no cache; leave it "
                     'out.')
  if model.cache_dtype == dtype:
    return model
  if model.prefix is not None:
    raise ValueError(f'model {model.name!r} has a prefix; pass the model without one.')

  def target(guided: bool) -> Any:
    built = model.target(guided)
    int8 = lambda part: part._replace(prefill=causal.with_int8_cache(part.prefill))
    return int8(built) if isinstance(built, Target) else built._replace(cached=int8(built.cached))

  return dataclasses.replace(model, build_target=target, cache_dtype=dtype, kept=Kept())


def _network(role: str, part: Any, family: family_lib.Family, **options: Any) -> Loaded:
  """Loads a network unless it is loaded; raises CheckpointError if its kind does not fit `role`."""
  if isinstance(part, Loaded):
    part = part._replace(params=store.for_decoding(part.kind, part.params))
  else:
    part = store.load(part, name=role, for_decoding=True, **options)
  if part.kind not in family.roles.get(role, ()):
    raise CheckpointError(f'{role} is a {part.kind!r} network; in a {family.name!r} model it must '
                          f'be of kind: {", ".join(family.roles.get(role, ("none",)))}.')
  return part


def _resize(grid: Any, family: family_lib.Family) -> Callable[[dict[str, Loaded]], Any]:
  """Returns the function that adapts networks to a grid; raises ValueError for a wrong grid."""
  resize = family.resize
  if grid is None:
    return lambda loaded: loaded
  if resize is None:
    raise ValueError(f'grid is {grid}, but a {family.name!r} model generates images of one size; '
                     'leave it out.')
  fields.require(
      isinstance(grid, tuple | list) and len(grid) == 2
      and all(isinstance(size, int) and size > 0 for size in grid),
      'grid', grid, 'rows and columns of tokens, such as (32, 48)')
  return lambda loaded: resize(loaded, (grid[0], grid[1]))


def describe(name: str | os.PathLike, *, dtype: Any = 'bfloat16', layers: int | None = None
             ) -> Model:
  """Returns a model that can only be compiled: its parameters are `jax.ShapeDtypeStruct`.

  Drafting networks that are not part of a folder have the published sizes.

  Args:
    name: a preset of a family, such as 'c2i_xl_256', the name of a shipped model, or a folder.
    dtype: dtype of the floating-point parameters.
    layers: the number of the target's layers to keep, as many as it has if None; drafting networks
      stay complete. More raise ValueError.
  """
  family, loaded = _sketches(name)
  config = loaded['target'].config
  if layers is not None and not 1 <= layers <= config.num_layers:
    raise ValueError(f'layers is {layers}; {str(name)!r} has {config.num_layers}, so it must be 1 '
                     f'to {config.num_layers}.')
  for role, (kind, sizes) in family.published.networks(config).items():
    loaded.setdefault(role, store.sketch(kind, sizes))

  described = lambda leaf: jax.ShapeDtypeStruct(
      leaf.shape, dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype)

  def build(target):
    parts = {role: network._replace(params=jax.tree.map(described, network.params))
             for role, network in {**loaded, 'target': target}.items()}
    return family.build(family_lib.Parts(str(name), parts, {}))

  complete = build(loaded['target'])
  if layers is None:
    return complete
  small = store.sketch(loaded['target'].kind, dataclasses.replace(config, num_layers=layers))
  return dataclasses.replace(build(small), drafts=complete.drafts)


def roles(name: str | os.PathLike) -> list[str] | None:
  """Returns the roles of the networks that a model has; None for a published size."""
  if any(str(name) in family.published.presets for family in family_lib.FAMILIES.values()):
    return None
  return list(read(find(name))['parts'])


def _sketches(name: str | os.PathLike) -> tuple[family_lib.Family, dict[str, Loaded]]:
  """Returns the family and the described networks of a model, without tokenizers and T5."""
  presets: dict[str, family_lib.Family] = {}
  for family in family_lib.FAMILIES.values():
    presets |= dict.fromkeys(family.published.presets, family)
  if (preset := str(name)) in presets:
    family = presets[preset]
    target = store.sketch(next(iter(family.roles['target'])), family.published.presets[preset])
    return family, {'target': target}
  try:
    folder = find(name)
  except CheckpointError as error:
    raise CheckpointError(f'{str(error).removesuffix(".")}; published sizes are: '
                          f'{", ".join(sorted(presets))}.') from error
  description = read(folder)
  return family_lib.get(description['family']), {
      role: store.describe(folder / part, name=role) for role, part in description['parts'].items()
      if role not in (*_ALONE, 't5')}


def part_folder(name_or_folder: str | os.PathLike, role: str) -> pathlib.Path:
  """Returns the folder of one of a model's networks, or raises CheckpointError."""
  folder = find(name_or_folder)
  parts = read(folder)['parts']
  if role not in parts:
    raise CheckpointError(f'{folder} has no part {role!r}; it has: {", ".join(parts) or "none"}.')
  return (folder / parts[role]).absolute()


def find(name_or_folder: str | os.PathLike) -> pathlib.Path:
  """Returns the folder of a model, or raises CheckpointError; shipped names come before folders."""
  if str(name_or_folder) in shipped():
    return store.ASSETS / str(name_or_folder)
  folder = paths.find('model', name_or_folder)
  store.recover(folder)
  if not (folder / FILE).is_file():
    problem = 'has no model.json' if folder.is_dir() else 'is not a folder'
    remedy = naming.suggestion(str(name_or_folder), shipped())
    if not folder.exists() and (hub := re.fullmatch(r'\w[\w.-]*/(\w[\w.-]*)', str(name_or_folder))):
      remedy = (f'; a model of the Hugging Face Hub is converted first, by cspd-convert '
                f'--family=FAMILY --source={name_or_folder} --output=checkpoints/{hub[1]}, where '
                'cspd-convert --help lists the families, and loaded from this output.')
    raise CheckpointError(
        f'model is {paths.shown(name_or_folder)}, which {problem}; pass one of the shipped '
        f'models ({", ".join(shipped())}) or a folder that cspd-convert wrote{remedy}')
  return folder


def name_of(folder: str | os.PathLike) -> str:
  """Returns a folder as `find` reads it, with './' if it has the name of a shipped model."""
  return os.path.join('.', folder) if str(folder) in shipped() else str(folder)


def decoder(specification: str | Spec, model: Model, *, guided: bool = True) -> AnyDecoder:
  """Builds a decoder of a model by specification.

  Example:
    decode = cspd_jax.jit(cspd_jax.decoder('jacobi(window=16, coupling=maximal)+rejection', model))
    out = decode(model.params, model.condition(['cat']), jax.random.key(0), model.sampling())

  For a target of your own, `cspd_jax.decoding.build` has the same text. Raises ValueError for a
  specification that the model does not support, and for arguments of other types.
  """
  if not isinstance(model, Model | Cascade):
    remedy = ('pass the text first, then the model: cspd_jax.decoder(text, model)'
              if isinstance(model, str | Spec) else
              'pass the model of cspd_jax.load; for a target of your own, call '
              'cspd_jax.decoding.build(text, target), or the function of the decoder, such as '
              'cspd_jax.mc_sjd(target, window=32)')
    raise ValueError(f'model is {model!r:.80}; {remedy}.')
  return model.decoder(specification, guided=guided)


class Place(NamedTuple):
  """The folder of a model of a family, which may not exist yet, for a choice of decoders.

  It gets the networks `parts`, by role, that it does not have yet; a new one gets `defaults`.
  """

  folder: pathlib.Path
  family: str
  parts: Mapping[str, str]
  defaults: Mapping[str, Any]

  def store(self, kind: str, decoders: Mapping[int, str], seconds: Mapping[int, float] = {}
            ) -> None:
    """Writes a choice of decoders, and seconds per image, for a kind of device, as JAX reports it.

    Both are by number of images that are decoded together; see `generation.defaults`.
    """
    is_model = (self.folder / FILE).exists()
    # Read again: a choice for another device may have been stored in the meantime.
    defaults = read(self.folder)['defaults'] if is_model else self.defaults
    choice = defaults_lib.joined(defaults.get('decoder'), kind, decoders)
    measured = defaults_lib.with_seconds(defaults.get('seconds'), kind, {
        size: (decoders[size], value) for size, value in seconds.items()})
    save(self.folder, self.family, self.parts, {
        **defaults, 'decoder': choice, **({'seconds': measured} if seconds else {})})


def place(name_or_folder: str | os.PathLike, store: str | os.PathLike | None = None) -> Place:
  """Finds the folder in which the choice for a model is stored; nothing is written.

  `store` is that folder, the model's own if it is None. If it holds no model, it becomes one that
  refers to the networks of `name_or_folder`.

  Raises:
    CheckpointError: if the model does not exist.
    ValueError: if the model's own folder must not be changed, `store` holds a model with other
      networks, or the folder is not writable.
  """
  source = find(name_or_folder)
  description = read(source)
  networks = _networks(source, description)
  if store is None:
    is_shipped = str(name_or_folder) in shipped()
    if is_shipped or '.' in description['parts'].values():
      what = ('which is part of the package and cannot be changed' if is_shipped else
              'the folder of a network alone')
      raise ValueError(f'model is {str(name_or_folder)!r}, {what}; pass store=FOLDER, which '
                       'becomes a model of its networks.')
  folder = source if store is None else paths.find('store', store)
  existing = next(path for path in (folder, *folder.parents) if path.exists())
  try:
    with tempfile.TemporaryFile(dir=existing):
      pass
  except OSError as error:
    raise ValueError(f'the choice cannot be stored in {str(folder)!r}, where files cannot be '
                     f'written ({error.strerror}); pass store=FOLDER.') from error
  if not (folder / FILE).exists():
    return Place(folder, description['family'], networks, description['defaults'])
  present = read(folder)
  if _networks(folder, present) != networks or '.' in present['parts'].values():
    raise ValueError(f'store is {str(store)!r}, which holds other networks than model '
                     f'{str(name_or_folder)!r}; use another folder.')
  return Place(folder, present['family'], {}, present['defaults'])


def _networks(folder: pathlib.Path, description: Mapping[str, Any]) -> dict[str, str]:
  """Returns the networks of a model by role, as absolute paths."""
  return {role: str((folder / part).resolve()) for role, part in description['parts'].items()}
