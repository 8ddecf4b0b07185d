"""The pages of published models: sizes, published passes, commands, evidence, and what works."""

import ast
import dataclasses
import functools
import json
import math
import pathlib
import re
import shlex
from typing import NamedTuple

import pytest

import cspd_jax
from checkpoints_conversion import rules
from cspd_jax import families
from cspd_jax.commands import verify
from cspd_jax.decoding import continuous_batching, specification
from cspd_jax.families.folder import with_cache_dtype
from cspd_jax.files import store
from cspd_jax.generation import memory
from docs import zoo
from experiments.papers import published
from tests.docs import pages

TESTS = pages.ROOT / 'tests'
# Levels of verification, each stronger than the one before it; the last need published weights.
AT_RANDOM_WEIGHTS = ['shapes', 'parity', 'folder to pictures']
OF_PUBLISHED = ['real weights', 'golden tokens', 'pictures']
# The rows of papers' tables, by the number of the paper.
PAPERS = {'2410.01699': 'sjd', '2603.18599': 'sjd_pac'}
each = pytest.mark.parametrize('page', zoo.FILES)


def _text(page):
  """A page without line breaks."""
  return ' '.join((pages.ROOT / 'docs' / f'{page}.md').read_text().split())


def _rows(page, heading):
  """The cells of the rows of the table of a page with this first heading."""
  lines = (pages.ROOT / 'docs' / f'{page}.md').read_text().splitlines()
  start = next((i for i, line in enumerate(lines) if line.startswith(f'| {heading} |')), len(lines))
  for line in lines[start + 2:]:
    if not line.startswith('|'):
      return
    yield [cell.strip() for cell in line.strip('|').split(' | ')]


def test_every_family_has_its_row():
  files = {page.stem for page in (pages.ROOT / 'docs' / 'families').glob('*.md')}
  assert files == zoo.FILES.keys()
  targets = {target for target, _, _ in zoo.FILES.values()}
  # Those whose networks are targets of their models, which a prior is not.
  assert targets == {name for name, file in rules.FAMILIES.items()
                     if file.model and file.kind in families.FAMILIES[file.model].roles['target']}
  for page, (target, others, _) in zoo.FILES.items():
    assert rules.FAMILIES[target].licence, page
    assert {target, *others} <= rules.FAMILIES.keys()


class Mark(NamedTuple):
  """A test of `tests` that is marked as verifying a level of families of published files."""

  path: pathlib.Path
  level: str
  families: list[str]


def _marks():
  """The marks of all tests, read without running them."""
  for path in sorted(TESTS.rglob('test_*.py')):
    text = path.read_text()
    for function in ast.walk(ast.parse(text)) if '@pytest.mark.verifies(' in text else ():
      for call in getattr(function, 'decorator_list', ()):
        if ast.unparse(call).startswith('pytest.mark.verifies('):
          level, *marked = map(ast.literal_eval, call.args)
          yield Mark(path.relative_to(TESTS), level, marked)


MARKS = list(_marks())


@each
def test_pages_say_what_of_a_family_was_verified(page):
  own = [mark for mark in MARKS if zoo.FILES[page][0] in mark.families]
  verified = {mark.level for mark in own}
  assert {'shapes', 'parity'} <= verified
  text = _text(f'families/{page}')
  _, levels, tests = re.search(r'\*\*\[Verified\](.*?): (.*?), by (.*?)\. - ', text).groups()
  assert levels == ', '.join(level for level in AT_RANDOM_WEIGHTS if level in verified)
  assert set(re.findall('`tests/(.*?)`', tests)) == {mark.path.as_posix() for mark in own}
  lacking = ', '.join(level for level in OF_PUBLISHED if level not in verified)
  unseen = '; no pictures of its published weights exist yet' * ('pictures' not in verified)
  assert f'**[Not verified](../models.md#what-is-verified)**: {lacking}{unseen}.' in text
  row, = (cells for cells in _rows('models', 'family | shapes') if f'/{page}.md)' in cells[0])
  assert row[1:] == ['yes' if level in verified else 'not yet'
                     for level in (*AT_RANDOM_WEIGHTS, *OF_PUBLISHED)]


@pytest.mark.parametrize('level', [*AT_RANDOM_WEIGHTS, *OF_PUBLISHED])
def test_the_page_of_models_says_who_reaches_a_level(level):
  reached = {family for mark in MARKS if mark.level == level for family in mark.families}
  targets = {target for target, _, _ in zoo.FILES.values()}
  words = re.search(rf'- \*{level}\*: [^.]*\. ([^.;]*)', _text('models'))[1]
  assert words == ('All families' if targets <= reached else 'None yet') and (
      targets <= reached or not targets & reached)


