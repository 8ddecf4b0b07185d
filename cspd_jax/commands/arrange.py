"""Arranges the images of cspd-generate as published evaluators read them.

  cspd-arrange --images=runs/fid --layout=adm --output=runs/adm --resize=256
  cspd-arrange --images=runs/words --layout=geneval --prompts=evaluation_metadata.jsonl \\
      --output=runs/geneval
  cspd-arrange --images=runs/words --layout=dpg --prompts=dpg_bench/prompts --output=runs/dpg
  cspd-arrange --images=runs/words --layout=coco --output=runs/coco

The folder appears as a whole; an interrupted command leaves nothing there, and can be repeated.
"""

import dataclasses
import functools
import sys
from typing import Literal

from cspd_jax import cli
from cspd_jax.core import fields
from cspd_jax.files import folders, paths
from cspd_jax.metrics import layouts

# Pixels per side of resized images.
_MOST_SIDE = 4096


@dataclasses.dataclass(frozen=True)
class Config:
  """The images and their layout.

  Attributes:
    images: a finished folder of cspd-generate.
    layout: adm for one array, geneval, dpg, or coco for a folder with captions.
    prompts: for geneval, its evaluation_metadata.jsonl; for dpg, its folder of prompts.
    resize: pixels per side, at most 4096; None leaves the images as they are.
    output: the new folder.
  """

  images: str | None = None
  layout: Literal['adm', 'geneval', 'dpg', 'coco'] = 'adm'
  prompts: str | None = None
  resize: int | None = None
  output: str = 'runs/arrange'

  def __post_init__(self):
    fields.check(self, resize=(1, _MOST_SIDE))


@cli.command(Config)
def main(config: Config) -> None:
  if config.images is None:
    raise ValueError('images is None; it must be a folder of cspd-generate.')
  needs_prompts = config.layout in ('geneval', 'dpg')
  if needs_prompts != (config.prompts is not None):
    raise ValueError(f'prompts is {config.prompts!r} and layout is {config.layout!r}; ' + (
        'give evaluation_metadata.jsonl of GenEval.' if config.layout == 'geneval' else
        'give the folder dpg_bench/prompts of ELLA.' if config.layout == 'dpg' else
        'leave prompts out.'))
  images, read = layouts.generated(config.images), layouts.reader(config.resize)
  folder = paths.folder('output', config.output)
  folders.check(folder, layouts.listed)
  if config.layout == 'adm':
    write = functools.partial(layouts.write_adm, images=images, read=read)
  elif config.layout == 'coco':
    write = functools.partial(layouts.write_coco, images=images, read=read)
  elif config.layout == 'geneval':
    divided = layouts.groups(images, layouts.geneval_lines(str(config.prompts)))
    write = functools.partial(layouts.write_geneval, divided=divided, read=read)
  else:
    divided = layouts.groups(images, layouts.dpg_lines(str(config.prompts)))
    layouts.check_grids(divided)
    write = functools.partial(layouts.write_dpg, divided=divided, read=read)
  with folders.replacing(folder, layouts.listed) as new:
    if config.resize is None:
      paths.check_space(new, sum(image.path.stat().st_size for image in images))
    write(new)
  print(f'{len(images)} images are in {folder}.')


if __name__ == '__main__':
  sys.exit(main())
