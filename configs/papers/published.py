"""The rows of the papers' tables with decoders of discrete tokens, and ours next to them.

  python -m experiments.papers.published

Result: in runs/papers/published, a table per paper (rows.csv, report.json).
"""

import dataclasses

from configs.papers.published_rows import ROWS
from cspd_jax.cli import groups
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    loading: the model, and how it is loaded.
    parts: networks that replace those of the model.
    paper: the papers; cspd requires a model of continuous tokens.
    images: the images, the same for every row.
    sampling: sampling options; a row overrides temperature and top_k.
    batch_size: images decoded together.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading()
  parts: groups.Parts = groups.Parts()
  paper: tuple[str, ...] = ('this_project', 'sjd', 'sjd_pac', 'lantern', 'cool_sd')
  images: groups.Images = groups.Images(num_images=16)
  sampling: groups.Sampling = groups.Sampling()
  batch_size: int = 16
  workdir: str = 'runs/papers/published'

  def __post_init__(self):
    fields.check(self)
    if unknown := [name for name in self.paper if name not in ROWS]:
      raise ValueError(f'paper holds {unknown[0]!r}; every name must be one of: '
                       f'{", ".join(ROWS)}.')


def get_config() -> Config:
  """Returns the configuration of `experiments.papers.published`."""
  return Config()
