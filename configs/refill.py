"""What is gained where a row that is complete takes the next image.

  python -m experiments.refill

Runtime: ten minutes on one CPU core. Result: in runs/refill, rounds and times of batches and of a
queue (report.json).
"""

import dataclasses

from cspd_jax.cli import groups
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """What to measure.

  Attributes:
    model: a shipped model of discrete tokens, or a folder.
    parts: networks that take the place of its own.
    decoder: specifications of decoders.
    window: tokens per forward pass where a specification leaves it open.
    images: which images, the same for every decoder; a multiple of `batch_size`.
    batch_size: images decoded at once.
    sampling: how tokens are drawn.
    repeats: timed runs of each; the median counts.
    dtype: of the parameters: float32 or bfloat16.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = ('vanilla', 'mc_sjd', 'corrected', 'eagle')
  window: int = 16
  images: groups.Images = groups.Images(num_images=64)
  batch_size: int = 8
  sampling: groups.Sampling = groups.Sampling()
  repeats: int = 3
  dtype: str | None = None
  workdir: str = 'runs/refill'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """The configuration of `experiments.refill`."""
  return Config()
