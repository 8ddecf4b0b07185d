"""The speed-up of decoding a queue of images over decoding batches.

  python -m experiments.refill

Runtime: ten minutes on one CPU core. Result: in runs/refill, rounds and times of batches and of a
queue (report.json).
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
    decoder: specifications of decoders.
    window: tokens per forward pass of decoders whose specification does not set it.
    images: the images, the same for every decoder; their number is a multiple of `batch_size`.
    batch_size: images decoded together.
    sampling: sampling options.
    repeats: timed runs of each decoder, whose median is reported.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading()
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = ('vanilla', 'mc_sjd', 'corrected', 'eagle')
  window: int = 16
  images: groups.Images = groups.Images(num_images=64)
  batch_size: int = 8
  sampling: groups.Sampling = groups.Sampling()
  repeats: int = 3
  workdir: str = 'runs/refill'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """Returns the configuration of `experiments.refill`."""
  return Config()
