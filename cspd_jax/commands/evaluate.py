"""Computes FID, sFID, inception score, precision, recall, CLIP scores and `asked` of images.

  cspd-evaluate --images=runs/generate --reference=photographs --inception=checkpoints/inception
  cspd-evaluate --images=samples.npz --reference=VIRTUAL_imagenet256_labeled.npz \\
      --inception=checkpoints/inception
  cspd-evaluate --images=runs/words --clip=checkpoints/clip --tokenizer=tokenizer.json
  cspd-evaluate --images=runs/scenes --asked
  cspd-evaluate --images=runs/words --layout=geneval --prompts=evaluation_metadata.jsonl \\
      --output=runs/geneval

Images are in a folder, or the array arr_0 of an .npz file; a reference may also be published
statistics (mu, sigma). Fewer images raise a FID, so compare only figures of equally many images and
of the same evaluator. Writes to --output the scores (report.json) and the features of the images
(features.npz), which are accepted in place of the images. A stopped command resumes when it is
repeated.

CLIP scores and `asked`, the share of scenes of emoji that show what their captions ask for, require
captions: --images is a folder of cspd-generate, or one that --layout=coco wrote.

--layout computes no scores: it arranges the images of cspd-generate as published evaluators read
them, in the folder --output; files that are in the way are named and stay.
"""

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any, Literal

import jax

from cspd_jax import cli, metrics
from cspd_jax.core import fields, progress
from cspd_jax.files import output, paths
from cspd_jax.files.run_folder import Report
from cspd_jax.metrics import clip as clip_lib, evaluation, layouts, scenes

_FEATURES = 'features.npz'
_SHOWN = 5  # Names that a note of what is left out lists.
# How images are written by layout, and how its prompts are read.
_LAYOUTS: dict[str, tuple[Callable, Callable | None]] = {
    'adm': (layouts.write_adm, None), 'coco': (layouts.write_coco, None),
    'geneval': (layouts.write_geneval, layouts.geneval_lines),
    'dpg': (layouts.write_dpg, layouts.dpg_lines)}


@dataclasses.dataclass(frozen=True)
class Config:
  """The images to evaluate.

  Attributes:
    images: a folder of images of one size, an .npz file with an array arr_0, or features.npz of an
      earlier evaluation.
    reference: the images to compare with, as `images`, or an .npz file with mu and sigma.
    inception: folder of the converted Inception network.
    evaluator: how images are resized, and the splits of the inception score: as in ADM's evaluator,
      torch-fidelity or pytorch-fid, which has the FID only. None is adm.
    clip: folder of the converted CLIP network, for CLIP scores. These need no reference; with one
      all scores are computed.
    tokenizer: tokenizer.json of the CLIP network.
    asked: whether to score what scenes of emoji show; this needs neither networks nor a reference.
      Images of other models are refused.
    batch_size: the most images per pass of a network.
    layout: arranges the images for another evaluator: adm for one array, geneval, dpg, or coco for
      a folder with captions.
    prompts: for the layout geneval, its evaluation_metadata.jsonl; for dpg, its folder of prompts.
    resize: for a layout, pixels per side, at most 4096; None leaves the images as they are.
    output: folder of the results; None uses runs/evaluate, or runs/ and the name of the layout.
  """

  images: str | None = None
  reference: str | None = None
  inception: str | None = None
  evaluator: Literal['adm', 'torch_fidelity', 'pytorch_fid'] | None = None
  clip: str | None = None
  tokenizer: str | None = None
  asked: bool = False
  batch_size: int = 32
  layout: Literal['adm', 'geneval', 'dpg', 'coco'] | None = None
  prompts: str | None = None
  resize: int | None = None
  output: str | None = None

  def __post_init__(self):
    fields.check(self, resize=(1, 4096))


def _compared(config: Config) -> tuple[evaluation.InceptionEvaluator | None, dict[str,
    evaluation.Source]]:
  """Opens the network and both sets of images by argument; none if their captions suffice."""
  if ((config.clip is not None or config.asked) and config.reference is None
      and config.inception is None):
    if config.evaluator is not None:
      raise ValueError(f'evaluator is {config.evaluator!r}, and reference is None; give both, or '
                       'leave evaluator out.')
    return None, {}
  fields.require(config.reference is not None, 'reference', config.reference,
                 'a folder of images or an .npz file')
  places = dict(images=config.images, reference=config.reference)
  network = evaluation.load(config.inception, config.evaluator or 'adm')
  sources = {name: evaluation.opened(name, str(path), network, config.batch_size)
             for name, path in places.items()}
  fields.require(sources['images'].images is not None or sources['images'].features is not None,
                 'images', config.images, 'images, or a folder of them: this holds statistics only')
  evaluation.check_counts(sources['images'], sources['reference'], network)
  for name, source in sources.items():
    if names := source.left_out:
      more = f' and {len(names) - _SHOWN} more' if len(names) > _SHOWN else ''
      progress.note(f'{name} is {places[name]!r}; what it holds besides is left out: '
                    f'{", ".join(map(repr, names[:_SHOWN]))}{more}')
  return network, sources


