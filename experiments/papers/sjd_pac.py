"""SJD-PAC (arXiv 2603.18599): trees of candidates in a Jacobi window.

  python -m experiments.papers.sjd_pac
  python -m experiments.papers.sjd_pac --num_images=48 --window=64

Compares step compression and one-token rounds of trees with those of MC-SJD's chain at equal
numbers of tokens per round. Writes the same files as `experiments.topologies`.
"""

import sys

from configs import topologies as default
from cspd_jax import cli
from experiments import topologies


@cli.command(default.Config, config='configs/papers/sjd_pac.py')
def main(config: default.Config) -> None:
  topologies.run(config)


if __name__ == '__main__':
  sys.exit(main())
