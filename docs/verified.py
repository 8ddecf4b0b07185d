"""The levels at which tests verify published models, from marks that are read without running.

A test with `@pytest.mark.verifies('parity', 'emu3')` is the evidence of a level for families of
published files (`checkpoints_conversion.rules.FAMILIES`). The tables of models show these marks, so
a level disappears from them with its test.
"""

import ast
import functools
import json
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from checkpoints_conversion import rules
from cspd_jax.commands import verify
from docs import sizes
from experiments import golden

ROOT = pathlib.Path(__file__).parents[1]
TESTS = ROOT / 'tests'

# Levels, each stronger than the one before it.
LEVELS: dict[str, str] = {
    'shapes': 'names and shapes of all tensors at published sizes agree with the official modules',
    'parity': 'logits or tokens at random weights agree with the official modules',
    'folder to pictures': 'a folder in the published format, with tiny networks, becomes pictures',
    'real weights': 'probabilities of the published weights agree with another program',
    'golden tokens': 'the published weights generate the tokens that another program printed',
    'pictures': 'somebody looked at pictures of the published weights',
}
# Those that need published weights; the others are shown at random weights.
OF_PUBLISHED = ('real weights', 'golden tokens', 'pictures')


class Mark(NamedTuple):
  """A test that verifies something of published models.

  Attributes:
    path: its file, relative to `TESTS`.
    test: its name.
    level: a key of `LEVELS`.
    families: keys of `rules.FAMILIES`.
  """

  path: pathlib.Path
  test: str
  level: str
  families: tuple[str, ...]


@functools.cache
def marks() -> tuple[Mark, ...]:
  """Returns the marks of all tests."""
  return tuple(mark for path in sorted(TESTS.rglob('test_*.py')) for mark in _marks(path))


def _marks(path: pathlib.Path) -> Iterator[Mark]:
  """Yields the marks of a file, whose arguments are texts.

  Raises:
    ValueError: if the level or a family is unknown.
  """
  text = path.read_text(encoding='utf-8')
  if 'pytest.mark.verifies' not in text:
    return
  for function in ast.walk(ast.parse(text)):
    for call in getattr(function, 'decorator_list', ()):
      if ast.unparse(call).startswith('pytest.mark.verifies('):
        level, *families = (ast.literal_eval(argument) for argument in call.args)
        if level not in LEVELS or not families or set(families) - rules.FAMILIES.keys():
          raise ValueError(
              f'{path}: {function.name} is marked as verifying {level!r} of '
              f'{", ".join(families) or "nothing"}; levels are {", ".join(LEVELS)}, and families '
              'are those of cspd-convert.')
        yield Mark(path.relative_to(TESTS), function.name, level, tuple(families))


def of(family: str) -> list[str]:
  """Returns the levels that tests verify of a family of published files."""
  verified = {mark.level for mark in marks() if family in mark.families}
  return [level for level in LEVELS if level in verified]


def without_pictures(family: str) -> str:
  """Returns the end of a sentence, that no pictures of published weights exist; '' if they do."""
  return '' if 'pictures' in of(family) else '; no pictures of its published weights exist yet'


def table() -> str:
  """Returns a table of the levels that each family reaches."""
  return sizes.markdown(
      {'family': f'[{sizes.name(page)}](families/{page}.md)', **{
          level: 'yes' if level in of(target) else 'not yet' for level in LEVELS}}
      for page, (target, _) in sizes.FILES.items())


def levels() -> str:
  """Returns a list of the levels, with the pages of the families that reach each."""
  return '\n'.join(f'- *{level}*: {meaning}. {_reached(level)}.'
                   for level, meaning in LEVELS.items())


def _reached(level: str) -> str:
  """Returns in words which families reach a level."""
  reached, others = [], []
  for page, (target, _) in sizes.FILES.items():
    (reached if level in of(target) else others).append(sizes.name(page))
  if not others:
    return 'All families'
  if len(others) < len(reached):
    return f'All but {", ".join(others)}'
  return (', '.join(reached) or 'None yet') + (_to_compare() if level == 'golden tokens' else '')


def _to_compare() -> str:
  """Returns which published weights can be compared by a command, with a link."""
  config = golden.Config()
  page = next(page for page, (target, _) in sizes.FILES.items()
              if config.preset in rules.FAMILIES[target].presets)
  return (f'; one command compares [{len(config.tokens)} tokens]'
          f'(families/{page}.md#do-the-weights-match) of {sizes.name(page)}')


def reports() -> str:
  """Returns what `cspd-verify` found, by the reports under docs/reports/verified, and what to run.

  Raises:
    ValueError: for a report that was changed since it was written.
  """
  rows = []
  for path in sorted((ROOT / 'docs' / 'reports' / 'verified').glob('*.json')):
    report = json.loads(path.read_text(encoding='utf-8'))
    if report['signature'] != verify.signature(report):
      raise ValueError(f'{path} is not as cspd-verify wrote it; run it again.')
    count = [sum(row['verdict'] == verdict for row in report['rows'])
             for verdict in ('passed', 'failed', 'not compared')]
    baseline = report['speed'][0]
    best = max(report['speed'], key=lambda row: row['speedup'])
    rows.append({
        'model': f'`{report["model"]}`', 'weights': report['rows'][0]['numbers']['digest'],
        'device': report['where'], 'jax': report['versions']['jax'],
        'passed, failed, not compared': ', '.join(map(str, count)),
        'fastest decoder': f'`{best["decoder"]}`',
        'passes': f'{best["passes"]:.0f} of {baseline["passes"]:.0f}',
        's/image': f'{best["seconds"]:.2f}', 'speed-up': f'{best["speedup"]:.2f}x'})
  rows += [{'model': f'[{sizes.name(page)}](families/{page}.md): '
                     '`cspd-verify --model=FOLDER`', **dict.fromkeys(list(rows[0])[1:], '-')}
           for page in sizes.FILES]
  return sizes.markdown(rows)
