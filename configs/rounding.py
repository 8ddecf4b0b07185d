"""The fraction of images of seed-exact decoders that differ from those of vanilla due to rounding.

  python -m experiments.rounding

Runtime: half an hour on one CPU core. Result: in runs/rounding, the fractions of images and tokens
that differ, for every dtype and decoder (report.json).
"""

import dataclasses

from cspd_jax.cli import groups
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    model: a shipped model of discrete tokens, or a folder.
    parts: networks that replace those of the model.
    decoder: specifications of seed-exact decoders.
    window: tokens per forward pass of decoders whose specification does not set it.
    images: the images, the same for every decoder and dtype.
    batch_size: images decoded together.
    sampling: sampling options.
    dtype: dtypes of the parameters: float32, bfloat16, float16.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = (
      'seed_exact', 'corrected_seed_exact', 'seed_exact(tree=caterpillar(3, 1))')
  window: int = 4
  images: groups.Images = groups.Images(num_images=2000, seed=15)
  batch_size: int = 32
  sampling: groups.Sampling = groups.Sampling()
  dtype: tuple[str, ...] = ('float32',)
  workdir: str = 'runs/rounding'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """Returns the configuration of `experiments.rounding`."""
  return Config()
