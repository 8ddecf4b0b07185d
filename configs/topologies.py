"""Draft trees, couplings and fresh tokens of Jacobi windows, at equal numbers of tokens per round.

  python -m experiments.topologies

Measures counts only; for wall-clock times see `cspd-compare`. Result: in runs/topologies,
step compression and one-token rounds of every window and decoder (rows.csv, report.json).
"""

import dataclasses

from cspd_jax.cli import groups
from cspd_jax.core import fields

COUPLINGS = (
    'jacobi(coupling=redraw)+exact', 'jacobi(coupling=maximal)+exact',
    'jacobi(coupling=noise)+exact', 'jacobi(coupling=noise)+match')
FRESH = tuple(
    f'jacobi(coupling={coupling}, fresh={fresh})+{verifier}'
    for fresh in ('repeat-left', 'repeat-above', 'resample-left', 'resample-above')
    for coupling, verifier in (('maximal', 'exact'), ('noise', 'match')))
# Trees larger than a window are left out.
TREES = tuple(
    f'{decoder}(tree={tree})'
    for decoder in ('sjd_pac', 'seed_exact')
    for tree in ('paths(2, 3)', 'paths(3, 3)', 'paths(4, 3)', 'caterpillar(2, 3)',
                 'caterpillar(4, 1)', 'caterpillar(4, 3)', 'kary(2, 3)', 'kary(2, 4)',
                 'kary(3, 3)', 'kary(4, 3)'))


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    loading: the model, and how it is loaded.
    parts: networks that replace those of the model.
    decoder: specifications of decoders that do not set the window.
    window: tokens per forward pass; every decoder runs with each of them.
    metrics: names of the metrics.
    images: the images, the same for every decoder.
    sampling: sampling options.
    batch_size: images decoded together.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading()
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = COUPLINGS + FRESH + TREES
  window: tuple[int, ...] = (16, 64)
  metrics: tuple[str, ...] = ('step_compression', 'one_token_rounds')
  images: groups.Images = groups.Images(num_images=16)
  sampling: groups.Sampling = groups.Sampling()
  batch_size: int = 16
  workdir: str = 'runs/topologies'

  def __post_init__(self):
    fields.check(self)


def get_config() -> Config:
  """Returns the configuration of `experiments.topologies`."""
  return Config()
