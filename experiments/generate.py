"""Generates images with one decoder, by default the best one for the machine.

  python -m experiments.generate
  python -m experiments.generate --prompt=cat,rocket --num_images=8 --seed=7
  python -m experiments.generate --prompts=prompts.txt --batch_size=32 --workdir=runs/prompts
  python -m experiments.generate --decoder='seed_exact(window=16)' --seeds=1,2,3,4
  python -m experiments.generate --num_images=50000 --npz --workdir=runs/fid
  python -m experiments.generate --config=configs/generate/mar_demo.py

Into --workdir go one PNG per image in its own size, with its prompt, seed, decoder, sampling
options and versions inside, and report.json; with --npz also all images as one array for tools that
measure the FID. A stopped run goes on when the command is repeated. `experiments.compare` shows
what the decoders cost.
"""

import dataclasses
import sys

from configs.generate import demo
from cspd_jax.core import progress
from cspd_jax.generation.gallery import Gallery
from experiments import cli
from experiments.cli import inputs


@cli.program(config='configs/generate/demo.py', expected=demo.Config)
def main(config: demo.Config) -> None:
  model = inputs.model(config)
  prompts, seed = inputs.images(config.images, model)
  gallery = Gallery(
      model, prompts, config.workdir, seed=seed, decoder=config.decoder,
      batch_size=config.batch_size, npz=config.npz, overwrite=config.overwrite,
      **inputs.given(config.sampling))
  print(gallery.headline, flush=True)
  with progress.bar('generating') as show:
    gallery.generate(dataclasses.asdict(config), show)
  print(f'Images and report.json are in {gallery.folder}.')


if __name__ == '__main__':
  sys.exit(main())
