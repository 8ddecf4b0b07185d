"""CSpD (arXiv 2411.11925): its tables and figures, with the shipped MAR models.

  python -m experiments.papers.cspd

Result: in runs/papers/cspd, the rows of all tables (tables.csv, report.json) and the figures. All
of it takes most of an hour on two CPU cores; `--suite` and `--decoder` select parts.
"""

import dataclasses

from cspd_jax.cli import groups
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    loading: the model, and how it is loaded.
    parts: networks that replace those of the model.
    suite: parts of the paper: table1, table3, table4, figures; and head.
    decoder: decoders with a draft model.
    images: the images, the same in every cell.
    sampling: sampling options.
    guidance: 'linear', growing to the guidance scale as the image fills up, or 'constant'.
    lengths: draft lengths, gamma.
    most_contexts: the longest draft length of cspd_paper and exact_path, which run the target once
      per draft: at a length of 32, an image takes 20 times the passes of the target alone.
    prefix_share: share of tokens that the target alone generates in Tables 1 and 3 and the figures.
    prefix_shares: these shares in Table 4 and Figure 11.
    batch_sizes: batch sizes of the speeds in Table 1; the paper has 1, 8, 128 and 256.
    scales: guidance scales of Figure 13.
    temperatures: temperatures of Figure 14.
    kernels_per_call: parameters of exact_head.
    batch_size: images of a cell decoded together, and the batch size of the speeds in Table 4. If
      Table 1 has the same batch size, its programs are reused.
    repeats: timed runs, whose median is reported; only one if a run takes more than ten seconds.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading('mar_demo')
  parts: groups.Parts = groups.Parts()
  suite: tuple[str, ...] = ('table1', 'table3', 'table4', 'figures', 'head')
  decoder: tuple[str, ...] = ('cspd_released', 'cspd_relaxed', 'cspd_paper', 'exact_path')
  images: groups.Images = groups.Images(num_images=8)
  sampling: groups.Sampling = groups.Sampling()
  guidance: str = 'linear'
  lengths: tuple[int, ...] = (4, 8, 16, 32)
  most_contexts: int = 4
  prefix_share: float = 0.05
  prefix_shares: tuple[float, ...] = (0.0, 0.05, 0.15)
  batch_sizes: tuple[int, ...] = (1, 8)
  scales: tuple[float, ...] = (1.0, 2.0, 4.0)
  temperatures: tuple[float, ...] = (0.9, 1.0, 1.05)
  kernels_per_call: tuple[int, ...] = (4, 8, 16, 32)
  batch_size: int = 8
  repeats: int = 3
  workdir: str = 'runs/papers/cspd'

  def __post_init__(self):
    fields.check(self, prefix_share=fields.SHARES, prefix_shares=fields.SHARES,
                 scales=fields.FINITE, temperatures=fields.FINITE)


def get_config() -> Config:
  """Returns the configuration of `experiments.papers.cspd`."""
  return Config()
