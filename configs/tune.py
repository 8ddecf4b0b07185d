"""Which decoder is fastest on this machine, measured, and stored with the model.

  python -m experiments.tune --model=checkpoints/c2i_b_256
  python -m experiments.tune --store=models/demo

Result: in runs/tune, what every candidate was predicted to take and what the best ones took
(rows.csv, report.json); in the model's folder, the decoders that it is decoded with from now on.
"""

import dataclasses
from typing import Literal

from configs import groups
from cspd_jax.core import fields

# The most promising first, in case that the time is up.
DECODERS = (
    'vanilla', 'eagle', 'eagle(tree=chain(4))', 'corrected', 'mc_sjd', 'corrected(by=eagle)',
    'corrected(by=neighbours)', 'corrected(by=layers)', 'speculative', 'medusa')
SEED_EXACT = (
    'vanilla', 'corrected_seed_exact', 'seed_exact', 'corrected_seed_exact(by=eagle)',
    'corrected_seed_exact(by=neighbours)', 'corrected_seed_exact(by=layers)', 'eagle2')


@dataclasses.dataclass(frozen=True)
class Config:
  """What to choose from, and for what.

  Attributes:
    model: a shipped model of discrete tokens, or a folder.
    parts: networks that take the place of its own.
    decoder: candidates. Those that need a network that the model does not have, or do not fit it,
      are left out. None takes those that suit `guarantee`.
    window: tokens per round, tried in rising order where a candidate leaves its size open.
    passes: of a corrector, where a candidate leaves them open: the first while its window is
      looked for, the others at the best window.
    guarantee: the weakest that a chosen decoder may have.
    batch_size: images decoded together; a decoder is chosen for each. It holds up to the next one.
    images: the images of the short runs and of the measurements.
    sampling: how tokens are drawn; guidance on or off changes what a round costs.
    best: candidates that are measured, for every number of images.
    repeats: timed runs of each of them; the median counts.
    minutes: after which no more candidates are tried; those that are best by then are measured.
    dtype: of the parameters: float32 or bfloat16.
    store: folder of the model that gets the choice; none for the model's own. If there is no model
      in it, it becomes one of the same networks.
    dry_run: stores nothing.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] | None = None
  window: tuple[int, ...] = (4, 8, 16, 32, 64)
  passes: tuple[int, ...] = (2, 1, 3, 4)
  guarantee: Literal['seed-exact', 'exact', 'relaxed'] = 'exact'
  batch_size: tuple[int, ...] = (1, 8)
  images: groups.Images = groups.Images(num_images=8)
  sampling: groups.Sampling = groups.Sampling()
  best: int = 3
  repeats: int = 3
  minutes: float = 15.0
  dtype: str | None = None
  store: str | None = None
  dry_run: bool = False
  workdir: str = 'runs/tune'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """The configuration of `experiments.tune`."""
  return Config()
