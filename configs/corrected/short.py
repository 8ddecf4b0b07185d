"""Corrected windows of a few tokens, as a CPU can afford: tokens per round.

  python -m experiments.topologies --config=configs/corrected/short.py

Counts only; `experiments.against_llamagen` says what they are worth in seconds. Runtime: a quarter
of an hour on two CPU cores. Result: in runs/corrected_short, step compression of every window and
decoder (rows.csv, report.json).
"""

from cspd_jax.cli import groups
from experiments.topologies import Config

DECODERS = (
    'mc_sjd', 'eagle+block', 'corrected(by=neighbours, passes=1)',
    'corrected(by=neighbours, passes=2)', 'corrected(passes=1)', 'corrected(passes=2)')


def get_config() -> Config:
  """The configuration."""
  return Config(
      decoder=DECODERS, window=(4, 6, 8, 12, 16),
      images=groups.Images(num_images=64, seed=12), workdir='runs/corrected_short')
