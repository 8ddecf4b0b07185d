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
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

import cspd_jax
from configs.generate import demo
from cspd_jax.core import files
from cspd_jax.evaluation import progress, report as report_lib, shards
from cspd_jax.families import generate as generate_lib, images as images_lib
from experiments import cli
from experiments.cli import inputs

_NPZ = 'images.npz'


@cli.program(config='configs/generate/demo.py', expected=demo.Config)
def main(config: demo.Config) -> None:
  inputs.at_least(config, 1, 'batch_size')
  model = inputs.model(config)
  prompts, seed = inputs.images(config.images, model)
  options = dict(decoder=config.decoder, **inputs.given(config.sampling))
  task = generate_lib.prepare(model, prompts, seed=seed, **options)
  names = [images_lib.file_name(i, caption, one[0])
           for i, (caption, one) in enumerate(zip(task.captions, task.seeds))]
  report = report_lib.Report(
      config.workdir, [*names, *[_NPZ] * config.npz], overwrite=config.overwrite,
      run=shards.settings(model, task.specification, task.condition, task.seeds,
                          config.batch_size, task.sampling))
  print(f'{len(names)} image{"s"[:len(names) != 1]} with {task.specification}; model {model.name}',
        flush=True)
  _generate(model, report, names, prompts, task.seeds, config.batch_size, options)
  if config.npz:
    _write_npz(report, names)
  report.write(
      settings=dataclasses.asdict(config), model=model.name, decoder=str(task.specification),
      guarantee=model.engine.guarantee(task.decoder),
      sampling=task.sampling._asdict(), rows=_rows(report, names, task))
  print(f'Images and report.json are in {report.folder}.')


def _generate(model: cspd_jax.Model, report: report_lib.Report, names: Sequence[str],
              prompts: Sequence[Any], seeds: Sequence[tuple[int, int]], batch_size: int,
              options: dict[str, Any]) -> None:
  """Generates the images that a stopped run has not left, batch by batch."""
  missing = [i for i, name in enumerate(names) if not report.has(name)]
  size, done = min(batch_size, len(names)), len(names) - len(missing)
  with progress.bar('generating') as show:
    show(done, len(names))
    for first in range(0, len(missing), size):
      batch = missing[first:first + size]
      # The last batch is filled up, because another size would be compiled anew.
      filled = batch + batch[-1:] * (size - len(batch))
      out = model.generate([prompts[i] for i in filled], seed=[seeds[i] for i in filled], **options)
      for row, i in enumerate(batch):
        files.write(report.path(names[i]), out.png(row))
      done += len(batch)
      show(done, len(names))


def _rows(report: report_lib.Report, names: Sequence[str],
          task: generate_lib.Task) -> list[dict[str, Any]]:
  """A row per image; rounds are in the files, which an earlier run may have left."""
  rows = []
  for name, caption, (seed, number) in zip(names, task.captions, task.seeds):
    with Image.open(report.path(name)) as image:
      rounds = int(image.text['rounds'])
    rows.append(dict(file=name, prompt=caption, seed=seed, number=number, rounds=rounds))
  return rows


def _write_npz(report: report_lib.Report, names: Sequence[str]) -> None:
  """Writes all images as one array."""
  images = None
  for i, name in enumerate(names):
    with Image.open(report.path(name)) as image:
      pixels = np.asarray(image)
    if images is None:
      images = np.zeros((len(names), *pixels.shape), np.uint8)
    images[i] = pixels
  np.savez(report.path(_NPZ), arr_0=images)


if __name__ == '__main__':
  sys.exit(main())
