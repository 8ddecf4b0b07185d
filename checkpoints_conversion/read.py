"""Published weight files as tensors by name."""

import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import safetensors

from checkpoints_conversion import formats, pickles, pytorch, tensors as tensors_lib
from cspd_jax.files import paths, reading, weights

# Endings of single files.
SUFFIXES = ('.safetensors', '.pt', '.pth', '.ckpt', '.bin', '.jit', '.json', '.tiktoken')
# Endings of files of weights.
_OF_WEIGHTS = ('.safetensors', '.pt', '.pth', '.ckpt', '.bin')
# Endings that weights have in forms that are not read.
_ALMOST = ('.gguf', '.gz', '.bz2', '.xz', '.zst', '.7z', '.zip', '.tar', '.tgz', '.npz', '.h5')
# Files of one model-parallel checkpoint, whose names have two digits.
_MAX_PARTS = 100
# Files of one model that names of transformers count.
_MAX_SHARDS = 1000
# TorchScript files of one image tokenizer.
_TORCHSCRIPT = ('encoder.jit', 'decoder.jit')
# PyTorch files of transformers, one or several with an index.
_TRANSFORMERS = 'pytorch_model'
# Files of settings, and one of text, which becomes the setting of its name without the ending.
_SETTINGS = ('config.json', 'params.json', 'consolidate_params.json', 'tokenizer_config.json',
             'preprocessor_config.json', 'chat_template.json', 't2i_generation_config.json')
_TEMPLATE = 'chat_template.jinja'
# Files that a tokenizer file needs, in the same folder.
_NAMES = {'mammothu.tiktoken': 'mammothu_vision_tokens.txt'}
# The settings of an adapter, as peft writes them.
_ADAPTER = 'adapter_config.json'
# One of several files of a model, by the names that transformers gives them.
_SHARD = re.compile(r'(.*-)(\d{5})-of-(\d{5})(\.(?:safetensors|bin))')
# What compiling and wrapping a module puts before the names of its tensors.
_PREFIXES = re.compile(r'\A(?:_orig_mod\.|module\.)+')
# Parts of published and training files that hold the weights; a file without any is the weights.
_OUTER_KEYS = ('model', 'module', 'state_dict')
_REMEDY = 'download it again'
_SAVE_AGAIN = 'load it with a current PyTorch, and save its state dict with torch.save'
# Classes of tensors of which a file holds one process's part.
_DIVIDED = re.compile(r'torch\.distributed\.')
# Letters of a name, and names, that a message shows.
_MAX_SHOWN, _MAX_NAMES = 80, 10


class Weights(NamedTuple):
  """Tensors by name, without the prefixes of compiled and wrapped modules.

  `key` is the part of the file that holds them; None if they are the whole file. `notes` are lines
  on other parts that could have been selected. `settings` is, by the name of the part, what the
  file says of the class of the network and its arguments, if it does; see `_described`.
  """

  tensors: Mapping[str, tensors_lib.AnyTensor]
  key: str | None
  notes: tuple[str, ...] = ()
  settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def read(
    path: str | os.PathLike, *, key: str | None = None, prefer: str | None = None,
    shares: Mapping[str, str] = MappingProxyType({}),
) -> Weights:
  """Reads the tensors of a weight file.

  Args:
    path: a safetensors file, a file that `torch.save` or `torch.jit.save` wrote, whatever their
      names are, a folder, or an index of transformers. A folder holds `.safetensors` files, Meta's
      `consolidated*.pth`, `pytorch_model*.bin`, or `encoder.jit` and `decoder.jit`. Also a `.json`
      or `.tiktoken` file, whose bytes, with those of `mammothu_vision_tokens.txt` behind
      `mammothu.tiktoken`, become one tensor named 'file'.
    key: the part of a PyTorch file that holds the weights, for instance 'ema'. None selects
      `prefer`, else the first of 'model', 'module' and 'state_dict', else the whole file; empty
      parts count as absent.
    prefer: the part to select if it exists and `key` is None.
    shares: what each of several of Meta's files holds.

  Raises:
    ValueError: if the file does not exist, is damaged or of another form, is one process's part of
      a training, or the part holds anything else than tensors.
  """
  path = pathlib.Path(path).expanduser()
  sources = files(path)
  if sources[0].suffix in ('.json', '.tiktoken'):
    content = b'\n'.join(reading.data(file, _REMEDY) for file in sources)
    return Weights({'file': np.frombuffer(content, np.uint8)}, None)
  forms = [formats.of(file) for file in sources]
  of_devices = len(sources) > 1 and sources[0].name.startswith('consolidated')
  if of_devices and formats.SAFETENSORS not in forms:
    parts = [_read_torch(file, key, prefer) for file in sources]
    try:
      return Weights(tensors_lib.join([part.tensors for part in parts], shares), parts[0].key)
    except ValueError as error:
      raise ValueError(f'source is {path}, whose {len(sources)} files do not belong together: '
                       f'{error}.') from error
  if key is not None and (formats.SAFETENSORS in forms or len(sources) > 1):
    kind = 'several files' if len(sources) > 1 else 'safetensors'
    raise ValueError(f'key is {key!r}, but {path} is {kind} and has no parts; leave it out.')
  tensors: dict[str, tensors_lib.AnyTensor] = {}
  for file, form in zip(sources, forms):
    part = (Weights(_read_safetensors(file), None) if form == formats.SAFETENSORS
            else _read_torch(file, key, prefer))
    if repeated := sorted(tensors.keys() & part.tensors.keys()):
      raise ValueError(f'{file} repeats tensors of another file of the folder, such as '
                       f'{_named(repeated[0])}, so they are not parts of one model; specify one of '
                       'them as the source, or move the others away.')
    tensors.update(part.tensors)
  return part._replace(tensors=strip(path, tensors))


