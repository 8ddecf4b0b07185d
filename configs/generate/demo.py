"""Images from the shipped model with its fastest exact decoder.

  python -m experiments.generate --config=configs/generate/demo.py

Runtime: about a minute on two CPU cores, most of it compilation.
Result: in runs/generate, one PNG per image with its prompt, seed, decoder and versions inside,
and report.json.
"""

import dataclasses

from configs import groups
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """What to generate.

  Attributes:
    model: a shipped model or a folder.
    parts: networks that take the place of its own.
    decoder: specification such as seed_exact(window=16); the best for the machine if none.
    images: which images.
    sampling: how tokens are drawn.
    batch_size: images decoded at once.
    dtype: of the parameters: float32 or bfloat16.
    npz: also writes images.npz, with all images as one uint8 array [N, H, W, 3] named arr_0, as
      tools for the FID read it.
    overwrite: whether images of an earlier run in the folder are replaced.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  decoder: str | None = None
  images: groups.Images = groups.Images()
  sampling: groups.Sampling = groups.Sampling()
  batch_size: int = 16
  dtype: str | None = None
  npz: bool = False
  overwrite: bool = False
  workdir: str = 'runs/generate'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """The configuration of `experiments.generate`."""
  return Config()
