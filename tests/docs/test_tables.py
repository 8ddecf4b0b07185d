"""Generated parts of the pages: they are what the reports and the code say."""

import json
import re

import pytest

from cspd_jax.generation import engines
from docs import lists, tables

REPORT = dict(
    num_images=4, device='cpu', versions=dict(jax='0.0'), rows=[
        dict(decoder='vanilla', guarantee='seed-exact', step_compression=1.0, speedup=1.0),
        dict(decoder='mc_sjd', guarantee='exact', step_compression=1.99, speedup=None),
        dict(decoder='mc_sjd(window=4)', guarantee='exact', step_compression=1.5, speedup=1.2)])


@pytest.mark.parametrize('page', tables.PAGES, ids=lambda page: page.name)
def test_pages_are_up_to_date(page):
  text = page.read_text()
  assert tables.rewritten(text) == text, 'run python -m docs.tables'


def test_tables_come_from_reports(tmp_path, monkeypatch):
  monkeypatch.setattr(tables, 'ROOT', tmp_path)
  page = 'Before.\n\n<!-- table: summary -->\nold\n<!-- /table -->\n'
  empty = tables.rewritten(page)
  assert empty == 'Before.\n\n<!-- table: summary -->\n<!-- /table -->\n'
  folder = tmp_path / 'docs' / 'reports'
  folder.mkdir(parents=True)
  (folder / 'compare_cpu.json').write_text(json.dumps(REPORT))
  full = tables.rewritten(empty)
  assert '| `mc_sjd` | exact | 1.99 | - | not measured yet |' in full
  assert '| `mc_sjd(window=4)` | exact | 1.50 | 1.20x | not measured yet |' in full
  assert '4 images, cpu, jax 0.0' in full
  (folder / 'compare_accelerator.json').write_text(json.dumps(
      dict(REPORT, rows=[dict(decoder='mc_sjd', speedup=2.5)])))
  assert '| `mc_sjd` | exact | 1.99 | - | 2.50x |' in tables.rewritten(full)
  (folder / 'compare_cpu.json').unlink()
  assert tables.rewritten(full) == empty


def test_tables_that_reports_bring_along(tmp_path, monkeypatch):
  monkeypatch.setattr(tables, 'ROOT', tmp_path)
  folder = tmp_path / 'docs' / 'reports'
  folder.mkdir(parents=True)
  columns = {'gamma': '{length}', 'speed': '{speed:.1f}'}
  (folder / 'cspd.json').write_text(json.dumps(dict(
      REPORT, rows=[dict(length=4, speed=1.25), dict(length=8, speed=2.0)],
      tables=[dict(title='Table 1', columns=columns, rows=[1])])))
  assert '**Table 1**\n\n| gamma | speed |' in tables.generated('cspd')
  assert '| 8 | 2.0 |' in tables.generated('cspd') and '1.2' not in tables.generated('cspd')
  (folder / 'train_demo.json').write_text(json.dumps(dict(
      REPORT, rows=[dict(network='target', nll_bits=3.987, guided=dict(collision=0.25))])))
  text = tables.generated('train_demo')
  assert '| target | nll bits | 3.987 |' in text and 'guided: collision | 0.25 |' in text


def test_unknown_tables_are_refused():
  with pytest.raises(ValueError, match="table is 'sumary'"):
    tables.rewritten('<!-- table: sumary -->\n<!-- /table -->')


@pytest.mark.parametrize('name', [
    *engines.DISCRETE.decoders, *engines.CONTINUOUS.decoders])
def test_the_reference_has_every_named_decoder(name):
  entry = (engines.DISCRETE.table | engines.CONTINUOUS.table)[name]
  directive = rf'^::: {entry.build.__module__}\n    options: {{members: \[.*\b{name}\b.*\]}}$'
  assert re.search(directive, (tables.ROOT / 'docs' / 'api.md').read_text(), re.MULTILINE)


def test_names_are_unique_and_used():
  assert not tables.TABLES.keys() & lists.LISTS.keys()
  text = ''.join(page.read_text() for page in tables.PAGES)
  unused = [name for name in (*tables.TABLES, *lists.LISTS) if f'table: {name} ' not in text]
  assert not unused
