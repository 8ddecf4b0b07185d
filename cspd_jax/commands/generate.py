"""Generates images from prompts, by the model's best decoder for the machine.

  cspd-generate --prompt=cat --prompt=rocket --seed=7
  cspd-generate --model=checkpoints/c2i_xl_384 --prompts=prompts.txt --batch_size=32 \\
      --decoder='mc_sjd(window=32)' --guidance_scale=4 --output=runs/xl
  cspd-generate --num_images=50000 --output=runs/fid --process=0/4
  cspd-generate --num_images=50000 --inception=checkpoints/inception --output=runs/fid
  cspd-generate --config=mine.py

Writes one PNG per image to --output, with its prompt, seed, decoder, sampling options and versions
inside, and report.json; of models whose pixels another program draws, a file of tokens for it. A
stopped command resumes when it is repeated. Several processes, on one machine or on several that
share a disk, divide the images by their numbers, and the last one to end completes the folder. Any
of them may be killed and started again, also as another number of processes. Invalid input ends
with one message and exit code 2, before anything compiles. cspd-evaluate measures the images, or
arranges them for other tools.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import cspd_jax
from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import compilations, fields, progress
from cspd_jax.files import atomic, paths
from cspd_jax.generation import gallery as gallery_lib, images as images_lib, results, stored_run
from cspd_jax.generation.gallery import Gallery
from cspd_jax.metrics import evaluation

# Images of the model's own prompts, and those decoded together, if nothing else is specified.
_IMAGES, _MOST_AT_ONCE = 8, 8


@dataclasses.dataclass(frozen=True)
class Config:
  """The images to generate.

  Attributes:
    decoder: a specification such as seed_exact(window=16); None uses the model's best for this
      machine and batch size. Of a model with a prior it is for both, or one for each, such as
      'mc_sjd(window=16) | mc_sjd(window=64)'.
    prefix: an image file whose first rows are kept, while the rest is generated. It is turned as
      its EXIF orientation says, put on white where it is transparent, and scaled and cropped to its
      middle.
    rows: rows of tokens that are kept of the prefix; None keeps half of them.
    batch_size: images decoded together; None for as many as fit in memory, at most 8.
    inception: folder of the converted Inception network; also writes features.npz, which
      cspd-evaluate accepts in place of the images, with its default evaluator.
    stream: a PNG file that shows the images of the current batch so far, rewritten every few
      rounds.
    overwrite: whether to replace images of an earlier run in the folder.
    process: which of how many processes this is, from 0, such as 0/4, if several generate images
      into one folder, with commands that differ in this alone.
    output: folder of the results.
  """

  loading: groups.LoadFlags = groups.LoadFlags()
  images: groups.Images = groups.Images()
  decoder: str | None = None
  sampling: groups.SamplingFlags = groups.SamplingFlags()
  prior: groups.SamplingFlags = dataclasses.field(
      default=groups.SamplingFlags(), metadata={'nested': True})
  prefix: str | None = None
  rows: int | None = None
  batch_size: int | None = None
  inception: str | None = None
  stream: str | None = None
  overwrite: bool = False
  process: str = '0/1'
  output: str = 'runs/generate'

  def __post_init__(self):
    fields.check(self)


@cli.command(Config, kept='finished images are kept')
def main(config: Config) -> None:
  if config.stream is not None and config.loading.mesh is not None:
    raise ValueError(f'stream is {config.stream!r} and mesh is {config.loading.mesh!r}; images of '
                     'several devices cannot be streamed, so leave one of them out.')
  process = inputs.pair('process', config.process, '/') or (0, 1)
  model = inputs.model(config.loading)
  prompts, seed = inputs.images(config.images, model, _IMAGES)
  if model.handover is not None:
    for name in ('inception', 'stream'):
      if (value := getattr(config, name)) is not None:
        raise ValueError(f'{name} is {value!r}, but another program draws the pixels of model '
                         f'{model.name!r}; leave it out.')
  features = None
  if config.inception is not None:
    features = evaluation.extractor(evaluation.load(config.inception, 'adm'))
  model = images_lib.with_prefix(model, config.prefix, config.rows)
  options = inputs.overrides(config.sampling)
  if prior := inputs.overrides(config.prior):
    options |= dict(prior=prior)
  prepared = functools.partial(
      model.images, prompts, options, seed=seed, decoder=config.decoder, most=_MOST_AT_ONCE)
  stored = stored_run.batch_size_of(config.output, not config.overwrite)
  images = prepared(batch_size=config.batch_size or stored)
  if config.overwrite and config.batch_size is None and stored is not None and (
      not gallery_lib.resumes(images, config.output, features)):
    images = prepared(batch_size=None)  # The run that was stopped is another one.
  gallery = Gallery(images, config.output, features=features, overwrite=config.overwrite,
                    process=process)
  if gallery.is_complete:
    print(f'The images in {gallery.folder} are complete; pass --overwrite to generate them again.')
    return
  watch = None
  if config.stream is not None:
    place = paths.file('stream', config.stream)
    # The images of a batch next to each other, in place of the previous picture.
    watch = lambda pixels: atomic.write(
        place, results.encoded(np.concatenate(list(pixels), axis=1)))
  print(f'{gallery.headline}\n{gallery.estimate}', flush=True)
  for line in images.unread:
    progress.note(f'warning: {line}')
  # A decoder and the image tokenizer; streamed images have a program for the prefill as well.
  with (compilations.reported(2 if watch is None else 3) as compiled,
        progress.bar('generating') as show):
    is_complete = gallery.generate(dataclasses.asdict(config), show, watch)
  gained = gallery.gained(compiled.seconds)
  if not is_complete:
    print(f'The images of process {process[0]} are complete; the last process to end '
          f'writes report.json.\n{gained}'.rstrip())
    return
  files = 'Images' if model.handover is None else 'Tokens'
  print(f'{files} and report.json are in {gallery.folder}.\n{gained}'.rstrip())
  if model.handover is not None:
    print(f'Pixels: {model.handover.advice}.')
  print(_next_step(config, model, prompts))


def _next_step(config: Config, model: cspd_jax.Model, prompts: list[Any]) -> str:
  """The command that finds the fastest decoder, or that compares some if it cannot store one."""
  tuned = isinstance(model.defaults.get('decoder'), Mapping)
  mesh = config.loading.mesh
  fixed = config.loading.model in cspd_jax.shipped() or config.loading.parts or config.loading.grid
  # Both measure on one group of devices.
  command = lambda program: inputs.next_command(
      program, config.loading, model, prompts, config.sampling,
      mesh=mesh and f'1x{mesh.split("x")[1]}')
  if tuned or fixed or model.table.tokens != 'discrete':
    return f'Next: {command("cspd-compare")}'
  return f'Next: {command("cspd-tune")} stores the fastest decoder for this machine.'


if __name__ == '__main__':
  sys.exit(main())
