"""Makes images from prompts, by the best decoder that a model has for the machine.

    cspd-generate --model=demo --prompt=cat --prompt=rocket --output=runs/cats
    cspd-generate --model=checkpoints/c2i_xl_384 --prompts=prompts.txt --batch_size=8 \\
        --decoder='mc_sjd(window=32)' --guidance_scale=4 --output=runs/xl

Into --output go one PNG per image, with its prompt, seed, decoder, sampling options and versions
inside, and report.json. A stopped command goes on when it is repeated. Anything wrong with the
input ends with one message and exit code 2, before anything is compiled.
"""

import argparse
import functools
import io
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from absl import logging
from PIL import Image

import cspd_jax
from cspd_jax import sharding
from cspd_jax.checkpoints import files, paths
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.core import exits, progress
from cspd_jax.core.fields import int64
from cspd_jax.decoding.warp import Warp
from cspd_jax.generation.gallery import Gallery

# Sampling options of both engines.
_SAMPLING = tuple(dict.fromkeys((*Warp._fields, *Sampling._fields)))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command.

  Args:
    argv: its arguments; None takes those of the process.

  Returns:
    The exit code: 0, 2 after a message about the input, or 130 if it was interrupted.
  """
  logging.use_absl_handler()
  logging.set_verbosity(logging.WARNING)  # Loading a model logs a page.
  return exits.code_of(lambda: _generate(_parser().parse_args(argv)))


def _generate(arguments: argparse.Namespace) -> None:
  """Generates and saves what the command line asks for."""
  if arguments.prompt and arguments.prompts:
    raise ValueError(f'prompt is {arguments.prompt} and prompts is {arguments.prompts!r}; give '
                     'only one of them.')
  output = paths.folder('output', arguments.output)
  watch = None
  if arguments.stream is not None:
    if arguments.mesh:
      raise ValueError(f'stream is {arguments.stream!r} and mesh is {arguments.mesh!r}; images of '
                       'several devices cannot be watched, so leave one of them out.')
    watch = functools.partial(_show, paths.file('stream', arguments.stream))
  grid, mesh = (_pair(name, getattr(arguments, name)) for name in ('grid', 'mesh'))
  model = cspd_jax.load(arguments.model, dtype=arguments.dtype, grid=grid,
                        sharding=mesh and sharding.make_mesh(*mesh))
  prompts = pathlib.Path(arguments.prompts) if arguments.prompts else arguments.prompt
  sampling = {name: getattr(arguments, name) for name in model.engine.options._fields}
  if unknown := [name for name in _SAMPLING if name not in sampling
                 and getattr(arguments, name) is not None]:
    raise ValueError(f'{unknown[0]} is no sampling option of model {model.name!r}; options are: '
                     f'{", ".join(sampling)}.')
  gallery = Gallery(
      model, prompts, output, seed=arguments.seed if len(arguments.seed) > 1
      else arguments.seed[0], decoder=arguments.decoder, batch_size=arguments.batch_size,
      prefix=arguments.prefix, rows=arguments.rows, npz=arguments.npz,
      overwrite=arguments.overwrite, **sampling)
  print(gallery.headline, flush=True)
  with progress.bar('generating') as show:
    gallery.generate(vars(arguments), show, watch)
  print(f'Images and report.json are in {gallery.folder}.')


def _show(path: pathlib.Path, images: np.ndarray) -> None:
  """Writes images `[n, H, W, 3]` side by side, in place of the picture before."""
  picture = io.BytesIO()
  Image.fromarray(np.concatenate(list(images), axis=1)).save(picture, 'png')
  files.write(path, picture.getvalue())


def _pair(name: str, text: str | None) -> tuple[int, int] | None:
  """The two numbers of a text such as '2x4'.

  Raises:
    ValueError: for another text.
  """
  if text is None:
    return None
  found = re.fullmatch(r'(\d{1,6})x(\d{1,6})', text)
  if not found:
    raise ValueError(f'{name} is {text!r}; it must be two numbers, such as 2x4.')
  return int(found[1]), int(found[2])


class _Parser(argparse.ArgumentParser):
  """A parser whose mistakes are one sentence."""

  def error(self, message: str) -> NoReturn:
    raise ValueError(f'{message}; see --help.')


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(prog='cspd-generate', description=__doc__, allow_abbrev=False,
                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--model', default='demo', help='A folder that cspd-convert wrote, or one of '
                      f'{", ".join(cspd_jax.shipped())}. Default: demo.')
  parser.add_argument('--prompt', action='append', help='What an image shows; may be repeated. '
                      "Default: the model's own list.")
  parser.add_argument('--prompts', help='A file with one prompt per line.')
  parser.add_argument('--seed', type=int64, nargs='+', default=[0], help='A whole number, under '
                      'which the images are numbered, or one per image. Default: 0.')
  parser.add_argument('--decoder', help="A specification, such as 'mc_sjd(window=32)'. Default: "
                      "the model's best for this machine and --batch_size.")
  parser.add_argument('--prefix', help='An image whose first rows are kept; the rest is made. Of '
                      "another shape than the model's, its middle is taken.")
  parser.add_argument('--rows', type=int64,
                      help='Rows of tokens that are kept of it. Default: half of them.')
  parser.add_argument('--batch_size', type=int64, default=8,
                      help='Images decoded at once. Default: 8.')
  parser.add_argument('--dtype', choices=['float32', 'bfloat16'],
                      help="Of the parameters. Default: the model's.")
  parser.add_argument('--grid', help='Rows and columns of tokens, such as 48x32, of a model that '
                      "makes images of several sizes. Default: the model's.")
  parser.add_argument('--mesh', help='Several devices, such as 2x4: two groups that make images of '
                      'their own, each of four devices that the model is divided over. Default: '
                      'one device.')
  for name in _SAMPLING:
    kind = int64 if isinstance(getattr(Warp(), name, None), int) else float
    parser.add_argument(f'--{name}', type=kind, help="Sampling option. Default: the model's.")
  parser.add_argument('--output', default='runs/generate', help='Folder of the images. Default: '
                      'runs/generate.')
  parser.add_argument('--stream', help='A picture of the images that are being made, written anew '
                      'every few rounds, with what is committed so far.')
  parser.add_argument('--npz', action='store_true', help='Also writes images.npz, all images as '
                      'one array for tools that measure the FID.')
  parser.add_argument('--overwrite', action='store_true', help='Replaces images of an earlier '
                      'command.')
  return parser


if __name__ == '__main__':
  sys.exit(main())
