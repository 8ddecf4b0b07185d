"""One decoder of every kind at up to 64 tokens per forward pass: the table of the README.

  python -m experiments.topologies --config=configs/kinds.py

Counts only; what they are worth on an accelerator is measured by `experiments.compile_report`.
Runtime: some minutes on two CPU cores. Result: in runs/kinds, step compression and one-token rounds
(rows.csv, report.json).
"""

from cspd_jax.cli import groups
from experiments.topologies import Config

DECODERS = (
    'vanilla', 'speculative(length=4)', 'eagle(tree=LANTERN)', 'mc_sjd', 'seed_exact',
    'corrected_seed_exact(passes=4)', 'corrected(passes=4)',
    'eagle(tree=LANTERN)+lantern_pp(lam=2)')


def get_config() -> Config:
  """The configuration."""
  return Config(
      decoder=DECODERS, window=(64,),
      images=groups.Images(num_images=32, seed=12), workdir='runs/kinds')
