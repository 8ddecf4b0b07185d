"""Reports each program that JAX compiles in a line on stderr, since some take minutes.

  with compilations.reported(total=2):
    run = jax.jit(compilations.labelled('mc_sjd(window=32)', decoder))
    run(*arguments)  # Prints 'compiling mc_sjd(window=32) (1 of 2)...', and how long it took.

  with compilations.told(lambda: 'decoding'):
    run(*arguments)  # Says which of both it does, if it takes more than five seconds.

JAX traces a function exactly when no compiled program fits its arguments, so a labelled function
reports itself while it is traced, and the event of XLA's compiler that follows ends the report.
"""

import contextlib
import contextvars
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from cspd_jax.core import progress

# The event of JAX after XLA has compiled a program, or loaded it from the cache on disk.
_COMPILED = '/jax/core/compile/backend_compile_duration'
_PATIENCE = 5.0  # Seconds without a word.


@dataclasses.dataclass
class _Report:
  """The programs of one job, as for `reported`."""

  total: int | None
  at_most: bool
  silent: bool = False  # Whether nobody is told.
  count: int = 0
  label: str | None = None  # Of the program that is compiled now.
  start: float = 0.0
  is_traced: bool = False  # Whether only XLA's part of its compilation remains.
  seconds: float = 0.0  # That the programs so far have taken.

  def begin(self, label: str) -> None:
    """Reports that a program is compiled from now on."""
    self.count += 1
    self.label, self.start, self.is_traced = label, time.perf_counter(), False
    number = ''
    if self.total is not None and self.count <= self.total:
      number = f' ({self.count} of {"at most " * self.at_most}{self.total})'
    if not self.silent:
      progress.note(f'compiling {label}{number}...')

  def end(self) -> None:
    """Reports the duration: otherwise a reader waits for the compiler while images are decoded."""
    seconds = time.perf_counter() - self.start
    if not self.silent:
      progress.note(f'compiled {self.label} in {seconds:.1f} s')
    self.seconds += seconds
    self.label = None


_REPORT: contextvars.ContextVar[_Report | None] = contextvars.ContextVar('report', default=None)


@contextlib.contextmanager
def reported(total: int | None = None, at_most: bool = False) -> Iterator[_Report]:
  """Reports the labelled programs of a block: `total`, None if unknown, or fewer if `at_most`.

  Yields what has been compiled; its `seconds` are the time that this took.
  """
  _listen()
  report = _Report(total, at_most)
  token = _REPORT.set(report)
  try:
    yield report
  finally:
    _REPORT.reset(token)


@contextlib.contextmanager
def told(doing: Callable[[], str], speaks: bool = True) -> Iterator[None]:
  """Says on stderr what a block compiles or does, after five seconds and then every 30 seconds.

  `doing` returns what it does apart from compiling, in words. It says nothing if `speaks` is False,
  and within a block that is reported already.
  """
  if not speaks or _REPORT.get() is not None:
    yield
    return
  _listen()
  report, ended = _Report(None, False, silent=True), threading.Event()

  def speak() -> None:
    pause = _PATIENCE
    while not ended.wait(pause):
      label, pause = report.label, progress.SECONDS_OF_LINES
      with contextlib.suppress(OSError, ValueError):  # Nobody reads stderr any more.
        progress.note(f'{doing() if label is None else f"compiling {label}"}...')

  thread = threading.Thread(target=speak, daemon=True)
  token = _REPORT.set(report)
  thread.start()
  try:
    yield
  finally:
    _REPORT.reset(token)
    ended.set()
    thread.join()


def labelled(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a function to be jitted whose compilations are reported under a label."""

  def traced(*args: Any, **kwargs: Any) -> Any:
    report = _REPORT.get()
    if report is None:
      return function(*args, **kwargs)
    report.begin(label)
    result = function(*args, **kwargs)
    report.is_traced = True
    return result

  # JAX names programs after their functions; this is its name for a function without one.
  traced.__name__ = getattr(function, '__name__', '<unnamed function>')
  return traced


@functools.cache  # Once per process.
def _listen() -> None:
  def on_event(event: str, _: float, **_details: Any) -> None:
    report = _REPORT.get()
    if event == _COMPILED and report is not None and report.label is not None and report.is_traced:
      report.end()

  jax.monitoring.register_event_duration_secs_listener(on_event)
