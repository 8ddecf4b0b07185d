"""Greedy tokens that another program printed for published weights.

  python -m experiments.golden --model=checkpoints/janus_pro_1b

Runtime: a minute on a CPU, most of it for loading; nothing is trained or generated. Result: in
runs/golden, a row per token (report.json).

The tokens are those of Janus-Pro-1B in tests/models/janus/test_modeling_janus.py of transformers,
`test_model_generate_images`, for CUDA. The same test lists other tokens from the first one on for
one kind of device: computed in another order in bfloat16, close logits change places.
"""

import dataclasses
from typing import Literal

from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """The comparison.

  Attributes:
    model: the folder of the converted model.
    dtype: of its parameters.
    preset: the published model whose sizes it must have; None for any.
    prompt: the description of the image.
    contexts: the prompt writer of the model's family; see `families.Family.prompt_writers`.
    num_prompt_tokens: tokens of the prompt in the other program; None for any number.
    tokens: the first tokens of the image in the other program.
    guidance_scale: its guidance scale.
    workdir: folder of the results.
  """

  model: str = 'checkpoints/janus_pro_1b'
  dtype: Literal['float32', 'bfloat16'] | None = 'bfloat16'
  preset: str | None = 'janus_pro_1b'
  prompt: str = 'A portrait of young girl. masterpiece, film grained, best quality.'
  contexts: str = 'janus_pro_plain'
  num_prompt_tokens: int | None = 17
  tokens: tuple[int, ...] = (
      4484, 4015, 15750, 506, 3758, 11651, 8597, 5739, 4861, 971, 14985, 14834, 15438, 7548, 1820,
      1465, 13529, 12761, 10503, 12761, 14303, 6155, 4015, 11766, 705, 15736, 14146, 10417, 1951,
      7713, 14305, 15617, 6169, 2706, 8006, 14893, 3855, 10188, 15652, 6297, 1097, 12108, 15038,
      311, 14998, 15165, 897, 4044, 1762, 4676)
  guidance_scale: float = 5.0
  workdir: str = 'runs/golden'

  def __post_init__(self):
    fields.check(self, tokens=(0, fields.MOST), guidance_scale=fields.FINITE)


def get_config() -> Config:
  """Returns the configuration of `experiments.golden`."""
  return Config()
