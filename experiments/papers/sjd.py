"""SJD (arXiv 2410.01699) and MC-SJD (2510.24211): couplings of drafts and fresh tokens.

  python -m experiments.papers.sjd
  python -m experiments.papers.sjd --num_images=48 --window=16

Step compression of Jacobi windows whose drafts are redrawn (SJD), maximally coupled (MC-SJD) or
share their noise with the target's draws, and with every way to fill the free places of a window.
What is written is what `experiments.topologies` says.
"""

import sys
from typing import Any

from configs import topologies as default
from cspd_jax import cli
from experiments import topologies


@cli.command(default.Config, config='configs/papers/sjd.py')
def main(config: Any) -> None:
  topologies.run(config)


if __name__ == '__main__':
  sys.exit(main())
