"""Writes the generated parts of the README and of the pages: tables of numbers, lists of names.

    python -m docs.tables            # rewrites the pages
    python -m docs.tables --check    # names pages that are not up to date, and exits with 1

A generated part stands between `<!-- table: NAME -->` and `<!-- /table -->`. Numbers come from
the reports in docs/reports: each is the report.json that a program left in its --workdir, under the
name that `kept.REPORTS` gives it. A table without its report stays empty. Lists come from the code;
see `docs.lists`.
"""

import re
import sys
from collections.abc import Sequence

from cspd_jax.files import atomic
from docs import forms, kept, lists
from docs.forms import Table
from docs.kept import MORE_RELEASED, RELEASED, ROOT
from experiments.papers import published_rows

PAGES = (ROOT / 'WORKSPACE_README.md', *sorted((ROOT / 'docs').rglob('*.md')))
_REGION = re.compile(r'(<!-- table: (\w+) -->\n).*?(<!-- /table -->)', re.DOTALL)
_CONCLUSIONS = forms.rows_of({'claim': '{claim}', 'holds here': '{answer}', 'numbers': '{numbers}'},
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
           **forms.measured('accepted_length', errors=True),
           'bound per token': '{tv_bound_per_token:.4f}',
           **forms.measured('nll_excess', errors=True)}
_OF_RELEASED = tuple(f'released_{method}' for _, methods, _ in RELEASED for method in methods)[1:]
_OF_DISTANCES = tuple(
    forms.of_method(method, MORE_RELEASED) for _, methods, _ in RELEASED for method in methods)[1:]
