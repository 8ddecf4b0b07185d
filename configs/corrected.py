"""Corrected windows: the tables of docs/lab/corrected_windows.md and of the page before it.

  python -m experiments.sweep --config=configs/corrected.py:NAME

NAME, and what is measured; runtimes are on two CPU cores:

  numbers    by what corrects, and window; half an hour
  ablations  what corrects, passes, trees and reads, at 64 tokens per round; half an hour
  short      windows of a few tokens, as a CPU can afford; a quarter of an hour
  top_k      when only the most probable tokens can be drawn; five minutes
  local      the correctors without attention and the trained one, by window; half an hour
  wide       a second target, of 24x24 tokens; a quarter of an hour
  entropy    at several temperatures and guidance scales, against the target's entropy
  proof      2000 images: those of the seed-exact form are compared with vanilla's, token for token,
             and those of the exact form must be as likely as the target's entropy says; half an
             hour
  proof_emoji  500 images of `emoji`, at 64 tokens per pass, compared with vanilla's; an hour

The seed of `ablations` is another than that of `numbers`, for trees and passes are chosen by this
table. `wide` needs two networks, which take two hours to train:

  python -m experiments.train --config=configs/train/wide.py:target --workdir=runs/wide
  cspd-train --model=runs/wide/export --num_images=512
  cspd-train --config=configs/train/wide.py:corrector --workdir=runs/corrector_wide

Counts only: `experiments.against` says what short windows are worth in seconds. Results:
in runs/corrected, runs/corrected_ablations and so on (rows.csv, report.json).
"""

from cspd_jax import cli
from cspd_jax.cli import groups
from experiments.sweep import Config

DECODERS = (
    'mc_sjd', 'eagle+block', 'corrected(corrector=neighbours, iterations=3)',
    'corrected(iterations=4)',
    'corrected_seed_exact(iterations=4)')

# What `ablations` varies.
BY = tuple(f'corrected(corrector={name}, iterations=4)'
           for name in ('layers', 'model', 'neighbours', 'eagle', 'corrector'))
PASSES = tuple(f'corrected(iterations={passes})' for passes in (1, 2, 3, 6, 8))
TREES = tuple(f'corrected(iterations=4, tree={tree})' for tree in (
    'chain()', 'caterpillar(2, 4)', 'caterpillar(3, 3)', 'caterpillar(8, 3)', 'caterpillar(6, 6)'))
READS = tuple(f'corrected(iterations=4, num_corrected={reads})' for reads in (8, 16, 24))
CONFIGS = dict(
    numbers=Config(
        decoder=DECODERS, window=(8, 16, 32, 64, 128),
        images=groups.Images(num_images=64, seed=12), workdir='runs/corrected'),
    ablations=Config(
        decoder=BY + PASSES + TREES + READS, window=(64,),
        images=groups.Images(num_images=32, seed=13), workdir='runs/corrected_ablations'),
    short=Config(
        decoder=(
            'mc_sjd', 'eagle+block', 'corrected(corrector=neighbours, iterations=1)',
            'corrected(corrector=neighbours, iterations=2)',
            'corrected(corrector=local, iterations=1)', 'corrected(corrector=local, iterations=2)',
            'corrected(iterations=1)', 'corrected(iterations=2)'),
        window=(4, 6, 8, 12, 16), images=groups.Images(num_images=64, seed=12),
        workdir='runs/corrected_short'),
    local=Config(
        decoder=(
            'corrected(corrector=neighbours, iterations=2)',
            'corrected(corrector=local, iterations=2)',
            'corrected(corrector=neighbours, iterations=4)',
            'corrected(corrector=local, iterations=4)', 'corrected(iterations=4)'),
        window=(8, 32, 48, 64), images=groups.Images(num_images=32, seed=15),
        workdir='runs/corrected_local'),
    top_k=Config(
        decoder=DECODERS, window=(32,), sampling=groups.SamplingFlags(top_k=100),
        images=groups.Images(num_images=32, seed=12), workdir='runs/corrected_top_k'),
    wide=Config(
        loading=groups.LoadFlags(
            'runs/wide/export', parts=('corrector=runs/corrector_wide/export',)),
        decoder=(
            'mc_sjd', 'corrected(corrector=layers, iterations=4)',
            'corrected(corrector=neighbours, iterations=3)',
            'corrected(iterations=4)', 'corrected_seed_exact(iterations=4)'),
        window=(16, 64), images=groups.Images(num_images=32, seed=12),
        workdir='runs/corrected_wide'),
    entropy=Config(
        decoder=(
            'sjd', 'mc_sjd', 'sjd_pac', 'eagle(tree=chain(12))+block', 'eagle(tree=EAGLE)',
            'corrected', 'corrected_seed_exact'),
        window=(32,), temperatures=(0.7, 1.0, 1.3), scales=(1.0, 3.0, 6.0),
        measure=('entropy',),
        images=groups.Images(num_images=16, seed=12), workdir='runs/uncertainty'),
    proof=Config(
        decoder=('corrected_seed_exact(iterations=4)', 'corrected(iterations=4)'),
        window=(16,), metrics=('step_compression', 'nll_excess'), batch_size=50,
        images=groups.Images(num_images=2000, seed=14), workdir='runs/corrected_proof'),
    proof_emoji=Config(
        loading=groups.LoadFlags('emoji'), decoder=('corrected_seed_exact(iterations=4)',
                                                  'seed_exact'),
        window=(64,), metrics=('step_compression',), batch_size=50,
        images=groups.Images(prompts='configs/held_out.txt', num_images=500, seed=14),
        workdir='runs/corrected_proof_emoji'))


def get_config(name: str = '') -> Config:
  return cli.named(CONFIGS, name)
