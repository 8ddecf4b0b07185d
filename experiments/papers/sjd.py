"""SJD (arXiv 2410.01699) and MC-SJD (2510.24211): couplings of drafts and fresh tokens.

  python -m experiments.papers.sjd
  python -m experiments.papers.sjd --num_images=48 --window=16

Measures step compression of Jacobi windows whose drafts are redrawn (SJD), maximally coupled
(MC-SJD) or share their noise with the target's draws, and of every method to fill the free
positions of a window. Writes the same files as `experiments.topologies`.
"""

import sys

from configs import topologies as default
from cspd_jax import cli
from experiments import topologies


@cli.command(default.Config, config='configs/papers/sjd.py')
def main(config: default.Config) -> None:
  topologies.run(config)


if __name__ == '__main__':
  sys.exit(main())
