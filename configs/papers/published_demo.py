"""The rows of LlamaGen in the papers' tables, and ours next to them, with `demo`.

  python -m experiments.papers.published --config=configs/papers/published_demo.py

Result: in runs/papers/published_demo, a table per paper (rows.csv, report.json).
"""

from cspd_jax.cli import groups
from experiments.papers.published import Config


def get_config() -> Config:
  """Returns the configuration of `experiments.papers.published` for LlamaGen."""
  return Config(
      rows='demo', loading=groups.Loading('demo'), images=groups.Images(num_images=64), asked=False,
      paper=('this_project', 'sjd', 'lantern', 'cool_sd'), workdir='runs/papers/published_demo')
