"""Corrected windows: tokens per round by what corrects, and window.

  python -m experiments.topologies --config=configs/corrected/numbers.py

Counts only; wall-clock times are measured by `cspd-compare`. Runtime: half an hour on two CPU
cores. Result: in runs/corrected, step compression and one-token rounds of every window and decoder
(rows.csv, report.json).
"""

from cspd_jax.cli import groups
from experiments.topologies import Config

DECODERS = (
    'mc_sjd', 'eagle+block', 'corrected(by=neighbours, passes=3)', 'corrected(passes=4)',
    'corrected_seed_exact(passes=4)')


def get_config() -> Config:
  """The configuration."""
  return Config(
      decoder=DECODERS, window=(8, 16, 32, 64, 128),
      images=groups.Images(num_images=64, seed=12), workdir='runs/corrected')
