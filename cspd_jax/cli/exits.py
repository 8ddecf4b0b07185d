"""Exit codes of programs, and one message on stderr for an error of the input."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from cspd_jax.core import fields, progress

# Characters of a message that fit on a terminal, and of a list of problems.
_MAX_LENGTH, _MAX_LIST = 1500, 8000
# What the system says of a full disk.
_FULL = errno.ENOSPC, errno.EDQUOT


def code_of(main: Callable[[], int | None], debug: bool = False) -> int:
  """Runs a program and returns its exit code: 2 for an error of the input, 130 if interrupted.

  An error that the input or the machine causes ends with one line on stderr, a `ListedError` with
  the lines of its message. Any other error is a bug of the program and keeps its traceback, as all
  do with `debug`. If stdout or stderr is closed, the reader of its pipe has ended, or the disk of
  stderr is full, its text is discarded, and the program continues.

  `main` returns its exit code, None for 0; the argument of its KeyboardInterrupt says what is kept.
  """
  for name in ('stdout', 'stderr'):
    if getattr(sys, name) is None:
      setattr(sys, name, os.fdopen(_devnull(), 'w', encoding='utf-8'))
  with (contextlib.redirect_stdout(_Output(sys.stdout)),
        contextlib.redirect_stderr(_Output(sys.stderr, may_fail=True))):
    return _code_of(main, debug)


class _Output:
  """A text stream that writes every text, with escapes, until the reader of its pipe has ended.

  One that `may_fail` also ends if its disk is full: its text is no result.
  """

  def __init__(self, stream: Any, may_fail: bool = False):
    self._stream, self._may_fail = stream, may_fail

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    with self._discarding():
      text = progress.lines(text)
      try:
        return self._stream.write(text)
      except UnicodeEncodeError as error:
        return self._stream.write(text.encode(error.encoding, 'backslashreplace').decode(
            error.encoding))
    return len(text)

  def flush(self) -> None:
    with self._discarding():
      self._stream.flush()

  @contextlib.contextmanager
  def _discarding(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      if not (isinstance(error, BrokenPipeError) or self._may_fail and error.errno in _FULL):
        raise
      # The stream keeps text that it could not write, and Python flushes it again when it exits.
      null = _devnull()
      os.dup2(null, self._stream.fileno())
      os.close(null)


def _devnull() -> int:
  return os.open(os.devnull, os.O_WRONLY)


def _code_of(main: Callable[[], int | None], debug: bool) -> int:
  """As `code_of`, with streams that can be written."""
  try:
    code = main() or 0
    sys.stdout.flush()
    return code
  except KeyboardInterrupt as stop:
    print(': '.join(['interrupted', *map(str, stop.args)]), file=sys.stderr)
    return 130
  except (ValueError, OSError, ImportError, MemoryError, jax.errors.JaxRuntimeError) as error:
    text = _message(error)
    if debug or text is None:
      raise
    print(f'error: {text}', file=sys.stderr)
    return 2
  except (RuntimeError, AssertionError):
    text = _problem_of_devices()
    if debug or text is None:
      raise
    print(f'error: {text}', file=sys.stderr)
    return 2


def _problem_of_devices() -> str | None:
  """Says that JAX cannot start on the configured devices, whose errors mislead, or returns None."""
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:  # The latter if the GPU package is missing.
    platforms, reason = jax.config.jax_platforms, _one_line(error).rstrip('.')
    return (f'JAX_PLATFORMS is {platforms or "not set"}, and JAX cannot start on such a device'
            + (f' ({reason})' if reason else '')
            + '; install JAX for it, or set JAX_PLATFORMS=cpu.')
  return None


def _one_line(error: Exception) -> str:
  return ' '.join(filter(None, map(str.strip, str(error).splitlines())))


def _message(error: Exception) -> str | None:
  """The message of an error of the input, one line but for a `ListedError`; else None."""
  if isinstance(error, fields.ListedError):
    return _shortened('\n'.join(filter(None, map(str.rstrip, str(error).splitlines()))), _MAX_LIST)
  text = _one_line(error)
  if isinstance(error, jax.errors.JaxRuntimeError) and not text.startswith('RESOURCE_EXHAUSTED'):
    return None
  if isinstance(error, MemoryError | jax.errors.JaxRuntimeError):
    text = (f'the machine is out of memory ({text or "for this request"}); request less at once, '
            'such as a smaller batch.')
  elif isinstance(error, OSError) and error.strerror:
    text = error.strerror + (f': {str(error.filename)!r}' if error.filename is not None else
                             ' (the system names no file; it may be the standard output)')
    if error.errno in _FULL:
      text += '; free some space and repeat the command.'
  return _shortened(text, _MAX_LENGTH)


def _shortened(text: str, length: int) -> str:
  return text if len(text) <= length else f'{text[:length]} ...'
