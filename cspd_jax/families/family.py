"""What a family of models says of itself, and the list of the families there are."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from cspd_jax.checkpoints import kinds
from cspd_jax.checkpoints.kinds import Kind
from cspd_jax.checkpoints.store import Loaded
from cspd_jax.generation.model import Model
from cspd_jax.models import eagle
from cspd_jax.text import bpe
from cspd_jax.text.templates import Writer


class Parts(NamedTuple):
  """The networks of one model, as they were loaded.

  Attributes:
    name: what the model is called.
    loaded: networks by role; 'target' is always there.
    defaults: sampling options and decoders that suit the model; see `Model.defaults`.
  """

  name: str
  loaded: Mapping[str, Loaded]
  defaults: Mapping[str, Any]

  def pair(self, role: str, size: str, target_size: str | None = None) -> None:
    """Checks that a network fits the target.

    Args:
      role: of the network; nothing is checked if the model has none.
      size: field of its config.
      target_size: the field of the target's config that must be equal; `size` by default.

    Raises:
      ValueError: if the two are not equal.
    """
    if role not in self.loaded:
      return
    target_size = size if target_size is None else target_size
    ours, theirs = (getattr(self.loaded[role].config, size),
                    getattr(self.loaded['target'].config, target_size))
    if ours != theirs:
      raise ValueError(
          f'{role} has {size} {ours}, but the target of {self.name!r} has {target_size} {theirs}; '
          f'give the {role} that belongs to this target.')

  def text(self, forms: Collection[str]) -> bpe.Text | None:
    """What prompts in words are written with: the file of the part 'text'.

    Args:
      forms: for whose prompts the file may be; see `bpe.FORMS`.

    Returns:
      None if there is no file, or only a description of it.

    Raises:
      ValueError: if it is for the prompts of other models.
    """
    if 'text' not in self.loaded:
      return None
    found = self.loaded['text']
    if found.config.form not in forms:
      raise ValueError(f'text is a tokenizer file for {found.config.form}, but model {self.name!r} '
                       f'needs one for {" or ".join(forms)}; give text=FOLDER of such a file.')
    return None if is_described(found) else bpe.read(found.params, found.config.form)

  def writer(self, writers: Mapping[str, Writer]) -> Writer | None:
    """How contexts of prompts are written: as the default 'contexts' says, or the part 'text'.

    Args:
      writers: those of the family by name; see `Family.prompt_writers`.

    Returns:
      None if there is no part 'text'.

    Raises:
      ValueError: if there is no such writer.
    """
    if 'text' not in self.loaded:
      return None
    name = self.defaults.get('contexts', self.loaded['text'].config.form)
    if name not in writers:
      raise ValueError(f'contexts of model {self.name!r} is {name!r}; it must be one of '
                       f'{", ".join(writers)}.')
    return writers[name]


def is_described(loaded: Loaded) -> bool:
  """Whether a network has no parameters, but descriptions of them."""
  return isinstance(jax.tree.leaves(loaded.params)[0], jax.ShapeDtypeStruct)


class Published(NamedTuple):
  """What is published of a family, for those who look at sizes alone.

  Attributes:
    presets: sizes of the targets, by name.
    networks: `target's config -> ` kind and sizes, by role, of networks that draft for it.
    condition: `(target's config, count) -> ` the condition of so many images, described by
      `jax.ShapeDtypeStruct`.
  """

  presets: Mapping[str, Any] = MappingProxyType({})
  networks: Callable[[Any], Mapping[str, tuple[str, Any]]] = lambda config: {}
  condition: Callable[[Any, int], Any] | None = None


class Family(NamedTuple):
  """A family of models.

  Attributes:
    name: how model folders call it.
    roles: by role, the kinds of networks that may have it, by name; 'target' is a must, and
      'tokenizer' is what makes pixels. Families that share a kind give the same `Kind`.
    build: joins networks into a model; raises ValueError if they do not belong together.
    resize: `(networks by role, (rows, columns)) -> ` the same for images of so many tokens; None if
      a model makes images of one size.
    published: see `Published`.
    text_forms: by name, how the tokenizer files of the part 'text' are read; see `bpe.FORMS`.
    prompt_writers: by name, how a prompt in words becomes token ids; see `Parts.writer`.
    eagle_layers: by name, forms of the layer of its EAGLE drafters; see `eagle.LAYERS`.
  """

  name: str
  roles: Mapping[str, Mapping[str, Kind]]
  build: Callable[[Parts], Model]
  resize: Callable[[Mapping[str, Loaded], tuple[int, int]], Mapping[str, Loaded]] | None = None
  published: Published = Published()
  text_forms: Mapping[str, bpe.Reader] = MappingProxyType({})
  prompt_writers: Mapping[str, Writer] = MappingProxyType({})
  eagle_layers: Mapping[str, eagle.Layer] = MappingProxyType({})

  @property
  def kinds(self) -> list[tuple[str, Kind]]:
    """The kinds of all roles, with their names."""
    return [item for by_name in self.roles.values() for item in by_name.items()]


FAMILIES: dict[str, Family] = {}


def register(family: Family) -> None:
  """Registers a family, its kinds of networks, forms of tokenizer files and EAGLE layers.

  Raises:
    ValueError: if another family has this name, or something else the name of a part of it.
  """
  if FAMILIES.get(family.name, family) is not family:
    raise ValueError(f'name is {family.name!r}, which another family has; choose another name.')
  kinds.check_new('name', family.name)
  for name, kind in family.kinds:
    kinds.register(name, kind)
  for form, reader in family.text_forms.items():
    bpe.register(form, reader)
  for name, layer in family.eagle_layers.items():
    eagle.register(name, layer)
  FAMILIES[family.name] = family


def get(name: str) -> Family:
  """The family of this name, or the one that had it.

  Raises:
    ValueError: if there is none.
  """
  name = kinds.current(name)
  if name not in FAMILIES:
    raise ValueError(f'family is {name!r}; it must be one of: {", ".join(sorted(FAMILIES))}.')
  return FAMILIES[name]


def of_target(kind: str) -> Family:
  """The family whose targets are networks of this kind.

  Raises:
    ValueError: if there is none.
  """
  kind = kinds.current(kind)
  for family in FAMILIES.values():
    if kind in family.roles['target']:
      return family
  targets = sorted(kind for family in FAMILIES.values() for kind in family.roles['target'])
  raise ValueError(f'a {kind!r} network is no target, and a model needs one; targets are of the '
                   f'kinds: {", ".join(targets)}.')