@functools.cache
def _source(path):
  """The text of a file with the modules of tests that it reads, and texts in it but those of marks.
  """
  text = (TESTS / path).read_text()
  tree, words = ast.parse(text), set()
  for node in ast.walk(tree):
    if hasattr(node, 'decorator_list'):
      node.decorator_list = [decorator for decorator in node.decorator_list
                             if 'mark.verifies' not in ast.unparse(decorator)]
    if isinstance(node, ast.ImportFrom) and node.module.startswith('tests.'):
      for alias in node.names:  # Cases and published files are in modules of their own.
        other = pathlib.Path(*node.module.split('.')[1:], f'{alias.name}.py')
        if (TESTS / other).is_file() and not alias.name.startswith('test_'):
          more, others = _source(other)
          text, words = text + more, words | others
  return text, words | {node.value for node in ast.walk(tree)
                        if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize('mark', MARKS, ids=lambda mark: f'{mark.path}:{mark.level}')
def test_marked_tests_have_their_evidence(mark):
  assert mark.level in (*AT_RANDOM_WEIGHTS, *OF_PUBLISHED)
  assert mark.families and set(mark.families) <= rules.FAMILIES.keys()
  text, words = _source(mark.path)
  for family in mark.families:
    assert any(family in word for word in words), f'{mark.path} does not name {family}'
  live = re.findall(r"importorskip\('(torch|transformers)'", text)
  data = TESTS / 'data'
  if mark.level == 'parity':
    recorded = re.findall(r"recorded\('(\w+)'\)|'(\w+)\.npz'|/(\w+)\.npz", text)
    files = [data / f'{"".join(names)}.npz' for names in recorded]
    assert live or files and all(file.is_file() for file in files)
  if mark.level == 'shapes':
    assert live or "'manifests'" in text and any((data / 'manifests').iterdir())


def test_reports_of_verified_models_have_their_rows():
  shown = list(_rows('verified', 'model | weights'))
  reports = sorted((pages.ROOT / 'docs' / 'reports' / 'verified').glob('*.json'))
  assert len(shown) == len(reports) + len(zoo.FILES)
  for path, row in zip(reports, shown):
    report = json.loads(path.read_text())
    assert verify.signature(report) == report['signature']
    verdicts = [each['verdict'] for each in report['rows']]
    first, best = report['speed'][0], max(report['speed'], key=lambda row: row['speedup'])
    assert row == [
        f'`{report["model"]}`', report['rows'][0]['numbers']['digest'], report['where'],
        report['versions']['jax'], ', '.join(
            str(verdicts.count(verdict)) for verdict in ('passed', 'failed', 'not compared')),
        f'`{best["decoder"]}`', f'{best["passes"]:.0f} of {first["passes"]:.0f}',
        f'{best["seconds"]:.2f}', f'{best["speedup"]:.2f}x']


@each
def test_commands_download_the_published_files(page):
  """Each by the first of its names, the target and what it needs."""
  name = zoo.FILES[page][0]
  file = rules.FAMILIES[name]
  if not file.hub:
    return
  preset = next(iter(file.hub))
  needed = dict.fromkeys([name, *file.layout(preset), *file.others(file.presets[preset])])
  wanted = [(other, *next(iter(rules.FAMILIES[other].hub.items())))
            for other in needed if rules.FAMILIES[other].hub]
  block = next(block for block in pages.blocks(pages.ROOT / 'docs' / 'families' / f'{page}.md')
               if block.language == 'sh')
  flags = [dict(word[2:].split('=', 1) for word in shlex.split(command)[1:])
           for command in block.text.replace('\\\n', '').splitlines()
           if command.startswith('cspd-convert')]
  assert [(flag['family'], flag['model'], flag['source']) for flag in flags] == wanted


@pytest.mark.slow
@each
def test_pages_say_how_large_a_download_is(page):
  name = zoo.FILES[page][0]
  file = rules.FAMILIES[name]
  if not file.hub:
    return
  preset = next(iter(file.hub))
  others = {*file.layout(preset), *file.others(file.presets[preset])} - {name}
  count = zoo.sizes(page)[preset].parameters + sum(
      zoo.parameters(other) for other in others if rules.FAMILIES[other].kind != 'text')
  assert f'The networks of `{preset}` take {zoo.gigabytes(2 * count)} in' in _text(
      f'families/{page}')


@pytest.mark.slow
def test_the_page_of_models_says_what_a_training_takes():
  for model, images, whole, image in _rows('models', 'model | images'):
    page, file = next((page, rules.FAMILIES[target]) for page, (target, _, _) in zoo.FILES.items()
                      if model.strip('`') in rules.FAMILIES[target].presets)
    assert 'eagle' in families.family.target_family(file.kind).published.networks(
        file.presets[model.strip('`')])
    size = zoo.sizes(page)[model.strip('`')]
    assert int(images) == 2**round(math.log2(1e6 / size.tokens))
    assert (whole, image) == (
        zoo.gigabytes(4 * size.parameters), zoo.gigabytes(2 * size.cache[0]))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['demo', 'emoji'])
def test_bytes_with_int8_are_those_of_a_loaded_model(name):
  loaded = cspd_jax.load(name, dtype='bfloat16', quantize='int8')
  kind = families.folder.read(store.ASSETS / name)
  network = store.describe(families.part_folder(name, kind['parts']['target']))
  assert zoo.quantized_bytes(network.kind, network.params) == memory.size(loaded.params)