def _captioned(config: Config) -> tuple[clip_lib.CLIP | None, list[layouts.StoredImages]]:
  """Opens the CLIP network and the images with captions, as far as a score needs them."""
  if config.clip is None and config.tokenizer is not None:
    raise ValueError(f'tokenizer is {config.tokenizer!r}, and clip is None; give both or none.')
  if config.clip is None and not config.asked:
    return None, []
  images = (scenes.opened if config.asked else layouts.captioned)(str(config.images))
  if config.clip is None:
    return None, images
  network = clip_lib.load(config.clip, config.tokenizer)
  clip_lib.check_batch(config.batch_size, len(images), network)
  return network, images


def _arrange(config: Config) -> None:
  for name in ('reference', 'inception', 'evaluator', 'clip', 'tokenizer', 'asked', 'batch_size'):
    if (value := getattr(config, name)) != getattr(Config, name):
      raise ValueError(f'{name} is {value!r} and layout is {config.layout!r}, which computes no '
                       'scores; leave one of them out.')
  if (config.layout in ('geneval', 'dpg')) != (config.prompts is not None):
    raise ValueError(f'prompts is {config.prompts!r} and layout is {config.layout!r}; ' + (
        'give evaluation_metadata.jsonl of GenEval.' if config.layout == 'geneval' else
        'give the folder dpg_bench/prompts of ELLA.' if config.layout == 'dpg' else
        'leave prompts out.'))
  images = layouts.generated(str(config.images))
  folder = paths.folder('output', config.output or f'runs/{config.layout}')
  write, lines = _LAYOUTS[str(config.layout)]
  divided: Any = images if lines is None else layouts.groups(images, lines(str(config.prompts)))
  names = layouts.names(str(config.layout), divided)
  # A repeated command finds all of them, and its files are compared with those.
  taken = [name for name in names if os.path.lexists(folder / name)]
  try:
    with output.filling(folder, {}, names=taken if len(taken) < len(names) else ()) as new:
      if config.resize is None:
        paths.check_space(new, sum(image.path.stat().st_size for image in images))
      write(new, divided, config.resize)
  except KeyboardInterrupt as stop:
    raise KeyboardInterrupt('nothing is left; the same command starts again') from stop
  print(f'{len(images)} image{"s"[:len(images) != 1]} in {folder}.')


@cli.command(Config, kept='finished parts are kept')
def main(config: Config) -> None:
  fields.require(config.images is not None, 'images', config.images, 'a folder of images, such as '
                 'one of cspd-generate, or an .npz file of images')
  if config.layout is not None:
    _arrange(config)
    return
  for name in ('prompts', 'resize'):
    if (value := getattr(config, name)) is not None:
      raise ValueError(f'{name} is {value!r}, and layout is None; give a layout, or leave {name} '
                       'out.')
  _evaluate(config)


def _evaluate(config: Config) -> None:
  clip, images = _captioned(config)
  network, sources = _compared(config)
  networks = dict(network=network and network.digest, evaluator=network and network.evaluator,
                  clip=clip and clip.digest)
  report = Report(
      config.output or 'runs/evaluate', [_FEATURES], program='cspd-evaluate', run=networks)
  print(f'scores of {config.images} on {jax.devices()[0].device_kind}', flush=True)
  rows: list[dict[str, Any]] = []
  content: dict[str, Any] = dict(settings=dataclasses.asdict(config))
  if network is not None:
    sets = {}
    for name, source in sources.items():
      with progress.bar(name) as show:
        sets[name] = evaluation.scored(source, network, config.batch_size, show, report.keep)
    samples = sets['images']
    rows += [dict(score=name, value=value) for name, value in evaluation.scores(
        samples, sets['reference'], network.evaluator).items()]
    content['warnings'] = evaluation.warnings(samples, sets['reference'], network.evaluator)
    if samples.features is not None:
      evaluation.save(report.path(_FEATURES), samples.features, network)
    content |= dict(num_images=samples.num_images, network=network.digest)
  if images:
    values: dict[str, metrics.Value] = {}
    if clip is not None:
      with progress.bar('captions') as show:
        values |= clip_lib.scores(images, clip, config.batch_size, show, report.keep)
      content |= dict(clip=clip.digest)
    if config.asked:
      with progress.bar('asked') as show:
        values |= scenes.scores(images, config.batch_size, show)
    for name, value in values.items():
      numbers = metrics.entries(dict(value=value))  # The error of one image is None.
      rows.append(dict(score=name, value=numbers['value'], error=numbers['value_error']))
    content |= dict(num_images=len(images))
  report.write(rows=rows, **content)
  meanings = scenes.MEANINGS if config.asked else {}
  for row in rows:
    error = '' if row.get('error') is None else f' +- {row["error"]:.4f}'
    meaning = f'  ({meanings[row["score"]]})' if row['score'] in meanings else ''
    print(f'{row["score"]}: {row["value"]:.4f}{error}{meaning}')
  for warning in content.get('warnings', ()):
    progress.note(f'warning: {warning}.')
  names = f'report.json and {_FEATURES} are' if network is not None else 'report.json is'
  print(f'{names} in {report.folder}.')


if __name__ == '__main__':
  sys.exit(main())
