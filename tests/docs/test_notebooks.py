"""The notebooks, executed top to bottom."""

import json

import matplotlib
import pytest

from tests.docs import pages


@pytest.mark.parametrize('notebook', pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, place, monkeypatch):
  monkeypatch.setattr(matplotlib, 'use', lambda *args, **options: None)
  matplotlib.pyplot.switch_backend('agg')
  namespace = {}
  for number, code in pages.cells(notebook):
    pages.run(code, f'{notebook.name}, cell {number}', 1, namespace)
  matplotlib.pyplot.close('all')


@pytest.mark.parametrize('notebook', pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_holds_no_output(notebook):
  for cell in json.loads(notebook.read_text())['cells']:
    assert not cell.get('outputs') and cell.get('execution_count') is None


def test_there_are_notebooks():
  assert len(pages.NOTEBOOKS) == 4
