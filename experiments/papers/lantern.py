"""LANTERN (arXiv 2410.03355) and LANTERN++ (2502.06352): the cost of accepting latent neighbours.

  python -m experiments.papers.lantern
  python -m experiments.papers.lantern --num_images=128

Measures the relaxed verifiers on the published static tree and on a dynamic tree, and draws the
curves of LANTERN++, with the optimal and with the released residual distribution, and of grouped
speculative decoding. Writes the same files as `experiments.benchmark`.
"""

import sys

from configs import benchmark as default
from cspd_jax import cli
from experiments import benchmark


@cli.command(default.Config, config='configs/papers/lantern.py')
def main(config: default.Config) -> None:
  benchmark.run(config)


if __name__ == '__main__':
  sys.exit(main())
