"""Which decoder suits how uncertain a model: tokens per forward pass against the entropy.

  python -m experiments.uncertainty

Runtime: a quarter of an hour on two CPU cores. Result: in runs/uncertainty, a picture
(uncertainty.png), all points (rows.csv) and what they were made with (report.json).
"""

import dataclasses

from cspd_jax.cli import groups
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """What to measure.

  Attributes:
    model: a shipped model or a folder.
    parts: networks that take the place of its own.
    decoder: specifications of decoders, at most seven.
    temperature: temperatures, each with every guidance scale.
    guidance_scale: guidance scales.
    images: which images, the same everywhere.
    window: tokens per forward pass of decoders whose specification leaves it open.
    batch_size: images decoded at once.
    dtype: of the parameters: float32 or bfloat16.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = (
      'sjd', 'mc_sjd', 'sjd_pac', 'eagle(tree=chain(12))+block', 'eagle(tree=EAGLE)', 'corrected',
      'corrected_seed_exact')
  temperature: tuple[float, ...] = (0.7, 1.0, 1.3)
  guidance_scale: tuple[float, ...] = (1.0, 3.0, 6.0)
  images: groups.Images = groups.Images(num_images=16, seed=12)
  window: int = 32
  batch_size: int = 16
  dtype: str | None = None
  workdir: str = 'runs/uncertainty'

  def __post_init__(self):
    fields.check(self, temperature=fields.FINITE, guidance_scale=fields.FINITE)


def get_config() -> Config:
  """The configuration of `experiments.uncertainty`."""
  return Config()
