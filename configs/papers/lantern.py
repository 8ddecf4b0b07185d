"""LANTERN (arXiv 2410.03355) and LANTERN++ (arXiv 2502.06352): the cost of their relaxation.

  python -m experiments.papers.lantern

Curves of LANTERN++ with its two residual distributions (Figure 5 of LANTERN) and of grouped
speculative decoding; and the published static tree compared with a dynamic tree.
Result: in runs/papers/lantern, the files that `experiments.benchmark` writes.
"""

import dataclasses

from configs import benchmark

_NAMES = ('LANTERN++, G*', 'LANTERN++, released', 'GSD')
_TREES = ('eagle(tree=EAGLE)', 'eagle2(num_nodes=25, width=10, depth=5)')
_VERIFIERS = (
    'exact', 'lantern(delta=0.1)', 'lantern_pp(lam=2)',
    'lantern_pp(lam=2, residual=released_llamagen)', 'lantern_pp(lam=2, residual=released_dynamic)')


def get_config() -> benchmark.Config:
  """Returns the configuration of `experiments.papers.lantern`."""
  return dataclasses.replace(
      benchmark.base(), drafter=_TREES, verifier=_VERIFIERS,
      curve_drafter=benchmark.CURVE_DRAFTERS,
      curves=tuple(curve for curve in benchmark.CURVES if curve.name in _NAMES),
      claims=tuple(claim for claim in benchmark.CLAIMS
                   if claim.better in _NAMES or claim.metric is not None),
      workdir='runs/papers/lantern')
