"""The rows of the CSpD paper's tables, and ours next to them, with the shipped MAR models.

  python -m experiments.papers.published --config=configs/papers/published_cspd.py

Result: in runs/papers/published_cspd, a table and a picture (rows.csv, strip_cspd.png,
report.json).
"""

from cspd_jax.cli import groups
from experiments.papers.published import Config


def get_config() -> Config:
  """Returns the configuration of `experiments.papers.published` for CSpD."""
  return Config(
      rows='mar_demo', loading=groups.Loading('mar_demo'), paper=('cspd',), asked=False,
      images=groups.Images(num_images=64), workdir='runs/papers/published_cspd')
