"""Executes the notebooks, and makes pages of them and of the README.

    python -m docs.notebooks            # executes all and stores their outputs
    python -m docs.notebooks --check    # names outputs that are not up to date, and exits with 1

Pictures are not compared, nor are versions. Numbers with decimals may differ by rounding; in a cell
with the tag `rounding`, which amplifies it, all numbers may differ. Needs nbclient and ipykernel.

`mkdocs.yml` names this file under `hooks`. Links of pages to notebooks and to the README become
links to these pages, and links of the README and of notebooks to pages lead to the built ones.
"""

import html
import json
import math
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / 'notebooks'
_VERSION = re.compile(r'\d+\.\d+\.\d+')
_DECIMAL = re.compile(r'-?\d+(?:\.\d*(?:e[-+]?\d+)?|e[-+]?\d+)')
_NUMBER = re.compile(r'-?\d[\d.]*(?:e[-+]?\d+)?')
_LINK = re.compile(r'\]\((?:\.\./)*(?:notebooks/)?(\w+)\.ipynb\)')


def start() -> str:
  """The README as the start page of the site, whose files it names without links."""
  readme = (ROOT / 'README.md').read_text(encoding='utf-8').replace('](docs/', '](')
  return re.sub(r'\[([^]]+)\]\(((?:[A-Z]+|examples/\w+)\.\w+)\)', r'`\2`', readme)


def text(notebook: pathlib.Path) -> str:
  """A notebook as Markdown: text, code and outputs."""
  return '\n\n'.join(map(_cell, json.loads(notebook.read_text(encoding='utf-8'))['cells'])) + '\n'


def _cell(cell: dict[str, Any]) -> str:
  source = ''.join(cell['source'])
  if cell['cell_type'] == 'markdown':
    return source.replace('](../docs/', '](../')
  return '\n\n'.join([f'```python\n{source}\n```', *map(_output, cell['outputs'])])


def _output(output: dict[str, Any]) -> str:
  """An output in its richest form: HTML, a picture, or text."""
  data = output.get('data', {})
  if 'text/html' in data:
    return f'<div>{"".join(data["text/html"])}</div>'
  if 'image/png' in data:
    picture = ''.join(data['image/png']).replace('\n', '')
    return f'<img alt="output" src="data:image/png;base64,{picture}">'
  plain = ''.join(output.get('text', data.get('text/plain', '')))
  return f'<pre>{html.escape(plain.rstrip())}</pre>'


def on_files(files: Any, config: Any) -> Any:
  """Adds the start page and that of every notebook; called by mkdocs."""
  from mkdocs.structure.files import File  # Only the extra `docs` has it.
  files.append(File.generated(config, 'index.md', content=start()))
  for notebook in sorted(FOLDER.glob('*.ipynb')):
    files.append(File.generated(config, f'tasks/{notebook.stem}.md', content=text(notebook)))
  return files


def on_page_markdown(markdown: str, page: Any, **unused: Any) -> str:
  """Makes links to notebooks and to the README links to their pages; called by mkdocs."""
  del unused
  up = '../' * (len(pathlib.PurePosixPath(page.file.src_uri).parts) - 1)
  markdown = re.sub(r'\]\((?:\.\./)+README\.md', f']({up}index.md', markdown)
  return _LINK.sub(rf']({up}tasks/\1.md)', markdown)


def executed(notebook: pathlib.Path) -> dict[str, Any]:
  """Returns the contents of a notebook with the outputs of a run in a fresh kernel."""
  import nbclient  # Only this program needs these packages.
  import nbformat
  content = nbformat.read(notebook, 4)
  client = nbclient.NotebookClient(
      content, timeout=None, kernel_name='python3', record_timing=False, coalesce_streams=True,
      resources={'metadata': {'path': str(FOLDER)}})
  # The package of this clone, whatever is installed.
  client.execute(env={**os.environ, 'PYTHONPATH': str(ROOT)})
  content.metadata.language_info = {'name': 'python'}  # Without the version of this machine.
  return json.loads(nbformat.writes(content))


def aged(stored: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
  """Yields a sentence for every cell whose stored output a new run does not print."""
  for number, (old, cell) in enumerate(zip(stored['cells'], new['cells']), 1):
    if cell['cell_type'] != 'code':
      continue
    before, after = _printed(old), _printed(cell)
    if 'rounding' in cell['metadata'].get('tags', ()):
      same = _words(before, _NUMBER) == _words(after, _NUMBER)
    else:
      pairs = [*zip(_decimals(before), _decimals(after))]
      same = _words(before, _DECIMAL) == _words(after, _DECIMAL) and all(
          math.isclose(*pair, rel_tol=1e-2, abs_tol=1e-6) for pair in pairs)
    if not same:
      begin = max(len(os.path.commonprefix([before, after])) - 30, 0)
      shown = lambda text, begin=begin: repr(text[begin:begin + 100])
      yield f'cell {number} prints {shown(after)}, but its stored output has {shown(before)}.'


def _printed(cell: Mapping[str, Any]) -> str:
  """The words of the outputs of a cell, without pictures and versions."""
  texts = []
  for output in cell['outputs']:
    data = output.get('data', {})
    texts += [''.join(output.get('text', '')), ''.join(data.get('text/plain', '')), html.unescape(
        re.sub(r'<[^>]*>', ' ', ''.join(data.get('text/html', '')))), *sorted(data)]
  return _VERSION.sub('', ' '.join(texts))


def _words(text: str, number: re.Pattern[str]) -> str:
  """A text without space and with a mark for every number that a pattern describes."""
  return ''.join(number.sub('#', text).split())


def _decimals(text: str) -> list[float]:
  return [float(number) for number in _DECIMAL.findall(text)]


def main(words: Sequence[str]) -> int:
  """Stores new outputs, or with --check compares them only; returns the exit code."""
  stale = False
  for notebook in sorted(FOLDER.glob('*.ipynb')):
    new = executed(notebook)
    if '--check' not in words:
      notebook.write_text(json.dumps(new, ensure_ascii=False, indent=1) + '\n', encoding='utf-8')
      continue
    for sentence in aged(json.loads(notebook.read_text(encoding='utf-8')), new):
      print(f'{notebook.name}: {sentence}')
      stale = True
  return int(stale)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
