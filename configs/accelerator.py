"""The cost of decoders on the accelerator of this machine.

  python -m experiments.accelerator

Runtime: `minutes`. Result: in runs/accelerator, rates of the device, times of rounds and of images
(report.json), and a roofline plot (roofline.png).
"""

import dataclasses
from typing import Literal

from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements, in this order until the time limit.

  Attributes:
    minutes: time limit, after which no measurement starts.
    shipped: shipped models, with which whole images are timed.
    shapes: published model sizes, with random weights. On NVIDIA GPUs, the rounds of the first are
      also timed as one CUDA graph, at the end, for up to a quarter of `minutes` more.
    decoder: their decoders in addition to `vanilla`; rounds commit as many tokens as the report
      `accepted` states.
    batch: numbers of images decoded together.
    guided: whether the null condition runs as well.
    dtype: of the parameters of `shapes`.
    torch: whether to time the same sizes token by token in PyTorch, if it is installed.
    repeats: timed runs of each measurement, whose median is reported.
    rounds: rounds of a timed run.
    tokens_per_round: tokens that every decoder commits per round; by default those of the report
      `accepted`.
    accepted: report.json of a program that measured step compression.
    workdir: folder of the results.
  """

  minutes: float = 8.0
  shipped: tuple[str, ...] = ('demo', 'mar_demo')
  shapes: tuple[str, ...] = ('c2i_xl_256', 'lumina_mgpt_7b_768', 'mar_b')
  decoder: tuple[str, ...] = (
      'corrected(passes=4, window=64)', 'mc_sjd(window=64)', 'mc_sjd(window=16)')
  batch: tuple[int, ...] = (1, 8)
  guided: bool = True
  dtype: Literal['float32', 'bfloat16'] = 'bfloat16'
  torch: bool = True
  repeats: int = 5
  rounds: int = 16
  tokens_per_round: float | None = None
  accepted: str = 'docs/reports/corrected.json'
  workdir: str = 'runs/accelerator'

  def __post_init__(self):
    fields.check(self, tokens_per_round=(1, fields.MOST))


def get_config() -> Config:
  """Returns the configuration of `experiments.accelerator`."""
  return Config()
