"""SJD (arXiv 2410.01699) and MC-SJD (2510.24211): couplings of drafts and fresh tokens.

  python -m experiments.topologies --config=configs/papers/sjd.py
  python -m experiments.topologies --config=configs/papers/sjd.py --num_images=48 --window=16

Step compression of Jacobi windows whose drafts are redrawn (SJD), maximally coupled (MC-SJD) or
share their noise with the target's draws, and of every method to fill the free positions of a
window. Result: in runs/papers/sjd, the files of `experiments.topologies`.
"""

from cspd_jax.cli import groups
from experiments.topologies import COUPLINGS, FRESH, Config


def get_config() -> Config:
  """Returns the configuration of `experiments.topologies`."""
  return Config(
      loading=groups.Loading('demo'), decoder=COUPLINGS + FRESH, workdir='runs/papers/sjd')
