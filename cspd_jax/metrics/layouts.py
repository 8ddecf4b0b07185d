"""Generated images in the folders that published evaluators read.

  adm     samples.npz, one array `arr_0` (FID and more, of ADM's evaluator and torch-fidelity)
  geneval NUMBER/metadata.jsonl and NUMBER/samples/NUMBER.png (GenEval, arXiv:2310.11513)
  dpg     NAME.png, the four images of a prompt as 2 x 2 (DPG-Bench of ELLA, arXiv:2403.05135)
  coco    images and captions.json (folders for pytorch-fid, clean-fid and CLIP scores)
"""

import collections
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cspd_jax.files import atomic, paths, reading, run_folder
from cspd_jax.generation import prompts as prompts_lib
from cspd_jax.generation.results import encoded

_REMEDY = 'replace or remove it'
_GRID = 4
_CUBIC = -0.75  # PyTorch's cubic kernel.


class StoredImages(NamedTuple):
  """An image file of `cspd-generate`, and its prompt."""

  path: pathlib.Path
  prompt: str

  def pixels(self, size: int | None = None) -> np.ndarray:
    """Reads the image, `[H, W, 3]` uint8, resized to a side of `size`, if any; or ValueError."""
    values = np.asarray(reading.photograph(self.path, _REMEDY))
    return values if size is None else resized(values, size)


class Group(NamedTuple):
  """The images of a prompt of an evaluator, its name there and what is read with it."""

  name: str
  content: str
  images: list[StoredImages]


def _place(folder: str) -> pathlib.Path:
  place = paths.find('images', folder)
  if not place.is_dir():
    raise ValueError(f'images is {folder!r}, which is not a folder; give one of cspd-generate.')
  return place


def generated(folder: str) -> list[StoredImages]:
  """Returns the images of `cspd-generate` or `Generated.save` by number; ValueError without any."""
  place = _place(folder)
  source = place / 'report.json'
  if not source.exists() and (saved := _saved(place)):
    return saved
  rows = reading.json(source, 'generate images with cspd-generate first', 'images').get('rows')
  if not isinstance(rows, list) or not rows or not all(
      isinstance(row, dict) and {'file', 'prompt', 'number'} <= row.keys() for row in rows):
    raise ValueError(f'images is {folder!r}, whose report.json is not one of cspd-generate.')
  return [StoredImages(paths.inside(place, row['file'], source),
                       str(row['prompt'])) for row in rows]


def _saved(place: pathlib.Path) -> list[StoredImages]:
  """Returns the PNGs of `Generated.save` in a folder, with their prompts in their texts.

  There are none if the first has no such text, or an unfinished run of `cspd-generate` wrote them.
  If only others lack it, it raises ValueError.
  """
  files = sorted(place.glob('*.png'))
  if not files or run_folder.stored_run(place, finished=False):
    return []
  if 'prompt' not in reading.texts_of_picture(files[0], _REMEDY):
    return []
  prompts = [reading.texts_of_picture(path, _REMEDY, needed=('prompt',))['prompt']
             for path in files]
  return [StoredImages(path, str(prompt)) for path, prompt in zip(files, prompts)]


def captioned(folder: str) -> list[StoredImages]:
  """Returns images with captions, of `cspd-generate` or layout `coco`; ValueError for others."""
  place = _place(folder)
  source = place / 'captions.json'
  if not source.is_file():
    return generated(folder)
  rows = reading.json(source, 'arrange the images with cspd-evaluate --layout=coco', 'images', list)
  if not rows or not all(isinstance(row, dict) and {'file_name', 'caption'} <= row.keys()
                         for row in rows):
    raise ValueError(f'images is {folder!r}, whose captions.json is no list of objects with '
                     'file_name and caption.')
  return [StoredImages(paths.inside(place / 'images', row['file_name'], source),
                       str(row['caption']))
          for row in rows]


def painter(folder: str) -> tuple[str, list[str]] | None:
  """Returns the model of a folder of `cspd-generate` and its example prompts; None for others."""
  place = _place(folder)
  if (place / 'captions.json').is_file():
    return None
  if not (place / 'report.json').exists():
    return None  # The files of `Generated.save` do not name the prompts of their model.
  report = reading.json(place / 'report.json', 'generate images with cspd-generate first', 'images')
  if 'model' not in report or not isinstance(report.get('examples'), list):
    return None
  return str(report['model']), list(map(str, report['examples']))


def groups(images: Sequence[StoredImages], lines: Sequence[tuple[str, str, str]]) -> list[Group]:
  """Divides images among the prompts of an evaluator, lines of name, content and text.

  Images of a text that several have are divided in order. It raises ValueError unless every prompt
  has as many images as the others, and every image a prompt.
  """
  by_text: dict[str, list[StoredImages]] = collections.defaultdict(list)
  for image in images:
    by_text[image.prompt].append(image)
  counts = collections.Counter(text for *_, text in lines)
  if unused := by_text.keys() - counts.keys():
    raise ValueError(f'{len(unused)} prompts of the images are not among those of the evaluator, '
                     f'such as {min(unused)!r:.80}.')
  each = len(images) // len(lines)
  wrong = [text for text in counts if len(by_text[text]) != each * counts[text]]
  if wrong or not each:
    text = wrong[0] if wrong else next(iter(counts))
    raise ValueError(
        f'{len(wrong)} of {len(lines)} prompts do not have {max(each, 1)} images each, such as '
        f'{text!r:.80} with {len(by_text[text])}; generate as many images for every prompt, with '
        f'--num_images={max(each, 1) * len(lines)} and these prompts.')
  result = []
  for name, content, text in lines:
    result.append(Group(name, content, by_text[text][:each]))
    del by_text[text][:each]
  return result


