"""Writes the generated parts of the README and of the pages: tables of numbers, lists of names.

    python -m docs.tables            # rewrites the pages
    python -m docs.tables --check    # names pages that are not up to date, and exits with 1

A generated part stands between `<!-- table: NAME -->` and `<!-- /table -->`. Numbers come from
the reports in docs/reports: each is the report.json that a program left in its --workdir, under the
name that `REPORTS` gives it. A table without its report stays empty. Lists come from the code; see
`docs.lists`.
"""

import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cspd_jax import metrics
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.files import atomic
from cspd_jax.measure import tables
from docs import kinds, lists
from experiments.papers import fidelity, published, published_rows

ROOT = pathlib.Path(__file__).parents[1]
PAGES = (*sorted(ROOT.glob('*README.md')), *sorted((ROOT / 'docs').rglob('*.md')))
_REGION = re.compile(r'(<!-- table: (\w+) -->\n).*?(<!-- /table -->)', re.DOTALL)


def _compiled(model: str, measured: str) -> str:
  """Returns the command that predicts rounds of continuous tokens with a shipped model's counts."""
  return (f"python -m experiments.compile_report --model={model} "
          "--decoder='exact_head,exact_head(kernels_per_call=32),windows(window=8)' "
          f'--accepted=docs/reports/continuous_windows.json --accepted_model={measured}')


