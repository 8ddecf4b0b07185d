"""Compiled programs that commands store on disk, so that a second start compiles nothing.

JAX's persistent compilation cache, in a folder per processor: a program compiled for one CPU may
not run on another, and home folders are often shared. JAX's own settings take precedence:
`JAX_COMPILATION_CACHE_DIR` names another folder, `JAX_ENABLE_COMPILATION_CACHE=false` turns the
cache off. JAX never replaces an entry, so one that a full disk has cut would be compiled at every
start; it is removed here.
"""

import contextlib
import functools
import glob
import hashlib
import os
import pathlib
import platform
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
from jax._src import compilation_cache

# What JAX warns of, with the name of the program; it then compiles, and stores an absent entry.
_WARNING = r"Error (reading|writing) persistent compilation cache entry for '(\w+)'"


def enable() -> None:
  """Makes JAX store what it compiles in this process and later ones."""
  if not jax.config.jax_enable_compilation_cache:
    return
  if not jax.config.jax_compilation_cache_dir:
    root = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
    try:
      folder = pathlib.Path(root, 'cspd_jax', 'compiled', processor()).expanduser()
      folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # Without a home folder that can be written, nothing is stored.
      return
    jax.config.update('jax_compilation_cache_dir', str(folder))
  warnings.filterwarnings('always', message=_WARNING)
  if getattr(warnings.showwarning, 'func', None) is not _repair:
    warnings.showwarning = functools.partial(_repair, warnings.showwarning)


def _repair(show: Callable[..., None], message: Warning | str, *where: Any) -> None:
  """Removes damaged entries that a warning is about; otherwise shows it with `show`."""
  match = re.match(_WARNING, str(message))
  if not match or not _removed(match[2]) or match[1] == 'writing':
    show(message, *where)


def _removed(program: str) -> bool:
  """Removes the damaged entries of a program, and returns whether there were any."""
  folder, damaged = pathlib.Path(jax.config.jax_compilation_cache_dir), []
  for path in folder.glob(f'{glob.escape(program)}-*-cache'):
    try:
      compilation_cache.decompress_executable(path.read_bytes())
    except Exception:  # Of the library that compresses, which depends on the installation.
      with contextlib.suppress(OSError):
        path.unlink()
        damaged.append(path)
  return bool(damaged)


def processor() -> str:
  """Returns a name for the instruction set of this machine's CPU."""
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines()
  except OSError:
    lines = [platform.processor()]
  features = [line for line in lines if line.startswith(('flags', 'Features', 'model name'))]
  digest = hashlib.sha256('\n'.join(dict.fromkeys(features or lines)).encode()).hexdigest()
  return f'{platform.machine()}-{digest[:12]}'
