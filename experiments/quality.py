"""Measures how often images of scenes of emoji show what was asked for, and what they show instead.

  python -m experiments.quality
  python -m experiments.quality --scale=1,2

The prompts are those of cspd_jax/assets/scenes/held_out.txt: complete requests, each with a pair of
a thing and a colour, a ground or another thing that does not occur in the training split. Writes
the scores of every guidance scale, and the things that were taken for others at the last one
(report.json), its first images (images.png) and its worst (failures.png).
"""

import collections
import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np

from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields
from cspd_jax.files.run_folder import Report
from cspd_jax.generation.pixels import to_bytes
from cspd_jax.measure.bench import Bench
from cspd_jax.measure.tables import Table
from cspd_jax.metrics import base, scenes
from cspd_jax.plots import grid
from experiments import measured
from experiments.scenes import PROMPTS

_SHEET, _COLUMNS_OF_SHEET, _CONFUSIONS = 60, 10, 20
_KINDS = (*scenes.KINDS, 'all', 'asked')
_COLUMNS = {'guidance scale': '{guidance_scale:g}', **{
    kind: f'{{{kind}:.3f}} +- {{{kind}_error:.3f}}' for kind in _KINDS}}


@dataclasses.dataclass(frozen=True)
class Config(measured.ModelImages):
  """The images, whose prompts are captions of scenes.

  Attributes:
    decoder: specification of the decoder.
    scale: guidance scales, separated by commas; none uses that of the model.
  """

  loading: groups.LoadFlags = groups.LoadFlags()
  decoder: str = 'vanilla'
  images: groups.Images = groups.Images(prompts=PROMPTS, num_images=1000)
  batch_size: int = 50
  scale: tuple[float, ...] = ()
  workdir: str = 'runs/quality'

  def __post_init__(self):
    fields.check(self, scale=fields.FINITE)


def prepare(config: Config) -> tuple[Bench, list[Any]]:
  """Checks all options; returns the images, and the sampling options of every guidance scale."""
  model = inputs.model(config.loading)
  prompts, _ = inputs.images(config.images, model)
  bench = config.bench(model, captions=scenes.captions(model, prompts))
  options = [model.sampling(guidance_scale=scale) for scale in config.scale] or [model.sampling()]
  for sampling in options:
    bench.check(config.decoder, sampling)
  return bench, options


def confusions(images: np.ndarray, captions: list[str]) -> list[dict[str, Any]]:
  """Counts the things that images `[N, H, W, 3]` uint8 show in place of the requested one.

  The most frequent are first; captions that ask for one thing count.
  """
  wanted = [scenes.request_of(caption, scenes.templates()) for caption in captions]
  shown = scenes.see([scenes.scene(image) for image in images], wanted, scenes.templates())
  pairs = collections.Counter(
      (request.items[0].name, seen[0].name) for request, seen in zip(wanted, shown, strict=True)
      if len(seen) == 1)
  return [dict(requested=one, shown=other, images=count)
          for (one, other), count in pairs.most_common() if one != other][:_CONFUSIONS]


@cli.command(Config)
def main(config: Config) -> None:
  bench, options = prepare(config)
  captions, model = bench.captions, bench.model
  report = Report(config.workdir, ['images.png', 'failures.png'])
  scores = lambda sampling: scenes.sample_scores(bench.sample(config.decoder, sampling), model)
  rows = measured.listed(_COLUMNS, (
      dict(guidance_scale=float(sampling.guidance_scale), **base.entries(scores(sampling)))
      for sampling in options))
  sample = bench.sample(config.decoder, options[-1])
  images = sample.images(model)
  worst = np.argsort(scenes.image_shares(sample, model), kind='stable')[:_SHEET]
  for name, chosen in (('images', np.arange(len(images))[:_SHEET]), ('failures', worst)):
    grid.save_grid(report.path(f'{name}.png'), images[chosen], columns=_COLUMNS_OF_SHEET,
                   captions=[captions[i] for i in chosen])
  title = f'{pathlib.Path(config.loading.model).name}, {len(captions)} images'
  measured.write(report, config, [Table(title, _COLUMNS, rows)], num_images=len(captions),
                 confused=confusions(to_bytes(images), captions))


if __name__ == '__main__':
  sys.exit(main())
