"""What a family of published files says of itself, and how sizes are read off shapes."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from checkpoints_conversion.rules.base import Rule

Shapes = Mapping[str, tuple[int, ...]]
# Sampling options and the decoder, as `cspd_jax.Model.defaults` has them.
Defaults = Mapping[str, Any]

# Options that several families have.
IMAGE_SIZE = {'image_size': 'Side of the images in pixels.'}
NUM_HEADS = {'num_heads': 'Attention heads, for sizes that were not published.'}


class ConversionError(ValueError):
  """Weights or options that do not fit; the message lists all that is wrong."""


class FileFamily(NamedTuple):
  """A family of published files, all of which hold the same network in different sizes.

  Attributes:
    name: how the command and the registry call it.
    what: the network in words, with its article.
    kind: the kind of network that is written, a key of `kinds.KINDS`.
    rules: `config -> rules`.
    infer: `(shapes, options) -> config`: the sizes of the network, from the shapes of its
      published tensors and from what only a person or the file of settings can know.
    presets: configs of the published networks by name.
    options: what `infer` can be told, by name, with a line of help. All are whole numbers.
    leftovers: a regular expression for names of tensors that are not weights.
    variant: `shapes -> ` fields in whose place a file with these tensors has others, such as rules;
      empty for families that are stored in one way.
    settings: `contents -> ` fields of the config that the files of `read.settings` tell. It raises
      ConversionError for those that the network here does not have; see `rules.settings`.
    needed: fields of the config that the shapes of the weights do not tell, and that must be in the
      settings, be an option or come with the name of a published model. By name, how config.json
      writes the published one; empty for options.
    shares: what each file of a model-parallel checkpoint holds of a tensor, by a regular expression
      for its name; see `shards.join`. Empty if there are no such checkpoints.
    prefer: the part of a file that holds the weights; see `read.read`.
    model: the family of models, a key of `families.FAMILIES`, that the network is a part of;
      None if there is none, and the network stands alone.
    metadata: `config -> ` what is stored with the network, such as the names of its classes.
    sampling: `config -> ` official sampling options by name, the ones for pictures first; empty
      for what is not sampled from.
    layout: `model name or None -> ` where a folder has the networks of a whole model: by family of
      files, paths from the folder, of which the first that is there counts. The family itself is
      the first entry. Empty if a folder is not a whole model.
    compare: `(params, target_params) -> lines` on how the network fits the target that it
      drafts for; None where there is nothing to compare.
  """

  name: str
  what: str
  kind: str
  rules: Callable[[Any], list[Rule]]
  infer: Callable[[Shapes, Mapping[str, Any]], Any]
  presets: Mapping[str, Any]
  options: Mapping[str, str] = {}
  leftovers: str = r'(?!)'
  variant: Callable[[Shapes], Mapping[str, Any]] = lambda shapes: {}
  settings: Callable[[Mapping[str, Mapping[str, Any]]], Mapping[str, Any]] = lambda contents: {}
  needed: Mapping[str, str] = {}
  shares: Mapping[str, str] = {}
  prefer: str | None = None
  model: str | None = None
  metadata: Callable[[Any], Mapping[str, Any]] = lambda config: {}
  sampling: Callable[[Any], Mapping[str, Defaults]] = lambda config: {}
  layout: Callable[[str | None], Mapping[str, tuple[str, ...]]] = lambda model: {}
  compare: Callable[[Any, Any], list[str]] | None = None


def infer(family: FileFamily, shapes: Shapes, options: Mapping[str, int],
          told: Mapping[str, Any] = MappingProxyType({})) -> Any:
  """Infers the config of a network.

  Args:
    family: the family of its file.
    shapes: of its published tensors.
    options: what shapes cannot tell; see `FileFamily.options`.
    told: what the file of settings tells; see `FileFamily.settings`.

  Raises:
    ConversionError: if an option is not the family's, or shapes and options do not tell all sizes.
  """
  if unknown := sorted(options.keys() - family.options.keys()):
    raise ConversionError(
        f'{", ".join(unknown)}: not for {family.what}, whose shapes tell it; leave it out.')
  config = family.infer(shapes, {**told, **options})
  _ask(family, {*told, *options})
  return config


def _ask(family: FileFamily, told: set[str]) -> None:
  """Raises ConversionError if a field that cannot be inferred is not told."""
  missing = {name: text for name, text in family.needed.items() if name not in told}
  if not missing:
    return
  options = ', '.join(name for name, text in missing.items() if not text)
  written = ', '.join(text for text in missing.values() if text)
  ways = [f'Give {options}.'] if options else []
  if written:
    ways.append('Put the config.json or params.json of the weights beside them, or write one: '
                f'config.json of the published models says {{{written}}}.')
  raise ConversionError(
      f'{", ".join(missing)} cannot be told from the weights of {family.what}, and a wrong one '
      f'gives wrong images. {" ".join(ways)} Or give model, if it is one of: '
      f'{", ".join(family.presets)}.')


def shape(what: str, shapes: Shapes, name: str, rank: int) -> tuple[int, ...]:
  """Looks up the shape of a tensor.

  Args:
    what: the network that the file should hold, in words.
    shapes: of the tensors of the file.
    name: of the tensor.
    rank: its number of axes.

  Raises:
    ConversionError: if there is no such tensor.
  """
  if len(shapes.get(name, ())) != rank:
    raise ConversionError(
        f'The file is not {what}: {name} is {shapes.get(name, "missing")}, it must have {rank} '
        f'axes. The file holds {len(shapes)} tensors: {", ".join(sorted(shapes)[:8])}, ...')
  return shapes[name]


def count(shapes: Shapes, pattern: str) -> int:
  """Returns one more than the largest number that the pattern's group matches, or 0."""
  numbers = [int(match[1]) for name in shapes if (match := re.fullmatch(pattern, name))]
  return max(numbers, default=-1) + 1


def num_heads(options: Mapping[str, int], known: int | None, dim: int, size: str) -> int:
  """Returns the number of attention heads.

  Args:
    options: `num_heads`, if it was given.
    known: that of a published network of this size; None if there is none.
    dim: width of the network.
    size: the size in words.

  Raises:
    ConversionError: if nothing tells the number, or it cannot be.
  """
  number = options.get('num_heads', known)
  if number is None:
    raise ConversionError(f'num_heads cannot be told from the weights, and {size} is not a '
                          'published size; give it.')
  if number < 1 or dim % number:
    raise ConversionError(f'num_heads is {number}; it must divide the width, {dim}.')
  return number


def tokens_per_side(options: Mapping[str, int], presets: Sequence[str]) -> int:
  """Returns the rows of the token grid of square images; a token is 16 pixels wide.

  Args:
    options: `image_size` in pixels.
    presets: names of published networks, whose image size is known.

  Raises:
    ConversionError: if `image_size` is missing or cannot be.
  """
  size = options.get('image_size')
  if size is None:
    raise ConversionError(
        'image_size cannot be told from the weights; give it in pixels, or give model, one of: '
        f'{", ".join(presets)}.')
  if size < 16 or size % 16:
    raise ConversionError(f'image_size is {size}; it must be a positive multiple of 16.')
  return size // 16
