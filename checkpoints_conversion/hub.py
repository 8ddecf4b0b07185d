"""Published folders from the Hugging Face Hub, by an id such as `BAAI/Emu3-Gen`."""

import os
import pathlib
import re
from collections.abc import Iterable

from checkpoints_conversion import read


def local(source: str | os.PathLike, names: Iterable[str] = ()) -> pathlib.Path:
  """The folder or file of a source; what is named by an id is downloaded, or found in the cache.

  Args:
    source: a path, or an id of the hub: `owner/name`, or `owner/name@revision`.
    names: paths in the repository that are needed, beside safetensors files if '.' is among them
      or there are none.

  Raises:
    ReadError: if there is neither such a path nor such a repository, or it cannot be downloaded.
  """
  path = pathlib.Path(source).expanduser()
  match = re.fullmatch(r'(\w[\w.-]*/[\w.-]+)(?:@([\w./-]+))?', str(source))
  if path.exists() or not match or path.suffix in read.SUFFIXES:
    return path
  try:
    import huggingface_hub
  except ImportError as error:
    raise read.ReadError(
        f'source is {str(source)!r}: there is no such file, and to download it from the Hugging '
        "Face Hub huggingface_hub must be installed: `pip install -e '.[hub]'`.") from error
  names = list(names) or ['.']
  inside = [name for name in names if name != '.' and not name.startswith('..')]
  patterns = [name if pathlib.PurePath(name).suffix else f'{name}/*' for name in inside]
  if '.' in names:
    patterns += ['*.safetensors', '*.safetensors.index.json', 'config.json']
  try:
    return pathlib.Path(huggingface_hub.snapshot_download(
        match[1], revision=match[2], allow_patterns=patterns))
  except Exception as error:  # The package, its client and the network have many.
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    raise read.ReadError(
        f'source is {str(source)!r}: there is no such file, and the Hugging Face Hub does not give '
        f'it ({reason}); check the name, the network and, for models behind a licence, `hf auth '
        'login`, or download it elsewhere and give the folder.') from error
