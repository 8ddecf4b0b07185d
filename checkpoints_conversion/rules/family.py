"""Families of published files, and the inference of sizes from shapes."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from checkpoints_conversion.rules.base import Rule
from cspd_jax.core import fields

Shapes = Mapping[str, tuple[int, ...]]
# Sampling options and the decoder, as `cspd_jax.Model.defaults` has them.
Defaults = Mapping[str, Any]

# Options of several families.
IMAGE_SIZE = {'image_size': 'Side of the images in pixels.'}
NUM_HEADS = {'num_heads': 'Attention heads, for sizes that were not published.'}
# What flags of options have as their value; 'N' for others.
_VALUES = {'image_size': 'PIXELS', 'height': 'ROWS', 'width': 'COLUMNS'}


class ConversionError(fields.ListedError):
  """Weights or options that do not fit; the message lists all problems."""


class MissingPart(ConversionError):
  """The files need another network of the model, of the role `role`, which is not written."""

  def __init__(self, role: str, text: str):
    super().__init__(text)
    self.role = role


class Undetermined(ConversionError):
  """Options that must be specified: `names`, and in words why, `reasons` by name."""

  def __init__(self, reasons: Mapping[str, str]):
    super().__init__(f'{", ".join(reasons)} cannot be inferred from the weights'
                     f'{_because(reasons.values())}; specify {_flags(reasons)}.')
    self.reasons = dict(reasons)


def _because(reasons: Iterable[str]) -> str:
  text = ', '.join(filter(None, reasons))
  return f' ({text})' if text else ''


def _flags(names: Iterable[str]) -> str:
  return ' '.join(f'--{name}={_VALUES.get(name, "N")}' for name in names)


class Written(NamedTuple):
  """How the files of a family are written, by `cspd-convert --to`.

  Attributes:
    suffix: that of the file if it has no place in `FileFamily.layout`: '.pt' for a PyTorch file, ''
      for a folder of safetensors files.
    keys: the parts of a PyTorch file that hold the weights, each all of them; empty if the file is
      the weights.
    forms: fields of the family to replace for each of its formats that can be written. The first
      one that holds the numbers of a network exactly is written.
    files: `(config, others) ->` files next to the weights by name: JSON values, or bytes. `others`
      are the other networks that are written, by role; parameters are arrays that can be read.
    means: `(config, shapes, contents, options) ->` the config that a file of these tensors has,
      next to settings files with these contents. None is as `cspd-convert` reads it, which knows
      the vocabularies and grammars of published models only.
    complete: `(network, target) ->` the network with what its files hold besides, such as the
      embedding that it shares with the target; both as `files.store.opened` returns them. None
      if they hold the network alone.
    constants: shapes, by name, of tensors of zeros that the published class requires besides.
    inside: families of networks whose tensors are among those of the target, too, each with a
      prefix for their names, and `name ->` whether it is there.
    lines: `config ->` lines on what cannot be written.
  """

  suffix: str = ''
  keys: Sequence[str] = ()
  forms: Sequence[Mapping[str, Any]] = ({},)
  files: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]] = lambda config, others: {}
  means: Callable[[Any, Shapes, Mapping[str, Any], Mapping[str, Any]], Any] | None = None
  complete: Callable[[Any, Any], Any] | None = None
  constants: Mapping[str, tuple[int, ...]] = {}
  inside: Mapping[str, tuple[str, Callable[[str], bool]]] = {}
  lines: Callable[[Any], Sequence[str]] = lambda config: ()


class FileFamily(NamedTuple):
  """A family of published files, all of which hold the same network in different sizes.

  Attributes:
    name: its key in `rules.FAMILIES`, the value of `--family`.
    title: the network in words, with its article.
    kind: the kind of the converted network, see `files.store`.
    rules: `config -> rules`.
    infer: `(shapes, options) -> config` from the shapes of the published tensors, and from options
      and settings where shapes do not determine sizes; raises ConversionError for other networks.
    presets: configs of the published networks by name.
    options: names of the options of `infer`, each with a line of help. All are whole numbers.
    leftovers: a regular expression for names of tensors that are not weights.
    variant: `shapes ->` fields of this tuple to replace for a file with these tensors, such as
      `rules`; empty for families with one format.
    settings: `contents ->` fields of the config that the files of `read.settings` specify; raises
      ConversionError for unsupported ones.
    needed: fields of the config that must be in the settings, be an option or follow from the name
      of a published model; by name, the published value in config.json, empty for options.
    assumed: `(config, specified) ->` a line for every size that the shapes do not determine and
      that is not among the names `specified`: its value, and how to specify another one.
    without_words: `config ->` a line on what is assumed of a target without a tokenizer file.
    shares: as for `tensors.join`; empty if no model-parallel checkpoints exist.
    prefer: the part of a file that holds the weights.
    model: the model family of the network, a key of `families.FAMILIES`; None if it has none.
    metadata: `config ->` metadata to store with the network, such as the names of its classes.
    defaults: `contents ->` sampling options that settings files state, which replace those of
      `sampling`.
    sampling: `config ->` official sampling options by name, those for pictures first; empty for
      networks without sampling.
    layout: `model name or None ->` the networks in the folder of a whole model: by file family, its
      own first, possible paths in the folder, of which the first existing one is used; '.' are the
      files of the target. Empty if a folder is not a whole model.
    inside: a regular expression for the name of a tensor that the files of a target hold if the
      network is among them; '' for networks that always are, or never.
    others: `config ->` file families, besides those in `layout`, without whose networks a target
      cannot turn prompts into images.
    elsewhere: patterns of the files of a repository with weights of networks that the model does
      not have, which are not downloaded.
    licence: of the weights, as publishers state it; '' where it is the target's, or not stated.
    written: how its files are written.
    hub: ids of the Hugging Face Hub with the files of `layout`, or this network, by model name.
  """

  name: str
  title: str
  kind: str
  rules: Callable[[Any], list[Rule]]
  infer: Callable[[Shapes, Mapping[str, Any]], Any]
  presets: Mapping[str, Any]
  options: Mapping[str, str] = {}
  leftovers: str = r'(?!)'
  variant: Callable[[Shapes], Mapping[str, Any]] = lambda shapes: {}
  settings: Callable[[Mapping[str, Mapping[str, Any]]], Mapping[str, Any]] = lambda contents: {}
  needed: Mapping[str, str] = {}
  assumed: Callable[[Any, Collection[str]], list[str]] = lambda config, specified: []
  without_words: Callable[[Any], str] | None = None
  shares: Mapping[str, str] = {}
  prefer: str | None = None
  model: str | None = None
  metadata: Callable[[Any], Mapping[str, Any]] = lambda config: {}
  sampling: Callable[[Any], Mapping[str, Defaults]] = lambda config: {}
  defaults: Callable[[Mapping[str, Mapping[str, Any]]], Defaults] = lambda contents: {}
  layout: Callable[[str | None], Mapping[str, tuple[str, ...]]] = lambda model: {}
  inside: str = ''
  others: Callable[[Any], Sequence[str]] = lambda config: ()
  elsewhere: Sequence[str] = ()
  licence: str = ''
  written: Written = Written()
  hub: Mapping[str, str] = {}


def is_inside(family: FileFamily, names: Iterable[str]) -> bool:
  """Whether the files of a target with tensors of these names hold a network."""
  return not family.inside or any(re.fullmatch(family.inside, name) for name in names)


def infer(family: FileFamily, shapes: Shapes, options: Mapping[str, int],
          settings: Mapping[str, Any] = MappingProxyType({})) -> Any:
  """Infers the config of a network from shapes, options and the fields of settings files.

  Raises ConversionError if the family does not have an option, or they do not determine all sizes.
  """
  if unknown := sorted(options.keys() - family.options.keys()):
    remedy = (f'its options are {_flags(family.options)}' if family.options
             else 'its sizes follow from its shapes, so leave it out')
    raise ConversionError(f'{", ".join(unknown)}: not an option for {family.title}; {remedy}.')
  missing = {name: text for name, text in family.needed.items()
             if name not in settings and name not in options}
  try:
    config = family.infer(shapes, {**settings, **options})
  except Undetermined as error:
    names = dict.fromkeys(error.reasons, '') | missing
    raise ConversionError(_needed(family, names, error.reasons.values())) from error
  if missing:
    raise ConversionError(_needed(family, missing))
  return config


def _needed(family: FileFamily, missing: Mapping[str, str], reasons: Iterable[str] = ()) -> str:
  options = [name for name, text in missing.items() if not text]
  published = ', '.join(text for text in missing.values() if text)
  remedies = [f'Specify {_flags(options)}.'] if options else []
  if published:
    remedies.append('Put the config.json or params.json of the weights next to them, or write one: '
                    f'config.json of the published models contains {{{published}}}.')
  if family.presets:
    remedies.append(f'Or specify model, if it is one of: {", ".join(family.presets)}.')
  return (
      f'{", ".join(missing)} cannot be inferred from the weights of {family.title}'
      f'{_because(reasons)}, and a wrong value leads to wrong images. {" ".join(remedies)}')


def determined(*functions: Callable[[], int]) -> list[int]:
  """Returns the results of functions; raises one `Undetermined` for all that raise it."""
  results: list[int] = []
  reasons: dict[str, str] = {}
  for function in functions:
    try:
      results.append(function())
    except Undetermined as error:
      reasons |= error.reasons
  if reasons:
    raise Undetermined(reasons)
  return results


def shape(title: str, shapes: Shapes, name: str, rank: int) -> tuple[int, ...]:
  """Looks up the shape of a tensor; `title` is the expected network in words.

  Raises ConversionError if the tensor is missing or has another rank.
  """
  if len(shapes.get(name, ())) != rank:
    raise ConversionError(
        f'The file is not {title}: {name} is {shapes.get(name, "missing")}, it must have {rank} '
        f'axes. The file holds {len(shapes)} tensors: {", ".join(sorted(shapes)[:8])}, ...')
  return shapes[name]


def count(shapes: Shapes, pattern: str) -> int:
  """Returns one more than the largest number that the pattern's group matches; 0 without match."""
  numbers = [int(match[1]) for name in shapes if (match := re.fullmatch(pattern, name))]
  return max(numbers, default=-1) + 1