TABLES: dict[str, Table] = {
    'first': Table('compare_emoji', forms.first),
    'summary': Table('kinds', lambda path: forms.kinds(
        kept.rows('kinds'), kept.rows('kinds_demo'), kept.rows('accelerator_xl')),
                     ('kinds_demo', 'accelerator_xl')),
    'gpu_gain': Table('accelerator_official', forms.image_of_xl),
    'accelerator_xl': Table('accelerator_xl', forms.some(_PASSES, 'c2i')),
    'accelerator_large': Table('accelerator_large', forms.some(_PASSES, 'lumina_mgpt_7b_768, 1')),
    'accelerator_official': Table('accelerator_official', forms.some({
        'decoder': '', 's/image': 's/image', 'ms/token': 'ms/token',
        'over eager PyTorch': 'over PyTorch', 'over vanilla': 'over vanilla'})),
    'accelerator_exact': Table('accelerator_exact', forms.some(title='emoji')),
    'race': Table('released_sjd_160', forms.race, ('released_eagle',)),
    'cpu': Table('against_llamagen', forms.cpu, forms.CPU[1:]),
    'compare': Table('compare_cpu', forms.rows_of({
        'decoder': '`{decoder}`', **forms.measured('step_compression'),
        'ms per pass': '{ms_per_round:.2f}', 'speed-up': '{speedup:.2f}x'})),
    'compare_mar': Table('compare_mar', forms.rows_of({
        'decoder': '`{decoder}`', **forms.measured('target_passes', 'head_calls', 'head_rows'),
        'speed-up': '{speedup:.2f}x'})),
    'compare_continuous': Table('compare_continuous', forms.rows_of({
        'decoder': '`{specification}`',
        **forms.measured('rounds', 'head_calls', 'head_rows'), 'speed-up': '{speedup:.2f}x'})),
    'products': Table('products', forms.products, ('products_avx512',)),
    'refill': Table('refill', forms.some({
        'decoder': 'decoder', 'passes in batches': 'batches: rounds',
        'in a queue': 'queue: rounds', 'speed-up': 'speed-up', 'same images': 'same images'})),
    'serving': Table('serving', forms.soaked, ('serving_soak',)),
    'rounding': Table(next(iter(kept.ROUNDING)), forms.rounding, tuple(kept.ROUNDING)[1:]),
    'pairs': Table('benchmark', forms.rows_of(_SCORES, forms.relaxed)),
    'curves': Table('benchmark', lambda path: '![Trade-off curves](pictures/curves.png)'),
    'corrected': Table('corrected', forms.by_window('{step_compression:.2f}')),
    'corrected_wide': Table('corrected_wide', forms.by_window('{step_compression:.2f}')),
    'corrected_ablations': Table('corrected_ablations', forms.rows_of({
        'decoder': '`{decoder}`', 'tokens per pass': forms.COMPRESSION,
        **forms.measured('one_token_rounds')})),
    'corrected_local': Table('corrected_local', forms.by_window()),
    'corrected_short': Table('corrected_short', forms.by_window('{step_compression:.2f}')),
    'corrected_proof': Table('corrected_proof', forms.rows_of({
        'decoder': '`{decoder}`', "images equal to vanilla's": '{equal_to_baseline:.2%}',
        **forms.measured('nll_excess', errors=True)})),
    'corrected_proof_emoji': Table('corrected_proof_emoji', forms.rows_of({
        'decoder': '`{decoder}`', 'step compr.': '{step_compression:.2f}x',
        "images equal to vanilla's": '{equal_to_baseline:.2%}'})),
    **{name: Table(name, forms.some(_COMPILED)) for name in (
        'compiled_7b', 'compiled_xl', 'compiled_7b_local', 'compiled_xl_local',
        'compiled_7b_batch', 'compiled_7b_batch32', 'compiled_7b_batch128', 'compiled_xl_v5e')},
    **{name: Table(name, forms.some({**_COMPILED, 'head calls': 'head calls'})) for name in (
        'compiled_mar', 'compiled_nextstep')},
    'uncertainty': Table('uncertainty', lambda path: (
        '![Step compression against entropy](../pictures/uncertainty.png)')),
    'quantized': Table('quantized', forms.rows_of({
        'int8': '{int8}', 'relative entropy': '{relative_entropy:.6f}',
        'total variation': '{total_variation:.4f}', 'largest': '{largest:.3f}',
        'MiB': '{mib:.1f}', 'in int8': '{other_mib:.1f}', 'cache MiB': '{cache_mib:.1f}',
        'cache in int8': '{other_cache_mib:.1f}'},
        lambda report: [row for row in report['rows'] if row['guidance_scale'] > 1])),
    **{f'published_{paper}': forms.published_table(paper) for paper in published_rows.ROWS},
    'sjd': Table('sjd', forms.by_window(without='gumbel')),
    'sjd_pac': Table('sjd_pac', forms.by_window(without='seed_exact')),
    'variants': Table('variants', forms.by_model('variants', 'variants_emoji'),
                      ('variants_emoji',)),
    'chains': Table('chains', forms.rows_of({
        'decoder': '`{decoder}`', 'tokens per pass of `demo`': forms.COMPRESSION,
        **forms.measured('one_token_rounds')})),
    'cool_sd': Table('cool_sd', _CONCLUSIONS),
    'lantern': Table('lantern', _CONCLUSIONS),
    'cspd': Table('cspd', forms.cspd),
    'cspd_figures': Table('cspd', forms.cspd_figures),
    'against_mar': Table('against_mar', forms.some(_AGAINST_MAR, 'mar_b, rounds')),
    'against_nextstep': Table('against_nextstep', forms.some(_AGAINST_MAR)),
    'against_llamagen': Table('against_llamagen', forms.some(_AGAINST)),
    'released': Table('released_sjd', forms.released({
        'window': '{window}', 'passes per image': '{passes:.1f}',
        'tokens per pass': '{tokens_per_pass:.2f} +- {tokens_per_pass_error:.2f}',
        'head calls': '{head_calls:.0f}', 's/image': '{seconds_per_image:.2f}',
        'speed-up': '{speedup:.2f}x'}, {}), _OF_RELEASED),
    'released_official': Table('released_sjd', forms.options_of_sjd, (
        'released_sjd_guided', 'released_sjd_official')),
    'released_distances': Table('released_sjd_160', forms.released({
        'images': '{images}', 'NLL - entropy': '{gap:+.3f} +- {gap_error:.3f}',
        'energy distance': '{energy:+.4f} +- {energy_error:.4f}', 'p': '{energy_p:.3f}',
        'asked': '{asked:.2f}'}, MORE_RELEASED),
                                _OF_DISTANCES),
    'continuous_windows': Table('continuous_windows', forms.some({
        'setting': 'setting', 'tokens per pass': 'tokens per round', 'tokens kept': 'tokens kept',
        'kernels kept': 'kernels kept', 'head calls per token': 'per token',
        'head states per token': 'head states per token'}, rows=lambda row: re.match(
            'window|raster|`', row['setting']) is not None)),
    'quality': Table('quality', forms.quality, ('quality_scales',)),
}


def _numbers(table: Table) -> str:
  """A table of numbers with its sources, or nothing."""
  names = [name for name in (table.report, *table.others) if kept.path(name).exists()]
  if not names:
    return ''
  sources = '\n'.join(map(_source, names))
  return f'{table.text(kept.path(table.report))}\n\n{sources}\n'


def _source(name: str) -> str:
  """The command of a report, and what was measured where."""
  report = kept.content(kept.path(name))
  count = report.get('num_images') or len(report.get('prompts', ()))
  source = [f'{count} images'] if count else []
  source += [str(report['device']), f'jax {report["versions"]["jax"]}']
  if weights := report.get('weights', {}).get('target'):
    source.append(f'weights {weights[:8]}')
  if commit := report.get('commit'):
    source.append(f'commit {commit} of {report["url"].removeprefix("https://github.com/")}')
  return f'*`{kept.REPORTS[name]}`: {", ".join(source)}.*'


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
