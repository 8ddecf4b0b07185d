"""Tables as plain text."""

from collections.abc import Iterable, Mapping
from typing import Any


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


class _Dash:
  """Stands for a figure that there is not."""

  def __format__(self, form: str) -> str:
    return '-'
