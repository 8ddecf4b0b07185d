"""Generated parts of the pages: they are what the reports and the code say."""

import hashlib
import importlib.util
import json
import re

import pytest

from cspd_jax import continuous
from cspd_jax.decoding import specification
from docs import kept, lists, tables


@pytest.mark.slow
@pytest.mark.parametrize('page', tables.PAGES, ids=lambda page: page.name)
def test_pages_are_up_to_date(page):
  text = page.read_text()
  assert tables.rewritten(text) == text, 'run python -m docs.tables'


def test_pictures_are_those_of_the_reports():
  seen = set()
  for picture, (name, file) in kept.PICTURES.items():
    path = tables.ROOT / 'docs' / 'reports' / f'{name}.json'
    files = json.loads(path.read_text())['files'] if path.exists() else {}
    if file in files:
      content = (tables.ROOT / 'docs' / 'pictures' / picture).read_bytes()
      assert hashlib.sha256(content).hexdigest() == files[file], f'copy {file} of {name}'
      seen.add(picture)
  shown = ''.join(page.read_text() for page in tables.PAGES)
  assert len(seen) >= 3 and all(f'pictures/{picture})' in shown for picture in seen)


@pytest.mark.parametrize('name', [
    *specification.DECODERS, *continuous.DECODERS])
def test_the_reference_has_every_named_decoder(name):
  entry = (specification.DECODERS | continuous.DECODERS)[name]
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
