"""How often the images of seed-exact decoders differ from those of vanilla, by rounding alone.

  python -m experiments.rounding

Runtime: half an hour on one CPU core. Result: in runs/rounding, the shares of images and tokens
that differ, for every dtype and decoder (report.json).
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
    decoder: specifications of seed-exact decoders.
    window: tokens per forward pass where a specification leaves it open.
    images: which images, the same for every decoder and dtype.
    batch_size: images decoded at once.
    sampling: how tokens are drawn.
    dtype: of the parameters, one after the other: float32, bfloat16, float16.
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
  """The configuration of `experiments.rounding`."""
  return Config()