def files(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a source: itself, those of a folder, or those that an index lists.

  Of a folder they are safetensors files if there are any, else Meta's, then `pytorch_model*.bin`.
  Raises ValueError if one of them is missing, is another file under this name, or the folder has
  files of several models or an adapter.
  """
  if not path.exists():
    raise ValueError(f'source is {path}: there is no such file.')
  if not path.is_dir():
    if not path.is_file():
      raise ValueError(f'source is {path}, which is neither a file nor a folder.')
    if problem := formats.unmerged(path):
      raise ValueError(f'{problem}.')
    is_index = re.search(r'\.(safetensors|bin)\.index.*\.json$', path.name)
    names = path.with_name(_NAMES.get(path.name, path.name))
    return _existing(path, _of_index(path) if is_index else
                     [path, names] if names != path and names.is_file() else [path])
  if (path / _ADAPTER).exists():
    raise ValueError(f'source is {path}, a folder with {_ADAPTER}, so an adapter changes the '
                     'weights; merge the adapter into the weights first, or specify their file to '
                     'convert them without it.')
  scripts = [path / name for name in _TORCHSCRIPT]
  result = (_of_transformers(path, '*.safetensors') or _consolidated(path)
            or _of_transformers(path, f'{_TRANSFORMERS}*.bin')
            or (scripts if any(file.is_file() for file in scripts) else []))
  if not result:
    if problem := formats.unmerged(path):
      raise ValueError(f'{problem}.')
    for file in sorted(path.iterdir()):  # Says what a file is that may be meant.
      if file.is_file() and not file.name.startswith('.') and file.suffix in _ALMOST:
        _existing(path, [file])
        formats.of(file)
    raise ValueError(f'source is {path}, a folder without .safetensors files, consolidated.pth, '
                     'pytorch_model.bin or encoder.jit; specify the file itself, or the name of a '
                     'published model, whose files are looked up.')
  return _existing(path, result)


def _existing(source: pathlib.Path, sources: list[pathlib.Path]) -> list[pathlib.Path]:
  """Returns the files of a source; raises ValueError if one is missing or another file."""
  if missing := [file.name for file in sources if not file.is_file()]:
    raise ValueError(f'source is {source}, where {_listed(missing)} is missing; download it.')
  for file in sources:
    if other := reading.placeholder(file):
      raise ValueError(f'{file} {other}.')
  return sources


def left_out(path: str | os.PathLike) -> list[str]:
  """Returns the names of weight files in a folder that are not among its `files`."""
  path = pathlib.Path(path).expanduser()
  if not path.is_dir():
    return []
  used = {file.name for file in files(path)}
  return sorted({file.name for file in path.iterdir() if file.suffix in _OF_WEIGHTS} - used)


def incomplete(path: str | os.PathLike) -> str | None:
  """Returns, in words, that a source is without some of the files that its names count, or None.

  A network may be complete in one of several files, so that this is the reason of other problems,
  and no problem itself.
  """
  path = pathlib.Path(path).expanduser()
  sources = {file.name for file in files(path)}
  for name in sorted(sources):
    if match := _SHARD.fullmatch(name):
      stem, _, count, suffix = match.groups()
      names = [f'{stem}{number:05}-of-{count}{suffix}'
               for number in range(1, min(int(count), _MAX_SHARDS) + 1)]
      if missing := [other for other in names if other not in sources]:
        folder = path if path.is_dir() else path.parent
        absent = [other for other in missing if not (folder / other).is_file()]
        return (f'source is {path}, where {_listed(absent)} is missing; download it' if absent else
                f'source is {path}, one of {int(count)} files of a model; specify their folder')
  return formats.part_of_training(path)


def _of_transformers(folder: pathlib.Path, pattern: str) -> list[pathlib.Path]:
  """Returns the files of transformers in a folder: those that match, or those of their index."""
  # Hidden files are no weights: macOS writes `._NAME` next to copies.
  candidates, indexes = (
      [file for file in sorted(folder.glob(name)) if not file.name.startswith('.')]
      for name in (pattern, f'{pattern}.index*.json'))
  if not indexes:
    return candidates
  listed = _of_index(indexes[0])
  if len(indexes) > 1:
    _ask(folder, f'has the indexes {_listed(file.name for file in indexes)}', indexes)
  if others := [file for file in candidates if file not in listed]:
    absent = [file.name for file in listed if not file.is_file()]
    missing = f', of which {_listed(absent)} is missing' if absent else ''
    _ask(folder, f'has {_listed(file.name for file in others)} besides the files of '
         f'{indexes[0].name}{missing}', [indexes[0], *others])
  return listed


def _ask(folder: pathlib.Path, problem: str, choices: Sequence[pathlib.Path]) -> NoReturn:
  """Raises ValueError for a folder with the files of several models."""
  raise ValueError(f'source is {folder}, which {problem}, so it may hold several models; specify '
                   f'one as the source ({_listed(str(file) for file in choices[:3])}), or move the '
                   'files of the others away.')


def _of_index(index: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files that an index of transformers lists; they need not exist."""
  content = reading.json(index, _REMEDY)
  try:
    # Files in the hub's cache are links; they are only read.
    if not (names := sorted(set(content['weight_map'].values()))):
      raise ValueError('its weight_map is empty')
    return [paths.inside(index.parent, name, index, links=True) for name in names]
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f'{index} is damaged ({type(error).__name__}: {error}); {_REMEDY}.') from error


