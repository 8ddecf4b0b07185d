"""LANTERN (arXiv 2410.03355) and LANTERN++ (2502.06352): the cost of accepting latent neighbours.

  python -m experiments.benchmark --config=configs/papers/lantern.py
  python -m experiments.benchmark --config=configs/papers/lantern.py --num_images=128

The relaxed verifiers on the published static tree and on a dynamic tree, and the curves of
LANTERN++, with the optimal and with the released residual distribution (Figure 5 of LANTERN), and
of grouped speculative decoding. Result: in runs/papers/lantern, the files of
`experiments.benchmark`.
"""

from cspd_jax.cli import groups
from experiments.benchmark import CLAIMS, CURVES, Config

_NAMES = ('LANTERN++, G*', 'LANTERN++, released', 'GSD')
_TREES = ('eagle(tree=EAGLE)', 'eagle2(num_nodes=25, width=10, depth=5)')
_VERIFIERS = (
    'exact', 'lantern(delta=0.1)', 'lantern_pp(lam=2)',
    'lantern_pp(lam=2, residual=released_llamagen)', 'lantern_pp(lam=2, residual=released_dynamic)')


def get_config() -> Config:
  """Returns the configuration of `experiments.benchmark`."""
  return Config(
      loading=groups.Loading('demo'), drafter=_TREES, verifier=_VERIFIERS,
      curves=tuple(curve for curve in CURVES if curve.name in _NAMES),
      claims=tuple(claim for claim in CLAIMS
                   if claim.better in _NAMES or claim.metric is not None),
      workdir='runs/papers/lantern')
