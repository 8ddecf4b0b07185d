"""Corrected windows on the second target, of 24x24 tokens.

  python -m experiments.train --config=configs/train/wide.py --workdir=runs/wide
  cspd-train --model=runs/wide/export --num_images=512
  cspd-train --config=configs/train/corrector_wide.py \\
      --workdir=runs/corrector_wide
  python -m experiments.topologies --config=configs/corrected/wide.py

Counts only. Runtime: training takes two hours on two CPU cores, the table a quarter of an hour.
Result: in runs/corrected_wide, step compression and one-token rounds of every window and decoder
(rows.csv, report.json).
"""

from cspd_jax.cli import groups
from experiments.topologies import Config

DECODERS = (
    'mc_sjd', 'corrected(by=layers, passes=4)', 'corrected(by=neighbours, passes=3)',
    'corrected(passes=4)', 'corrected_seed_exact(passes=4)')


def get_config() -> Config:
  """The configuration."""
  return Config(
      loading=groups.Loading('runs/wide/export'),
      parts=groups.Parts(corrector='runs/corrector_wide/export'), decoder=DECODERS,
      window=(16, 64), images=groups.Images(num_images=32, seed=12),
      workdir='runs/corrected_wide')
