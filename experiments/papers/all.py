"""Remakes every table and figure of the papers' pages, one program after the other.

  python -m experiments.papers.all --budget=60

A program whose report in runs/papers was made with today's settings is skipped, so that the command
can be repeated after an interruption. Before each program it prints how long the program took when
its report in docs/reports was made. With --budget, a program that took longer than the minutes
that are left is not started.
"""

import dataclasses
import importlib
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from cspd_jax import cli
from cspd_jax.cli import wrapper
from cspd_jax.core import fields
from cspd_jax.files import atomic, reading

ROOT = pathlib.Path(__file__).parents[2]
# The program of every report.
PROGRAMS = {
    'published': 'papers.published', 'published_demo': 'papers.published',
    'published_cspd': 'papers.published', 'sjd': 'topologies', 'sjd_pac': 'topologies',
    'cool_sd': 'benchmark', 'lantern': 'benchmark', 'cspd': 'papers.cspd'}
# The reports with the default configuration of their program; others have configs/papers.py:NAME.
_DEFAULT = ('published', 'cspd')


@dataclasses.dataclass(frozen=True)
class Config:
  """Which programs are started.

  Attributes:
    program: names of the reports.
    budget: minutes; None is without limit.
  """

  program: tuple[str, ...] = tuple(PROGRAMS)
  budget: float | None = None

  def __post_init__(self):
    fields.check(self)
    if unknown := [name for name in self.program if name not in PROGRAMS]:
      raise ValueError(f'program holds {unknown[0]!r}; every name must be one of: '
                       f'{", ".join(PROGRAMS)}.')
    if self.budget is not None and self.budget <= 0:
      raise ValueError(f'budget is {self.budget}; it must be a positive number of minutes.')


def _report(path: pathlib.Path) -> dict[str, Any]:
  """Returns a report; empty without its file."""
  return reading.json(path, 'remove it') if path.exists() else {}


def _config(name: str) -> str:
  """Returns the value of --config for a report."""
  return f'{ROOT}/configs/papers.py:{name}'


def settings(name: str) -> Any:
  """Returns the configuration of a report."""
  if name in _DEFAULT:
    return importlib.import_module(f'experiments.{PROGRAMS[name]}').Config()
  return wrapper.load(_config(name))


def is_finished(name: str) -> bool:
  """Whether the folder of a configuration holds a report that was made with its settings."""
  config = settings(name)
  return has_settings(_report(pathlib.Path(config.workdir) / 'report.json'), config)


def has_settings(report: dict[str, Any], config: Any) -> bool:
  """Whether a report was made with the settings of a configuration.

  Settings that are None or False are ignored, options that exist since and are not set, and so is
  the folder in which the report was made.
  """
  made, wanted = report.get('settings') or {}, atomic.plain(dataclasses.asdict(config))
  return _set(made | dict(workdir=None)) == _set(wanted | dict(workdir=None))


def _set(settings: Any) -> Any:
  """Returns settings without those that are None or False."""
  if not isinstance(settings, dict):
    return settings
  return {name: _set(value) for name, value in settings.items()
          if value is not None and value is not False}


def minutes(name: str) -> float | None:
  """Returns how long a program took when its kept report was made; None if that is unknown."""
  return _report(ROOT / 'docs' / 'reports' / f'{name}.json').get('minutes')


def _start(name: str) -> None:
  """Runs a program; raises ValueError if it fails."""
  words = [sys.executable, '-m', f'experiments.{PROGRAMS[name]}']
  words += [] if name in _DEFAULT else [f'--config={_config(name)}']
  if code := subprocess.run(words, check=False).returncode:
    raise ValueError(f'{" ".join(words[1:])} ended with exit code {code}; repeat this command '
                     'when its cause is mended.')


def run(config: Config, start: Callable[[str], None] = _start,
        clock: Callable[[], float] = time.monotonic) -> list[str]:
  """Runs the programs that are not finished, and prints the minutes that are expected.

  Args:
    config: which programs.
    start: runs the program of a name.
    clock: returns seconds.

  Returns:
    The names of the programs that the budget did not allow.

  Raises:
    ValueError: if a program fails.
  """
  begin, omitted = clock(), []
  names = [name for name in config.program if not is_finished(name)]
  for name in config.program:
    if name not in names:
      print(f'{name}: finished', flush=True)
  for number, name in enumerate(names):
    spent = (clock() - begin) / 60
    expected = {other: minutes(other) for other in names[number:]}
    measured = [value for value in expected.values() if value is not None]
    unknown = len(expected) - len(measured)
    print(f'{name}: {_text(expected[name])}; all that are left: about {sum(measured):.0f} minutes'
          f'{f", and {unknown} of unknown duration" if unknown else ""}', flush=True)
    if config.budget is not None and spent + (expected[name] or 0) > config.budget:
      omitted.append(name)
      print(f'{name}: not started, {config.budget - spent:.0f} minutes of the budget are left')
    else:
      start(name)
  return omitted


def _text(value: float | None) -> str:
  return 'unknown duration' if value is None else f'about {value:.0f} minutes'


@cli.command(Config)
def main(config: Config) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
