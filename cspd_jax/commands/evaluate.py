"""Computes the FID, sFID, inception score, precision and recall of generated images.

  cspd-evaluate --images=runs/generate --reference=photographs --inception=checkpoints/inception
  cspd-evaluate --images=samples.npz --reference=VIRTUAL_imagenet256_labeled.npz \\
      --inception=checkpoints/inception
  cspd-evaluate --images=runs/generate --reference=coco --inception=checkpoints/inception \\
      --evaluator=pytorch_fid

Images are those of a folder, or the array arr_0 of an .npz file; a reference may also be published
statistics (mu, sigma). Published figures are those of 50,000 images, or of 5,000 for captions;
fewer images raise a FID, so compare only figures of equally many images and of the same evaluator.
Writes to --output the scores (report.json) and the features of the images (features.npz), which are
accepted in place of the images.
"""

import dataclasses
import sys
from typing import Literal

from cspd_jax import cli
from cspd_jax.core import fields, progress
from cspd_jax.generation.report import Report
from cspd_jax.measure import evaluation

_FEATURES = 'features.npz'


@dataclasses.dataclass(frozen=True)
class Config:
  """The images to evaluate.

  Attributes:
    images: a folder of images of one size, an .npz file with an array arr_0, or features.npz of an
      earlier evaluation.
    reference: the images to compare with, as `images`, or an .npz file with mu and sigma.
    inception: folder of the converted Inception network.
    evaluator: how images are resized, and the splits of the inception score: as in ADM's evaluator,
      torch-fidelity or pytorch-fid, which has the FID only.
    batch_size: images per pass of the network.
    output: folder of the results.
  """

  images: str | None = None
  reference: str | None = None
  inception: str | None = None
  evaluator: Literal['adm', 'torch_fidelity', 'pytorch_fid'] = 'adm'
  batch_size: int = 32
  output: str = 'runs/evaluate'

  def __post_init__(self):
    fields.check(self)


@cli.command(Config)
def main(config: Config) -> None:
  paths = dict(images=config.images, reference=config.reference)
  for name, path in paths.items():
    if path is None:
      raise ValueError(f'{name} is None; it must be a folder of images or an .npz file.')
  network = evaluation.network(config.inception, config.evaluator)
  sources = {name: evaluation.opened(name, str(path), network) for name, path in paths.items()}
  if sources['images'].images is None and sources['images'].features is None:
    raise ValueError(f'images is {config.images!r}, which holds statistics only; it must be a '
                     'folder of images or an .npz file of images.')
  report, sets = Report(config.output, [_FEATURES]), {}
  for name, source in sources.items():
    with progress.bar(name) as show:
      sets[name] = evaluation.scored(source, network, config.batch_size, show)
  samples, reference = sets['images'], sets['reference']
  scores = evaluation.scores(samples, reference, config.evaluator)
  if samples.features is not None:
    evaluation.save(report.path(_FEATURES), samples.features, network)
  rows = [dict(score=name, value=value) for name, value in scores.items()]
  report.write(settings=dataclasses.asdict(config), num_images=samples.num_images, rows=rows,
               network=network.digest)
  for name, value in scores.items():
    print(f'{name}: {value:.4f}')
  print(f'report.json and {_FEATURES} are in {report.folder}.')


if __name__ == '__main__':
  sys.exit(main())
