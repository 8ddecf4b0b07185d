"""Generated parts of the pages: they are what the reports and the code say."""

import collections
import hashlib
import importlib.util
import json
import re

import jax
import numpy as np
import pytest

from cspd_jax import continuous, families
from cspd_jax.decoding import specification, tree as tree_lib
from cspd_jax.decoding.drafters import jacobi
from cspd_jax.files import store
from docs import rollouts, tables
from experiments.demo_models import photos

# The reports of tables that are not those of one report of the same name.
_RACE = tuple(path.stem for path in tables.REPORTS.glob('released_*.json'))
_PUBLISHED = ('published', 'published_demo', 'published_cspd', 'fidelity', 'fidelity_demo')
_SOURCES = {
    'first': ('compare_emoji',), 'summary': ('kinds', 'kinds_demo', 'accelerator_xl'),
    'gpu_gain': ('accelerator_official',), 'race': ('released_sjd_160', 'released_eagle'),
    'cpu': ('against_llamagen', 'against_llamagen_local', 'against_llamagen_xl',
            'against_llamagen_xl_local'),
    'compare': ('compare_cpu',), 'pairs': ('benchmark',), 'curves': ('benchmark',),
    **dict.fromkeys(('rounding', 'rounding_options'), tuple(
        path.stem for path in tables.REPORTS.glob('rounding_*.json'))),
    'released': _RACE, 'released_official': _RACE, 'released_distances': _RACE,
    **{path.stem: _PUBLISHED for path in tables.REPORTS.glob('published_*.md')},
    'cspd_figures': ('cspd',), 'products': ('products', 'products_avx512'),
    'variants': ('variants', 'variants_emoji'), 'quality': ('quality', 'quality_scales'),
    'serving': ('serving', 'serving_soak'),
    'rl_asked': tuple(path.stem for path in tables.REPORTS.glob('rl_asked_*.json')),
    'compiled_mammothmoda2': ('compiled_mammothmoda2', 'compiled_mammothmoda2_64')}
# The pictures that programs drew for pages: a kept report and its file, by name in docs/pictures.
_PICTURES = {
    'acceptance.png': ('compare_emoji', 'acceptance.png'),
    'curves.png': ('benchmark', 'curves.png'), 'lantern.png': ('lantern', 'curves.png'),
    'cool_sd.png': ('cool_sd', 'curves.png'),
    'emoji.png': ('quality', 'images.png'), 'emoji_failures.png': ('quality', 'failures.png'),
    **{f'strip_{paper}.png': ('published', f'strip_{paper}.png')
       for paper in ('sjd', 'sjd_pac', 'lantern', 'cool_sd')},
    'strip_cspd.png': ('published_cspd', 'strip_cspd.png')}
_NUMBER = re.compile(r'(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?%?')
# Numbers of sentences and titles, and quotients, that no report has.
_ALONE = {'serving': {'500'}, 'cspd_figures': {'8', '13', '14'}, 'rounding': {'512'},
          'released_official': {'1.5', '3', '9.1'}, 'summary': {'2.44', '4.38', '4.62'}}
_KEPT = sorted(path.stem for path in tables.REPORTS.glob('*.md'))


def _report(name):
  return json.loads((tables.REPORTS / f'{name}.json').read_text())


# The sides of a grid, and the seconds of an image of so many codes.
_ALONE['compiled_mammothmoda2'] = {'32', '64', *(
    f'{codes / row["tokens_per_round"] * row["ms"] / 1e3:.2f}'
    for name, codes in (('compiled_mammothmoda2', 32**2), ('compiled_mammothmoda2_64', 64**2))
    for row in _report(name)['rows'])}


@pytest.mark.slow
@pytest.mark.parametrize('page', tables.PAGES, ids=lambda page: page.name)
def test_pages_are_up_to_date(page):
  text = page.read_text()
  assert tables.rewritten(text) == text, 'run python -m docs.tables'


def _values(content):
  """The numbers in the values of a report, and in their texts."""
  if isinstance(content, dict | list):
    for value in content.values() if isinstance(content, dict) else content:
      yield from _values(value)
  elif isinstance(content, str):
    yield from _NUMBER.findall(content)
  elif isinstance(content, int | float) and not isinstance(content, bool):
    yield abs(content)


