"""Tokens per round of windows over continuous tokens, by window, model and sampling options.

  python -m experiments.continuous_windows

Runtime: half an hour on two CPU cores. Result: in runs/continuous_windows, tokens per round
and head calls for every setting (report.json), and the share of kept kernels by level (levels.png).
"""

import dataclasses

from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements. Every list but `window` is varied on its own, at the first window.

  Attributes:
    model: models of continuous tokens, shipped or folders.
    window: tokens per round; the first is that of all other measurements.
    guidance_scale: guidance scales; the first is that of all other measurements.
    temperature: temperatures in addition to 1.
    schedule: numbers of denoising kernels other than the model's own.
    num_iter: numbers of autoregressive steps in addition to one token per step; masked models only.
    orders: whether masked models are measured in raster order too.
    decoder: other decoders, for comparison.
    num_images: images of every measurement.
    batch_size: images decoded together.
    seed: of the images.
    workdir: folder of the results.
  """

  model: tuple[str, ...] = ('causal_demo', 'mar_demo')
  window: tuple[int, ...] = (8, 2, 4, 16, 32)
  guidance_scale: tuple[float, ...] = (3.0, 1.0, 6.0)
  temperature: tuple[float, ...] = (0.9,)
  schedule: tuple[int, ...] = (25, 50, 100)
  num_iter: tuple[int, ...] = (16,)
  orders: bool = True
  decoder: tuple[str, ...] = ('exact_head', 'exact_head(kernels_per_call=32)')
  num_images: int = 16
  batch_size: int = 8
  seed: int = 29
  workdir: str = 'runs/continuous_windows'

  def __post_init__(self):
    fields.check(
        self, window=(1, fields.MOST), guidance_scale=fields.FINITE, temperature=fields.FINITE,
        schedule=(2, 1000), num_iter=(1, fields.MOST), num_images=(2, 10**4),
        batch_size=(1, 10**4), seed=fields.SEEDS)


def get_config() -> Config:
  """Returns the configuration of `experiments.continuous_windows`."""
  return Config()
