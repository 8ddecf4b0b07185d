"""The tables of published models: sizes, published passes, evidence, and what works."""

import ast
import functools
import pathlib
import re

import pytest

import cspd_jax
from checkpoints_conversion import rules
from cspd_jax import families
from cspd_jax.decoding import specification
from cspd_jax.families.folder import with_cache_dtype
from cspd_jax.files import store
from cspd_jax.generation import memory
from docs import passes, sizes, supported, tables, verified
from experiments.papers import published_rows

PASSES = [(rules.FAMILIES[name], entry)
          for name, entries in passes.PASSES.items() for entry in entries]
# The rows of papers' tables, by the number of the paper.
PAPERS = {'2410.01699': 'sjd', '2603.18599': 'sjd_pac'}


def test_every_family_has_its_row():
  pages = {page.stem for page in (tables.ROOT / 'docs' / 'families').glob('*.md')}
  assert pages == sizes.FILES.keys()
  targets = {target for target, _ in sizes.FILES.values()}
  # Those whose networks are targets of their models, which a prior is not.
  assert targets == {name for name, file in rules.FAMILIES.items()
                     if file.model and file.kind in families.FAMILIES[file.model].roles['target']}
  for page, (target, others) in sizes.FILES.items():
    assert rules.FAMILIES[target].licence, page
    assert {target, *others} <= rules.FAMILIES.keys()


@functools.cache
def _source(path):
  """The text of a file with the modules of tests that it reads, and texts in it but those of marks.
  """
  text = (verified.TESTS / path).read_text()
  tree, words = ast.parse(text), set()
  for node in ast.walk(tree):
    if hasattr(node, 'decorator_list'):
      node.decorator_list = [decorator for decorator in node.decorator_list
                             if 'mark.verifies' not in ast.unparse(decorator)]
    if isinstance(node, ast.ImportFrom) and node.module.startswith('tests.'):
      for alias in node.names:  # Cases and published files are in modules of their own.
        other = pathlib.Path(*node.module.split('.')[1:], f'{alias.name}.py')
        if (verified.TESTS / other).is_file() and not alias.name.startswith('test_'):
          more, others = _source(other)
          text, words = text + more, words | others
  return text, words | {node.value for node in ast.walk(tree)
                        if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_family_is_verified_by_tests():
  for target, _ in sizes.FILES.values():
    assert {'shapes', 'parity'} <= set(verified.of(target)), target


@pytest.mark.parametrize('page', sizes.FILES)
def test_pages_say_what_of_a_family_was_verified(page):
  text = (tables.ROOT / 'docs' / 'families' / f'{page}.md').read_text()
  line = re.search(r'\*\*\[Verified\].*?: (.*?), by', text, re.DOTALL)
  target, _ = sizes.FILES[page]
  said = ' '.join(line[1].split()).split(', ')
  assert said == [level for level in verified.of(target) if level not in verified.OF_PUBLISHED]
  none_yet = 'pictures; no pictures of its published weights exist yet.' in ' '.join(text.split())
  assert none_yet == ('pictures' not in verified.of(target))


@pytest.mark.parametrize('mark', verified.marks(), ids=lambda mark: f'{mark.path}:{mark.level}')
def test_marked_tests_have_their_evidence(mark):
  text, words = _source(mark.path)
  for family in mark.families:
    assert any(family in word for word in words), f'{mark.path} does not name {family}'
  live = re.findall(r"importorskip\('(torch|transformers)'", text)
  data = verified.TESTS / 'data'
  if mark.level == 'parity':
    recorded = re.findall(r"recorded\('(\w+)'\)|'(\w+)\.npz'|/(\w+)\.npz", text)
    files = [data / f'{"".join(names)}.npz' for names in recorded]
    assert live or files and all(file.is_file() for file in files)
  if mark.level == 'shapes':
    assert live or "'manifests'" in text and any((data / 'manifests').iterdir())


@pytest.mark.slow
@pytest.mark.parametrize('name', ['demo', 'emoji'])
def test_bytes_with_int8_are_those_of_a_loaded_model(name):
  loaded = cspd_jax.load(name, dtype='bfloat16', quantize='int8')
  kind = families.folder.read(store.ASSETS / name)
  network = store.describe(families.part_folder(name, kind['parts']['target']))
  assert sizes.quantized_bytes(network.kind, network.params) == memory.size(loaded.params)


@pytest.mark.slow
def test_numbers_of_few_layers_are_those_of_all():
  file = rules.FAMILIES['llamagen']
  config = file.presets['c2i_b_256']
  size = sizes.of_targets('llamagen')['c2i_b_256']
  params = store.sketch(file.kind, config).params
  whole = memory.size(params) // 4  # In float32.
  assert size.parameters == whole and size.bytes == (
      2 * whole, sizes.quantized_bytes(file.kind, params))
  model = sizes.described(file.kind, config)
  condition = families.FAMILIES[model.family].published.condition(config, 1)
  for expected, one in zip(size.cache, (model, with_cache_dtype(model, 'int8'))):
    target = one.target(guided=True)
    assert expected == memory.cache_size(target, one.params, condition, target.num_tokens)


@pytest.mark.slow
@pytest.mark.parametrize('file, entry', PASSES, ids=lambda value: getattr(value, 'method', ''))
def test_published_passes_are_whole_and_plausible(file, entry):
  page = next(page for page, (target, _) in sizes.FILES.items() if target == file.name)
  assert entry.model in file.presets
  assert (entry.tokens_per_pass is None) != (entry.passes is None)
  assert 1 < entry.ratio < 20 and re.search(r'arXiv \d{4}\.\d{5}', entry.source)
  if entry.passes is not None:  # Other programs count tokens of the grammar as well.
    tokens = sizes.of_targets(page)[entry.model].tokens
    assert entry.passes[0] < entry.passes[1] and abs(entry.passes[1] / tokens - 1) < .02
  if entry.decoder is not None:
    _, verifier = specification.expand(entry.decoder)
    assert (verifier.name in ('rejection', 'match')) == entry.lossless


@pytest.mark.parametrize('entry', [
    entry for _, entry in PASSES if ', table' in entry.source and any(
        paper in entry.source for paper in PAPERS)], ids=lambda entry: entry.source)
def test_published_passes_agree_with_the_rows_of_the_papers(entry):
  paper = next(name for number, name in PAPERS.items() if number in entry.source)
  table = entry.source.rpartition(' ')[2]  # A row may be in several tables.
  rows = [row for row in published_rows.ROWS[paper] if table in re.findall(r'\d+', row.place)]
  assert any(f'{entry.tokens_per_pass:.2f}x' in row.published for row in rows)


@pytest.mark.slow
def test_supported_features_are_tried():
  rows = {row['family']: row for row in supported.rows(['llamagen', 'mar', 'nextstep'])}
  llamagen, mar, nextstep = rows.values()
  assert llamagen['decoders'] == f'all {len(specification.DECODERS)}'
  assert nextstep['decoders'] == '`mar`, `exact_head`, `windows`'
  of = lambda row: {name for name in supported.FEATURES if row[name] == 'yes'}
  assert of(llamagen) == supported.FEATURES.keys() - {'other sizes'}
  assert of(mar) == {'relaxed'} and of(nextstep) == {'other sizes', 'int8 matrices', 'int8 cache'}
