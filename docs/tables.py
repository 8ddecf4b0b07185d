"""Writes the generated parts of the README and of the pages: tables of numbers, lists of names.

    python -m docs.tables            # rewrites the pages
    python -m docs.tables --check    # names pages that are not up to date, and exits with 1

A generated part stands between `<!-- table: NAME -->` and `<!-- /table -->`. Numbers come from
the reports in docs/reports: each is the report.json that a program left in its --workdir, under the
name that `REPORTS` gives it. A table without its report stays empty. Lists come from the code; see
`docs.lists`.
"""

import json
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax import metrics
from cspd_jax.files import atomic
from cspd_jax.measure import tables
from docs import lists
from experiments.papers import fidelity, published, published_rows

ROOT = pathlib.Path(__file__).parents[1]
PAGES = (ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md')))
_REGION = re.compile(r'(<!-- table: (\w+) -->\n).*?(<!-- /table -->)', re.DOTALL)

# The reports on released code: the model, the clone of every method as a flag, and further flags.
RELEASED = (
    ('emoji', {'sjd': '--repo=SJD ', 'scd': '--repo=SCD ', 'scd_gumbel': '--repo=SCD ',
               'sjd_pac': '--repo=SJD-PAC ',
               'sjd_pp': '--repo=PathSpec ', 'paths': '--repo=PathSpec ', 'transformers': ''}, ''),
    ('demo', {'llamagen': '--repo=LlamaGen ', 'eagle': '--repo=LANTERN ',
              'lantern': '--repo=LANTERN '}, ' --model=demo --noasked'),
    ('mar_demo', {'mar': '--repo=mar ', 'cspd': '--repo=CSpD '}, ' --model=mar_demo'))

# The images of their further reports, for distances.
MORE_RELEASED = {'sjd': 160, 'scd': 256, 'sjd_pac': 160, 'sjd_pp': 256, 'paths': 160}


def _compiled(model: str, measured: str) -> str:
  """Returns the command that predicts rounds of continuous tokens with a shipped model's counts."""
  return (f"python -m experiments.compile_report --model={model} "
          "--decoder='exact_head,exact_head(kernels_per_call=32),windows(window=8)' "
          f'--accepted=docs/reports/continuous_windows.json --accepted_model={measured}')


# The reports on seed-exact decoders: the model, dtype, images, images at once, and windows.
ROUNDING = {
    f'rounding_{model}_{name}': (model, *options) for model in ('emoji', 'demo')
    for name, options in {
        'float32': ('float32', 4, 4, (4, 7, 8, 12, 16, 20, 32, 64)),
        '16': ('float32', 16, 16, (8,)), 'bfloat16': ('bfloat16', 4, 4, (7, 8, 16, 20)),
        'bfloat16_8': ('bfloat16', 12, 1, (8,))
    }.items()}


def _of_rounding(model: str, dtype: str, count: int, size: int, windows: Sequence[int]) -> str:
  """Returns the command that compares images and log-probabilities of seed-exact decoders."""
  decoders = ','.join(f'seed_exact(window={window}),corrected_seed_exact(window={window})'
                      for window in windows)
  return (f'python -m experiments.decoders --measure=rounding --model={model} --dtype={dtype} '
          f"--num_images={count} --batch_size={size} --decoder='{decoders}'")


# The command whose report.json is kept under docs/reports, by its name there.
REPORTS = {
    'compare_emoji': 'cspd-compare',
    'compare_cpu': 'cspd-compare --model=demo --all',
    'compare_mar': 'cspd-compare --model=mar_demo --all',
    'compare_continuous': "cspd-compare --model=emoji_continuous --decoder='mar,exact_head,"
                          "windows(window=2),windows(window=4),windows(window=8)'",
    'kinds': 'python -m experiments.topologies --config=configs/kinds.py',
    'kinds_demo': 'python -m experiments.topologies --config=configs/kinds.py:demo',
    'products': 'python -m experiments.products',
    'products_avx512': 'python -m experiments.products --sizes=256x704,1280x3456 --repeats=5',
    'refill': 'python -m experiments.decoders --measure=queue',
    'serving':
        "python -m experiments.serving --decoder='seed_exact(window=8)' --num_images=16 "
        '--clients=1,4,16 --soak=0',
    'serving_soak':
        "python -m experiments.serving --model=runs/smoke/export --decoder='seed_exact(window=4)' "
        '--clients=16 --num_images=64 --workdir=runs/serving_soak',
    **{name: _of_rounding(*options) for name, options in ROUNDING.items()},
    'benchmark': 'python -m experiments.benchmark',
    'corrected': 'python -m experiments.topologies --config=configs/corrected.py:numbers',
    'corrected_wide': 'python -m experiments.topologies --config=configs/corrected.py:wide',
    'corrected_ablations':
        'python -m experiments.topologies --config=configs/corrected.py:ablations',
    'corrected_local': 'python -m experiments.topologies --config=configs/corrected.py:local',
    'corrected_short': 'python -m experiments.topologies --config=configs/corrected.py:short',
    **{f'accelerator_{stage}': f'python -m experiments.accelerator --stages={stage}' for stage in (
        'xl', 'large', 'exact')},
    'accelerator_official':
        'python -m experiments.accelerator --stages=official --repo=LlamaGen',
    'compiled_7b': 'python -m experiments.compile_report',
    'compiled_xl': 'python -m experiments.compile_report --model=c2i_xl_256',
    **{f'compiled_{name}_local': (
        f'python -m experiments.compile_report{model} '
        "--decoder='corrected(iterations=4),corrected(corrector=local, iterations=4),"
        "corrected(corrector=neighbours, iterations=4)' "
        '--accepted=docs/reports/corrected_local.json')
       for name, model in (('7b', ''), ('xl', ' --model=c2i_xl_256'))},
    'compiled_7b_batch':
        "python -m experiments.compile_report --batch=8 --decoder='mc_sjd,mc_sjd(window=16)'",
    'compiled_xl_v5e':
        "python -m experiments.compile_report --device=v5e --model=c2i_xl_256 "
        "--decoder='mc_sjd(window=16)'",
    'compiled_mar': _compiled('mar_b', 'mar_demo'),
    'compiled_nextstep': _compiled('nextstep_1_512', 'emoji_continuous'),
    'corrected_proof': 'python -m experiments.topologies --config=configs/corrected.py:proof',
    'corrected_proof_emoji':
        'python -m experiments.topologies --config=configs/corrected.py:proof_emoji',
    'uncertainty': 'python -m experiments.topologies --config=configs/corrected.py:entropy',
    'quantized': 'python -m experiments.quantized',
    'published': 'python -m experiments.papers.published',
    'published_demo':
        'python -m experiments.papers.published --config=configs/papers.py:published_demo',
    'published_cspd':
        'python -m experiments.papers.published --config=configs/papers.py:published_cspd',
    'fidelity': 'python -m experiments.papers.fidelity',
    'fidelity_demo':
        'python -m experiments.papers.fidelity --config=configs/papers.py:fidelity_demo',
    'sjd': 'python -m experiments.topologies --config=configs/papers.py:sjd',
    'sjd_pac': 'python -m experiments.topologies --config=configs/papers.py:sjd_pac',
    **{name: f'python -m experiments.topologies --config=configs/papers.py:{name}'
       for name in ('variants', 'variants_emoji', 'chains')},
    'cool_sd': 'python -m experiments.benchmark --config=configs/papers.py:cool_sd',
    'lantern': 'python -m experiments.benchmark --config=configs/papers.py:lantern',
    'cspd': 'python -m experiments.papers.cspd',
    'against_mar': 'python -m experiments.against_mar --repo=mar',
    'against_nextstep': 'python -m experiments.against_nextstep --repo=NextStep-1',
    'against_llamagen': 'python -m experiments.against_llamagen --repo=LlamaGen',
    **{f'released_{method}': f'python -m experiments.against_released {repo}--method={method}{more}'
       for _, methods, more in RELEASED for method, repo in methods.items()},
    **{f'released_{method}_{count}': (
        f'python -m experiments.against_released {RELEASED[0][1][method]}--method={method} '
        f'--num_images={count}') for method, count in MORE_RELEASED.items()},
    **{f'released_sjd_{name}': (
        f'python -m experiments.against_released --repo=SJD --method=sjd {options}')
       for name, options in (('guided', '--guidance_scale=3'), ('official', '--official'))},
    **{f'against_llamagen{name}_local': (
        f'python -m experiments.against_llamagen --repo=LlamaGen{more}'
        "--decoder='corrected(corrector=local, iterations=2, window=8)' "
        '--accepted=docs/reports/corrected_local.json')
       for name, more in (('', ' '), ('_xl', ' --size=c2i_xl_256 --repeats=1 '))},
    'against_llamagen_xl':
        'python -m experiments.against_llamagen --repo=LlamaGen --size=c2i_xl_256 --repeats=1 '
        "--decoder='mc_sjd(window=4)' "
        "--decoder='corrected(corrector=neighbours, iterations=2, window=8)' "
        "--decoder='corrected(iterations=2, window=8)' --decoder='eagle(tree=chain(7))+block'",
    'continuous_windows': 'python -m experiments.continuous_windows',
    'quality': 'python -m experiments.quality',
    'quality_scales': 'python -m experiments.quality --scale=2',
}

# The pictures that programs drew for pages: a kept report and its file, by name in docs/pictures.
PICTURES = {
    'acceptance.png': ('compare_emoji', 'acceptance.png'),
    'curves.png': ('benchmark', 'curves.png'), 'lantern.png': ('lantern', 'curves.png'),
    'cool_sd.png': ('cool_sd', 'curves.png'),
    'emoji.png': ('quality', 'images.png'), 'emoji_failures.png': ('quality', 'failures.png'),
    **{published.picture(paper): ('published_cspd' if paper == 'cspd' else 'published',
                                  published.picture(paper)) for paper in published_rows.ROWS}}

Report = Mapping[str, Any]
Row = Mapping[str, Any]


class Table(NamedTuple):
  """Numbers of a report.

  Attributes:
    report: name of the report.
    text: path of the report to Markdown.
    others: names of reports that the table reads too, or in place of the first.
  """

  report: str
  text: Callable[[pathlib.Path], str]
  others: tuple[str, ...] = ()


def _measured(*names: str, errors: bool = False) -> dict[str, str]:
  """Columns of metrics by name."""
  known = {metric.name: metric for metric in metrics.METRICS}
  return metrics.columns([known[name] for name in names], errors)


def _of(columns: Mapping[str, str], rows: Callable[[Report], Iterable[Row]] = (
    lambda report: report['rows'])) -> Callable[[pathlib.Path], str]:
  """A table with columns of `measure.tables`; `rows` chooses among those of the report."""
  return lambda path: tables.markdown(columns, rows(_content(path)))


def _own(path: pathlib.Path) -> str:
  """The tables that a report has itself."""
  return _some()(path)


def _some(columns: Mapping[str, str] | None = None, title: str = '',
          rows: Callable[[Row], bool] = lambda row: True) -> Callable[[pathlib.Path], str]:
  """The tables of a report whose titles begin so, with some of their rows and columns.

  `columns` are the headings on the page, with the heading in the report or a format for each.
  """
  def text(path: pathlib.Path) -> str:
    parts = []
    for table in tables.of_report(path):
      if table.title.startswith(title):
        forms = table.columns if columns is None else {
            name: table.columns.get(form, form) for name, form in columns.items()}
        parts.append(f'**{table.title.replace("rounds", "passes")}**\n\n' + _as_code(table._replace(
            columns=forms, rows=list(filter(rows, table.rows)))))
    return '\n\n'.join(parts)

  return text


def _as_code(table: tables.Table) -> str:
  """A table of a report, whose decoders are code."""
  columns = {name: f'`{form}`' if form in ('{decoder}', '{same_shapes}') else form
             for name, form in table.columns.items()}
  return tables.markdown(columns, table.rows).replace('| `-` |', '| - |')


def _pivot(rows: Iterable[Row], index: Mapping[str, str], heading: Callable[[Row], str],
           cell: str) -> str:
  """A table whose rows that agree in the `index` columns are one, with a cell per heading."""
  lines: dict[tuple[str, ...], dict[str, str]] = {}
  headings: dict[str, str] = {}
  for row in rows:
    line = lines.setdefault(tuple(tables.cells(index, row)), {})
    line.setdefault(headings.setdefault(heading(row), f'column{len(headings)}'),
                    tables.cells({'': cell}, row)[0])
  names = [f'index{number}' for number in range(len(index))]
  columns = dict(zip([*index, *headings], [f'{{{name}}}' for name in (*names, *headings.values())]))
  return tables.markdown(columns, [dict(zip(names, key)) | line for key, line in lines.items()])


_COMPRESSION = '{step_compression:.2f} +- {step_compression_error:.2f}'


def _by_window(cell: str = _COMPRESSION, without: str = '?') -> Callable[[pathlib.Path], str]:
  """Step compression by decoder and window; `N` is the window. Some decoders may be left out."""
  def text(path: pathlib.Path) -> str:
    rows = [dict(row, decoder=_without(row['decoder'], table.title.removeprefix('window ')),
                 window=table.title) for table in tables.of_report(path) for row in table.rows
            if without not in row['decoder']]
    return _pivot(rows, {'decoder': '`{decoder}`'}, lambda row: row['window'], cell)

  return text


def _without(decoder: str, window: str) -> str:
  """A specification without the number of tokens in its window."""
  decoder = decoder.replace(f'window={window}', 'window=N')
  return decoder.replace(f'chain({int(window) - 1})', 'chain(N - 1)')


def _by_model(*names: str) -> Callable[[pathlib.Path], str]:
  """Step compression by decoder and model, of reports with a window in common."""
  return lambda path: _pivot(
      [dict(row, model=model) for name, model in zip(names, ('demo', 'emoji'))
       for row in _rows(name)],
      {'decoder': '`{decoder}`'}, lambda row: f'`{row["model"]}`', _COMPRESSION)


def _cspd(path: pathlib.Path) -> str:
  """Table 1 of CSpD with speeds."""
  rows = [dict(row, accepted=row[f'acceptance_{row["mode"]}']) for row in _content(path)['rows']]
  suite = lambda name: [row for row in rows if row['suite'] == name]
  index = {'decoder': '`{mode}`', 'gamma': '{length}'}
  first = _pivot(
      suite('table1'), index | {'accepted': '{accepted:.3f}'},
      lambda row: f'speed, batch {row["batch"]}', '{speed:.2f}')
  parallel = _pivot(
      [row for row in suite('table1') if row['mode'] == 'cspd_released'], {'gamma': '{length}'},
      lambda row: f'batch {row["batch"]}',
      '{expected_speed:.2f}, {paper_identity_speed:.2f}, {parallel_speed:.2f}')
  return '\n\n'.join(f'**{title}**\n\n{text}' for title, text in {
      'Table 1, prefix share 5 %': first,
      'Table 1: speed by passes alone, by 1 / (c + 1 / gamma), and of `parallel`': parallel
  }.items())


def _cspd_figures(path: pathlib.Path) -> str:
  """The points of the figures of CSpD."""
  points = _points(_content(path))
  index = {'decoder': '`{mode}`', 'gamma': '{length}'}
  by_scale = [row for row in points if row['temperature'] == 1]
  setting = lambda row: (row['mode'], row['length'], row['guidance_scale'])
  several = {setting(row) for row in points if row['temperature'] != 1}
  by_temperature = [row for row in points if setting(row) in several]
  ordered = lambda rows, name: sorted(rows, key=lambda row: row[name])
  return '\n\n'.join((
      '**Figures 8 and 13: accepted**',
      _pivot(ordered(by_scale, 'guidance_scale'), index,
             lambda row: f'guidance {row["guidance_scale"]:g}', '{accepted:.3f}'),
      '**Figure 14: accepted**',
      _pivot(ordered(by_temperature, 'temperature'), index | {'guidance': '{guidance_scale:g}'},
             lambda row: f'temperature {row["temperature"]:g}', '{accepted:.3f}')))


def _points(report: Report) -> list[Row]:
  """The different points of the figures of CSpD."""
  rows = [dict(row, accepted=row[f'acceptance_{row["mode"]}']) for row in report['rows']
          if row['suite'] == 'figures']
  point = lambda row: (row['mode'], row['length'], row['guidance_scale'], row['temperature'])
  return list({point(row): row for row in rows}.values())


def _published(paper: str) -> Table:
  """A paper's rows next to ours, by model, and the picture of them."""
  names = ('published_cspd',) if paper == 'cspd' else ('published', 'published_demo')

  def text(_: pathlib.Path) -> str:
    compared = {
        (row['decoder'], row['temperature'], row['top_k'], model): dict(frechet=row['frechet'])
        for model, name in (('emoji', 'fidelity'), ('demo', 'fidelity_demo'))
        for row in _rows(name)}
    parts = []
    for path in filter(pathlib.Path.exists, map(_path, names)):
      report, picture = _content(path), published.picture(paper)
      for table in tables.of_report(path):
        if table.title == paper:
          if model := report['settings'].get('rows'):
            parts.append(f'**Measured with `{model}`**')
          if paper == 'this_project':
            table = table._replace(rows=list(filter(_is_compared, table.rows)))
          in_grid = [_grid_cell(paper, row) for row in table.rows]
          parts.append(_as_code(_with_distances(table._replace(rows=[
              row for row, cell in zip(table.rows, in_grid) if not cell]), compared)))
          if any(in_grid):
            parts.append(_grid([cell for cell in in_grid if cell]))
      if picture in report['files']:
        parts.append(f'![The same prompts and seeds by decoder](../pictures/{picture})')
    return '\n\n'.join(parts)

  return Table(names[0], text, names[1:])


# Rows of a paper's table over two settings: paper, place, and how a setting names line and column.
_GRIDS = {('sjd', 'Figure 6, Table 6'): r'(?P<column>top-\d+): (?P<line>.*)',
          ('lantern', 'Table 2'): r'first draft accepted: (?P<line>k=\d+), (?P<column>delta=.*)',
          ('cspd', 'Table 4'): r'(?P<line>MAR-H by MAR-B, prefix \d+%), (?P<column>gamma=\d+)'}


def _grid_cell(paper: str, row: Row) -> Row | None:
  """A row with its line and its column in a table over two settings; None for other rows."""
  pattern = _GRIDS.get((paper, row.get('place', '')), '(?!)')
  if (match := re.fullmatch(pattern, row.get('setting', ''))) is None:
    return None
  metric, _, value = row['here'].split(' +- ')[0].rpartition(' ')
  cell = [row['published'].split()[-1], value, *(row.get('price') or '').split()[:1]]
  return dict(row, **match.groupdict(), metric=metric, cell='; '.join(cell))


def _grid(rows: Sequence[Row]) -> str:
  """Rows over two settings: what is published, and what was measured here."""
  title = f'{rows[0]["place"]}: published; {rows[0]["metric"]} here'
  title += '; NLL - entropy' if rows[0].get('price') else ''
  return f'**{title}**\n\n' + _pivot(
      rows, {'setting': '{line}'}, lambda row: row['column'], '{cell}')


def _is_compared(row: Row) -> bool:
  """Whether a row of this library is next to a published one, or the longest corrected window."""
  return row['published'] != '-' or 'top-' not in row['setting'] and re.search(
      'corrected.*window=64', row['decoder'] or '') is not None


def _with_distances(table: tables.Table, compared: Mapping[tuple, Row]) -> tables.Table:
  """Returns a table without standard errors, with the distances of many images if any has some."""
  setting = lambda row: tuple(map(row.get, ('decoder', 'temperature', 'top_k', 'model')))
  rows = [dict(row, **compared.get(setting(row), {})) for row in table.rows]
  renamed = {'minus one token at a time': 'asked, change'}
  columns = {renamed.get(name, name): form.partition(' +- ')[0]
             for name, form in table.columns.items() if name != 'asked'}
  # Without errors, and without the head's calls of decoders that make 100 in each pass.
  plain = lambda value: re.sub(r' \+- [\d.]+[x%]?|, head calls \d+00 .*', '', value) if isinstance(
      value, str) else value
  rows = [{name: plain(value) for name, value in row.items()} for row in rows]
  if any('frechet' in row for row in rows):
    columns['Frechet'] = fidelity.COLUMNS['Frechet']
  return table._replace(rows=rows, columns=columns)


def _rows(name: str) -> list[Row]:
  """The rows of a report; none without it."""
  path = _path(name)
  return _content(path)['rows'] if path.exists() else []


# Columns of the table of the README.
_TOKENS = 'tokens per pass'
_OF_SCENES, _OF_PHOTOGRAPHS = {f'{_TOKENS} of `emoji`': '{tokens_per_pass:.2f}'}, {
    f'{_TOKENS} of `demo`': '{photographs:.2f}'}
_GAIN = {'speed-up on an H100': '{gain:.2f}x', 'guarantee': '{guarantee}'}


def _kinds(scenes: Sequence[Row], photographs: Sequence[Row], timed: Sequence[Row]) -> str:
  """The table of the README: decoders by their tokens per forward pass of photographs.

  Args:
    scenes: the decoders with scenes of emoji; without them the table has fewer columns.
    photographs: the decoders with photographs.
    timed: rounds of a large model that were timed in turns with those of the baseline. Where they
      have the decoder, its speed-up is the tokens per pass of photographs over the time of its
      round, in rounds of the baseline.
  """
  of_photographs = {row['decoder']: row['tokens_per_pass'] for row in photographs}
  costs = {row['decoder']: row['ms'] / row['vanilla_ms'] for row in timed if 'vanilla_ms' in row}
  rows = []
  for row in {row['decoder']: row for row in (*photographs, *scenes)}.values():
    decoder, tokens = row['decoder'], of_photographs.get(row['decoder'])
    rows.append(dict(
        {} if row in photographs else row, decoder=decoder, guarantee=row['guarantee'],
        photographs=tokens,
        gain=tokens / costs[decoder] if tokens and decoder in costs else None))
  columns = {**_OF_SCENES, **_OF_PHOTOGRAPHS} if scenes else {
      _TOKENS: '{photographs:.2f}'}
  return tables.markdown({'decoder': '`{decoder}`', **columns, **_GAIN},
                         sorted(rows, key=lambda row: row['photographs'] or math.inf))


_CPU = ('against_llamagen', 'against_llamagen_local', 'against_llamagen_xl',
        'against_llamagen_xl_local')


def _cpu(_: pathlib.Path) -> str:
  """Decoders that are faster than the baseline on a CPU, the fastest first."""
  small, large = ({row['decoder']: row for name in names if _path(name).exists()
                   for row in _rows(name) if row.get('speedup', 0) > 1}
                  for names in (_CPU[:2], _CPU[2:]))
  rows = [dict(row, small=small.get(decoder, {}).get('speedup'),
               large=large.get(decoder, {}).get('speedup'))
          for decoder, row in (large | small).items()]
  return tables.markdown(
      {'decoder': '`{decoder}`', 'tokens per pass': '{tokens:.2f}', 'LlamaGen-B': '{small:.2f}x',
       'LlamaGen-XL': '{large:.2f}x'},
      sorted(rows, key=lambda row: -max(row['small'] or 0, row['large'] or 0)))


def _products(_: pathlib.Path) -> str:
  """Products of a feed-forward layer's matrix on two kinds of CPU."""
  rows = [dict(row, kind=kind) for name, kind in (
      ('products', 'AVX2'), ('products_avx512', 'AVX-512')) for row in _rows(name)
          if row.get('size') == '1280x3456']
  return _pivot(rows, {'rows': '{rows}'}, lambda row: f"{row['kind']}: XLA's choice, by outputs",
                '{XLAs_choice:.0f}, {by_outputs:.0f}')


def _rounding(_: pathlib.Path) -> str:
  """How many images and log-probabilities of seed-exact decoders differ from the baselines'."""
  cells: dict[tuple, list[dict]] = {}
  for name, (model, _, count, *_) in ROUNDING.items():
    for row in _rows(name):
      cell = (model, row['dtype'], count, row['batch_size'],
              row['decoder'].partition('(')[0])
      cells.setdefault(cell, []).append(row)
  rows = []
  for (model, dtype, count, batch_size, decoder), found in cells.items():
    shares = [row['images'] for row in found]
    most = {name: max(row[name] for row in found)
            for name in ('images_in_window', 'log_probs_in_window')}
    rows.append(dict(
        most, model=model, dtype=dtype, count=count, batch_size=batch_size, decoder=decoder,
        windows=', '.join(str(row['window']) for row in found),
        images=f'{min(shares):.0%}' + (f' to {max(shares):.0%}' if len(set(shares)) > 1 else '')))
  return tables.markdown(
      {'model': '{model}', 'dtype': '{dtype}', 'images': '{count}, {batch_size} at once',
       'decoder': '`{decoder}`', 'windows': '{windows}',
       'images not those of `vanilla`': '{images}',
       'not those of `vanilla(window=N)`, at most': '{images_in_window:.0%}',
       'log-probabilities not its, at most': '{log_probs_in_window:.2%}'}, rows)


def _of_method(method: str, counts: Mapping[str, int]) -> str:
  """The name of a released method's report, of `counts` images by method or its only one."""
  return f'released_{method}_{counts[method]}' if method in counts else f'released_{method}'


def _released(columns: Mapping[str, str], counts: Mapping[str, int]
              ) -> Callable[[pathlib.Path], str]:
  """A table of released loops and of ours for every model, without empty columns."""

  def text(path: pathlib.Path) -> str:
    del path  # Every report has a part.
    parts = []
    for model, methods, _ in RELEASED:
      names = {method: _of_method(method, counts) for method in methods}
      every = [dict(row, code='here' if row['code'] == 'cspd_jax' else f'`{method}`',
                    images=_content(_path(name))['num_images'])
               for method, name in names.items() if _path(name).exists() for row in _rows(name)]
      # A decoder that several reports have is that of the most images.
      rows = {(row['decoder'], row['code'], row['window']): row
              for row in sorted(every, key=lambda row: row['images'])}.values()
      shown = {name: form for name, form in columns.items()
               if any(cell != '-' for row in rows for cell in tables.cells({name: form}, row))}
      parts.append(f'**`{model}`**\n\n' + tables.markdown(
          {'code': '{code}', 'decoder': '`{decoder}`', **shown},
          sorted(rows, key=lambda row: -row['passes'])))
    return '\n\n'.join(parts)

  return text


def _options_of_sjd(_: pathlib.Path) -> str:
  """A table of SJD's loop and ours with the model's options and with those of its program."""
  rows = [dict(row, options=options, code='here' if row['code'] == 'cspd_jax' else '`sjd`')
          for name, options in (('released_sjd', 'guidance 1.5, every position drafted'),
                                ('released_sjd_guided', 'guidance 3, every position drafted'),
                                ('released_sjd_official', 'guidance 3, drafted as in its program'))
          for row in _rows(name) if 'sjd' in row['decoder']]
  everywhere, official = (row['passes'] for row in rows[2::2] if row['code'] == '`sjd`')
  return tables.markdown({
      'options': '{options}', 'code': '{code}', 'decoder': '`{decoder}`',
      'passes per image': '{passes:.1f}',
      'tokens per pass': '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}',
      'NLL - entropy': '{gap:+.3f} +- {gap_error:.3f}'}, rows) + (
          f'\n\nThat every position is drafted saves the loop of SJD {official - everywhere:.1f} '
          'passes per image, which\nthe other tables grant it.')


def _quality(_: pathlib.Path) -> str:
  """Returns the table of scores of images of scenes, a row per guidance scale."""
  shown = [table for name in ('quality', 'quality_scales')
           for table in tables.of_report(_path(name))]
  return tables.markdown(shown[0].columns, [row for table in shown for row in table.rows])


def _image_of_xl(path: pathlib.Path) -> str:
  """Returns a sentence with the seconds of an image of LlamaGen-XL on a GPU."""
  report = _content(path)
  rows = {row['name']: row for row in report['rows']}
  best = min(rows.values(), key=lambda row: row['seconds'])
  slow, vanilla = rows['PyTorch'], rows['vanilla']
  return ('On an NVIDIA H100, LlamaGen-XL with random weights takes '
          f'{slow["seconds"]:.1f} s per image with its official\ncode in eager PyTorch, and '
          f'{vanilla["seconds"]:.2f} s with `vanilla`. Projected for\n`{best["name"]}`: '
          f'{best["seconds"]:.2f} s.')


def _first(_: pathlib.Path) -> str:
  """Returns the caption of the picture that the first command of the README draws."""
  vanilla, short, long = _rows('compare_emoji')
  assert short['tokens_equal_baseline'] and long['tokens_equal_baseline']
  name = str(short['decoder']).partition('(')[0]
  return (f'*The same images in {long["rounds"]:.4g} forward passes instead of '
          f'{vanilla["rounds"]:.4g}. Each block shows the tokens that one\npass commits: `vanilla` '
          f'generates one per pass, `{name}`, the default on a CPU, a few, and\na '
          '[corrected window](docs/corrected_windows.md), which is new, many.*')


# The released loops without a measured deviation, by docs/papers/released_code.md, and ours.
_EXACT_RELEASED, _BEST_HERE = ('sjd', 'eagle', 'eagle2'), 'corrected(iterations=4, window=64)'


def _race(_: pathlib.Path) -> str:
  """Returns the tokens per pass of the best such released loops, and of ours, in words."""
  number = '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}'
  released, here = [], []
  for report, form in (('released_sjd_160', '{} commits {} tokens per pass of `emoji` ({} images)'),
                       ('released_eagle', '{} {} of `demo` ({} images)')):
    rows = _rows(report)
    theirs = max((row for row in rows if row['decoder'] in _EXACT_RELEASED),
                 key=lambda row: row['tokens_per_pass'])
    released.append(form.format(_TITLES[theirs['decoder']], number.format(**theirs),
                                _content(_path(report))['num_images']))
    here.append(number.format(**next(row for row in rows if row['decoder'] == _BEST_HERE)))
  return (f'On the same trained weights, {released[0]}\nand {released[1]}: the best of the '
          'released programs\nwithout a measured bias. For the same prompts, '
          f'`{_BEST_HERE}` commits\n{" and ".join(here)}. '
          '[The race](docs/papers/released_code.md#on-trained-models) has all of them.')


_TITLES = {'sjd': 'SJD', 'eagle': "LANTERN's EAGLE", 'eagle2': "LANTERN's EAGLE-2"}


def _soaked(path: pathlib.Path) -> str:
  """The table of a server, and what became of another one under requests of all kinds."""
  report, soak = _content(path), _content(_path('serving_soak'))['soak']
  return (
      f'{_own(path)}\n\nThe first of three partial pictures is there after\n'
      f'{report["first_picture"]:.0%} of the time of an image. Of {soak["requests"]:,} requests to '
      f'a tiny model, {soak["answered"]:,} had\ntheir outcome, wrong ones and clients that left, '
      'stalled or read slowly among them. At the end the\n'
      f'server used {soak["memory"]:.1%} of the memory that it used after the first 500.')


def _relaxed(report: Report) -> list[Row]:
  """The relaxed verifiers on a chain of EAGLE, and the exact one."""
  # The exact ends of the curves are there a second time, without a time.
  rows = {row['decoder']: row for row in reversed(report['rows'])
          if row['verifier'] and row.get('curve') is None}
  return [row for row in reversed(rows.values()) if row['drafter'] == 'eagle(tree=chain(5))'
          and row['verifier'] not in ('match', 'block', 'kseq')]


_CONCLUSIONS = _of({'claim': '{claim}', 'holds here': '{answer}', 'numbers': '{numbers}'},
                   lambda report: report['conclusions'])

# Of passes on an accelerator.
_PASSES = {
    'decoder': '{decoder}', 'tokens per pass': '{tokens:.2f}', 'ms per pass': '{ms:.2f}',
    'predicted': '{predicted_ms:.2f}', 'kernels': '{kernels:.0f}', 's/image': 's/image',
    'speed-up': 'speed-up'}
# Of compiled passes.
_COMPILED = {name: name for name in ('decoder', 'MiB', 'over ideal', 'kernels', 'ms')} | {
    'tokens per pass': 'tokens', 'speed-up': 'speed-up'}
# Against programs in PyTorch.
_AGAINST = {'decoder': '', 'tokens per pass': 'tokens', 'ms per pass': 'ms/round',
            's/image': 's/image', 'over vanilla': 'over vanilla',
            'over eager PyTorch': 'over PyTorch'}
_AGAINST_MAR = {'decoder': '', 'tokens per pass': 'tokens', 'head calls': 'head calls',
                'ms per pass': 'round ms', 'ms per token': 'ms/token',
                'over eager PyTorch': 'over PyTorch', 'over `mar`': 'over mar'}
_SCORES = {'decoder': '`{decoder}`', 'guarantee': '{guarantee}',
           **_measured('accepted_length', errors=True),
           'bound per token': '{tv_bound_per_token:.4f}',
           **_measured('nll_excess', errors=True)}

_OF_RELEASED = tuple(f'released_{method}' for _, methods, _ in RELEASED for method in methods)[1:]
_OF_DISTANCES = tuple(
    _of_method(method, MORE_RELEASED) for _, methods, _ in RELEASED for method in methods)[1:]

TABLES: dict[str, Table] = {
    'first': Table('compare_emoji', _first),
    'summary': Table('kinds', lambda path: _kinds(
        _rows('kinds'), _rows('kinds_demo'), _rows('accelerator_xl')),
                     ('kinds_demo', 'accelerator_xl')),
    'gpu_gain': Table('accelerator_official', _image_of_xl),
    'accelerator_xl': Table('accelerator_xl', _some(_PASSES, 'c2i')),
    'accelerator_large': Table('accelerator_large', _some(_PASSES, 'lumina_mgpt_7b_768, 1')),
    'accelerator_official': Table('accelerator_official', _some({
        'decoder': '', 's/image': 's/image', 'ms/token': 'ms/token',
        'over eager PyTorch': 'over PyTorch', 'over vanilla': 'over vanilla'})),
    'accelerator_exact': Table('accelerator_exact', _some(title='emoji')),
    'race': Table('released_sjd_160', _race, ('released_eagle',)),
    'cpu': Table('against_llamagen', _cpu, _CPU[1:]),
    'compare': Table('compare_cpu', _of({
        'decoder': '`{decoder}`', **_measured('step_compression'),
        'ms per pass': '{ms_per_round:.2f}', 'speed-up': '{speedup:.2f}x'})),
    'compare_mar': Table('compare_mar', _of({
        'decoder': '`{decoder}`', **_measured('target_passes', 'head_calls', 'head_rows'),
        'speed-up': '{speedup:.2f}x'})),
    'compare_continuous': Table('compare_continuous', _of({
        'decoder': '`{specification}`',
        **_measured('rounds', 'head_calls', 'head_rows'), 'speed-up': '{speedup:.2f}x'})),
    'products': Table('products', _products, ('products_avx512',)),
    'refill': Table('refill', _some({
        'decoder': 'decoder', 'passes in batches': 'batches: rounds',
        'in a queue': 'queue: rounds', 'speed-up': 'speed-up', 'same images': 'same images'})),
    'serving': Table('serving', _soaked, ('serving_soak',)),
    'rounding': Table(next(iter(ROUNDING)), _rounding, tuple(ROUNDING)[1:]),
    'pairs': Table('benchmark', _of(_SCORES, _relaxed)),
    'curves': Table('benchmark', lambda path: '![Trade-off curves](pictures/curves.png)'),
    'corrected': Table('corrected', _by_window('{step_compression:.2f}')),
    'corrected_wide': Table('corrected_wide', _by_window('{step_compression:.2f}')),
    'corrected_ablations': Table('corrected_ablations', _of({
        'decoder': '`{decoder}`', 'tokens per pass': _COMPRESSION,
        **_measured('one_token_rounds')})),
    'corrected_local': Table('corrected_local', _by_window()),
    'corrected_short': Table('corrected_short', _by_window('{step_compression:.2f}')),
    'corrected_proof': Table('corrected_proof', _of({
        'decoder': '`{decoder}`', "images equal to vanilla's": '{equal_to_baseline:.2%}',
        **_measured('nll_excess', errors=True)})),
    'corrected_proof_emoji': Table('corrected_proof_emoji', _of({
        'decoder': '`{decoder}`', 'step compr.': '{step_compression:.2f}x',
        "images equal to vanilla's": '{equal_to_baseline:.2%}'})),
    **{name: Table(name, _some(_COMPILED)) for name in (
        'compiled_7b', 'compiled_xl', 'compiled_7b_local', 'compiled_xl_local',
        'compiled_7b_batch', 'compiled_xl_v5e')},
    **{name: Table(name, _some({**_COMPILED, 'head calls': 'head calls'})) for name in (
        'compiled_mar', 'compiled_nextstep')},
    'uncertainty': Table('uncertainty', lambda path: (
        '![Step compression against entropy](../pictures/uncertainty.png)')),
    'quantized': Table('quantized', _of({
        'int8': '{int8}', 'relative entropy': '{relative_entropy:.6f}',
        'total variation': '{total_variation:.4f}', 'largest': '{largest:.3f}',
        'MiB': '{mib:.1f}', 'in int8': '{other_mib:.1f}', 'cache MiB': '{cache_mib:.1f}',
        'cache in int8': '{other_cache_mib:.1f}'},
        lambda report: [row for row in report['rows'] if row['guidance_scale'] > 1])),
    **{f'published_{paper}': _published(paper) for paper in published_rows.ROWS},
    'sjd': Table('sjd', _by_window(without='gumbel')),
    'sjd_pac': Table('sjd_pac', _by_window(without='seed_exact')),
    'variants': Table('variants', _by_model('variants', 'variants_emoji'), ('variants_emoji',)),
    'chains': Table('chains', _of({
        'decoder': '`{decoder}`', 'tokens per pass of `demo`': _COMPRESSION,
        **_measured('one_token_rounds')})),
    'cool_sd': Table('cool_sd', _CONCLUSIONS),
    'lantern': Table('lantern', _CONCLUSIONS),
    'cspd': Table('cspd', _cspd),
    'cspd_figures': Table('cspd', _cspd_figures),
    'against_mar': Table('against_mar', _some(_AGAINST_MAR, 'mar_b, rounds')),
    'against_nextstep': Table('against_nextstep', _some(_AGAINST_MAR)),
    'against_llamagen': Table('against_llamagen', _some(_AGAINST)),
    'released': Table('released_sjd', _released({
        'window': '{window}', 'passes per image': '{passes:.1f}',
        'tokens per pass': '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}',
        'head calls': '{head_calls:.0f}', 's/image': '{seconds_per_image:.2f}',
        'speed-up': '{speedup:.2f}x'}, {}), _OF_RELEASED),
    'released_official': Table('released_sjd', _options_of_sjd, (
        'released_sjd_guided', 'released_sjd_official')),
    'released_distances': Table('released_sjd_160', _released({
        'images': '{images}', 'NLL - entropy': '{gap:+.3f} +- {gap_error:.3f}',
        'energy distance': '{energy:+.4f} +- {energy_error:.4f}', 'p': '{energy_p:.3f}',
        'asked': '{asked:.2f}'}, MORE_RELEASED),
                                _OF_DISTANCES),
    'continuous_windows': Table('continuous_windows', _some({
        'setting': 'setting', 'tokens per pass': 'tokens per round', 'tokens kept': 'tokens kept',
        'kernels kept': 'kernels kept', 'head calls per token': 'per token',
        'head states per token': 'head states per token'}, rows=lambda row: re.match(
            'window|raster|`', row['setting']) is not None)),
    'quality': Table('quality', _quality, ('quality_scales',)),
}


def _path(name: str) -> pathlib.Path:
  """Where a report is kept."""
  return ROOT / 'docs' / 'reports' / f'{name}.json'


def _content(path: pathlib.Path) -> Report:
  """What a report says."""
  return json.loads(path.read_text(encoding='utf-8'))


def _numbers(table: Table) -> str:
  """A table of numbers with its sources, or nothing."""
  names = [name for name in (table.report, *table.others) if _path(name).exists()]
  if not names:
    return ''
  sources = '\n'.join(map(_source, names))
  return f'{table.text(_path(table.report))}\n\n{sources}\n'


def _source(name: str) -> str:
  """The command of a report, and what was measured where."""
  report = _content(_path(name))
  count = report.get('num_images') or len(report.get('prompts', ()))
  source = [f'{count} images'] if count else []
  source += [str(report['device']), f'jax {report["versions"]["jax"]}']
  if weights := report.get('weights', {}).get('target'):
    source.append(f'weights {weights[:8]}')
  if commit := report.get('commit'):
    source.append(f'commit {commit} of {report["url"].removeprefix("https://github.com/")}')
  return f'*`{REPORTS[name]}`: {", ".join(source)}.*'


def generated(name: str) -> str:
  """The text of a generated part.

  Raises:
    ValueError: if there is none of this name.
  """
  if name in TABLES:
    return _numbers(TABLES[name])
  if name in lists.LISTS:
    return lists.LISTS[name]() + '\n'
  raise ValueError(f'table is {name!r}; it must be one of: '
                   f'{", ".join([*TABLES, *lists.LISTS])}.')


def rewritten(text: str) -> str:
  """A page with its generated parts made anew."""
  def replace(match):
    body = generated(match[2])
    return f'{match[1]}\n{body}\n{match[3]}' if body else f'{match[1]}{match[3]}'
  return _REGION.sub(replace, text)


def main(words: Sequence[str]) -> int:
  """Rewrites the pages, or with --check compares them only; returns the exit code."""
  stale = []
  for page in PAGES:
    text = page.read_text(encoding='utf-8')
    new = rewritten(text)
    if new != text:
      stale.append(page.relative_to(ROOT).as_posix())
      if '--check' not in words:
        atomic.write(page, new.encode())
  if stale:
    print('\n'.join(stale))
  return int(bool(stale) and '--check' in words)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