def geneval_lines(path: str) -> list[tuple[str, str, str]]:
  """Reads GenEval's evaluation_metadata.jsonl; raises ValueError if a line has no prompt."""
  lines = prompts_lib.json_lines(pathlib.Path(path), 'give evaluation_metadata.jsonl of GenEval')
  return [(f'{number:05}', line + '\n', text) for number, (line, text) in enumerate(lines)]


def dpg_lines(path: str) -> list[tuple[str, str, str]]:
  """Reads DPG-Bench's folder of prompts, NAME.txt each; raises ValueError without any."""
  place = paths.find('prompts', path)
  texts = sorted(place.glob('*.txt')) if place.is_dir() else []
  if not texts:
    raise ValueError(f'prompts is {path!r}; it must be the folder dpg_bench/prompts of ELLA, with '
                     'a file NAME.txt for every prompt.')
  text = lambda file: reading.text(file, 'give the folder dpg_bench/prompts of ELLA').strip()
  return [(file.stem, '', text(file)) for file in texts]


def resized(pixels: np.ndarray, size: int) -> np.ndarray:
  """Resizes an image `[H, W, 3]` uint8 as PyTorch's bicubic `interpolate`, without smoothing.

  LlamaGen resizes its 384 pixels so before the FID of 256, from pixels that are not rounded yet.
  """
  values = pixels
  for axis in sorted((0, 1), key=lambda axis: -pixels.shape[axis]):  # The longer one first.
    places, weights = _cubic(pixels.shape[axis], size)
    values = sum(np.take(values, places[tap], axis) * np.expand_dims(weights[tap], (1 - axis, 2))
                 for tap in range(len(places)))
  return np.clip(np.round(values), 0, 255).astype(np.uint8)


def _cubic(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
  """Cubic interpolation from `count` pixels: the four of a new one and weights, `[4, size]`."""
  centers = (np.arange(size) + .5) * count / size - .5
  places = np.floor(centers).astype(int) + np.arange(-1, 3)[:, None]
  x = np.abs(centers - places)
  near = (_CUBIC + 2) * x**3 - (_CUBIC + 3) * x**2 + 1
  far = _CUBIC * (x**3 - 5 * x**2 + 8 * x - 4)
  return np.clip(places, 0, count - 1), np.where(x <= 1, near, far)


def write_adm(folder: pathlib.Path, images: Sequence[StoredImages], size: int | None) -> None:
  """Writes samples.npz; images are resized to `size`, here and below, unless it is None."""
  first = images[0].pixels(size)
  paths.check_space(folder, len(images) * first.size)
  atomic.write_stacked(folder / 'samples.npz', 'arr_0', len(images), (
      same_size(image, image.pixels(size), first) for image in images))


def write_geneval(folder: pathlib.Path, divided: Sequence[Group], size: int | None) -> None:
  """Writes a folder for every prompt."""
  for group in divided:
    samples = folder / group.name / 'samples'
    samples.mkdir(parents=True)
    (folder / group.name / 'metadata.jsonl').write_text(group.content, encoding='utf-8')
    for number, image in enumerate(group.images):
      atomic.write(samples / f'{number:04}.png', encoded(image.pixels(size)))


def write_dpg(folder: pathlib.Path, divided: Sequence[Group], size: int | None) -> None:
  """Writes a picture of 2 x 2 images for every prompt; ValueError unless each has four."""
  if (count := len(divided[0].images)) != _GRID:
    raise ValueError(f'every prompt has {count} images; a grid of DPG-Bench has {_GRID}. Generate '
                     f'{_GRID * len(divided)}.')
  for group in divided:
    first = group.images[0].pixels(size)
    height, width = first.shape[:2]
    if first.size * _GRID > 3 * reading.MOST_PIXELS:
      raise ValueError(f'{group.images[0].path} has {height}x{width} pixels; {_GRID} images '
                       f'together must have at most {reading.MOST_PIXELS}, so resize them.')
    grid = np.zeros((2 * height, 2 * width, 3), np.uint8)
    for number, image in enumerate(group.images):
      row, column = divmod(number, 2)
      grid[row * height:(row + 1) * height, column * width:(column + 1) * width] = same_size(
          image, image.pixels(size), first)
    atomic.write(folder / f'{group.name}.png', encoded(grid))


def same_size(image: StoredImages, pixels: np.ndarray, first: np.ndarray) -> np.ndarray:
  """Returns the pixels of an image; raises ValueError unless they have the shape of the first."""
  if pixels.shape != first.shape:
    raise ValueError(f'{image.path} has {pixels.shape[0]}x{pixels.shape[1]} pixels, the first '
                     f'image {first.shape[0]}x{first.shape[1]}; all must have one size.')
  return pixels


def write_coco(folder: pathlib.Path, images: Sequence[StoredImages], size: int | None) -> None:
  """Writes the images and captions.json, a list of file names and captions."""
  (folder / 'images').mkdir()
  captions: list[Mapping[str, str]] = []
  for number, image in enumerate(images):
    name = f'{number:06}.png'
    atomic.write(folder / 'images' / name, encoded(image.pixels(size)))
    captions.append(dict(file_name=name, caption=image.prompt))
  atomic.write_json(folder / 'captions.json', captions)


def names(layout: str, divided: Sequence[StoredImages] | Sequence[Group]) -> list[str]:
  """Returns what a layout of images, or groups of them, writes into its folder."""
  if layout in ('adm', 'coco'):
    return ['samples.npz'] if layout == 'adm' else ['images', 'captions.json']
  ending = '.png' if layout == 'dpg' else ''
  return [group.name + ending for group in divided if isinstance(group, Group)]