def _consolidated(folder: pathlib.Path) -> list[pathlib.Path]:
  """Files of a checkpoint as Meta publishes them: one, or one for each of several devices."""
  whole = folder / 'consolidated.pth'
  parts = sorted(folder.glob('consolidated.[0-9][0-9].pth'))
  if whole.is_file():
    if parts:
      _ask(folder, f'has {whole.name} and {_listed(file.name for file in parts)}', [whole])
    return [whole]
  if not parts:
    return []
  count = int(parts[-1].suffixes[0][1:]) + 1
  for name, content in settings(folder).items():
    if (size := content.get('model_parallel_size')) is None:
      continue
    if type(size) is not int or not 1 <= size <= _MAX_PARTS:
      raise ValueError(f'source is {folder}, whose {name} has model_parallel_size {str(size):.80}; '
                       f'it must be a whole number from 1 to {_MAX_PARTS}, so {_REMEDY}.')
    count = max(count, size)
  return [folder / f'consolidated.{number:02}.pth' for number in range(count)]


def settings(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
  """Reads the settings next to the weights of a source: the content of existing files, by name.

  Raises ValueError if one is damaged.
  """
  path = pathlib.Path(path).expanduser()
  folder = path if path.is_dir() else path.parent
  found = {name: reading.json(folder / name, _REMEDY)
           for name in _SETTINGS if (folder / name).is_file()}
  if (template := folder / _TEMPLATE).is_file():
    found[_TEMPLATE] = {template.stem: reading.data(template, _REMEDY).decode(errors='replace')}
  return found


def sha256(path: str | os.PathLike) -> dict[str, str]:
  """Returns the hexadecimal SHA-256 of the files of a source by name, as model hubs publish it."""
  sources = files(pathlib.Path(path).expanduser())
  return weights.digests(sources[0].parent, [file.name for file in sources], hashlib.sha256)


def _read_safetensors(path: pathlib.Path) -> dict[str, tensors_lib.AnyTensor]:
  """Returns the tensors of a file by name; only its header is read."""
  try:
    leaves = weights.leaves(path)
  except (safetensors.SafetensorError, ValueError) as error:
    raise ValueError(f'{path} is not a complete safetensors file ({error}); {_REMEDY}.') from error
  return {name: tensors_lib.Unusable(leaf.shape, leaf.dtype) if isinstance(leaf.dtype, str)
          else tensors_lib.Tensor(leaf.shape, leaf.dtype, leaf.read)
          for name, leaf in leaves.items()}


def _read_torch(path: pathlib.Path, key: str | None, prefer: str | None) -> Weights:
  try:
    content = pytorch.load(path)
  except pytorch.OtherForm as error:
    raise ValueError(f'{path}: {error}; {_SAVE_AGAIN}.') from error
  except ValueError as error:
    raise ValueError(f'{path}: {error}; {_REMEDY}.') from error
  if not isinstance(content, dict):
    raise ValueError(f'{path} holds a {_kind(content)}, not tensors by name; save its state dict '
                     'to another file and convert that.')
  content, settings = _described(content)
  # Anole's training program stores the names of tensors that it leaves out.
  parts = {name: part for name, value in content.items() if isinstance(value, dict) and (
      part := {inner: tensor for inner, tensor in value.items() if tensor is not None})}
  of_tensors = {name: part for name, part in parts.items()
                if isinstance(name, str) and not _others(part)}
  notes: tuple[str, ...] = ()
  if key is None:
    key = next((name for name in (prefer, *_OUTER_KEYS) if name in parts), None)
    names = {name: {(_PREFIXES.sub('', inner), stored.shape) for inner, stored in part.items()}
             for name, part in of_tensors.items()}
    # Averages may be without buffers.
    same = [_named(name) for name in names if key in names and name != key and (
        names[name] <= names[key] or names[key] <= names[name])]
    if same:
      notes = f'read {key} of {path.name}, not {_listed(same)}, which --key=NAME selects',
  elif key not in parts:
    raise ValueError(f'key is {key!r}; the parts of {path} are: '
                     f'{_listed(map(_named, of_tensors or parts)) or "none, so leave it out"}.')
  part = parts[key] if key is not None else {
      name: value for name, value in content.items() if value is not None}
  if others := _others(part):
    is_divided = any(isinstance(value, pickles.Object) and _DIVIDED.match(value.name)
                     for value in part.values())
    remedy = (f'specify the part with the weights by --key=NAME: {_listed(of_tensors)}'
              if of_tensors else
              'they are divided over the processes of a training, so merge its checkpoint first'
              if is_divided else 'save the state dict alone to another file and convert that')
    raise ValueError(f'{path} holds other values than tensors: {_listed(others)}; {remedy}.')
  try:
    arrays = pytorch.arrays(path, part)
  except ValueError as error:
    raise ValueError(f'{path}: {error}; {_SAVE_AGAIN}.') from error
  return Weights(strip(path, arrays), key, notes,
                 {name: settings[name] for name in settings if name == key})


def _described(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
  """Returns a file with the weights of its parts that hold their class too, and the rest of these.

  Such a part has, besides the weights `sd`, the `name` and the arguments `args` of the class.
  """
  parts = {name: value for name, value in content.items()
           if isinstance(value, dict) and isinstance(value.get('sd'), dict)}
  return ({**content, **{name: part['sd'] for name, part in parts.items()}},
          {name: {field: value for field, value in part.items() if field != 'sd'}
           for name, part in parts.items()})


def _others(part: Mapping[Any, Any]) -> list[str]:
  """Returns the names and kinds of what is no tensor of a name."""
  return [f'{_named(name)} ({_kind(value)})' for name, value in part.items()
          if not (isinstance(name, str) and isinstance(value, pytorch.Stored))]


def _named(name: Any) -> str:
  """Returns a name of a file as messages show it."""
  if not isinstance(name, str):
    return 'an entry without a name'
  return name if name.isprintable() and len(name) <= _MAX_SHOWN else f'{name[:_MAX_SHOWN]!r}...'


def _kind(value: Any) -> str:
  if isinstance(value, pickles.Object | pickles.Name):
    return _named(value.name)
  return 'tensor' if isinstance(value, pytorch.Stored) else type(value).__name__


def _listed(texts: Iterable[str]) -> str:
  texts = list(texts)
  return ', '.join(texts[:_MAX_NAMES]) + (', ...' if len(texts) > _MAX_NAMES else '')


def strip(path: pathlib.Path | str, tensors: Mapping[str, Any]) -> dict[str, Any]:
  """Removes the prefixes that wrapping and compiling put before names."""
  stripped: dict[str, Any] = {}
  for name, tensor in tensors.items():
    name = _PREFIXES.sub('', name)
    if name in stripped:
      raise ValueError(f'{path} holds {_named(name)} more than once, with different prefixes.')
    stripped[name] = tensor
  return stripped
