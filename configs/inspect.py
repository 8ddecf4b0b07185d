"""What a model takes, from its shapes alone.

  python -m experiments.inspect --model=lumina_mgpt_7b_768

Nothing is allocated; seconds on one CPU core. Result: in runs/inspect, parameters, cache, and what
rounds read and multiply (report.json).
"""

import dataclasses

from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """What to look at.

  Attributes:
    model: a published size such as c2i_xl_256, a shipped model or a folder; of discrete tokens.
    window: tokens per forward pass.
    batch: images decoded at once.
    guided: whether the null condition runs beside the condition.
    dtype: of the parameters: float32 or bfloat16.
    workdir: folder of the results.
  """

  model: str = 'demo'
  window: tuple[int, ...] = (1, 16, 64)
  batch: int = 1
  guided: bool = True
  dtype: str = 'bfloat16'
  workdir: str = 'runs/inspect'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """The configuration of `experiments.inspect`."""
  return Config()
