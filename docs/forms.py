"""Forms of the tables on pages: functions from a kept report to Markdown."""

import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from cspd_jax import metrics
from cspd_jax.measure import tables
from docs import kept
from docs.kept import Report, Row
from experiments.papers import fidelity, published


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


def measured(*names: str, errors: bool = False) -> dict[str, str]:
  """Columns of metrics by name."""
  known = {metric.name: metric for metric in metrics.METRICS}
  return metrics.columns([known[name] for name in names], errors)


def rows_of(columns: Mapping[str, str], rows: Callable[[Report], Iterable[Row]] = (
    lambda report: report['rows'])) -> Callable[[pathlib.Path], str]:
  """A table with columns of `measure.tables`; `rows` chooses among those of the report."""
  return lambda path: tables.markdown(columns, rows(kept.content(path)))


def _own(path: pathlib.Path) -> str:
  """The tables that a report has itself."""
  return some()(path)


def some(columns: Mapping[str, str] | None = None, title: str = '',
          rows: Callable[[Row], bool] = lambda row: True) -> Callable[[pathlib.Path], str]:
  """The tables of a report whose titles begin so, with some of their rows and columns.

  `columns` are the headings on the page, with the heading in the report or a format for each.
  """
  def text(path: pathlib.Path) -> str:
    parts = []
    for table in tables.read_tables(path):
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


COMPRESSION = '{step_compression:.2f} +- {step_compression_error:.2f}'


def by_window(cell: str = COMPRESSION, without: str = '?') -> Callable[[pathlib.Path], str]:
  """Step compression by decoder and window; `N` is the window. Some decoders may be left out."""
  def text(path: pathlib.Path) -> str:
    rows = [dict(row, decoder=_without(row['decoder'], table.title.removeprefix('window ')),
                 window=table.title) for table in tables.read_tables(path) for row in table.rows
            if without not in row['decoder']]
    return _pivot(rows, {'decoder': '`{decoder}`'}, lambda row: row['window'], cell)

  return text


def _without(decoder: str, window: str) -> str:
  """A specification without the number of tokens in its window."""
  decoder = decoder.replace(f'window={window}', 'window=N')
  return decoder.replace(f'chain({int(window) - 1})', 'chain(N - 1)')


def by_model(*names: str) -> Callable[[pathlib.Path], str]:
  """Step compression by decoder and model, of reports with a window in common."""
  return lambda path: _pivot(
      [dict(row, model=model) for name, model in zip(names, ('demo', 'emoji'))
       for row in kept.rows(name)],
      {'decoder': '`{decoder}`'}, lambda row: f'`{row["model"]}`', COMPRESSION)


def cspd(path: pathlib.Path) -> str:
  """Table 1 of CSpD with speeds."""
  rows = [dict(row, accepted=row[f'acceptance_{row["mode"]}'])
          for row in kept.content(path)['rows']]
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


def cspd_figures(path: pathlib.Path) -> str:
  """The points of the figures of CSpD."""
  points = _points(kept.content(path))
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


def published_table(paper: str) -> Table:
  """A paper's rows next to ours, by model, and the picture of them."""
  names = ('published_cspd',) if paper == 'cspd' else ('published', 'published_demo')

  def text(_: pathlib.Path) -> str:
    compared = {
        (row['decoder'], row['temperature'], row['top_k'], model): dict(frechet=row['frechet'])
        for model, name in (('emoji', 'fidelity'), ('demo', 'fidelity_demo'))
        for row in kept.rows(name)}
    parts = []
    for path in filter(pathlib.Path.exists, map(kept.path, names)):
      report, picture = kept.content(path), published.picture(paper)
      for table in tables.read_tables(path):
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


# Columns of the table of the README.
_TOKENS = 'tokens per pass'
_OF_SCENES, _OF_PHOTOGRAPHS = {f'{_TOKENS} of `emoji`': '{tokens_per_pass:.2f}'}, {
    f'{_TOKENS} of `demo`': '{photographs:.2f}'}
_GAIN = {'speed-up on an H100': '{gain:.2f}x', 'guarantee': '{guarantee}'}


def kinds(scenes: Sequence[Row], photographs: Sequence[Row], timed: Sequence[Row]) -> str:
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


CPU = ('against_llamagen', 'against_llamagen_local', 'against_llamagen_xl',
        'against_llamagen_xl_local')


