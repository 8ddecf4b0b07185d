"""Cool-SD (arXiv 2601.09212): the trade-off curves of Figures 3 to 5, on a chain and a tree.

  python -m experiments.papers.cool_sd

Result: in runs/papers/cool_sd, the files that `experiments.benchmark` writes.
"""

import dataclasses

from configs import benchmark

_NAMES = ('uniform', 'Cool-SD', 'Cool-SD, printed', 'Cool-SD linear', 'Cool-SD linear, printed')


def get_config() -> benchmark.Config:
  """Returns the configuration of `experiments.papers.cool_sd`."""
  return dataclasses.replace(
      benchmark.base(), curve_drafter=benchmark.CURVE_DRAFTERS,
      curves=tuple(curve for curve in benchmark.CURVES if curve.name in _NAMES),
      claims=tuple(claim for claim in benchmark.CLAIMS if claim.better in _NAMES),
      timed_images=None, workdir='runs/papers/cool_sd')
