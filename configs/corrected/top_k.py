"""Corrected windows when only the most probable tokens can be drawn.

  python -m experiments.topologies --config=configs/corrected/top_k.py

Counts only. Runtime: five minutes on two CPU cores. Result: in runs/corrected_top_k, step
compression and one-token rounds (rows.csv, report.json).
"""

from configs.corrected import numbers
from cspd_jax.cli import groups
from experiments.topologies import Config


def get_config() -> Config:
  """The configuration."""
  return Config(
      decoder=numbers.DECODERS, window=(32,),
      sampling=groups.Sampling(top_k=100), images=groups.Images(num_images=32, seed=12),
      workdir='runs/corrected_top_k')
