"""Generated parts of the pages: they are what the reports and the code say."""

import hashlib
import importlib.util
import json
import re

import pytest

from cspd_jax.generation import engines
from docs import lists, tables

REPORT = dict(
    num_images=4, device='cpu', versions=dict(jax='0.0'), rows=[
        dict(decoder='eagle+lantern', guarantee='bounded', tokens_per_pass=1.99),
        dict(decoder='vanilla', guarantee='seed-exact', tokens_per_pass=1.0),
        dict(decoder='mc_sjd(window=4)', guarantee='exact', tokens_per_pass=1.5)])


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The folder of the reports that the tables are made of."""
  monkeypatch.setattr(tables, 'ROOT', tmp_path)
  folder = tmp_path / 'docs' / 'reports'
  folder.mkdir(parents=True)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize('page', tables.PAGES, ids=lambda page: page.name)
def test_pages_are_up_to_date(page):
  text = page.read_text()
  assert tables.rewritten(text) == text, 'run python -m docs.tables'


def test_tables_come_from_reports(folder):
  page = 'Before.\n\n<!-- table: summary -->\nold\n<!-- /table -->\n'
  empty = tables.rewritten(page)
  assert empty == 'Before.\n\n<!-- table: summary -->\n<!-- /table -->\n'
  (folder / 'kinds_demo.json').write_text(json.dumps(REPORT))
  full = tables.rewritten(empty)
  row = '| `mc_sjd(window=4)` | 1.50 | - | exact |'
  assert row in full
  assert full.index('`vanilla`') < full.index(row) < full.index('| `eagle+lantern` | 1.99 | - |')
  assert 'kinds.py:demo`: 4 images, cpu, jax 0.0.*' in full
  (folder / 'accelerator_xl.json').write_text(json.dumps(dict(REPORT, rows=[
      dict(decoder='vanilla', ms=4.0, vanilla_ms=4.0), dict(decoder='a kernel'),
      dict(decoder='mc_sjd(window=4)', ms=5.5, vanilla_ms=4.4)])))
  timed = tables.rewritten(full)
  assert row.replace('1.50 | -', '1.50 | 1.20x') in timed
  assert '| `vanilla` | 1.00 | 1.00x |' in timed
  (folder / 'kinds.json').write_text(json.dumps(dict(
      REPORT, weights=dict(target='0123456789'), rows=[
          dict(decoder='mc_sjd(window=4)', guarantee='exact', tokens_per_pass=1.25)])))
  both = tables.rewritten(full)
  assert '| `mc_sjd(window=4)` | 1.25 | 1.50 | 1.20x | exact |\n' in both
  assert '| `vanilla` | - | 1.00 | 1.00x |' in both
  assert 'kinds.py`: 4 images, cpu, jax 0.0, weights 01234567.*' in both and 'kinds.py:demo' in both
  for name in ('kinds', 'kinds_demo', 'accelerator_xl'):
    (folder / f'{name}.json').unlink()
  assert tables.rewritten(full) == empty


def test_rows_that_differ_in_one_setting_become_one(folder):
  row = lambda decoder, value: dict(
      decoder=decoder, step_compression=value, step_compression_error=0.25)
  (folder / 'corrected.json').write_text(json.dumps(dict(
      REPORT, rows=[row('mc_sjd(window=8)', 2), row('eagle(tree=chain(7))', 3),
                    row('mc_sjd(window=16)', 4)],
      tables=[dict(title=f'window {window}', columns={'decoder': '{decoder}'}, rows=rows)
              for window, rows in ((8, [0, 1]), (16, [2]))])))
  text = tables.generated('corrected')
  assert '| decoder | window 8 | window 16 |' in text
  assert '| `mc_sjd(window=N)` | 2.00 | 4.00 |' in text
  assert '| `eagle(tree=chain(N - 1))` | 3.00 | - |' in text


def test_rows_of_papers_are_those_of_both_models(folder):
  for name, model, files in (('published', 'emoji', {'strip_sjd.png': ''}),
                             ('published_demo', 'demo', {})):
    (folder / f'{name}.json').write_text(json.dumps(dict(
        REPORT, settings=dict(rows=model), weights=dict(target=f'{model}0123'), files=files,
        tables=[dict(title='sjd', columns={'setting': '{decoder}'}, rows=[0])])))
  text = tables.generated('published_sjd')
  first, second = text.index('**Measured with `emoji`**'), text.index('**Measured with `demo`**')
  assert first < text.index('](../pictures/strip_sjd.png)') < second
  assert 'published`: 4 images, cpu, jax 0.0, weights emoji012.*' in text
  assert 'papers.py:published_demo`: 4 images, cpu, jax 0.0, weights demo0123.*' in text


def test_rows_of_papers_have_the_distances_of_their_setting(folder):
  rows = [dict(decoder='vanilla', temperature=1.0, top_k=top_k, model='demo')
          for top_k in (None, 2)]
  (folder / 'published_demo.json').write_text(json.dumps(dict(
      REPORT, rows=rows, settings=dict(rows='demo'), files={},
      tables=[dict(title='sjd', columns={'decoder': '{decoder}'}, rows=[0, 1])])))
  assert 'Frechet' not in tables.generated('published_sjd')
  for name, distance in (('fidelity', 0.5), ('fidelity_demo', 0.25)):  # The first is of `emoji`.
    (folder / f'{name}.json').write_text(json.dumps(dict(
        REPORT, rows=[dict(rows[0], frechet=distance)])))
  text = tables.generated('published_sjd')
  assert '| `vanilla` | 0.25000 |' in text and '| `vanilla` | - |' in text and '0.5' not in text


def test_pictures_are_those_of_the_reports():
  seen = set()
  for picture, (name, file) in tables.PICTURES.items():
    path = tables.ROOT / 'docs' / 'reports' / f'{name}.json'
    files = json.loads(path.read_text())['files'] if path.exists() else {}
    if file in files:
      content = (tables.ROOT / 'docs' / 'pictures' / picture).read_bytes()
      assert hashlib.sha256(content).hexdigest() == files[file], f'copy {file} of {name}'
      seen.add(picture)
  shown = ''.join(page.read_text() for page in tables.PAGES)
  assert len(seen) >= 3 and all(f'pictures/{picture})' in shown for picture in seen)


@pytest.mark.parametrize('name', [
    *engines.DISCRETE.decoders, *engines.CONTINUOUS.decoders])
def test_the_reference_has_every_named_decoder(name):
  entry = (engines.DISCRETE.table | engines.CONTINUOUS.table)[name]
  directive = rf'^::: {entry.build.__module__}\n    options: {{members: \[.*\b{name}\b.*\]}}$'
  pages = (page.read_text() for page in (tables.ROOT / 'docs' / 'api').glob('*.md'))
  assert any(re.search(directive, page, re.MULTILINE) for page in pages)


def test_modules_of_the_reference_are_in_the_section_of_their_package():
  documented = set()
  for page in (tables.ROOT / 'docs' / 'api').glob('*.md'):
    for package, text in re.findall(
        r'^## (\S+)\n(.*?)(?=^## |\Z)', page.read_text(), re.MULTILINE | re.DOTALL):
      for module in re.findall(r'^::: (\S+)', text, re.MULTILINE):
        assert f'{module}.'.startswith(f'{package}.') and importlib.util.find_spec(module), module
        assert module not in documented, module
        documented.add(module)
  assert len(documented) > 50


@pytest.mark.slow
def test_names_are_unique_and_used():
  assert not tables.TABLES.keys() & lists.LISTS.keys()
  text = ''.join(page.read_text() for page in tables.PAGES)
  unused = [name for name in (*tables.TABLES, *lists.LISTS) if f'table: {name} ' not in text]
  assert not unused
