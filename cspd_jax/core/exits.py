"""How programs end: with an exit code, and one line for what is wrong with the input."""

import errno
import os
import sys
from collections.abc import Callable

import jax

from cspd_jax.core import programs

# Letters of a message that a terminal shows at once.
_MOST = 1500


def code_of(main: Callable[[], int | None], debug: bool = False) -> int:
  """Runs a program.

  What its input or the machine is to blame for ends with one line on stderr. Anything else is a
  mistake of the program and keeps its traceback. What is printed is lost if the standard output is
  closed.

  Args:
    main: the program; what it returns is the exit code, None is 0.
    debug: whether errors of the input keep their traceback, too.

  Returns:
    The exit code: 2 for an error of the input, 130 if the program was interrupted, 141 if nobody
    reads its output any more.
  """
  for name in ('stdout', 'stderr'):
    if getattr(sys, name) is None:
      setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), 'w', encoding='utf-8'))
  try:
    code = main() or 0
    sys.stdout.flush()
    return code
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    return 130
  except BrokenPipeError:
    # Python flushes again when it ends, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
  except (ValueError, OSError, ImportError, MemoryError, jax.errors.JaxRuntimeError) as error:
    text = _text(error)
    if debug or text is None:
      raise
    print(f'error: {text}', file=sys.stderr)
    return 2
  except (RuntimeError, AssertionError):
    try:
      programs.check_devices()
    except ValueError as error:
      if not debug:
        print(f'error: {_text(error)}', file=sys.stderr)
        return 2
    raise


def _text(error: Exception) -> str | None:
  """An error in one line; None if the input is not to blame."""
  text = ' '.join(filter(None, map(str.strip, str(error).splitlines())))
  if isinstance(error, jax.errors.JaxRuntimeError) and not text.startswith('RESOURCE_EXHAUSTED'):
    return None
  if isinstance(error, MemoryError | jax.errors.JaxRuntimeError):
    text = (f'there is not enough memory ({text or "for what is asked for"}); ask for less at '
            'once, such as with a smaller batch.')
  elif isinstance(error, OSError) and error.strerror:
    text = error.strerror + (f': {str(error.filename)!r}' if error.filename is not None else
                             ' (the system names no place; perhaps the standard output)')
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
      text += '; free some space and repeat the command.'
  return text if len(text) <= _MOST else f'{text[:_MOST]} ...'
