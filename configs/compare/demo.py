"""Images from the shipped model with a few decoders, and what each decoder costs.

  python -m experiments.compare --config=configs/compare/demo.py
  python -m experiments.compare --all

Runtime: half a minute on two CPU cores, the first images in a third of it; two to three minutes
with --all, half of it compilation.
Result: in runs/demo, a grid of images per decoder, the acceptance maps, bars of step
compression and wall-clock, and report.json. Every decoder draws from the same distribution; vanilla
and seed_exact draw the same images.
"""

import dataclasses

import jax

from configs import groups
from cspd_jax.core import fields


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Parameters of decoders whose specification leaves them open.

  Attributes:
    window: tokens per forward pass of the Jacobi decoders; `get_config` chooses it for the
      machine. From 26 on EAGLE drafts along its published tree, below along a chain.
    length: tokens drafted per round as a chain: by a draft model, by EAGLE, by Medusa.
  """

  window: int | None = 64
  length: int | None = 4

  def __post_init__(self):
    fields.check(self)


@dataclasses.dataclass(frozen=True)
class Config:
  """What to compare.

  Attributes:
    model: a shipped model or a folder.
    parts: networks that take the place of its own.
    decoder: specifications separated by commas, such as vanilla,mc_sjd(window=32). None compares
      ordinary sampling, seed_exact, and the decoder that the model takes by default.
    all: every named decoder that the model can run, and the one that it takes by default.
    images: which images, the same with every decoder.
    sampling: how tokens are drawn.
    sizes: parameters of decoders whose specification leaves them open.
    repeats: timed runs per image and decoder, at most; the median counts.
    budget: seconds of all timed runs together; each image is timed once with every decoder,
      whatever that takes.
    dtype: of the parameters: float32 or bfloat16. Floating-point numbers of less than 32 bits
      round differently for other windows, so that seed_exact may leave vanilla.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] | None = None
  all: bool = False
  images: groups.Images = groups.Images()
  sampling: groups.Sampling = groups.Sampling()
  sizes: Sizes = Sizes()
  repeats: int = 3
  budget: float = 60.0
  dtype: str | None = None
  workdir: str = 'runs/demo'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """The configuration of `experiments.compare`."""
  # A CPU pays for every token of a window, an accelerator hardly does.
  return Config(sizes=Sizes(window=8 if jax.default_backend() == 'cpu' else 64))