# The command whose report.json is kept under docs/reports, by its name there.
REPORTS = {
    'compare_cpu': 'cspd-compare --model=demo --all',
    'compare_mar': 'cspd-compare --model=mar_demo --all',
    'compare_continuous': "cspd-compare --model=emoji_continuous --decoder='mar,exact_head,"
                          "windows(window=2),windows(window=4),windows(window=8)'",
    'kinds': 'python -m experiments.topologies --config=configs/kinds.py',
    'kinds_demo': 'python -m experiments.topologies --config=configs/kinds.py:demo',
    'overhead': 'python -m experiments.decoders --measure=overhead',
    'products': 'python -m experiments.products',
    'products_avx512': 'python -m experiments.products --sizes=256x704,1280x3456 --repeats=5',
    'tune': 'cspd-tune --model=demo --dry_run',
    'refill': 'python -m experiments.decoders --measure=queue',
    'serving':
        "python -m experiments.serving --decoder='seed_exact(window=8)' --num_images=16 "
        '--clients=1,4,16 --soak=0',
    'serving_soak':
        "python -m experiments.serving --model=runs/smoke/export --decoder='seed_exact(window=4)' "
        '--clients=16 --num_images=64 --workdir=runs/serving_soak',
    'rounding':
        'python -m experiments.decoders --measure=rounding --dtype=float32 --seed=15',
    'rounding_bfloat16':
        'python -m experiments.decoders --measure=rounding '
        '--dtype=bfloat16 --num_images=256 --seed=15',
    'benchmark': 'python -m experiments.benchmark',
    'corrected': 'python -m experiments.topologies --config=configs/corrected.py:numbers',
    'corrected_wide': 'python -m experiments.topologies --config=configs/corrected.py:wide',
    'corrected_ablations':
        'python -m experiments.topologies --config=configs/corrected.py:ablations',
    'corrected_short': 'python -m experiments.topologies --config=configs/corrected.py:short',
    'corrected_top_k': 'python -m experiments.topologies --config=configs/corrected.py:top_k',
    **{f'accelerator_{stage}': f'python -m experiments.accelerator --stages={stage}' for stage in (
        'xl', 'large', 'images', 'exact')},
    'accelerator_official':
        'python -m experiments.accelerator --stages=official --repo=LlamaGen',
    'compiled_7b': 'python -m experiments.compile_report',
    'compiled_xl': 'python -m experiments.compile_report --model=c2i_xl_256',
    'compiled_glm_image':
        'python -m experiments.compile_report --model=glm_image_9b --guided=false '
        "--decoder='corrected(passes=4),mc_sjd,mc_sjd(window=16)'",
    'compiled_7b_batch':
        "python -m experiments.compile_report --batch=8 --decoder='mc_sjd,mc_sjd(window=16)'",
    'compiled_xl_v5e':
        "python -m experiments.compile_report --device=v5e --model=c2i_xl_256 "
        "--decoder='mc_sjd(window=16)'",
    'compiled_mar': _compiled('mar_b', 'mar_demo'),
    'compiled_mar_l': _compiled('mar_l', 'mar_demo'),
    'compiled_nextstep': _compiled('nextstep_1_512', 'emoji_continuous'),
    'two_grids':
        'python -m experiments.two_grids --num_steps=3000 --batch_size=8 --evaluate_every=500 '
        '--num_measured_images=32',
    'corrected_proof': 'python -m experiments.topologies --config=configs/corrected.py:proof',
    'corrected_proof_emoji':
        'python -m experiments.topologies --config=configs/corrected.py:proof_emoji',
    'uncertainty': 'python -m experiments.topologies --config=configs/corrected.py:entropy',
    'quantized': 'python -m experiments.quantized',
    'smollm2': 'python -m tests.real_weights.speed --dtype=float32',
    'smollm2_bfloat16': 'python -m tests.real_weights.speed --dtype=bfloat16',
    'smollm2_fit': 'python -m tests.real_weights.fit',
    'smollm2_fitted': 'python -m tests.real_weights.speed --dtype=float32 '
                      '--corrector=runs/smollm2_fit/eagle',
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
       for name in ('variants', 'variants_emoji')},
    'cool_sd': 'python -m experiments.benchmark --config=configs/papers.py:cool_sd',
    'lantern': 'python -m experiments.benchmark --config=configs/papers.py:lantern',
    'cspd': 'python -m experiments.papers.cspd',
    'against_mar': 'python -m experiments.against_mar --repo=mar',
    'against_nextstep': 'python -m experiments.against_nextstep --repo=NextStep-1',
    'against_llamagen': 'python -m experiments.against_llamagen --repo=LlamaGen',
    'against_llamagen_xl':
        'python -m experiments.against_llamagen --repo=LlamaGen --size=c2i_xl_256 --repeats=1 '
        "--decoder='mc_sjd(window=4)' --decoder='corrected(by=neighbours, passes=2, window=8)' "
        "--decoder='corrected(passes=2, window=8)' --decoder='eagle(tree=chain(7))+block'",
    'continuous_windows': 'python -m experiments.continuous_windows',
    'train_corrector':
        'cspd-train --config=configs/train/drafters.py:corrector',
    'train_corrector_emoji':
        'cspd-train --config=configs/train/drafters.py:emoji_corrector',
    'quality': 'python -m experiments.quality',
    'quality_scales': 'python -m experiments.quality --scale=2',
    'train_emoji': 'python -m experiments.train --config=configs/train/emoji.py',
}

