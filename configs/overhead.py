"""How much of a round is the target's forward pass, and how much the decoder's own work.

  python -m experiments.overhead
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
    sampling: how tokens are drawn.
    repeats: timed runs of each; the median counts.
    dtype: of the parameters: float32 or bfloat16.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = ('vanilla', 'jacobi', 'sjd', 'mc_sjd', 'sjd_pac', 'seed_exact')
  window: int = 16
  sampling: groups.Sampling = groups.Sampling()
  repeats: int = 5
  dtype: str | None = None
  workdir: str = 'runs/overhead'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """The configuration of `experiments.overhead`."""
  return Config()