def num_heads(options: Mapping[str, int], presets: Iterable[Any], dim: int,
              num_layers: int | None = None, width: int | None = None) -> int:
  """Returns the number of attention heads: the option, or that of a published network.

  Such a network has the same `dim` and, if it is not None, `num_layers`. The number must divide
  the `width` of all heads, by default `dim`.
  """
  published = {preset.num_heads for preset in presets
               if preset.dim == dim and num_layers in (None, preset.num_layers)}
  number, width = options.get('num_heads', next(iter(published), None)), width or dim
  if number is None:
    layers = '' if num_layers is None else f' with {num_layers} layers'
    raise Undetermined({'num_heads': f'width {dim}{layers} is not a published size'})
  if number < 1 or width % number:
    raise ConversionError(f'num_heads is {number}; it must divide the width, {width}.')
  return number


def assumed_heads(config: Any, specified: Collection[str]) -> list[str]:
  """Returns the assumption of `num_heads`."""
  if 'num_heads' in specified:
    return []
  return [f'assumed {config.num_heads} attention heads, as in the published models of width '
          f'{config.dim}; --num_heads=N specifies another number']


def assumed_grid(config: Any, specified: Collection[str], token_side: int) -> list[str]:
  """Returns the assumption of an image's rows and columns; a token has `token_side` pixels."""
  if {'height', 'width'} <= set(specified):
    return []
  return [f'assumed images of {config.height}x{config.width} tokens ({config.height * token_side}x'
          f'{config.width * token_side} pixels); --height=ROWS --width=COLUMNS, or later '
          'cspd-generate --grid=ROWSxCOLUMNS, specify others']


def tokens_per_side(options: Mapping[str, int]) -> int:
  """Returns the rows of tokens of square images of `image_size` pixels, or `num_tokens`."""
  count = options.get('num_tokens')
  size = options.get('image_size', None if count is None else 16 * math.isqrt(max(count, 0)))
  if size is None:
    raise Undetermined({'image_size': ''})
  if size < 16 or size % 16:
    raise ConversionError(f'image_size is {size}; it must be a positive multiple of 16.')
  return size // 16
