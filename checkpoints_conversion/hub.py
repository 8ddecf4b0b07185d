"""Published folders on the Hugging Face Hub, by ids such as `BAAI/Emu3-Gen`."""

import os
import pathlib
import re
from collections.abc import Iterable

from checkpoints_conversion import read
from cspd_jax.core import packages


def local(source: str | os.PathLike, names: Iterable[str] = ()) -> pathlib.Path:
  """Returns the local folder or file of a source; a repository is downloaded unless it is cached.

  Args:
    source: a path, or an id of the hub: `owner/name`, or `owner/name@revision`.
    names: required paths in the repository. Safetensors files are downloaded as well if '.' is
      among them or `names` is empty.

  Raises:
    ReadError: if neither such a path nor such a repository exists, or the download fails.
  """
  path = pathlib.Path(source).expanduser()
  match = re.fullmatch(r'(\w[\w.-]*/[\w.-]+)(?:@([\w./-]+))?', str(source))
  if path.exists() or not match or path.suffix in read.SUFFIXES:
    return path
  try:
    huggingface_hub = packages.load('huggingface_hub')
  except ImportError as error:
    raise read.ReadError(
        f'source is {str(source)!r}: there is no such file, and a download from the Hugging Face '
        f"Hub needs huggingface_hub, but {error}; run pip install 'cspd_jax[hub]'."
    ) from error
  names = list(names) or ['.']
  inside = [name for name in names if name != '.' and not name.startswith('..')]
  patterns = [name if pathlib.PurePath(name).suffix else f'{name}/*' for name in inside]
  # A file in a folder of its own may have settings next to it.
  patterns += [str(path.with_name('config.json')) for path in map(pathlib.PurePosixPath, inside)
               if path.suffix and len(path.parts) > 1]
  if 'tokenizer.json' in names:
    patterns.append('tokenizer_config.json')
  if '.' in names:
    patterns += ['*.safetensors', '*.safetensors.index.json', 'config.json']
  try:
    return pathlib.Path(huggingface_hub.snapshot_download(
        match[1], revision=match[2], allow_patterns=patterns))
  except Exception as error:  # The package, its client and the network raise many classes.
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    raise read.ReadError(
        f'source is {str(source)!r}: there is no such file, and the download from the Hugging Face '
        f'Hub failed ({reason}); check the name, the network and, for models behind a licence, '
        '`hf auth login`, or download it elsewhere and specify the folder.') from error
