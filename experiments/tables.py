"""Prints the tables of a report as Markdown, for documents.

  python -m experiments.tables --report=runs/benchmark/report.json
  python -m experiments.tables --report=runs/papers/cspd/report.json --table='Table 1'
  python -m experiments.tables --report=runs/benchmark/report.json --columns=decoder,speedup

Numbers in documents come from reports that are kept, and are not typed.
"""

import dataclasses
import sys
from typing import Any

from cspd_jax import cli
from cspd_jax.measure import tables


@dataclasses.dataclass(frozen=True)
class Flags:
  """Which tables.

  Attributes:
    report: a report.json, or the folder that it is in.
    table: only the tables with these words in their titles.
    columns: names of entries of the rows, in place of a table's own columns.
  """

  report: str | None = None
  table: str | None = None
  columns: tuple[str, ...] | None = None


@cli.command(flags=Flags())
def main(flags: Any) -> None:
  if flags.report is None:
    raise ValueError('report is none; give a report.json, or the folder that it is in.')
  all_tables = tables.of_report(flags.report)
  chosen = [table for table in all_tables if flags.table is None or flags.table in table.title]
  if not chosen:
    raise ValueError(f'table is {flags.table!r}; the report has: '
                     f'{", ".join(repr(table.title) for table in all_tables) or "none"}.')
  for table in chosen:
    columns = table.columns if flags.columns is None else {
        name: f'{{{name}}}' for name in flags.columns}
    print(f'{table.title}\n\n{tables.markdown(columns, table.rows)}\n')


if __name__ == '__main__':
  sys.exit(main())
