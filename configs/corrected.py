"""Corrected windows against the other lossless decoders, by tokens per round, and their ablations.

  python -m experiments.topologies --config=configs/corrected.py

Counts only; wall-clock is the business of `experiments.compare`. Result: in runs/corrected, step
compression and one-token rounds of every window and decoder (rows.csv, report.json).
"""

import dataclasses

from configs import groups, topologies

DECODERS = (
    'mc_sjd', 'eagle+exact', 'corrected(by=neighbours)', 'corrected(by=eagle, passes=4)',
    *(f'corrected(passes={passes})' for passes in (1, 2, 4, 8)),
    'corrected_seed_exact(passes=4)', 'corrected(passes=4, tree=chain())',
    'corrected(passes=4, tree=caterpillar(3, 3))', 'corrected(passes=4, tree=caterpillar(6, 6))')


def get_config() -> topologies.Config:
  """The configuration."""
  return dataclasses.replace(
      topologies.Config(), decoder=DECODERS, window=(8, 16, 32, 64, 128),
      images=groups.Images(num_images=64, seed=12), workdir='runs/corrected')
