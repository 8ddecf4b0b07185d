"""Cool-SD (arXiv 2601.09212): trade-off curves of its schedules, and tests of its claims.

  python -m experiments.benchmark --config=configs/papers/cool_sd.py
  python -m experiments.benchmark --config=configs/papers/cool_sd.py --num_images=128

The bound on total variation, the likelihood and the Frechet distance over the accepted length
(Figures 3 to 5), on a chain and on a tree, for the schedules with clamping and as printed, and for
uniform relaxation. Result: in runs/papers/cool_sd, the files of `experiments.benchmark`.
"""

from cspd_jax.cli import groups
from experiments.benchmark import CLAIMS, CURVES, Config

_NAMES = ('uniform', 'Cool-SD', 'Cool-SD, printed', 'Cool-SD linear', 'Cool-SD linear, printed')


def get_config() -> Config:
  """Returns the configuration of `experiments.benchmark`."""
  return Config(
      loading=groups.Loading('demo'), drafter=(), verifier=(),
      curves=tuple(curve for curve in CURVES if curve.name in _NAMES),
      claims=tuple(claim for claim in CLAIMS if claim.better in _NAMES), timed_images=None,
      workdir='runs/papers/cool_sd')
