"""The predicted cost of rounds on an accelerator, from compilation alone.

  python -m experiments.compile_report

Runtime: about two minutes on one idle CPU core. Result: in runs/compile_report, bytes, kernels and
predicted times of every decoder (report.json).
"""

import dataclasses
from typing import Literal

from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """The programs to compile.

  Attributes:
    device: device to compile for: h200 or v5e.
    model: a published size such as c2i_xl_256, a shipped model or a folder.
    decoder: specifications of decoders; `vanilla` is always included, for the speed-ups.
    window: tokens per forward pass of decoders whose specification does not set it.
    batch: images decoded together.
    guided: whether the null condition runs as well.
    layers: layers to compile; a second program has one layer more, and the figures of all layers
      are extrapolated. By default 2, or enough to exceed a TPU's fast memory.
    dtype: of the parameters.
    tokens_per_round: tokens that every decoder commits per round; by default those of the report
      `accepted`.
    accepted: report.json of a program that measured step compression, and maybe calls of a
      diffusion head.
    accepted_model: the model whose rows of `accepted` count, if it has rows of several.
    workdir: folder of the results.
  """

  device: str = 'h200'
  model: str = 'lumina_mgpt_7b_768'
  decoder: tuple[str, ...] = (
      'corrected(passes=4)', 'mc_sjd', 'mc_sjd(window=16)', 'eagle(tree=EAGLE)',
      'eagle(tree=LANTERN)')
  window: int = 64
  batch: int = 1
  guided: bool = True
  layers: int | None = None
  dtype: Literal['float32', 'bfloat16'] = 'bfloat16'
  tokens_per_round: float | None = None
  accepted: str = 'docs/reports/corrected.json'
  accepted_model: str | None = None
  workdir: str = 'runs/compile_report'

  def __post_init__(self):
    fields.check(self, tokens_per_round=(1, fields.MOST))


def get_config() -> Config:
  """Returns the configuration of `experiments.compile_report`."""
  return Config()
