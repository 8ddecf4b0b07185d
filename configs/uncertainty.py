"""Tokens per forward pass of decoders as a function of the target's entropy.

  python -m experiments.uncertainty

Runtime: a quarter of an hour on two CPU cores. Result: in runs/uncertainty, a figure
(uncertainty.png), all points (rows.csv), and all of it with the settings (report.json).
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
    decoder: specifications of decoders, at most seven.
    temperature: temperatures, each combined with every guidance scale.
    guidance_scale: guidance scales.
    images: the images, the same for all settings and decoders.
    window: tokens per forward pass of decoders whose specification does not set it.
    batch_size: images decoded together.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading()
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = (
      'sjd', 'mc_sjd', 'sjd_pac', 'eagle(tree=chain(12))+block', 'eagle(tree=EAGLE)', 'corrected',
      'corrected_seed_exact')
  temperature: tuple[float, ...] = (0.7, 1.0, 1.3)
  guidance_scale: tuple[float, ...] = (1.0, 3.0, 6.0)
  images: groups.Images = groups.Images(num_images=16, seed=12)
  window: int = 32
  batch_size: int = 16
  workdir: str = 'runs/uncertainty'

  def __post_init__(self):
    fields.check(self, temperature=fields.FINITE, guidance_scale=fields.FINITE)


def get_config() -> Config:
  """Returns the configuration of `experiments.uncertainty`."""
  return Config()