# The pictures that programs drew for pages: a kept report and its file, by name in docs/pictures.
PICTURES = {
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
  return '\n\n'.join(f'**{table.title}**\n\n{_as_code(table)}' for table in tables.of_report(path))


def _as_code(table: tables.Table) -> str:
  """A table of a report, whose decoders are code."""
  columns = {name: f'`{form}`' if form in ('{decoder}', '{same_shapes}') else form
             for name, form in table.columns.items()}
  return tables.markdown(columns, table.rows).replace('| `-` |', '| - |')


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
          parts.append(_as_code(_with_distances(table, compared)))
      if picture in report['files']:
        parts.append(f'![The same prompts and seeds by decoder](../pictures/{picture})')
    return '\n\n'.join(parts)

  return Table(names[0], text, names[1:])


def _with_distances(table: tables.Table, compared: Mapping[tuple, Row]) -> tables.Table:
  """Returns a table whose rows also have the distances of many images, if any has."""
  setting = lambda row: tuple(map(row.get, ('decoder', 'temperature', 'top_k', 'model')))
  rows = [dict(row, **compared.get(setting(row), {})) for row in table.rows]
  columns = dict(table.columns)
  if any('frechet' in row for row in rows):
    columns['Frechet'] = fidelity.COLUMNS['Frechet']
  return table._replace(rows=rows, columns=columns)


def _figures(report: Report) -> list[Row]:
  """A row for every number that a report says of a network without guidance."""
  def numbers(entries):
    for name, value in entries.items():
      if name == 'plain':
        yield from numbers(value)
      elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name.replace('_', ' '), value
  return [dict(network=row['network'], figure=words, value=value)
          for row in report['rows'] for words, value in numbers(row)]


def _trained(report: Report) -> list[Row]:
  """Figures of a network before and after its training."""
  row, mark = report['rows'][0], 'before_'
  number = lambda name: int(re.sub(r'\D', '', name) or 0)
  return [dict(figure=name.removeprefix(mark).replace('_', ' '), before=value,
               after=row[name.removeprefix(mark)])
          for name, value in sorted(row.items(), key=lambda item: number(item[0]))
          if name.startswith(mark)]


def _rows(name: str) -> list[Row]:
  """The rows of a report; none without it."""
  path = _path(name)
  return _content(path)['rows'] if path.exists() else []


def _gains(report: Report) -> list[Row]:
  """Decoders that are faster than the baseline, the fastest first."""
  return sorted((row for row in report['rows'] if row['speedup'] > 1),
                key=lambda row: -row['speedup'])


def _titled(start: str, columns: Mapping[str, str] | None = None
            ) -> Callable[[pathlib.Path], str]:
  """The tables of a report whose titles begin so, with columns of their own or these."""
  return lambda path: '\n\n'.join(
      f'**{table.title}**\n\n{_as_code(table._replace(columns=columns or table.columns))}'
      for table in tables.of_report(path) if table.title.startswith(start))


def _image_of_xl(path: pathlib.Path) -> str:
  """Returns a sentence with the seconds of an image of LlamaGen-XL on a GPU."""
  report = _content(path)
  rows = {row['name']: row for row in report['rows']}
  best = min(rows.values(), key=lambda row: row['seconds'])
  slow, vanilla = rows['PyTorch'], rows['vanilla']
  return (f'On an NVIDIA H100, an image of LlamaGen-XL takes {best["seconds"]:.2f} s with\n'
          f'`{best["name"]}`, {vanilla["seconds"]:.2f} s with `vanilla` and '
          f'{slow["seconds"]:.1f} s with the\nofficial PyTorch code, if a pass commits as many '
          'tokens as with `demo`.')


def _gain(path: pathlib.Path) -> str:
  """Returns a sentence with the speed-ups of the fastest decoder of a report against PyTorch."""
  report = _content(path)
  row = max(report['rows'], key=lambda row: row['speedup'])
  return (f'On two cores of a CPU, `{row["decoder"]}` generates\nit {row["speedup"]:.1f} times as '
          f'fast as `vanilla`, and {row["speedup_over_pytorch"]:.0f} times as fast as that code.')


def _share(path: pathlib.Path) -> str:
  """How many images of the first decoder of the reports on rounding are those of vanilla."""
  found = []
  for report in map(_content, filter(pathlib.Path.exists, (path, _path('rounding_bfloat16')))):
    row = report['rows'][0]
    found.append(f'Of {len(report["prompts"])} images of `{row["decoder"]}` in {row["dtype"]}, '
                 f'{1 - row["images"]:.2%} are those of `vanilla` and '
                 f'{1 - row["images_in_window"]:.2%} those of `{row["same_shapes"]}`.')
  return '\n'.join(found)


def _soaked(path: pathlib.Path) -> str:
  """The table of a server, and what became of another one under requests of all kinds."""
  report, soak = _content(path), _content(_path('serving_soak'))['soak']
  return (
      f'{_own(path)}\n\nThe first of three partial pictures is there after\n'
      f'{report["first_picture"]:.0%} of the time of an image. Of {soak["requests"]:,} requests to '
      f'a tiny model, {soak["answered"]:,} had\ntheir outcome, wrong ones and clients that left, '
      'stalled or read slowly among them. At the end the\n'
      f'server used {soak["memory"]:.1%} of the memory that it used after the first 500.')


def _pairs(report: Report) -> list[Row]:
  """Every exact pair of a drafter and a verifier, and the relaxed ones on a chain of EAGLE."""
  # The exact ends of the curves are there a second time, without a time.
  pairs = list({row['decoder']: row for row in reversed(report['rows'])
                if row['verifier'] and row.get('curve') is None}.values())[::-1]
  is_exact = lambda row: Guarantee(row['guarantee']).is_exact
  return [row for row in pairs if is_exact(row)] + [
      row for row in pairs if not is_exact(row) and row['drafter'].startswith('eagle(tree=chain')]


_CONCLUSIONS = _of({'claim': '{claim}', 'holds here': '{answer}', 'numbers': '{numbers}'},
                   lambda report: report['conclusions'])

_TRAINED = {'network': '{network}', 'on the held-out parts': '{figure}', 'value': '{value:.4g}'}

# Of rounds on an accelerator.
_ROUNDS = {
    'decoder': '{decoder}', 'tokens': '{tokens:.2f}', 'ms per pass': '{ms:.2f}',
    'predicted': '{predicted_ms:.2f}', 'of it': '{of_prediction:.2f}x',
    'kernels': '{kernels:.0f}', 'of the copied GB/s': '{of_copy:.0%}',
    's/image': '{seconds_per_image:.2f}', 'speed-up': '{speedup:.2f}x'}

TABLES: dict[str, Table] = {
    **{name: Table('kinds', lambda path, short=short: kinds.markdown(
        _rows('kinds'), _rows('kinds_demo'), _rows('accelerator_xl'), short),
                   ('kinds_demo', 'accelerator_xl')) for name, short in (
                       ('summary', True), ('kinds', False))},
    'gpu_gain': Table('accelerator_official', _image_of_xl),
    'accelerator_xl': Table('accelerator_xl', _titled('c2i', _ROUNDS)),
    'accelerator_large': Table('accelerator_large', _titled('lumina', _ROUNDS)),
    'accelerator_images': Table('accelerator_images', _own),
    'accelerator_official': Table('accelerator_official', _own),
    'accelerator_exact': Table('accelerator_exact', _titled('emoji')),
    'cpu_gain': Table('against_llamagen_xl', _gain),
    'cpu': Table('against_llamagen', _of({
        'LlamaGen-B on a CPU': '`{decoder}`', 'tokens per forward pass': '{tokens:.2f}',
        'speed-up over `vanilla`': '{speedup:.2f}x'}, _gains)),
    'compare': Table('compare_cpu', _of({
        'decoder': '`{decoder}`', 'guarantee': '{guarantee}',
        **_measured('rounds', 'step_compression', 'accepted_length', 'one_token_rounds'),
        'ms per round': '{ms_per_round:.2f}', 'speed-up': '{speedup:.2f}x'})),
    'compare_mar': Table('compare_mar', _of({
        'decoder': '`{decoder}`', 'guarantee': '{guarantee}',
        **_measured('target_passes', 'draft_passes', 'head_calls', 'head_rows'),
        'speed-up': '{speedup:.2f}x', 'draws from': '{distribution}'})),
    'compare_continuous': Table('compare_continuous', _of({
        'decoder': '`{specification}`',
        **_measured('rounds', 'head_calls', 'head_rows'), 'speed-up': '{speedup:.2f}x'})),
    'overhead': Table('overhead', _own),
    'products': Table('products', _own),
    'products_avx512': Table('products_avx512', _titled('GFLOP')),
    'whole_programs': Table('products_avx512', _titled('milliseconds')),
    'tune': Table('tune', _own),
    'refill': Table('refill', _own),
    'serving': Table('serving', _soaked, ('serving_soak',)),
    'rounding': Table('rounding', _own),
    'rounding_bfloat16': Table('rounding_bfloat16', _own),
    'rounding_share': Table('rounding', _share),
    'pairs': Table('benchmark', _of({
        'decoder': '`{decoder}`', 'guarantee': '{guarantee}',
        **_measured('accepted_length', errors=True), 'speed-up': '{speedup:.2f}x',
        'bound per token': '{tv_bound_per_token:.4f}',
        **_measured('nll_excess', errors=True)}, _pairs)),
    'curves': Table('benchmark', lambda path: '![Trade-off curves](pictures/curves.png)'),
    'conclusions': Table('benchmark', _CONCLUSIONS),
    'corrected': Table('corrected', _own),
    'corrected_wide': Table('corrected_wide', _own),
    'corrected_ablations': Table('corrected_ablations', _own),
    'corrected_short': Table('corrected_short', _own),
    'corrected_top_k': Table('corrected_top_k', _own),
    'corrected_proof': Table('corrected_proof', _of({
        'decoder': '`{decoder}`', 'guarantee': '{guarantee}',
        "images equal to vanilla's": '{equal_to_baseline:.2%}',
        **_measured('nll_excess', errors=True)})),
    'corrected_proof_emoji': Table('corrected_proof_emoji', _of({
        'decoder': '`{decoder}`', 'step compr.': '{step_compression:.2f}x',
        "images equal to vanilla's": '{equal_to_baseline:.2%}'})),
    'compiled_7b': Table('compiled_7b', _own),
    'compiled_glm_image': Table('compiled_glm_image', _own),
    'compiled_mar': Table('compiled_mar', _own),
    'compiled_mar_l': Table('compiled_mar_l', _own),
    'compiled_nextstep': Table('compiled_nextstep', _own),
    'compiled_xl': Table('compiled_xl', _own),
    'two_grids': Table('two_grids', _own),
    'compiled_7b_batch': Table('compiled_7b_batch', _own),
    'compiled_xl_v5e': Table('compiled_xl_v5e', _own),
    'uncertainty': Table('uncertainty', lambda path: (
        '![Step compression against entropy](pictures/uncertainty.png)')),
    'quantized': Table('quantized', _own),
    **{name: Table(name, _own) for name in ('smollm2', 'smollm2_bfloat16', 'smollm2_fit',
                                            'smollm2_fitted')},
    **{f'published_{paper}': _published(paper) for paper in published_rows.ROWS},
    'fidelity': Table('fidelity', _own),
    'fidelity_demo': Table('fidelity_demo', _own),
    'sjd': Table('sjd', _own),
    'sjd_pac': Table('sjd_pac', _own),
    'variants': Table('variants', _own),
    'variants_emoji': Table('variants_emoji', _own),
    'cool_sd': Table('cool_sd', _CONCLUSIONS),
    'lantern': Table('lantern', _CONCLUSIONS),
    'cspd': Table('cspd', _own),
    'cspd_figures': Table('cspd', _of({
        'decoder': '`{mode}`', 'draft length': '{length}', 'guidance': '{guidance_scale}',
        'temperature': '{temperature}', 'accepted': '{accepted:.3f}',
        'draws per replaced draft': '{draws_per_replaced_token:.2f}'}, _points)),
    'against_mar': Table('against_mar', _own),
    'against_nextstep': Table('against_nextstep', _own),
    'against_llamagen': Table('against_llamagen', _own),
    'against_llamagen_xl': Table('against_llamagen_xl', _own),
    'continuous_windows': Table('continuous_windows', _own),
    **{name: Table(name, _of({
        'on held-out images': '{figure}', 'before': '{before:.3f}', 'after': '{after:.3f}'},
        _trained)) for name in ('train_corrector', 'train_corrector_emoji')},
    'train_emoji': Table('train_emoji', _of(_TRAINED, _figures)),
    'quality': Table('quality', _own),
    'quality_scales': Table('quality_scales', _own),
    'confused': Table('quality', _of(
        {'asked for': '{requested}', 'shown': '{shown}', 'images': '{images}'},
        lambda report: report['confused'])),
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
