"""Tables as plain text, and as files for other programs."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cspd_jax.core import files


def render(columns: Mapping[str, str], entries: Iterable[Mapping[str, Any]]) -> str:
  """Lines with a heading and a row per entry; the first two columns are aligned left.

  Args:
    columns: by heading, a format string such as '{seconds:.3f}'.
    entries: values by name; None is shown as a dash.
  """
  rows = [list(columns)]
  for entry in entries:
    values = {key: _Dash() if value is None else value for key, value in entry.items()}
    rows.append([form.format(**values) for form in columns.values()])
  widths = [max(map(len, column)) for column in zip(*rows)]
  lines = ['  '.join(
      cell.ljust(width) if i < 2 else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]
  return '\n'.join([lines[0], '-' * len(lines[0]), *lines[1:]])


def write_csv(path: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> None:
  """Writes rows with all the columns that one of them has; empty for None."""
  columns = dict.fromkeys(name for row in rows for name in row)
  text = io.StringIO()
  writer = csv.DictWriter(text, columns, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  files.write(path, text.getvalue().encode())


class _Dash:
  """Stands for a figure that there is not."""

  def __format__(self, form: str) -> str:
    return '-'