def cpu(_: pathlib.Path) -> str:
  """Decoders that are faster than the baseline on a CPU, the fastest first."""
  small, large = ({row['decoder']: row for name in names if kept.path(name).exists()
                   for row in kept.rows(name) if row.get('speedup', 0) > 1}
                  for names in (CPU[:2], CPU[2:]))
  rows = [dict(row, small=small.get(decoder, {}).get('speedup'),
               large=large.get(decoder, {}).get('speedup'))
          for decoder, row in (large | small).items()]
  return tables.markdown(
      {'decoder': '`{decoder}`', 'tokens per pass': '{tokens:.2f}', 'LlamaGen-B': '{small:.2f}x',
       'LlamaGen-XL': '{large:.2f}x'},
      sorted(rows, key=lambda row: -max(row['small'] or 0, row['large'] or 0)))


def products(_: pathlib.Path) -> str:
  """Products of a feed-forward layer's matrix on two kinds of CPU."""
  rows = [dict(row, kind=kind) for name, kind in (
      ('products', 'AVX2'), ('products_avx512', 'AVX-512')) for row in kept.rows(name)
          if row.get('size') == '1280x3456']
  return _pivot(rows, {'rows': '{rows}'}, lambda row: f"{row['kind']}: XLA's choice, by outputs",
                '{XLAs_choice:.0f}, {by_outputs:.0f}')


def rounding(_: pathlib.Path) -> str:
  """How many images and log-probabilities of seed-exact decoders differ from the baselines'."""
  cells: dict[tuple, list[dict]] = {}
  for name, (model, _, count, *_) in kept.ROUNDING.items():
    for row in kept.rows(name):
      cell = ('AVX-512' if 'avx512' in name else 'AVX2', model, row['dtype'], count,
              row['batch_size'], row['decoder'].partition('(')[0])
      cells.setdefault(cell, []).append(row)
  rows = []
  for (cpu, model, dtype, count, batch_size, decoder), found in cells.items():
    shares = [row['images'] for row in found]
    most = {name: max(row[name] for row in found)
            for name in ('images_in_window', 'log_probs_in_window')}
    rows.append(dict(
        most, cpu=cpu, model=model, dtype=dtype, count=count, batch_size=batch_size,
        decoder=decoder, windows=', '.join(str(row['window']) for row in found),
        images=f'{min(shares):.0%}' + (f' to {max(shares):.0%}' if len(set(shares)) > 1 else '')))
  return tables.markdown(
      {'CPU': '{cpu}', 'model': '{model}', 'dtype': '{dtype}',
       'images': '{count}, {batch_size} at once', 'decoder': '`{decoder}`', 'windows': '{windows}',
       'images not those of `vanilla`': '{images}',
       'not those of `vanilla(window=N)`, at most': '{images_in_window:.0%}',
       'log-probabilities not its, at most': '{log_probs_in_window:.2%}'}, rows)


def of_method(method: str, counts: Mapping[str, int]) -> str:
  """The name of a released method's report, of `counts` images by method or its only one."""
  return f'released_{method}_{counts[method]}' if method in counts else f'released_{method}'


def released(columns: Mapping[str, str], counts: Mapping[str, int]
              ) -> Callable[[pathlib.Path], str]:
  """A table of released loops and of ours for every model, without empty columns."""

  def text(path: pathlib.Path) -> str:
    del path  # Every report has a part.
    parts = []
    for model, methods, _ in kept.RELEASED:
      names = {method: of_method(method, counts) for method in methods}
      every = [dict(row, code='here' if row['code'] == 'cspd_jax' else f'`{method}`',
                    images=kept.content(kept.path(name))['num_images'])
               for method, name in names.items() for row in kept.rows(name)]
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


def options_of_sjd(_: pathlib.Path) -> str:
  """A table of SJD's loop and ours with the model's options and with those of its program."""
  rows = [dict(row, options=options, code='here' if row['code'] == 'cspd_jax' else '`sjd`')
          for name, options in (('released_sjd', 'guidance 1.5, every position drafted'),
                                ('released_sjd_guided', 'guidance 3, every position drafted'),
                                ('released_sjd_official', 'guidance 3, drafted as in its program'))
          for row in kept.rows(name) if 'sjd' in row['decoder']]
  everywhere, official = (row['passes'] for row in rows[2::2] if row['code'] == '`sjd`')
  return tables.markdown({
      'options': '{options}', 'code': '{code}', 'decoder': '`{decoder}`',
      'passes per image': '{passes:.1f}',
      'tokens per pass': '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}',
      'NLL - entropy': '{gap:+.3f} +- {gap_error:.3f}'}, rows) + (
          f'\n\nThat every position is drafted saves the loop of SJD {official - everywhere:.1f} '
          'passes per image, which\nthe other tables grant it.')


