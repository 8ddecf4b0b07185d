"""SJD-PAC (arXiv 2603.18599): trees of candidates in a Jacobi window.

  python -m experiments.topologies --config=configs/papers/sjd_pac.py
  python -m experiments.topologies --config=configs/papers/sjd_pac.py --num_images=48 --window=64

Step compression and one-token rounds of trees and of MC-SJD's chain, at equal numbers of tokens per
round. Result: in runs/papers/sjd_pac, the files of `experiments.topologies`.
"""

from cspd_jax.cli import groups
from experiments.topologies import TREES, Config


def get_config() -> Config:
  """Returns the configuration of `experiments.topologies`."""
  return Config(
      loading=groups.Loading('demo'), decoder=('mc_sjd', *TREES), workdir='runs/papers/sjd_pac')
