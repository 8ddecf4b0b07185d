"""Corrected windows: what corrects, passes, trees and reads, at 64 tokens per round.

  python -m experiments.topologies --config=configs/corrected/ablations.py

The seed is another than that of configs/corrected/numbers.py, for trees and passes are chosen by
this table. Runtime: half an hour on two CPU cores. Result: in runs/corrected_ablations, step
compression and one-token rounds (rows.csv, report.json).
"""

from cspd_jax.cli import groups
from experiments.topologies import Config

BY = tuple(f'corrected(by={name}, passes=4)'
           for name in ('layers', 'model', 'neighbours', 'eagle', 'corrector'))
PASSES = tuple(f'corrected(passes={passes})' for passes in (1, 2, 3, 6, 8))
TREES = tuple(f'corrected(passes=4, tree={tree})' for tree in (
    'chain()', 'caterpillar(2, 4)', 'caterpillar(3, 3)', 'caterpillar(8, 3)', 'caterpillar(6, 6)'))
READS = tuple(f'corrected(passes=4, reads={reads})' for reads in (8, 16, 24))


def get_config() -> Config:
  """The configuration."""
  return Config(
      decoder=BY + PASSES + TREES + READS, window=(64,),
      images=groups.Images(num_images=32, seed=13), workdir='runs/corrected_ablations')
