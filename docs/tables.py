"""Writes the parts of the README and of the pages that stand elsewhere.

    python -m docs.tables            # rewrites the pages
    python -m docs.tables --check    # names pages that are not up to date, and exits with 1

A part stands between `<!-- table: NAME -->` and `<!-- /table -->`. It is docs/reports/NAME.md, with
links as on the page, or a list from the code (`docs.lists`, `docs.zoo`). A program leaves
report.json and report.md in its --workdir; both are kept in docs/reports, under one name.
"""

import pathlib
import re
import sys
from collections.abc import Sequence

from cspd_jax.files import atomic
from docs import lists, zoo

ROOT = pathlib.Path(__file__).parents[1]
REPORTS = ROOT / 'docs' / 'reports'
PAGES = (ROOT / 'WORKSPACE_README.md', *(
    page for page in sorted((ROOT / 'docs').rglob('*.md')) if page.parent != REPORTS))
LISTS = lists.LISTS | zoo.LISTS
_PART = re.compile(r'(<!-- table: (\w+) -->\n).*?(<!-- /table -->)', re.DOTALL)


def generated(name: str) -> str:
  """The text of a part.

  Raises:
    ValueError: if there is none of this name.
  """
  if name in LISTS:
    return LISTS[name]()
  if not (path := REPORTS / f'{name}.md').exists():
    raise ValueError(f'table is {name!r}; it must be a file of docs/reports, or one of: '
                     f'{", ".join(LISTS)}.')
  return path.read_text(encoding='utf-8').rstrip()


def rewritten(text: str) -> str:
  """A page with its parts made anew."""
  return _PART.sub(lambda part: f'{part[1]}\n{generated(part[2])}\n\n{part[3]}', text)


def main(words: Sequence[str]) -> int:
  """Rewrites the pages, or with --check compares them only; returns the exit code."""
  stale = []
  for page in PAGES:
    text = page.read_text(encoding='utf-8')
    new = rewritten(text)
    if new != text:
      stale.append(page.relative_to(ROOT).as_posix())
      if '--check' not in words:
        atomic.write(page, new.encode())
  if stale:
    print('\n'.join(stale))
  return int(bool(stale) and '--check' in words)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
