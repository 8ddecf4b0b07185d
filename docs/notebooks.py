"""Executes the notebooks, and makes pages of them and of the README.

    python -m docs.notebooks    # stores their outputs; needs nbclient and ipykernel

`mkdocs.yml` names this file under `hooks`. Links of pages to notebooks and to the README become
links to these pages, and links of the README and of notebooks to pages lead to the built ones.
"""

import html
import json
import os
import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / 'notebooks'
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


def main() -> None:
  """Executes every notebook in a fresh kernel, with the package of this clone."""
  import nbclient  # Only this program needs these packages.
  import nbformat
  for path in sorted(FOLDER.glob('*.ipynb')):
    content = nbformat.read(path, 4)
    nbclient.NotebookClient(
        content, timeout=None, kernel_name='python3', record_timing=False, coalesce_streams=True,
        resources={'metadata': {'path': str(FOLDER)}}).execute(
            env={**os.environ, 'PYTHONPATH': str(ROOT)})
    content.metadata.language_info = {'name': 'python'}  # Without the version of this machine.
    executed = json.dumps(json.loads(nbformat.writes(content)), ensure_ascii=False, indent=1)
    path.write_text(f'{executed}\n', encoding='utf-8')


if __name__ == '__main__':
  main()
