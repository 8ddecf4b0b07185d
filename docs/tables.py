"""Writes the generated parts of the README and of the pages: tables of numbers, lists of names.

    python -m docs.tables            # rewrites the pages
    python -m docs.tables --check    # names pages that are not up to date, and exits with 1

A generated part stands between `<!-- table: NAME -->` and `<!-- /table -->`. Numbers come from
the reports in docs/reports: each is the report.json that a program left in its --workdir, under the
name that `REPORTS` gives it. A table without its report stays empty. Lists come from the code; see
`docs.lists`.
"""

import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax import metrics
from cspd_jax.core import spec as spec_lib
from cspd_jax.decoding import registry
from cspd_jax.evaluation import tables
from docs import lists

ROOT = pathlib.Path(__file__).parents[1]
PAGES = (ROOT / 'WORKSPACE_README.md', *sorted((ROOT / 'docs').rglob('*.md')))
_REGION = re.compile(r'(<!-- table: (\w+) -->\n).*?(<!-- /table -->)', re.DOTALL)

# The command whose report.json is kept under docs/reports, by its name there.
REPORTS = {
    'compare_cpu': 'python -m experiments.compare',
    'compare_accelerator': 'python -m experiments.compare',
    'windows': 'python -m experiments.topologies --window=64',
    'benchmark': 'python -m experiments.benchmark',
    'mar': 'python -m experiments.compare --model=mar_demo',
}
_UNMEASURED = 'not measured yet'

Report = Mapping[str, Any]


class Table(NamedTuple):
  """A table of numbers.

  Attributes:
    report: name of the report it comes from.
    columns: headings and what stands below them; see `evaluation.tables`.
    rows: `report -> rows`, to choose and to complete them.
  """

  report: str
  columns: Mapping[str, str]
  rows: Callable[[Report], Iterable[Mapping[str, Any]]] = lambda report: report['rows']


def _measured(*names: str, errors: bool = False) -> dict[str, str]:
  """Columns of metrics by name."""
  known = {metric.name: metric for metric in metrics.METRICS}
  return metrics.columns([known[name] for name in names], errors)


def _name(row: Mapping[str, Any]) -> str:
  """The decoder of a row without its parameters."""
  return spec_lib.parse(row['decoder']).parts[0].name


def _best_known(report: Report) -> list[dict[str, Any]]:
  """The named decoders on a CPU and, if there is a report of one, on an accelerator."""
  accelerator = _read('compare_accelerator')
  speedups = {_name(row): row['speedup'] for row in accelerator['rows']} if accelerator else {}
  found = []
  for row in report['rows']:
    name = _name(row)
    speedup = speedups.get(name)
    found.append(dict(
        row, name=name, how=registry.DECODERS[name].summary,
        accelerator=_UNMEASURED if speedup is None else f'{speedup:.2f}x'))
  return found[:10]


def _relaxed_first(report: Report) -> list[Mapping[str, Any]]:
  """Pairs of a drafter and a verifier: exact ones, then relaxed ones."""
  pairs = [row for row in report['rows'] if row['verifier']]
  return sorted(pairs, key=lambda row: row['guarantee'] == 'relaxed')


TABLES: dict[str, Table] = {
    'summary': Table('compare_cpu', {
        'decoder': '`{name}`', 'guarantee': '{guarantee}',
        'tokens per forward pass': '{step_compression:.2f}', 'CPU speed-up': '{speedup:.2f}x',
        'accelerator speed-up': '{accelerator}', 'how': '{how}'}, _best_known),
    'compare': Table('compare_cpu', {
        'decoder': '`{decoder}`', 'guarantee': '{guarantee}',
        **_measured('rounds', 'step_compression', 'accepted_length', 'one_token_rounds'),
        'ms per round': '{ms_per_round:.2f}', 'speed-up': '{speedup:.2f}x'}),
    'windows': Table('windows', {
        'decoder': '`{decoder}`',
        **_measured('step_compression', errors=True), **_measured('one_token_rounds')}),
    'pairs': Table('benchmark', {
        'decoder': '`{decoder}`', 'guarantee': '{guarantee}',
        **_measured('accepted_length', errors=True), 'speed-up': '{speedup:.2f}x',
        **_measured('tv_bound_per_token'), **_measured('nll_excess', errors=True)},
                   _relaxed_first),
    'conclusions': Table('benchmark', {
        'claim': '{claim}', 'holds here': '{answer}', 'numbers': '{numbers}'},
                         lambda report: report.get('conclusions', ())),
    'mar': Table('mar', {
        'decoder': '`{decoder}`', 'guarantee': '{guarantee}',
        **_measured('target_passes', 'draft_passes', 'head_calls', 'head_rows', 'acceptance'),
        'speed-up': '{speedup:.2f}x'}),
}


def _read(name: str) -> Report | None:
  """A kept report; None if there is none of this name."""
  path = ROOT / 'docs' / 'reports' / f'{name}.json'
  return json.loads(path.read_text()) if path.exists() else None


def _number_table(table: Table) -> str:
  """A table of numbers with its source, or nothing."""
  report = _read(table.report)
  if report is None:
    return ''
  lines = tables.markdown(table.columns, table.rows(report))
  versions, settings = report['versions'], report['settings']
  images = settings.get('num_images')
  what = ', '.join(filter(None, [
      f'{images} images' if images else '', str(report['device']), f'jax {versions["jax"]}']))
  return f'{lines}\n\n*`{REPORTS[table.report]}`: {what}.*\n'


def generated(name: str) -> str:
  """The text of a generated part.

  Raises:
    ValueError: if there is none of this name.
  """
  if name in TABLES:
    return _number_table(TABLES[name])
  if name in lists.LISTS:
    return lists.LISTS[name]() + '\n'
  raise ValueError(f'table is {name!r}; it must be one of: '
                   f'{", ".join([*TABLES, *lists.LISTS])}.')


def rewritten(text: str) -> str:
  """A page with its generated parts made anew."""
  def replace(match):
    body = generated(match[2])
    return f'{match[1]}\n{body}\n{match[3]}' if body else f'{match[1]}{match[3]}'
  return _REGION.sub(replace, text)


def main(words: Sequence[str]) -> int:
  """Rewrites the pages, or with --check compares them only; returns the exit code."""
  stale = []
  for page in PAGES:
    text = page.read_text()
    new = rewritten(text)
    if new != text:
      stale.append(page.relative_to(ROOT).as_posix())
      if '--check' not in words:
        page.write_text(new)
  if stale:
    print('\n'.join(stale))
  return int(bool(stale) and '--check' in words)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
