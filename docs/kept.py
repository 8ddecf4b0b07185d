"""The kept reports of docs/reports: the command of each, and where pictures come from."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers import published, published_rows

ROOT = pathlib.Path(__file__).parents[1]

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


# The reports on seed-exact decoders: the model, dtype, images, images at once, and windows. Those
# whose name has `avx512` are of a CPU with AVX-512, the others of one with AVX2.
ROUNDING = {
    f'rounding_{model}_{name}': (model, *options) for model in ('emoji', 'demo')
    for name, options in {
        'float32': ('float32', 4, 4, (4, 7, 8, 12, 16, 20, 32, 64)),
        '16': ('float32', 16, 16, (8,)), 'bfloat16': ('bfloat16', 4, 4, (7, 8, 16, 20)),
        'bfloat16_8': ('bfloat16', 12, 1, (8,)),
        'avx512': ('bfloat16', 8, 4, (4, 7, 8, 12, 16, 20, 32, 64)) if model == 'emoji' else (
            'bfloat16', 4, 4, (7, 8, 16, 20)),
        'avx512_8': ('bfloat16', 32 if model == 'emoji' else 16, 1, (4, 8)),
        'avx512_float32': ('float32', 4, 4, (4, 8, 16)),
        **({'avx512_16': ('bfloat16', 32, 16, (8,))} if model == 'emoji' else {}),
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
    **{f'compiled_7b_batch{name}':
       f"python -m experiments.compile_report --batch={count} --decoder='mc_sjd,mc_sjd(window=16)'"
       for name, count in {'': 8, '32': 32, '128': 128}.items()},
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


def path(name: str) -> pathlib.Path:
  """Where a report is kept."""
  return ROOT / 'docs' / 'reports' / f'{name}.json'


def content(path: pathlib.Path) -> Report:
  """What a report says."""
  return json.loads(path.read_text(encoding='utf-8'))


def rows(name: str) -> list[Row]:
  """The rows of a report; none without it."""
  return content(path(name))['rows'] if path(name).exists() else []
