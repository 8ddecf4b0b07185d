"""The rows of a stage of `experiments.accelerator`, written one by one.

A rented accelerator may be gone at any second, so what is measured is on disk at once, and a later
piece of time continues: rows that are there are not measured again.
"""

import concurrent.futures
import contextlib
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax

from cspd_jax.core import programs
from cspd_jax.files import reading
from cspd_jax.files.run_folder import Report
from cspd_jax.measure.tables import Columns, Table, write
from experiments.costs import devices, timed_rounds
from experiments.measured import show

Value = TypeVar('Value')

# What is not measured of a GPU: the launch of a kernel, and products in other arithmetic.
_GPU = devices.ACCELERATORS['h200']
_WORDS = 500  # Characters of an error that are kept.


def stored(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the report of a stage in a folder; empty without one."""
  path = folder / 'report.json'
  return reading.json(path, 'use another workdir') if path.exists() else {}


class Piece:
  """The rows of a stage so far, and notes with the name and the error of what failed."""

  def __init__(self, folder: pathlib.Path, seconds: float, rehearses: bool = False):
    """Continues what `folder` holds; no measurement starts after `seconds`.

    The device must be that of the stored rows, and they must be of a rehearsal too if this one
    `rehearses`, or it raises ValueError.
    """
    self.folder, self.rehearses, self._settings = folder, rehearses, dict(rehearse=rehearses)
    self._start, self._limit = time.monotonic(), seconds
    before = stored(folder)
    now = dict(settings=self._settings, device=jax.devices()[0].device_kind)
    then = {name: before.get(name) for name in now}
    if before and then != now:
      raise ValueError(f'workdir holds rows of {then}, which cannot be continued with {now}; use '
                       'another workdir.')
    self.facts: dict[str, Any] = before.get('facts', {})
    self._tables = {table['title']: Table(table['title'], table['columns'],
                                          [before['rows'][number] for number in table['rows']])
                    for table in before.get('tables', ())}
    self._notes: list[dict[str, str]] = []
    self._begun: list[str] = []
    self._spent = before.get('seconds', 0.0)
    self._written = threading.Lock()

  def repeats(self, count: int) -> int:
    """Returns how often to repeat what is repeated `count` times if this is no rehearsal."""
    return 1 if self.rehearses else count

  @property
  def is_over(self) -> bool:
    """Whether the time limit was reached."""
    return time.monotonic() > self._start + self._limit

  def rows(self) -> list[dict[str, Any]]:
    """Returns all rows so far."""
    return [row for table in self._tables.values() for row in table.rows]

  def has(self, title: str, **values: Any) -> bool:
    """Whether a table has a row with these values."""
    return title in self._tables and any(
        row.items() >= values.items() for row in self._tables[title].rows)

  def add(self, title: str, columns: Columns, row: dict[str, Any]) -> None:
    """Prints a row, appends it to the table of this title, and writes everything."""
    show(columns, row)
    self._tables.setdefault(title, Table(title, columns, [])).rows.append(row)
    self._write()

  def measure(self, title: str, columns: Columns, names: Mapping[str, Any],
              function: Callable[[], Mapping[str, Any]]) -> None:
    """Adds the row of these names, unless it is there; `function` measures its other values."""
    if not self.has(title, **names):
      row = self.attempt(f'{title}: {", ".join(map(str, names.values()))}, measured', function)
      if row is not None:
        self.add(title, columns, {**names, **row})

  def attempt(self, name: str, function: Callable[[], Value], is_part: bool = False
              ) -> Value | None:
    """Returns `function()`; None, with a note, if the time limit is reached or the call fails.

    What `is_part` of a measurement that has begun is not left out at the limit.
    """
    try:
      if self.is_over and not is_part:
        raise TimeoutError('the time limit was reached')
      print(f'... {time.monotonic() - self._start:.0f} s: {name}', file=sys.stderr, flush=True)
      self._begun.append(name)
      self._write()
      return function()
    except Exception as error:  # An untested device may raise anything.
      words = f'{type(error).__name__}: {" ".join(str(error).split())[:_WORDS]}'
      self._notes.append(dict(what=name, error=words))
      print(f'not measured: {name} ({words})', flush=True)
      return None
    finally:
      with contextlib.suppress(ValueError):
        self._begun.remove(name)
      self._write()

  def fact(self, name: str, function: Callable[[], Any]) -> Any:
    """Returns what was found under this name, `function()` at first; None if that fails.

    It is a part of a measurement that has begun.
    """
    if name not in self.facts:
      value = self.attempt(name, function, is_part=True)
      if value is None:
        return None
      self.facts[name] = value
      self._write()
    return self.facts[name]

  def in_groups(self, title: str, functions: Mapping[str, Callable[[], Value]], threads: int
                ) -> Iterator[dict[str, Value]]:
    """Calls functions in parallel, `threads` at a time, and yields what each group returned.

    So programs compile together, and nothing compiles while one of them is timed.
    """
    names = list(functions)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
      for start in range(0, len(names), threads):
        group = names[start:start + threads]
        results = pool.map(lambda name: self.attempt(f'{title}: {name}', functions[name]), group)
        yield {name: result for name, result in zip(group, results) if result is not None}

  def all(self, title: str, functions: Mapping[str, Callable[[], Value]], threads: int = 1
          ) -> dict[str, Value]:
    """Returns what functions return, by name, without those that fail; see `in_groups`."""
    return {name: value for group in self.in_groups(title, functions, threads)
            for name, value in group.items()}

  def accelerator(self) -> devices.Accelerator:
    """Returns the current device with its measured rates."""
    rates = self.fact('rates', lambda: dict(
        bandwidth=timed_rounds.copy_bandwidth(), flops=timed_rounds.matrix_rate()))
    rates = rates or dict(bandwidth=1.0, flops=1.0)  # The predictions then show that it failed.
    launch = _GPU.kernel_seconds if programs.on_cuda() else 0.0
    return devices.Accelerator(
        rates['bandwidth'], rates['flops'], launch, 0, jax.default_backend(), '', ())

  def _write(self) -> None:
    with self._written:  # Several threads compile, and may fail.
      write(Report(self.folder), f'python -m experiments.accelerator --stages={self.folder.name}',
            list(self._tables.values()), settings=self._settings, facts=self.facts,
            notes=self._notes, begun=self._begun,
            seconds=self._spent + time.monotonic() - self._start)
