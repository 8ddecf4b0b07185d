"""The tables and figures of the CSpD paper, on the shipped MAR pair.

  python -m experiments.mar_tables --config=configs/mar_tables.py
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
  """What to measure.

  Attributes:
    model: checkpoint of the target: a shipped name or a folder.
    draft_model: checkpoint of the draft model.
    tokenizer: checkpoint of the image tokenizer, for Figure 16.
    suite: parts separated by commas, or 'all': table1, table3, table4, figures, head.
    decoder: decoders with a draft model, separated by commas, or 'all'.
    num_images: images per cell; the classes take turns.
    images_at_once: images of a cell that are decoded together, and the batch size of the speeds
      in Table 4. If Table 1 has the same batch size, nothing is compiled twice.
    seed: of the images' keys.
    guidance_scale: of classifier-free guidance.
    guidance: 'linear', from none to the scale as the image fills up, or 'constant'.
    temperature: multiplies the noise of every kernel.
    lengths: draft lengths, gamma.
    prefix_share: share of tokens that the target fixes alone in Tables 1 and 3 and the figures.
    prefix_shares: shares of Table 4 and Figure 11.
    batch_sizes: of the speeds in Table 1; the paper has 1, 8, 128 and 256.
    scales: guidance scales of Figure 13.
    temperatures: of Figure 14.
    head_lengths: kernels per head call of exact_head.
    repeats: timed runs, of which the median counts; one if a run takes more than ten seconds.
    dtype: dtype of the parameters; the head computes in float32 whatever it is.
    workdir: folder of the results.
  """

  model: str = 'mar_demo/target'
  draft_model: str = 'mar_demo/draft'
  tokenizer: str = 'mar_demo/tokenizer'
  suite: str = 'all'
  decoder: str = 'all'
  num_images: int = 16
  images_at_once: int = 8
  seed: int = 0
  guidance_scale: float = 2.0
  guidance: str = 'linear'
  temperature: float = 1.0
  lengths: tuple[int, ...] = (4, 8, 16, 32)
  prefix_share: float = 0.05
  prefix_shares: tuple[float, ...] = (0.0, 0.05, 0.15)
  batch_sizes: tuple[int, ...] = (1, 8)
  scales: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 4.0)
  temperatures: tuple[float, ...] = (0.9, 0.95, 1.0, 1.05)
  head_lengths: tuple[int, ...] = (2, 4, 8, 16)
  repeats: int = 3
  dtype: str = 'float32'
  workdir: str = 'runs/mar_tables'


def get_config() -> Config:
  """The configuration of `experiments.mar_tables`."""
  return Config()
