"""The description of a model family, and the registry of families."""

import dataclasses
import functools
import importlib.metadata
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from cspd_jax.core import fields, guesses, naming
from cspd_jax.core.table import Table
from cspd_jax.decoding import specification
from cspd_jax.files import store
from cspd_jax.files.store import Kind, Loaded
from cspd_jax.generation import options
from cspd_jax.generation.cascade import Cascade
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import role_of
from cspd_jax.models import eagle
from cspd_jax.text import bpe
from cspd_jax.text.templates import Writer

# What the names of a model's defaults and parts begin with that are for `Parts.build_prior`.
PRIOR_PREFIX = 'prior_'


def of_prior(named: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the entries that are for the prior of a model, by their names in the prior."""
  return {name.removeprefix(PRIOR_PREFIX): value for name, value in named.items()
          if name.startswith(PRIOR_PREFIX)}


class Parts(NamedTuple):
  """The loaded networks of one model.

  Attributes:
    name: name of the model.
    loaded: networks by role; 'target' is always present.
    defaults: the model's default sampling options and decoders.
  """

  name: str
  loaded: Mapping[str, Loaded]
  defaults: Mapping[str, Any]

  def pair(self, role: str, *sizes: str, **others: str) -> None:
    """Checks that a network fits the target, if there is one of this role.

    Raises ValueError unless these sizes of its config equal the target's; `others` have
    other names there.
    """
    if role not in self.loaded:
      return
    for size, target_size in (dict(zip(sizes, sizes)) | others).items():
      value = getattr(self.loaded[role].config, size)
      target_value = getattr(self.loaded['target'].config, target_size)
      if value != target_value:
        raise ValueError(
            f'{role} has {size} {value}, but the target of {self.name!r} has {target_size} '
            f'{target_value}; pass the {role} that belongs to this target.')

  def text(self, forms: Collection[str], rows: int | None = None, *, codes_follow: bool = False
           ) -> bpe.Text | None:
    """Returns the text tokenizer of the part 'text', whose file has one of these formats.

    If codes follow text, the first one is the number of its tokens. It is None without this
    part, or if it is only described; another format, and one that does not fit the rows of the
    target for tokens of text, unless they are None, raises ValueError.
    """
    if 'text' not in self.loaded:
      return None
    part = self.loaded['text']
    if part.config.form not in forms:
      command = f' (cspd-convert --family={[*forms][0]}_text)' if len(forms) == 1 else ''
      raise ValueError(f'text is a tokenizer file for {part.config.form}, but model {self.name!r} '
                       f'needs one for {" or ".join(forms)}; pass text=FOLDER of such a '
                       f'file{command}.')
    if is_described(part):
      return None
    text = bpe.read(part.params, part.config.form)
    if rows is not None:
      bpe.check_vocabulary(text, rows, f'the target of {self.name!r}', codes_follow=codes_follow)
    return text

  def writer(self, writers: Mapping[str, Writer]) -> Writer | None:
    """Returns the prompt writer that the default 'contexts' names, else the part 'text'.

    The writer of the part gets its `first_token`, if there is one. Without a part 'text' there is
    no writer; a name that is not among `writers` raises ValueError.
    """
    if 'text' not in self.loaded:
      return None
    config = self.loaded['text'].config
    name = self.defaults.get('contexts', config.form)
    fields.check_choice(f'contexts of model {self.name!r}', name, writers)
    if name == config.form and config.first_token is not None:
      return functools.partial(writers[name], first_token=config.first_token)
    return writers[name]

  def build_prior(self, build: Callable[['Parts'], Model]) -> Model | None:
    """Builds the prior from parts and defaults named 'prior...'; None without one.

    The part 'prior' is its target; the part 'text', which reads words, is its own too.
    """
    if 'prior' not in self.loaded:
      return None
    text = {role: part for role, part in self.loaded.items() if role == 'text'}
    loaded = text | {'target': self.loaded['prior']} | of_prior(self.loaded)
    prior = build(Parts(f'{self.name}/prior', loaded, of_prior(self.defaults)))
    return dataclasses.replace(prior, remedy=lambda network: (
        f'load it with {PRIOR_PREFIX}{role_of(network)}=FOLDER'))


def is_described(loaded: Loaded) -> bool:
  """Whether a network has descriptions of parameters in place of arrays."""
  return isinstance(jax.tree.leaves(loaded.params)[0], jax.ShapeDtypeStruct)


# What is trained for models of a family: the first for all of discrete tokens, the others if the
# family has sizes of them.
_TRAINED = ('neighbours', 'local', 'eagle', 'medusa', 'corrector')
# Roles whose networks have been published for some models, with what they are.
_CONVERTED = {'draft': 'the target of a smaller model', 'eagle': 'a published EAGLE network'}


class Published(NamedTuple):
  """The published sizes of a family, from which models are described without parameters.

  Attributes:
    presets: configs of the targets, by name.
    networks: maps a target's config to kind and config, by role, of networks that draft for it.
    condition: maps a target's config and a count to the condition of as many images, described by
      `jax.ShapeDtypeStruct`.
  """

  presets: Mapping[str, Any] = MappingProxyType({})
  networks: Callable[[Any], Mapping[str, tuple[str, Any]]] = lambda config: {}
  condition: Callable[[Any, int], Any] | None = None


class Family(NamedTuple):
  """A family of models.

  Attributes:
    name: its name in model folders.
    roles: by role, the kinds of networks that may have it, by name; 'target' is required, and
      'tokenizer' decodes tokens to pixels. Families that share a kind use the same `Kind`.
    build: builds a model from networks; raises ValueError if they do not belong together. A model
      without a tokenizer, as `describe` builds it, generates tokens only.
    resize: maps networks by role, and `(rows, columns)`, to the same for another grid of tokens;
      None if the models generate images of one size.
    published: its published networks.
    text_forms: by name, readers of the tokenizer files of the part 'text'.
    prompt_writers: by name, functions from a prompt in words to token ids.
    eagle_layers: by name, forms of the layers of its EAGLE drafters.
    table: the decoders of its models, whose sampling options `model.json` may contain.
  """

  name: str
  roles: Mapping[str, Mapping[str, Kind]]
  build: Callable[[Parts], Model | Cascade]
  resize: Callable[[Mapping[str, Loaded], tuple[int, int]], Mapping[str, Loaded]] | None = None
  published: Published = Published()
  text_forms: Mapping[str, bpe.Reader] = MappingProxyType({})
  prompt_writers: Mapping[str, Writer] = MappingProxyType({})
  eagle_layers: Mapping[str, eagle.Layer] = MappingProxyType({})
  table: Table = specification.TABLE

  @property
  def kinds(self) -> list[tuple[str, Kind]]:
    """The kinds of all roles, with their names."""
    return [item for by_name in self.roles.values() for item in by_name.items()]

  @property
  def target(self) -> Kind:
    """The kind of its targets, the first one if there are several."""
    return next(iter(self.roles['target'].values()))

  def check_parts(self, parts: Collection[str], options: Sequence[str] = ()) -> None:
    """Raises ValueError for a part that its models do not have, and suggests one, or an option."""
    if unknown := sorted(set(parts) - set(self.roles)):
      raise ValueError(f'{unknown[0]} is not a part of a {self.name!r} model; parts are: '
                       f'{", ".join(self.roles)}'
                       + naming.suggestion(unknown[0], [*self.roles, *options], guesses.ALIASES))

  def trained(self, config: Any) -> list[str]:
    """Returns the networks that cspd-train trains for models whose targets have a config."""
    if self.table is not specification.TABLE:
      return []
    sizes = self.published.networks(config)
    return [role for role in _TRAINED if role in (_TRAINED[0], *sizes)]

  def remedy(self, name: str, config: Any, network: str) -> str:
    """Returns what gives a model, by its name or folder, a network that it lacks, as advice.

    `network` is a key of `Table.networks`.
    """
    role = role_of(network)
    if role not in self.roles:
      return f'use a decoder without it, because {self.name!r} models support none'
    train = (f'train one with cspd-train --model={shlex.quote(name)} --kind={role}, or '
             if role in self.trained(config) else '')
    source = f', {_CONVERTED[role]} that cspd-convert wrote' if role in _CONVERTED else ''
    return f'{train}load it with {role}=FOLDER{source}'

  def check_defaults(self, defaults: Mapping[str, Any]) -> None:
    """Raises ValueError for a default that its models do not use, or of another form."""
    if 'prior' in self.roles:
      options.check_defaults(self.table, of_prior(defaults))
      defaults = {name: value for name, value in defaults.items()
                  if not name.startswith(PRIOR_PREFIX)}
    options.check_defaults(
        self.table, defaults, ('contexts',) if self.prompt_writers else ())
    name = defaults.get('contexts', '')
    fields.require(isinstance(name, str), 'contexts', name,
                   f'one of {", ".join(self.prompt_writers)}')


FAMILIES: dict[str, Family] = {}
# The group of entry points in which installed packages name their families.
_GROUP = 'cspd_jax.families'
_OWN = ('a family of your own is registered by its module, which you import first, in a command '
        'with --import=MODULE')


def register(family: Family) -> None:
  """Registers a family, its kinds of networks, formats of tokenizer files and EAGLE layers.

  Raises ValueError if the name of the family or of one of these is already registered.
  """
  if FAMILIES.get(family.name, family) is not family:
    raise ValueError(f'name is {family.name!r}, which another family has; choose another name.')
  for name, kind in family.kinds:
    store.register(name, kind)
  for form, reader in family.text_forms.items():
    bpe.register(form, reader)
  for name, layer in family.eagle_layers.items():
    eagle.register(name, layer)
  FAMILIES[family.name] = family


def load_installed(name: str | None = None) -> None:
  """Registers the families of installed packages: all, or those whose entry point has this name.

  A package names its families in the group `cspd_jax.families` of its entry points, each with a
  module that registers it, or with its `Family`. One that cannot be imported raises ValueError.
  """
  for entry in importlib.metadata.entry_points(group=_GROUP):
    if name not in (None, entry.name):
      continue
    try:
      loaded = entry.load()
    except Exception as error:  # It is any Python, and may fail in any way.
      package = entry.dist.name if entry.dist else 'an unknown package'
      raise ValueError(
          f'the family {entry.name!r} of {package} cannot be imported from {entry.value} '
          f'({type(error).__name__}: {error}); repair this package, or remove it.') from error
    if isinstance(loaded, Family):
      register(loaded)


def get(name: str) -> Family:
  """Returns the family of this name; raises ValueError if none has it, installed ones included."""
  if name not in FAMILIES:
    load_installed(name)
  fields.require(name in FAMILIES, 'family', name, f'one of: {", ".join(sorted(FAMILIES))}; {_OWN}')
  return FAMILIES[name]


def target_family(kind: str) -> Family:
  """Returns the family whose targets are networks of this kind; raises ValueError without any."""
  owner = lambda: next((family for family in FAMILIES.values() if kind in family.roles['target']),
                       None)
  if (family := owner()) is not None:
    return family
  load_installed()
  if (family := owner()) is not None:
    return family
  targets = sorted(kind for family in FAMILIES.values() for kind in family.roles['target'])
  raise ValueError(f'a {kind!r:.80} network is not a target, which a model requires; targets have '
                   f'the kinds: {", ".join(targets)}; {_OWN}.')
