"""What decoders cost on the accelerator at hand.

  python -m experiments.accelerator

Runtime: `minutes`. Result: in runs/accelerator, rates of the device, times of rounds and of images
(report.json), and a picture (roofline.png).
"""

import dataclasses

from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """What to measure, in this order until the minutes are over.

  Attributes:
    minutes: after which nothing new begins.
    shipped: shipped models, which make images for real.
    shapes: published sizes, with weights that are made up.
    decoder: their decoders beside `vanilla`; rounds commit as many tokens as `accepted` says.
    batch: numbers of images that are decoded at once.
    guided: whether the null condition runs beside the condition.
    dtype: of the parameters of `shapes`: float32 or bfloat16.
    graphs: whether the rounds of the first of `shapes` are timed as one CUDA graph too, and their
      tokens compared; on NVIDIA GPUs, last, for a quarter of `minutes` more.
    torch: whether PyTorch, if it is installed, decodes the same sizes token by token.
    repeats: timed runs of each; the median counts.
    rounds: of a timed run.
    tokens_per_round: tokens that every decoder commits per round; by default what the report
      `accepted` says of it.
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
  dtype: str = 'bfloat16'
  graphs: bool = True
  torch: bool = True
  repeats: int = 5
  rounds: int = 16
  tokens_per_round: float | None = None
  accepted: str = 'docs/reports/corrected.json'
  workdir: str = 'runs/accelerator'

  def __post_init__(self):
    fields.check(self, tokens_per_round=(1, fields.MOST))


def get_config() -> Config:
  """The configuration of `experiments.accelerator`."""
  return Config()
