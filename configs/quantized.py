"""How far a target of 8 bits is from the one that it was made of.

  python -m experiments.quantized

Runtime: two minutes on one CPU core. Result: in runs/quantized, the distance per guidance scale and
what it was measured with (report.json).
"""

import dataclasses

from cspd_jax.cli import groups
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """What to measure.

  Attributes:
    model: a shipped model or a folder.
    quantize: how the other target is loaded: int8.
    parts: networks that take the place of its own.
    guidance_scale: guidance scales.
    images: which images the target makes, the same for every scale.
    batch_size: images decoded at once.
    dtype: of the other parameters and of the target: float32 or bfloat16.
    workdir: folder of the results.
  """

  model: str = 'demo'
  quantize: str = 'int8'
  parts: groups.Parts = groups.Parts()
  guidance_scale: tuple[float, ...] = (1.0, 3.0)
  images: groups.Images = groups.Images(num_images=32, seed=12)
  batch_size: int = 16
  dtype: str | None = 'float32'
  workdir: str = 'runs/quantized'

  def __post_init__(self):
    fields.check(self, guidance_scale=fields.FINITE)


def get_config() -> Config:
  """The configuration of `experiments.quantized`."""
  return Config()
