"""Progress of long jobs on a terminal, and texts of others without control characters."""

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator

import tqdm

# Seconds between two updates of a bar, and between two lines where stderr is not a terminal.
_SECONDS, SECONDS_OF_LINES = 0.2, 30.0


@contextlib.contextmanager
def bar(label: str, unit: str = 'image') -> Iterator[Callable[[int, int], None]]:
  """Shows a line on stderr with the steps done, the pace and the remaining time.

  Steps that take over a second are also shown per hour. Yields `(done, total) -> None`, to be
  called after each step.
  """
  if not sys.stderr.isatty():
    line = _Lines(label, unit)
    try:
      yield line
    finally:
      line.end()
    return
  with contextlib.ExitStack() as stack:
    lines: list[tqdm.tqdm] = []

    def show(done: int, total: int) -> None:
      if not lines:  # The clock starts with the first step, after compilation.
        lines.append(stack.enter_context(tqdm.tqdm(
            desc=label, total=total, initial=done, unit=unit, mininterval=_SECONDS,
            maxinterval=_SECONDS, dynamic_ncols=True, leave=False)))
      elapsed = lines[0].format_dict['elapsed']
      lines[0].set_postfix_str(_per_hour(done - lines[0].initial, elapsed, unit), refresh=False)
      lines[0].update(done - lines[0].n)

    yield show


class _Lines:
  """A bar in a log file: now and then a line, without carriage returns, and one at the end."""

  def __init__(self, label: str, unit: str):
    self._label, self._unit = label, unit
    self._initial, self._start, self._last = 0, 0.0, -float('inf')
    self._unseen: str | None = None  # The newest line, unless it was printed.

  def __call__(self, done: int, total: int) -> None:
    now = time.perf_counter()
    if self._last < 0:  # The clock starts with the first step.
      self._initial, self._start = done, now
    self._unseen = tqdm.tqdm.format_meter(
        done, total, now - self._start, prefix=self._label, unit=self._unit, initial=self._initial,
        postfix=_per_hour(done - self._initial, now - self._start, self._unit))
    if now - self._last >= SECONDS_OF_LINES:
      self._last = now
      self.end()

  def end(self) -> None:
    """Prints how far the job is, unless the last line says that."""
    if self._unseen is not None:
      print(self._unseen, file=sys.stderr, flush=True)
    self._unseen = None


def _per_hour(steps: int, seconds: float, unit: str) -> str:
  """Returns the pace as text; '' before the first step, and for more than one per second."""
  return f'{3600 * steps / seconds:,.0f} {unit}s/hour' if 0 < steps < seconds else ''


def duration(seconds: float) -> str:
  """Returns a time in words, such as '12 minutes'."""
  for unit, size in (('hours', 3600.0), ('minutes', 60.0)):
    if seconds >= 2 * size:
      return f'{seconds / size:.0f} {unit}'
  return f'{seconds:.0f} seconds'


def say(line: str) -> None:
  """Prints a line on stdout, above the progress bar if one is shown."""
  tqdm.tqdm.write(line, file=sys.stdout)
  sys.stdout.flush()


def note(line: str) -> None:
  """Prints a line on stderr, above the progress bar if one is shown."""
  if sys.stderr.isatty():
    tqdm.tqdm.write(line, file=sys.stderr)
  else:
    print(f'{line}\n', end='', file=sys.stderr, flush=True)  # At once: other threads write, too.


# Control characters, which may move the cursor or hide text, those that reorder it, and surrogates,
# by which Python represents bytes that are no UTF-8.
_CONTROLS = re.compile(
    '[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]')


def visible(text: str) -> str:
  """Returns a text of one line in which control characters are replaced by their escapes."""
  return _CONTROLS.sub(lambda match: match[0].encode('unicode_escape').decode(), text)


def unicode(text: str) -> str:
  """Returns a text, such as the name of a file, in which bytes that are no UTF-8 are escaped."""
  return text.encode(errors='backslashreplace').decode()


def lines(text: str) -> str:
  """Returns lines with escapes for control characters, but carriage returns at their ends."""
  return '\n'.join(_line(line) for line in text.split('\n'))


def _line(line: str) -> str:
  """A line whose carriage returns at its ends stay."""
  inner = line.strip('\r')
  start = line[:len(line) - len(line.lstrip('\r'))]
  return line if not inner else start + visible(inner) + line[len(start) + len(inner):]
