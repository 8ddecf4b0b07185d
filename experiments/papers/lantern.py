"""LANTERN (arXiv 2410.03355) and LANTERN++ (2502.06352): what letting neighbours stand in trades.

  python -m experiments.papers.lantern
  python -m experiments.papers.lantern --num_images=128

The relaxed verifiers on the published static tree and on a tree that changes every round, and the
curves of LANTERN++ with the best and with the released residual distribution beside those of
grouped speculative decoding. What is measured and written is what `experiments.benchmark` says.
"""

import sys
from typing import Any

from configs import benchmark as default
from cspd_jax import cli
from experiments import benchmark


@cli.command(default.Config, config='configs/papers/lantern.py')
def main(config: Any) -> None:
  benchmark.run(config)


if __name__ == '__main__':
  sys.exit(main())
