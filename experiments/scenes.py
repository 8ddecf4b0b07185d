"""Draws scenes of emoji with their captions, and writes the templates of the score `asked`.

  python -m experiments.scenes --num_scenes=1000

Writes train.png and held_out.png, the files of cspd_jax/assets/scenes, templates.npz and
held_out.txt (prompts that ask for every part of a held-out scene), and train.txt (captions of
training scenes, to sample images for drafters). With --num_tokenised=19200, tokens.npz and
tokens.txt are the tokens of `emoji` and the captions of further training scenes, which drafters can
learn from. configs/held_out.txt asks for the first 64 of the held-out scenes, and leaves out random
parts as captions for training do. Scores as many scenes of both splits against their complete
captions: the largest value that the score can have (report.json). docs/embedded.md has the commands
that fetch the sources.
"""

import dataclasses
import sys

import numpy as np

import cspd_jax
from cspd_jax import cli, metrics
from cspd_jax.core import fields
from cspd_jax.files import atomic
from cspd_jax.files.run_folder import Report
from cspd_jax.metrics import requests, scenes as score
from cspd_jax.plots import grid
from experiments.demo_models import emoji, stages

PROMPTS = 'cspd_jax/assets/scenes/held_out.txt'  # The prompts of measurements, in a clone.
_SHEET = 60


@dataclasses.dataclass(frozen=True)
class Config(emoji.Sources):
  """The sources and the number of scenes.

  Attributes:
    num_scenes: scored scenes per split.
    num_tokenised: training scenes to tokenise.
    seed: seed of the scenes.
    workdir: folder of the results.
  """

  num_scenes: int = 1000
  num_tokenised: int = 0
  seed: int = 0
  workdir: str = 'runs/scenes'

  def __post_init__(self):
    fields.check(self, num_scenes=(1, fields.MOST), num_tokenised=(0, fields.MOST),
                 seed=fields.SEEDS)


@cli.command(Config)
def main(config: Config) -> None:
  sprites = config.sprites()
  report = Report(config.workdir, [
      'templates.npz', 'tokens.npz', 'tokens.txt',
      *(f'{split}.{kind}' for split in emoji.SPLITS for kind in ('png', 'txt'))])
  templates = emoji.templates(sprites)
  atomic.write_arrays(report.path('templates.npz'), {
      'names': np.array(templates.names), 'pixels': templates.pixels})
  rows = []
  for split in emoji.SPLITS:
    scenes = emoji.scenes(sprites, config.seed, 0, split, config.num_scenes)
    grid.save_grid(report.path(f'{split}.png'), scenes.images[:_SHEET],
                   captions=scenes.captions[:_SHEET].tolist(), columns=10)
    captions = [requests.caption(request) for request in scenes.complete]
    shown = captions if split == 'held_out' else scenes.captions.tolist()
    atomic.write(report.path(f'{split}.txt'), '\n'.join([*shown, '']).encode())
    pixels = np.round(127.5 * (scenes.images + 1)).astype(np.uint8)
    values = score.asked(score.score(pixels, captions, templates), captions)
    rows.append(dict(split=split, **metrics.entries(values)))
    print(f'{split}: ' + ', '.join(f'{name} {value.mean:.3f}' for name, value in values.items()))
  if config.num_tokenised:
    _tokenise(config, sprites, report)
  report.write(settings=dataclasses.asdict(config), rows=rows)


def _tokenise(config: Config, sprites: emoji.Sprites, report: Report) -> None:
  """Writes the tokens of training scenes and their captions."""
  model = cspd_jax.load('emoji')
  tokens, captions = stages.encoded(
      lambda *batch: emoji.scenes(sprites, config.seed + 1, *batch)[:2], 'train',
      config.num_tokenised, lambda images: np.asarray(model.tokens(images), np.int16))
  atomic.write_arrays(report.path('tokens.npz'), {'tokens': tokens})
  atomic.write(report.path('tokens.txt'), '\n'.join([*captions, '']).encode())


if __name__ == '__main__':
  sys.exit(main())