def _shown(values):
  """How pages may show values: rounded to some digits, or in per cent."""
  return {text for value in values for text in ((value,) if isinstance(value, str) else (
      *(f'{value:,.{digits}f}' for digits in range(7)), f'{value:g}', f'{value:.0f}',
      *(f'{100 * value:.{digits}f}%' for digits in range(3))))}


@pytest.mark.parametrize('name', sorted({*_KEPT} - rollouts.TABLES.keys()))
def test_numbers_of_tables_are_those_of_their_reports(name):
  """Those of a decoder's line stand in its rows, if its name stands there."""
  reports = [_report(source) for source in _SOURCES.get(name, (name,))]
  rows = collections.defaultdict(list)
  for report in reports:
    rest = {key: value for key, value in report.items() if key not in ('rows', 'tables')}
    for row in report['rows']:
      rows[row.get('decoder', row.get('name'))] += [row, rest]
  of_decoder = {decoder: _shown(_values(own)) for decoder, own in rows.items()}
  every = set().union(*of_decoder.values(), _shown(_values([
      table['title'] for report in reports for table in report.get('tables', ())])))
  text = (tables.REPORTS / f'{name}.md').read_text()
  text = re.sub(r'^\|.*\n\| :.*$', '', text, flags=re.MULTILINE)  # Without headings.
  for line in text.split('\n*`')[0].splitlines():
    own = [of_decoder[code] for code in re.findall(r'`([^`]+)`', line) if code in of_decoder]
    allowed = set().union(*own or [every], _ALONE.get(name, ()))
    wrong = [number for number in _NUMBER.findall(line) if number not in allowed]
    assert not wrong, f'{wrong} in {line}'


def test_speed_ups_of_the_summary_are_quotients():
  """Tokens per pass of `demo` over the time of a pass, in passes of the baseline."""
  tokens = {row['decoder']: row['tokens_per_pass'] for row in _report('kinds_demo')['rows']}
  lines = (tables.REPORTS / 'summary.md').read_text().splitlines()
  found = 0
  for row in _report('accelerator_xl')['rows']:
    if row['decoder'] in tokens and 'vanilla_ms' in row:
      line, = (line for line in lines if line.startswith(f'| `{row["decoder"]}` |'))
      assert f'{tokens[row["decoder"]] * row["vanilla_ms"] / row["ms"]:.2f}x' in line
      found += 1
  assert found >= 4


def test_pictures_are_those_of_the_reports():
  shown = ''.join(page.read_text() for page in tables.PAGES)
  for picture, (name, file) in _PICTURES.items():
    content = (tables.ROOT / 'docs' / 'pictures' / picture).read_bytes()
    assert hashlib.sha256(content).hexdigest() == _report(name)['files'][file], f'{file} of {name}'
    assert f'pictures/{picture})' in shown


def test_names_are_unique_and_used():
  assert not tables.LISTS.keys() & set(_KEPT)
  text = ''.join(page.read_text() for page in tables.PAGES)
  assert [name for name in (*tables.LISTS, *_KEPT) if f'table: {name} ' not in text] == []


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


def test_pages_list_trees_and_what_is_shipped():
  decoders, embedded = ((tables.ROOT / 'docs' / f'{page}.md').read_text()
                        for page in ('decoders', 'embedded'))
  for name, tree in specification.TREES.items():
    if isinstance(tree, tree_lib.Tree):
      first = int(np.sum(tree.depth == 1))
      assert f'| `{name}` | {tree.num_nodes} | {tree.max_depth} | {first} |' in decoders
  for source in photos.SOURCES:
    assert (f'| {source.name} | `{source.package}: {source.file}` | {source.licence} | '
            f'{source.credit} |') in embedded
  for name in families.shipped():
    counts = {role: sum(leaf.size for leaf in jax.tree.leaves(store.describe(
        families.part_folder(name, role)).params)) / 1e6
              for role in families.folder.read(store.ASSETS / name)['parts']}
    words = ', '.join(f'{role} {count:.2f}' for role, count in counts.items())
    assert f'| `{name}` | {words} |' in embedded


def test_the_page_shows_the_layout_of_a_window():
  tree = tree_lib.caterpillar(2, 1, num_nodes=4)
  fields = jacobi.layout(tree)
  text = (tables.ROOT / 'docs' / 'extend.md').read_text()
  for name, values in dict(parent=tree.parents, probs_rows=fields.probs_rows,
                           leaf_candidate=fields.leaf_candidate).items():
    assert re.search(rf'^{name} +{" +".join(map(str, values))}$', text, re.MULTILINE)
