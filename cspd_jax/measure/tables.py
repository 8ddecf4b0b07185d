"""Formats rows and columns as text, Markdown or CSV.

A row is a mapping from names to values. Columns are a mapping from headings to format strings over
the names of a row: `{'decoder': '{name}', 'speed-up': '{speedup:.2f}x'}`. Missing values and None
are shown as a dash.
"""

import csv as csv_lib
import io
import os
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax.core import progress
from cspd_jax.files import atomic, paths, reading, run_folder

PAGE = 'report.md'  # The file of a report's tables for a page.
Columns = Mapping[str, str]
# Names and formats in the columns of a file: no attributes, and a width and digits of two digits.
_FIELD = re.compile(r'[^{}\[\].:!]+')
_SPEC = re.compile(r'[<>=^]?[-+ ]?0?\d{0,2},?(\.\d{1,2})?[a-zA-Z%]?', re.ASCII)
Row = Mapping[str, Any]
# One number with its unit or its error, two numbers of a range, or a dash.
_UNIT = r' ?([%xBM]|[GM]i?B)?'
_NUMBER = re.compile(rf'-|[-+]?[\d.,]+{_UNIT}( (\+-|to|x|of) [\d.,]+{_UNIT}){{0,4}}')


def text(columns: Columns, rows: Iterable[Row], *, left: int = 2) -> str:
  """Formats a table for a terminal, whose `left` leading columns are left-aligned."""
  body = [cells(columns, row) for row in rows]
  widths = [max(map(len, column)) for column in zip(columns, *body)]
  names, *lines = ('  '.join(
      part.ljust(width) if i < left else part.rjust(width)
      for i, (part, width) in enumerate(zip(parts, widths))).rstrip()
                   for parts in (list(columns), *body))
  return '\n'.join([names, '-' * len(names), *lines])


def markdown(columns: Columns, rows: Iterable[Row]) -> str:
  """Formats a table in Markdown; columns of numbers but the first, which names the rows, are
  right-aligned.
  """
  body = [cells(columns, row) for row in rows]
  is_number = [all(_NUMBER.fullmatch(cell) for cell in column) for column in zip(*body)]
  rule = ['--:' if i and number else ':--' for i, number in enumerate(is_number)]
  lines = [list(columns), rule or [':--'] * len(columns), *body]
  return '\n'.join(f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in parts)} |'
                   for parts in lines)


def csv(rows: Sequence[Row]) -> str:
  """Formats rows as comma-separated values; a value that a row does not have is empty."""
  names = dict.fromkeys(name for row in rows for name in row)
  lines = io.StringIO()
  writer = csv_lib.DictWriter(lines, names, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return lines.getvalue()


class Table(NamedTuple):
  """A table of a report."""

  title: str  # Its title.
  columns: Columns  # Format strings by heading.
  rows: Sequence[Row]  # Its rows.


def entries(shown: Iterable[Table]) -> dict[str, Any]:
  """Returns the entries of a report with all rows of some tables, as `read_tables` reads them."""
  rows: list[Row] = []
  tables = []
  for title, columns, own in shown:
    numbers = list(range(len(rows), len(rows) + len(own)))
    tables.append(dict(title=title, columns=columns, rows=numbers))
    rows += own
  return dict(rows=rows, tables=tables)


def write(report: run_folder.Report, command: str, shown: Sequence[Table], **content: Any) -> None:
  """Writes a report with all rows of some tables, and `PAGE` beside it: the tables in Markdown.

  The caption of `PAGE` is the command, and what was measured where: `content` are further entries
  of the report, of which it names the images, weights and the other program's commit.
  """
  atomic.write(report.path(PAGE), page(shown, command, content).encode())
  report.write(**entries(shown), **content)


def page(shown: Iterable[Table], command: str, content: Mapping[str, Any]) -> str:
  """Formats what `write` writes to `PAGE`."""
  parts = []
  for table in shown:
    columns = {name: '`{decoder}`' if form == '{decoder}' else form
               for name, form in table.columns.items()}
    parts += [f'**{table.title}**'] * bool(table.title) + [markdown(columns, table.rows)]
  machine = run_folder.machine()
  count = content.get('num_images') or len(content.get('prompts', ()))
  where = [f'{count} images'] * bool(count)
  where += [machine['device'], f'jax {machine["versions"]["jax"]}']
  if weights := content.get('weights', {}).get('target'):
    where.append(f'weights {weights[:8]}')
  if commit := content.get('commit'):
    where.append(f'commit {commit} of {content["url"].removeprefix("https://github.com/")}')
  return '\n\n'.join([*parts, f'*`{command}`: {", ".join(where)}.*']) + '\n'


def read_tables(path: str | os.PathLike) -> list[Table]:
  """Reads the tables of a report, a report.json or its folder.

  A report lists its tables in `tables`: for each a title, columns, and the indices of its rows; one
  without this list has one table with all of its rows. An invalid report raises ValueError, also
  for a column whose format has a large width, or reads anything but a value of the row.
  """
  path = paths.find('report', path)
  report = reading.json(path / 'report.json' if path.is_dir() else path,
                        'give a report.json, or its folder', 'report')
  try:
    rows = report['rows']
    names = {name: f'{{{name}}}' for row in rows for name in row}
    tables = [Table(reading.entry(table, 'title', str), _checked(table['columns']),
                    [dict(rows[i]) for i in table['rows']])
              for table in report.get(
                  'tables', [dict(title='', columns=names, rows=range(len(rows)))])
              if table['rows']]
    for table in tables:
      text(table.columns, table.rows)  # Raises for values that a format does not fit.
    return tables
  except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
    raise ValueError(f'report is {paths.shown(path)}, which is not a valid report '
                     f'({type(error).__name__}: {progress.visible(str(error)):.300}); give a '
                     'report.json that one of the programs wrote.') from error


def _checked(columns: Any) -> Columns:
  """Returns columns of a file, which must format values of a row in few letters."""
  for name, form in columns.items():
    for _, field, spec, conversion in string.Formatter().parse(form):
      if conversion or field is not None and not (
          _FIELD.fullmatch(field) and _SPEC.fullmatch(spec or '')):
        raise ValueError(f'the column {name!r:.80} has the format {form!r:.80}')
  return columns


def cells(columns: Columns, row: Row) -> list[str]:
  """Formats the cells of a row; a cell whose first value is missing becomes a dash."""
  return [_cell(form, row) for form in columns.values()]


def _cell(form: str, row: Row) -> str:
  first = next((name for _, name, _, _ in string.Formatter().parse(form) if name), None)
  missing = first is not None and row.get(first) is None
  return '-' if missing else _Formatter().vformat(form, (), row)


class _Formatter(string.Formatter):
  """Formats missing values as dashes."""

  def get_value(self, key: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    return kwargs.get(key)

  def format_field(self, value: Any, form: str) -> str:
    return '-' if value is None else format(value, form)
