"""SJD (arXiv 2410.01699) and MC-SJD (arXiv 2510.24211): couplings and fresh tokens, on chains.

  python -m experiments.papers.sjd

Result: in runs/papers/sjd, the files that `experiments.topologies` writes.
"""

import dataclasses

from configs import topologies


def get_config() -> topologies.Config:
  """Returns the configuration of `experiments.papers.sjd`."""
  return dataclasses.replace(
      topologies.Config(), decoder=topologies.COUPLINGS + topologies.FRESH,
      workdir='runs/papers/sjd')
