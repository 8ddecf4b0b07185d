"""What a file of weights is, by its first bytes, and what to do with one that is not read.

The name of a file does not decide how it is read: safetensors and files of PyTorch are also found
under the endings of the other one and of unfinished downloads.
"""

import pathlib
import re
import zipfile
from collections.abc import Iterable

from cspd_jax.core import progress
from cspd_jax.files import reading

SAFETENSORS, PYTORCH = 'safetensors', 'PyTorch'
# Bytes that tell the forms apart, and letters of them in a message.
_START, _MOST_SHOWN = 512, 60
# The number with which files of PyTorch before 1.6 begin, after instructions of a pickle.
_OLD_PYTORCH = (0x1950a86a20f9469cfc6c).to_bytes(10, 'little')
_ZIP, _PICKLE = b'PK\3\4', b'\x80'
# Names of a zip archive that a message shows.
_MOST_NAMES = 3

# Files that hold no weights in a form that is read, by how they begin: what they are, and what to
# do.
_OTHERS = (
    (rb'GGUF[\x01-\x0f]\x00{3}', 'is GGUF, whose weights are laid out, and mostly quantised, for '
     'llama.cpp; convert the safetensors or PyTorch files that the model was published with'),
    (rb'\x89HDF\r\n\x1a\n', 'is HDF5, as Keras writes it; save the weights as safetensors'),
    (rb'\x93NUMPY', 'is one array of NumPy; save the weights by name, as safetensors'),
    (rb'\x89PNG\r\n\x1a\n|\xff\xd8\xff', 'is a picture; specify the file of the weights'),
    (rb'.{257}ustar', 'is a tar archive; unpack it, and specify the file or the folder in it'))

# Files of training in several processes, by their names: the program, and how it joins them.
_PARTS = (
    (r'.*\.distcp', 'torch.distributed.checkpoint',
     'python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pt'),
    (r'(bf16_)?zero_pp_rank_\d+_.*\.pt|mp_rank_\d+_model_states\.pt', 'DeepSpeed',
     'python zero_to_fp32.py . OUTPUT, in the folder of zero_to_fp32.py, which DeepSpeed wrote'),
    (r'model_world_size_\d+_rank_\d+\.pt', 'FSDP, as verl writes them',
     'python -m verl.model_merger merge --backend fsdp --local_dir FOLDER --target_dir OUTPUT'))
# Those that hold the whole network, unless training divided it.
_PERHAPS_WHOLE = re.compile(r'mp_rank_\d+_model_states\.pt|model_world_size_1_rank_0\.pt')


def of(path: pathlib.Path) -> str:
  """Returns `SAFETENSORS` or `PYTORCH`, by the content of a file, and by its name if it is damaged.

  Raises ValueError, with the remedy, for a file of another form.
  """
  with path.open('rb') as stream:
    start = stream.read(_START)
  if reading.is_safetensors(start):
    return SAFETENSORS
  other = next((text for magic, text in _OTHERS if re.match(magic, start, re.DOTALL)), None)
  if start.startswith(_ZIP):
    other = _of_zip(path)
  elif start.startswith(_PICKLE) and _OLD_PYTORCH not in start[:32]:
    other = ('is a pickle, which is a program and is not run; save the weights with torch.save, or '
             'as safetensors')
  elif other is None and start and all(byte in b'\t\n\r' or 32 <= byte < 127 for byte in start):
    shown = progress.visible(start.decode().strip())[:_MOST_SHOWN]
    other = f'is text, which begins with {shown!r}; specify the file of the weights'
  if other is not None:
    raise ValueError(f'{path} {other}.')
  if start.startswith((_ZIP, _PICKLE)) or path.suffix != '.safetensors':
    return PYTORCH
  return SAFETENSORS


def _of_zip(path: pathlib.Path) -> str | None:
  """Returns what a zip archive is that PyTorch did not write; None if it did, or it is damaged."""
  try:
    with reading.open_zip(path) as archive:
      names = [name for name in archive.namelist() if not name.endswith('/')]
  except (OSError, ValueError, zipfile.BadZipFile):
    return None
  if not names or any(re.fullmatch(r'[^/]+/data\.pkl', name) for name in names):
    return None
  if all(name.endswith('.npy') for name in names):
    return 'is an archive of arrays of NumPy (npz); save them as safetensors'
  shown = ', '.join(progress.visible(name)[:_MOST_SHOWN] for name in names[:_MOST_NAMES])
  return (f'is a zip archive, which holds {shown}{", ..." if len(names) > _MOST_NAMES else ""}; '
          'unpack it, and specify the file or the folder in it')


def unmerged(source: pathlib.Path) -> str | None:
  """Returns what to do if a source is, or holds, one process's part of a training; else None."""
  if source.is_dir():
    # The folder of a step or of one network may be below the one that is given.
    return _merge(source, (file for pattern in ('*', '*/*')
                           for file in sorted(source.glob(pattern)) if file.is_file()))
  return None if _PERHAPS_WHOLE.fullmatch(source.name) else _merge(source, [source])


def part_of_training(source: pathlib.Path) -> str | None:
  """Returns what to do if the name of a file is that of a part, even one that may be whole."""
  return _merge(source, [source])


def _merge(source: pathlib.Path, files: Iterable[pathlib.Path]) -> str | None:
  for file in files:
    for name, program, command in _PARTS:
      if re.fullmatch(name, file.name):
        return (f'source is {source}' + ('' if file == source else f', with {file}') +
                f': a checkpoint of {program}, divided over the processes of a training; merge the '
                f'checkpoint first ({command}), and specify the result')
  return None
