"""The distance of int8 targets from the original.

  python -m experiments.quantized

Runtime: five minutes on one CPU core. Result: in runs/quantized, the distance per guidance scale,
with all settings (report.json).
"""

import dataclasses
from typing import Literal

from cspd_jax.cli import groups
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    model: a shipped model or a folder.
    parts: networks that replace those of the model.
    guidance_scale: guidance scales.
    images: the images that the target generates, the same for every scale.
    batch_size: images decoded together.
    dtype: of the original parameters, and of those that are not quantized.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  guidance_scale: tuple[float, ...] = (1.0, 3.0)
  images: groups.Images = groups.Images(num_images=32, seed=12)
  batch_size: int = 16
  dtype: Literal['float32', 'bfloat16'] | None = 'float32'
  workdir: str = 'runs/quantized'

  def __post_init__(self):
    fields.check(self, guidance_scale=fields.FINITE)


def get_config() -> Config:
  """Returns the configuration of `experiments.quantized`."""
  return Config()
