"""SJD-PAC (arXiv 2603.18599): trees of candidates compared with the chain.

  python -m experiments.papers.sjd_pac

Result: in runs/papers/sjd_pac, the files that `experiments.topologies` writes.
"""

import dataclasses

from configs import topologies


def get_config() -> topologies.Config:
  """Returns the configuration of `experiments.papers.sjd_pac`."""
  return dataclasses.replace(
      topologies.Config(), decoder=('mc_sjd', *topologies.TREES), workdir='runs/papers/sjd_pac')