@pytest.mark.slow
def test_numbers_of_few_layers_are_those_of_all():
  file = rules.FAMILIES['llamagen']
  config = file.presets['c2i_b_256']
  size = zoo.sizes('llamagen')['c2i_b_256']
  params = store.sketch(file.kind, config).params
  assert size.parameters == memory.size(params) // 4  # In float32.
  assert size.int8 == zoo.quantized_bytes(file.kind, params)
  model = zoo.described(file.kind, config)
  assert size.cache == (zoo.cache_bytes(model), zoo.cache_bytes(with_cache_dtype(model, 'int8')))


PASSES = [(page, *row) for page in zoo.FILES for row in _rows(f'families/{page}', 'method')]


@pytest.mark.parametrize('page,method,decoder,images,source,passes', PASSES)
def test_published_passes(page, method, decoder, images, source, passes):
  assert images.split('`')[1] in rules.FAMILIES[zoo.FILES[page][0]].presets
  assert 1 < float(passes) < 20 and re.search(r'arXiv \d{4}\.\d{5}', source)
  lossless = 'not lossless' not in method
  if decoder != '-':
    _, verifier = specification.expand(decoder.strip('`'))
    assert (verifier.name in ('rejection', 'match')) == lossless
  # A row of the papers' tables, of which several may have it.
  paper = next((name for number, name in PAPERS.items() if number in source), None)
  if paper and ', table' in source:
    table = source.rpartition(' ')[2]
    rows = [row for row in published.ROWS[paper] if table in re.findall(r'\d+', row.place)]
    assert any(f'{passes}x' in row.published for row in rows)


@each
def test_the_fewest_published_passes_are_the_best_of_the_page(page):
  rows = [row for row in _rows(f'families/{page}', 'method') if 'not lossless' not in row[0]]
  fewest = zoo.FILES[page][2]
  if not rows:
    assert fewest == '-'
    return
  method, _, _, source, best = max(rows, key=lambda row: float(row[-1]))
  number, _, words = fewest.partition(' (')
  assert words.rstrip(')').startswith(method) and words.split('arXiv ')[1].rstrip(')') in source
  parts = re.findall(r'[\d.]+', number)
  assert f'{float(parts[-1]) / float(parts[0]):.2f}' == best if 'of' in number else parts == [best]


def _works(*calls):
  """Whether none of the calls is refused."""
  try:
    for call in calls:
      call()
  except ValueError:
    return False
  return True


def _supports(model, named):
  """The features that a model supports, by their names on the page; `named` are its decoders."""
  table, target = model.table, model.target(guided=True)
  texts = [*named, *(f'jacobi(window=4)+{name}' for name in specification.VERIFIERS)]
  width = getattr(target, 'row_width', model.grid[1])
  return {
      'trees': any('tree' in table.parameters(name) for name in named),
      'relaxed': any(not model.decoder(text).guarantee.is_exact
                     for text in texts if _works(lambda text=text: model.decoder(text))),
      'trained drafters': model.teacher is not None,
      'first rows': _works(lambda: model.with_prefix([0] * width).decoder(table.baseline)),
      'refill': any(continuous_batching.supports(model.decoder(name)) for name in named),
      'other sizes': families.FAMILIES[model.family].resize is not None,
      'int8 matrices': bool(
          store.KINDS[next(iter(families.FAMILIES[model.family].roles['target']))].matrices),
      'int8 cache': _works(lambda: with_cache_dtype(model, 'int8')),
      'guidance interval': 'guidance_interval' in table.options and target.num_streams > 1,
      'log-probabilities': _works(lambda: model.sampler(table.baseline, raw_log_probs=True))}


@pytest.mark.slow
@each
def test_pages_say_what_works(page):
  """Tried on a model with one layer, and a network for every drafter that it can have."""
  file = rules.FAMILIES[zoo.FILES[page][0]]
  family = families.family.target_family(file.kind)
  config = dataclasses.replace(next(iter(file.presets.values())), num_layers=1)
  networks = dict(family.published.networks(config))
  if 'draft' in family.roles:  # A smaller model of the same tokens.
    networks['draft'] = file.kind, config
  model = zoo.described(file.kind, config, **{
      role: store.sketch(*network) for role, network in networks.items()})
  every, target = model.table.decoders, model.target(guided=True)
  named = [name for name in every if model.table.refuses(name, target) is None
           and _works(lambda name=name: model.decoder(name))]
  others, listed = [name for name in every if name not in named], ', '.join
  words = f'all {len(every)}' if not others else min(
      listed(f'`{name}`' for name in named), 'all but ' + listed(f'`{name}`' for name in others),
      key=len)
  text = _text(f'families/{page}')
  assert f'**Decoders**: {words}.' in text
  lacking = [name for name, works in _supports(model, named).items() if not works]
  said = re.search(r'\*\*\[Not supported\]\(\S*\)\*\*: (.*?)\.', text)
  assert (said[1].split(', ') if said else []) == lacking
  for name in _supports(model, named):
    but = re.search(rf'- \*{name}\*: all but (.*?)\. ', _text('models'))[1]
    assert (f'families/{page}.md' in but) == (name in lacking), name
