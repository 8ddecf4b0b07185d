"""Compiled programs that commands store on disk, so that a second start compiles nothing.

JAX's persistent compilation cache, in a folder per processor: a program compiled for one CPU may
not run on another, and home folders are often shared. JAX's own settings take precedence:
`JAX_COMPILATION_CACHE_DIR` names another folder, `JAX_ENABLE_COMPILATION_CACHE=false` turns the
cache off.
"""

import hashlib
import os
import pathlib
import platform

import jax


def enable() -> None:
  """Makes JAX store what it compiles in this process and later ones."""
  if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
    return
  root = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  folder = pathlib.Path(root, 'cspd_jax', 'compiled', _processor()).expanduser()
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except (OSError, RuntimeError):  # Without a home folder that can be written, nothing is stored.
    return
  jax.config.update('jax_compilation_cache_dir', str(folder))


def _processor() -> str:
  """A name for the instruction set of this machine's CPU."""
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  except OSError:
    lines = [platform.processor()]
  features = [line for line in lines if line.startswith(('flags', 'Features', 'model name'))]
  digest = hashlib.sha256('\n'.join(dict.fromkeys(features or lines)).encode()).hexdigest()
  return f'{platform.machine()}-{digest[:12]}'
