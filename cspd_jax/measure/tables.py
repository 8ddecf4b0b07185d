"""Rows and columns as text, Markdown or CSV.

A row is a mapping from names to values. Columns are given by heading, each with a format string
over the names of a row: `{'decoder': '{name}', 'speed-up': '{speedup:.2f}x'}`. What a row does not
have, or has as None, is shown as a dash.
"""

import csv as csv_lib
import io
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax.checkpoints import paths, reading

Columns = Mapping[str, str]
Row = Mapping[str, Any]


def text(columns: Columns, rows: Iterable[Row], *, left: int = 2) -> str:
  """Lines for a terminal: a heading, a rule, and a line per row.

  Args:
    columns: see above.
    rows: see above.
    left: the first columns, which are aligned left; the others are aligned right.
  """
  body = [cells(columns, row) for row in rows]
  widths = [max(map(len, column)) for column in zip(columns, *body)]
  return '\n'.join([heading(columns, widths, left=left),
                    *(_line(one, widths, left) for one in body)])


def heading(columns: Columns, widths: Sequence[int], *, left: int = 2) -> str:
  """The heading and the rule of a table whose rows come one at a time; see `line`."""
  line_of_names = _line(list(columns), widths, left)
  return f'{line_of_names}\n{"-" * len(line_of_names)}'


def line(columns: Columns, row: Row, widths: Sequence[int], *, left: int = 2) -> str:
  """One row in columns of fixed widths, for tables that are printed as they come about."""
  return _line(cells(columns, row), widths, left)


def markdown(columns: Columns, rows: Iterable[Row], *, left: int = 1) -> str:
  """A table in Markdown; arguments as for `text`."""
  rule = [':--' if i < left else '--:' for i in range(len(columns))]
  lines = [list(columns), rule, *(cells(columns, row) for row in rows)]
  return '\n'.join(f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in one)} |'
                   for one in lines)


def csv(rows: Sequence[Row]) -> str:
  """Comma-separated values with every name that a row has; what is not there is empty."""
  names = dict.fromkeys(name for row in rows for name in row)
  lines = io.StringIO()
  writer = csv_lib.DictWriter(lines, names, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return lines.getvalue()


class Table(NamedTuple):
  """Attributes: its title, its columns and its rows; see above."""

  title: str
  columns: Columns
  rows: Sequence[Row]


def of_report(path: str | os.PathLike) -> list[Table]:
  """The tables that a report says it has; all of its rows if it says nothing.

  A report names its tables in `tables`: for each a title, columns, and the numbers of its rows.

  Args:
    path: of a report.json, or of the folder that it is in.

  Raises:
    ValueError: if it is none.
  """
  path = paths.find('report', path)
  report = reading.json(path / 'report.json' if path.is_dir() else path, 'give a report.json, or '
                        'the folder that it is in', 'report')
  try:
    rows = report['rows']
    names = {name: f'{{{name}}}' for row in rows for name in row}
    return [Table(one['title'], one['columns'], [rows[i] for i in one['rows']])
            for one in report.get(
                'tables', [dict(title='', columns=names, rows=range(len(rows)))]) if one['rows']]
  except (KeyError, TypeError, IndexError, AttributeError) as error:
    raise ValueError(f'report is {str(path)!r}, which cannot be read as one '
                     f'({type(error).__name__}: {error}).') from error


def cells(columns: Columns, row: Row) -> list[str]:
  """The texts of a row; a cell whose first value is missing is a dash."""
  values = {name: _DASH if value is None else value for name, value in row.items()}
  return [_cell(form, _Row(values)) for form in columns.values()]


def _cell(form: str, values: '_Row') -> str:
  first = next((name for _, name, _, _ in string.Formatter().parse(form) if name), None)
  return '-' if first is not None and values[first] is _DASH else form.format_map(values)


def _line(parts: Sequence[str], widths: Sequence[int], left: int) -> str:
  return '  '.join(
      part.ljust(width) if i < left else part.rjust(width)
      for i, (part, width) in enumerate(zip(parts, widths))).rstrip()


class _Row(dict):
  """A row in which what is missing is a dash."""

  def __missing__(self, name: str) -> '_Dash':
    return _DASH


class _Dash:
  """Stands for a figure that there is not, however it is formatted."""

  def __format__(self, form: str) -> str:
    return '-'


_DASH = _Dash()
