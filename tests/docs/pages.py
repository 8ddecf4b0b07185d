"""What stands in the README, the pages and the notebooks: their code, block by block."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(
    path for pattern in ('*.md', 'docs/**/*.md') for path in ROOT.glob(pattern)
    if not path.is_symlink() and path.parent != ROOT / 'docs' / 'reports')
NOTEBOOKS = sorted((ROOT / 'notebooks').glob('*.ipynb'))
_FENCE = re.compile(r'^```(\w*)\n(.*?)^```$', re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
  """A block of code.

  Attributes:
    language: the word after the fence; '' if there is none.
    text: the code.
    line: of the page where it begins.
  """

  language: str
  text: str
  line: int


def blocks(page: pathlib.Path) -> list[Block]:
  """The blocks of code of a page, in order."""
  text = page.read_text()
  return [Block(result[1], result[2], text[:result.start(2)].count('\n') + 1)
          for result in _FENCE.finditer(text)]


def having(language: str) -> list[pathlib.Path]:
  """The pages with code of a language."""
  return [page for page in PAGES if any(block.language == language for block in blocks(page))]


def outputs(notebook: pathlib.Path) -> list[dict]:
  """The outputs of a notebook, in order."""
  return [output for cell in json.loads(notebook.read_text())['cells']
          if cell['cell_type'] == 'code' for output in cell['outputs']]


def cells(notebook: pathlib.Path) -> Iterator[tuple[int, str]]:
  """Number and text of the code cells of a notebook."""
  for number, cell in enumerate(json.loads(notebook.read_text())['cells']):
    if cell['cell_type'] == 'code':
      yield number, ''.join(cell['source'])


def markdown(notebook: pathlib.Path) -> str:
  """The text of a notebook, without code and outputs."""
  return '\n\n'.join(''.join(cell['source']) for cell in json.loads(notebook.read_text())['cells']
                     if cell['cell_type'] == 'markdown')


def name(page: pathlib.Path) -> str:
  """A page by its path in the repository."""
  return page.relative_to(ROOT).as_posix()


def run(code: str, place: str, line: int, namespace: dict) -> None:
  """Runs code as if it stood on the line of a file, so that errors name it."""
  exec(compile('\n' * (line - 1) + code, place, 'exec'), namespace)  # pylint: disable=exec-used
