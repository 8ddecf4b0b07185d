"""Cool-SD (arXiv 2601.09212): trade-off curves of its schedules, and tests of its claims.

  python -m experiments.papers.cool_sd
  python -m experiments.papers.cool_sd --num_images=128

Draws the bound on total variation, the likelihood and the Frechet distance over the accepted length
(Figures 3 to 5), on a chain and on a tree, for the schedules with clamping and as printed, and for
uniform relaxation. Writes the same files as `experiments.benchmark`.
"""

import sys

from configs import benchmark as default
from cspd_jax import cli
from experiments import benchmark


@cli.command(default.Config, config='configs/papers/cool_sd.py')
def main(config: default.Config) -> None:
  benchmark.run(config)


if __name__ == '__main__':
  sys.exit(main())
