"""SJD-PAC (arXiv 2603.18599): trees of candidates against the chain.

  python -m experiments.papers.sjd_pac

Result: in runs/papers/sjd_pac, what `experiments.topologies` leaves behind.
"""

import dataclasses

from configs import topologies


def get_config() -> topologies.Config:
  """The configuration of `experiments.papers.sjd_pac`."""
  return dataclasses.replace(
      topologies.Config(), decoder=('mc_sjd', *topologies.TREES), workdir='runs/papers/sjd_pac')
