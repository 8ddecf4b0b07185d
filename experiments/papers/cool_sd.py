"""Cool-SD (arXiv 2601.09212): trade-off curves of its schedules, and whether its claims hold.

  python -m experiments.papers.cool_sd
  python -m experiments.papers.cool_sd --num_images=128

On a chain and on a tree, from mild to strong (Figures 3 to 5): the bound on total variation, the
likelihood and the Frechet distance over the accepted length, of the schedules clamped and as
printed, beside uniform relaxation. What is measured and written is what `experiments.benchmark`
says of curves.
"""

import sys
from typing import Any

from configs import benchmark as default
from cspd_jax import cli
from experiments import benchmark


@cli.command(default.Config, config='configs/papers/cool_sd.py')
def main(config: Any) -> None:
  benchmark.run(config)


if __name__ == '__main__':
  sys.exit(main())
