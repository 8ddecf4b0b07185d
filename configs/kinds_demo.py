"""The decoders of configs/kinds.py on `demo`, which generates photographs without plain grounds.

  python -m experiments.topologies --config=configs/kinds_demo.py

Result: in runs/kinds_demo, step compression and one-token rounds (rows.csv, report.json).
"""

from configs import kinds
from cspd_jax.cli import groups
from experiments.topologies import Config


def get_config() -> Config:
  """The configuration."""
  return Config(
      loading=groups.Loading('demo'), decoder=kinds.DECODERS, window=(64,),
      images=groups.Images(num_images=64, seed=12), workdir='runs/kinds_demo')
