"""Images from the shipped MAR model with decoders of continuous tokens.

  python -m experiments.compare --config=configs/compare/mar_demo.py          # mar, exact_head
  python -m experiments.compare --config=configs/compare/mar_demo.py --all

Result: in runs/mar_demo, a grid of images per decoder, maps of when tokens were fixed and of what
was accepted, bars of head calls and wall-clock, and report.json. `mar` and `exact_head` draw from
one distribution; what the others draw from is printed below the table.
"""

import dataclasses

from configs import groups
from configs.compare import demo
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Parameters of decoders whose specification leaves them open; None for their defaults.

  Attributes:
    schedule: denoising kernels of the head.
    guidance: 'linear', from none to the scale as the image fills up, or 'constant'.
    kernels_per_call: kernels per head call of exact_head.
    draft_length: drafts per round of exact_path and cspd_paper.
    block_length: drafts per block of cspd_released and cspd_relaxed.
    prefix_share: share of tokens that the target fixes alone, in all decoders with a draft model.
  """

  schedule: int | None = None
  guidance: str | None = None
  kernels_per_call: int | None = None
  draft_length: int | None = None
  block_length: int | None = None
  prefix_share: float | None = None

  def __post_init__(self):
    fields.check(self, prefix_share=fields.SHARES)


@dataclasses.dataclass(frozen=True)
class Config(demo.Config):
  """What to compare, as in `configs/compare/demo.py`."""

  model: str = 'mar_demo'
  sampling: groups.Sampling = groups.Sampling()
  sizes: Sizes = Sizes()
  workdir: str = 'runs/mar_demo'


def get_config() -> Config:
  """The configuration of `experiments.compare`."""
  return Config()
