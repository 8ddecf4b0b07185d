"""Published files by their ids on the Hugging Face Hub."""

import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tqdm

from checkpoints_conversion import read, rules
from cspd_jax.core import naming, packages
from cspd_jax.files import paths


class _Silent(tqdm.tqdm):
  """No line for the files whose sizes are asked for."""

  def __init__(self, *args: Any, **options: Any):
    super().__init__(*args, **{**options, 'disable': True})


class Repository(NamedTuple):
  """A repository of the Hub, or a file in it: `owner/name`, `owner/name@revision:file`."""

  name: str
  revision: str | None
  file: str | None


def parse(source: str | os.PathLike) -> Repository | None:
  """Returns the repository that a source names; None for paths."""
  match = re.fullmatch(r'(\w[\w.-]*/[\w.-]+)(?:@([\w./-]+))?(?::([\w./-]+))?', str(source))
  path = pathlib.Path(source).expanduser()
  if path.exists() or not match or (match[3] is None and path.suffix in read.SUFFIXES):
    return None
  return Repository(*match.groups())


def local(source: str | os.PathLike, names: Iterable[str] = (), elsewhere: Sequence[str] = (),
          note: Callable[[str], None] = lambda line: None) -> pathlib.Path:
  """Returns the local folder or file of a source; a repository is downloaded unless it is cached.

  Args:
    source: a path, or an id of the Hub: `owner/name` or `owner/name@revision`, and `:file` for one
      file of the repository.
    names: the required paths in the repository. Safetensors and TorchScript files are downloaded
      as well if '.' is among them or there are no names.
    elsewhere: patterns of files that are not downloaded in any case.
    note: called with the number and the size of the files before they are downloaded.

  Raises:
    ValueError: if the source is an id that does not exist, has none of the files, cannot be
      downloaded, or does not fit on the disk. Another call fetches the files that are missing.
  """
  repository = parse(source)
  if repository is None:
    return pathlib.Path(source).expanduser()
  try:
    library, errors, constants = map(packages.load, (
        'huggingface_hub', 'huggingface_hub.errors', 'huggingface_hub.constants'))
  except ImportError as error:
    raise ValueError(
        f'source is {str(source)!r}: there is no such file, and a download from the Hugging Face '
        f'Hub needs huggingface_hub, but {error}; run {packages.install("hub")}.') from error
  patterns = [repository.file] if repository.file else _patterns(list(names) or ['.'])

  def download(**options: Any) -> Any:
    try:
      return library.snapshot_download(
          repository.name, revision=repository.revision, allow_patterns=patterns,
          ignore_patterns=list(elsewhere) or None, **options)
    except errors.DryRunError:  # Without a network the files may be cached.
      return None
    except Exception as error:  # The package, its client and the network raise many classes.
      raise ValueError(f'source is {str(source)!r}: there is no such file, and the Hugging Face '
                       f'Hub {_failure(errors, repository, error)}') from error

  files = download(dry_run=True, tqdm_class=_Silent)
  if files is not None:
    if not files:
      raise ValueError(f'source is {str(source)!r}, a repository without {", ".join(patterns)}; '
                       'choose another one, or another family or model.')
    if new := [file for file in files if file.will_download]:
      size = sum(file.file_size or 0 for file in new)
      cache = pathlib.Path(constants.HF_HUB_CACHE)
      shown = f'{size / 1e9:.2f} GB' if size >= 1e8 else f'{size / 1e6:.1f} MB'
      note(f'fetching {len(new)} file{"s"[:len(new) != 1]} of {source}, {shown}, into {cache}')
      paths.check_space(next(path for path in (cache, *cache.parents) if path.exists()), size)
  return pathlib.Path(download()) / (repository.file or '')


def _patterns(names: list[str]) -> list[str]:
  """Returns patterns of the files that are downloaded for the required paths of a repository."""
  inside = [name for name in names if name != '.' and not name.startswith('..')]
  # A point in a name does not tell a file from a folder.
  patterns = [pattern for name in inside for pattern in (
      (name,) if pathlib.PurePath(name).suffix in read.SUFFIXES else (name, f'{name}/*'))]
  # A file in a folder of its own may have settings next to it.
  patterns += [str(path.with_name('config.json')) for path in map(pathlib.PurePosixPath, inside)
               if path.suffix in read.SUFFIXES and len(path.parts) > 1]
  patterns += [str(path.with_name('tokenizer_config.json'))
               for path in map(pathlib.PurePosixPath, inside)
               if path.name in ('tokenizer.json', 'mammothu.tiktoken')]
  patterns += [name for path in inside if path == 'mammothu.tiktoken'
               for name in ('mammothu_vision_tokens.txt', 'chat_template.*')]
  if '.' in names:
    patterns += ['*.safetensors', '*.safetensors.index.json', '*.jit', 'config.json',
                 'preprocessor_config.json', 't2i_generation_config.json']
  return patterns


def _failure(errors: Any, repository: Repository, error: Exception) -> str:
  """Says why the Hub cannot give a repository, and what to do."""
  # The package looks into its cache after a refusal, and reports what the cache lacks.
  causes: list[BaseException] = []
  cause: BaseException | None = error
  while cause is not None:
    causes.append(cause)
    cause = cause.__cause__ or cause.__context__
  if any(isinstance(cause, errors.GatedRepoError) for cause in causes):
    return (f'gives it only to those who accepted its licence; do so on https://huggingface.co/'
            f'{repository.name}, then run `hf auth login`.')
  if any(isinstance(cause, errors.RevisionNotFoundError) for cause in causes):
    return f'has no revision {repository.revision!r} of it; leave it out for the newest one.'
  if any(isinstance(cause, errors.RepositoryNotFoundError) for cause in causes):
    near = naming.nearest(repository.name, {
        name for family in rules.FAMILIES.values() for name in family.hub.values()})
    return 'has no such repository that everyone may read; ' + (
        f'did you mean {near}?' if near else
        'check the name, and run `hf auth login` for what only you may read.')
  reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
  return (f'cannot be reached ({reason}); check the network, or download the files elsewhere and '
          'specify the folder.')