def quality(_: pathlib.Path) -> str:
  """Returns the table of scores of images of scenes, a row per guidance scale."""
  shown = [table for name in ('quality', 'quality_scales')
           for table in tables.read_tables(kept.path(name))]
  return tables.markdown(shown[0].columns, [row for table in shown for row in table.rows])


def image_of_xl(path: pathlib.Path) -> str:
  """Returns a sentence with the seconds of an image of LlamaGen-XL on a GPU."""
  report = kept.content(path)
  rows = {row['name']: row for row in report['rows']}
  best = min(rows.values(), key=lambda row: row['seconds'])
  slow, vanilla = rows['PyTorch'], rows['vanilla']
  return ('On an NVIDIA H100, LlamaGen-XL with random weights takes '
          f'{slow["seconds"]:.1f} s per image with its official\ncode in eager PyTorch, and '
          f'{vanilla["seconds"]:.2f} s with `vanilla`. Projected for\n`{best["name"]}`: '
          f'{best["seconds"]:.2f} s.')


def first(_: pathlib.Path) -> str:
  """Returns the caption of the picture that the first command of the README draws."""
  vanilla, short, long = kept.rows('compare_emoji')
  assert short['tokens_equal_baseline'] and long['tokens_equal_baseline']
  name = str(short['decoder']).partition('(')[0]
  return (f'*The same images in {long["rounds"]:.4g} forward passes instead of '
          f'{vanilla["rounds"]:.4g}. Each block shows the tokens that one\npass commits: `vanilla` '
          f'generates one per pass, `{name}`, the default on a CPU, a few, and\na [corrected '
          'window](docs/corrected_windows.md), which is new, many: '
          f'`{long["decoder"]}`.*')


# The released loops without a measured deviation, by docs/papers/released_code.md, and ours.
_EXACT_RELEASED, _BEST_HERE = ('sjd', 'eagle', 'eagle2'), 'corrected(iterations=4, window=64)'


def race(_: pathlib.Path) -> str:
  """Returns the tokens per pass of the best such released loops, and of ours, in words."""
  number = '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}'
  released, here = [], []
  for report, form in (('released_sjd_160', '{} commits {} tokens per pass of `emoji` ({} images)'),
                       ('released_eagle', '{} {} of `demo` ({} images)')):
    rows = kept.rows(report)
    theirs = max((row for row in rows if row['decoder'] in _EXACT_RELEASED),
                 key=lambda row: row['tokens_per_pass'])
    released.append(form.format(_TITLES[theirs['decoder']], number.format(**theirs),
                                kept.content(kept.path(report))['num_images']))
    here.append(number.format(**next(row for row in rows if row['decoder'] == _BEST_HERE)))
  return (f'On the same trained weights, {released[0]}\nand {released[1]}: the best of the '
          'released programs\nwithout a measured bias. For the same prompts, '
          f'`{_BEST_HERE}` commits\n{" and ".join(here)}. '
          '[The race](docs/papers/released_code.md#on-trained-models) has all of them.')


_TITLES = {'sjd': 'SJD', 'eagle': "LANTERN's EAGLE", 'eagle2': "LANTERN's EAGLE-2"}


def soaked(path: pathlib.Path) -> str:
  """The table of a server, and what became of another one under requests of all kinds."""
  report, soak = kept.content(path), kept.content(kept.path('serving_soak'))['soak']
  return (
      f'{_own(path)}\n\nThe first of three partial pictures is there after\n'
      f'{report["first_picture"]:.0%} of the time of an image. Of {soak["requests"]:,} requests to '
      f'a tiny model, {soak["answered"]:,} had\ntheir outcome, wrong ones and clients that left, '
      'stalled or read slowly among them. At the end the\n'
      f'server used {soak["memory"]:.1%} of the memory that it used after the first 500.')


def relaxed(report: Report) -> list[Row]:
  """The relaxed verifiers on a chain of EAGLE, and the exact one."""
  # The exact ends of the curves are there a second time, without a time.
  rows = {row['decoder']: row for row in reversed(report['rows'])
          if row['verifier'] and row.get('curve') is None}
  return [row for row in reversed(rows.values()) if row['drafter'] == 'eagle(tree=chain(5))'
          and row['verifier'] not in ('match', 'block', 'kseq')]
