"""The share of a round's time that is not the target's forward pass.

  python -m experiments.overhead
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
    sampling: sampling options.
    repeats: timed runs of each decoder, whose median is reported.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading()
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = ('vanilla', 'jacobi', 'sjd', 'mc_sjd', 'sjd_pac', 'seed_exact')
  window: int = 16
  sampling: groups.Sampling = groups.Sampling()
  repeats: int = 5
  workdir: str = 'runs/overhead'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """Returns the configuration of `experiments.overhead`."""
  return Config()
