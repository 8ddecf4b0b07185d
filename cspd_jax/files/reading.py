"""Reads files that users supply or that may be damaged: correctly, or with one clear error.

No content is executed, no pipe is waited for, and no size in a header allocates memory before it
is compared with the file. Files are read up to the limits below, far above any useful size.
"""

import contextlib
import io
import json as json_lib
import math
import os
import pathlib
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import safetensors
from PIL import ExifTags, Image

from cspd_jax.core import progress
from cspd_jax.files import paths

# Bytes of a text or JSON file, and pixels of a picture.
MOST_TEXT, MOST_PIXELS = 1 << 28, 1 << 27
# Brackets within brackets of a JSON file: with more, Python cannot print its content.
_MOST_DEPTH = 64
# The integers of a JSON file that stay integers: of 64 bits, signed or not.
_INTEGERS = -2**63, 2**64 - 1
# Limits of the arrays of a compressed file: bytes, or a multiple of the bytes of the file.
_MAX_UNPACKED, _MAX_RATIO = 1 << 28, 64
# Bytes of the header of a safetensors file, as its library limits them.
_MOST_HEADER = 100_000_000
# Bytes of the list of an archive's members, of some hundred thousand.
_MAX_LIST = 1 << 24
# Formats that Pillow reads itself; for PostScript it would start another program.
_PICTURES = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
# Endings of the names of their files.
PICTURE_NAMES = ('.bmp', '.gif', '.jfif', '.jpe', '.jpeg', '.jpg', '.pbm', '.pgm', '.png', '.pnm',
                 '.ppm', '.tif', '.tiff', '.webp')
# How a picture is turned, by its EXIF orientation; 1 is upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90}
# Formats whose mode of 32-bit integers holds 16 bits.
_OF_16 = ('PNG', 'PPM')
# Formats whose further pictures are frames; in a JPEG file they are previews.
_FRAMES = ('GIF', 'PNG', 'TIFF', 'WEBP')
# What messages call the types of JSON.
_JSON_TYPES: dict[type, str] = {dict: 'an object', list: 'a list', str: 'a text'}


def text(path: str | os.PathLike, remedy: str, name: str | None = None) -> str:
  """Reads a file of UTF-8 text; raises ValueError if it cannot, or it is larger than `MOST_TEXT`.

  For the message, `remedy` is what the user can do, and `name` the argument that specifies the
  file; None for a file without an argument.
  """
  with opening(path, 'text', remedy, name) as file:
    return _bytes(file).decode('utf-8')


def data(path: str | os.PathLike, remedy: str, name: str | None = None) -> bytes:
  """Reads the bytes of a file; arguments and errors as for `text`."""
  with opening(path, 'a file', remedy, name) as file:
    return _bytes(file)


def json(path: str | os.PathLike, remedy: str, name: str | None = None, kind: type = dict) -> Any:
  """Reads a JSON file by the rules of `parsed`.

  As `text`, and raises ValueError too if its content is not of the type `kind`.
  """
  with opening(path, 'JSON', remedy, name) as file:
    content = parsed(_bytes(file).decode('utf-8'))
    if not isinstance(content, kind):
      raise ValueError(f'it holds a {type(content).__name__}, not a {kind.__name__}')
    return content


def parsed(text: str | bytes) -> Any:
  """Parses JSON from outside; integers of more than 64 bits become floats.

  Raises ValueError for other text, a key that is there twice, numbers that are not finite, and very
  many brackets within brackets.
  """
  try:
    content = json_lib.loads(text, object_pairs_hook=unique, parse_constant=_finite,
                             parse_float=_finite, parse_int=_integer)
  except RecursionError as error:
    raise ValueError('it has too many brackets within each other') from error
  _check_depth(content)
  return content


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Returns the entries of a JSON object; raises ValueError if a key is there twice.

  Of such keys one reader uses the first and another the last. For `json.loads` as its hook.
  """
  result: dict[str, Any] = {}
  for name, value in pairs:
    if name in result:
      raise ValueError(f'{name!r:.80} is there twice')
    result[name] = value
  return result


def check_header(path: pathlib.Path) -> None:
  """Raises ValueError if a key is there twice in the header of an intact safetensors file."""
  with path.open('rb') as stream:
    parsed(stream.read(int.from_bytes(stream.read(8), 'little')))


def entry(content: Mapping[str, Any], name: str, kind: type) -> Any:
  """Returns an entry of a JSON object; raises ValueError if it is missing or not of type `kind`."""
  if not isinstance(value := content.get(name), kind):
    raise ValueError(f'its {name} is {value!r:.80}, and must be {_JSON_TYPES[kind]}')
  return value


def texts_of_picture(path: str | os.PathLike, remedy: str, needed: tuple[str, ...] = ()
                     ) -> dict[str, Any]:
  """Reads the texts of a PNG file by name, all `needed` ones, and decodes no pixels.

  All checksums of the file are verified; arguments and errors as for `text`.
  """
  with opening(path, 'PNG', remedy) as file, _opened(file, ('PNG',)) as image:
    texts = {str(key): value for key, value in image.info.items()}
    image.verify()
    if missing := [key for key in needed if key not in texts]:
      raise ValueError(f'it has no text {missing[0]!r}')
    return texts


def texts_of_arrays(path: str | os.PathLike, remedy: str, needed: tuple[str, ...] = ()
                    ) -> dict[str, Any]:
  """Reads the texts of a safetensors file by name, as `texts_of_picture` does, but no array."""
  with (opening(path, 'safetensors', remedy) as file,
        safetensors.safe_open(file, 'numpy') as content):
    check_header(file)
    texts = dict(content.metadata() or {})
    if missing := [key for key in needed if key not in texts]:
      raise ValueError(f'it has no text {missing[0]!r}')
    return texts


def as_shown(image: Image.Image) -> Image.Image:
  """Returns an open picture, of several frames the first, upright, on white, 8 bits per channel.

  Raises ValueError if no viewer would know what is white: 32-bit integers, or numbers that are
  neither in [0, 1] nor in [0, 255].
  """
  image.load()
  turn = _TURNS.get(_orientation(image))
  image = _of_8_bits(image)
  if image.has_transparency_data:
    layer, image = image.convert('RGBA'), Image.new('RGB', image.size, 'white')
    image.paste(layer, mask=layer)
  image = image.convert('RGB')
  return image if turn is None else image.transpose(turn)


def as_evaluated(image: Image.Image) -> Image.Image:
  """Returns an open picture as the published evaluators read it: by Pillow's conversion to RGB.

  That regards neither EXIF orientation nor transparency. Errors as for `check_evaluated`.
  """
  check_evaluated(image)
  image.info.pop('transparency', None)  # Pillow would warn about a palette's.
  return image.convert('RGB')


def check_evaluated(image: Image.Image) -> None:
  """Raises ValueError, by its header, for a picture of which evaluators would read something else.

  They cut off more than 8 bits per channel, and use the first of several frames.
  """
  if depth := _depth(image):
    raise ValueError(f'it has {depth} per channel, and evaluators read 8 bits')
  if image.format in _FRAMES and (frames := getattr(image, 'n_frames', 1)) > 1:
    raise ValueError(f'it has {frames} frames, and evaluators read one')


def _orientation(image: Image.Image) -> int:
  try:
    return image.getexif().get(ExifTags.Base.Orientation, 1)
  except Exception:  # Damaged EXIF data raises almost anything, and turns nothing.
    return 1


def _depth(image: Image.Image) -> str | None:
  """The numbers of a channel in words if they have more than 8 bits, else None."""
  if image.mode == 'F':
    return 'a floating-point number'
  if image.mode == 'I' and image.format not in _OF_16:
    return '32 bits'
  # Pillow itself reduces colours of 16 bits; only the name of the stored form tells.
  tiles = getattr(image, 'tile', ())
  form = str(tiles[0][3] if tiles else '')
  is_deep = image.mode.startswith('I') or re.search(r';16[BLNS]\b', form) or (
      image.format == 'PPM' and any(int(number) > 255 for number in re.findall(r'\d+', form)))
  return '16 bits' if is_deep else None


def _of_8_bits(image: Image.Image) -> Image.Image:
  """Returns a picture whose pixels have 8 bits: white stays white."""
  transparent = image.info.get('transparency')
  if not image.mode.startswith(('I', 'F')):
    if isinstance(transparent, tuple) and max(transparent) > 255:  # As its colours are stored.
      image.info['transparency'] = tuple(value >> 8 for value in transparent)
    return image
  values, white = np.asarray(image), 65535.0
  if image.mode == 'F':
    least, most = float(values.min()), float(values.max())
    if not 0 <= least <= most <= 255:  # False for NaN too.
      raise ValueError(f'it has numbers from {least:.3g} to {most:.3g}; they must be in [0, 1] or '
                       '[0, 255]')
    white = 1.0 if most <= 1 else 255.0
  elif image.mode == 'I' and image.format not in _OF_16:
    raise ValueError('it has integers of 32 bits, and it is not known which of them is white; '
                     'store it with 16 bits')
  scaled = np.rint(values * np.float32(255 / white)).astype(np.uint8)
  if transparent is not None:
    scaled[values == transparent] = 255
  return Image.fromarray(scaled)


def photograph(path: str | os.PathLike, remedy: str, name: str | None = None, *,
               convert: Callable[[Image.Image], Image.Image] = as_evaluated) -> Image.Image:
  """Reads an image file of a common format as RGB, by `as_shown` or `as_evaluated`.

  Arguments and errors as for `text`; more than `MOST_PIXELS` are refused as well.
  """
  with opening(path, 'an image', remedy, name) as file, _opened(file, _PICTURES) as image:
    return convert(image)


def size_of_photograph(path: str | os.PathLike, remedy: str) -> tuple[int, int]:
  """Reads height and width of a picture for evaluators, no pixels; errors as for `photograph`."""
  with opening(path, 'an image', remedy) as file, _opened(file, _PICTURES) as image:
    check_evaluated(image)
    return image.height, image.width


# What a file begins with that has the name of another one, and what it is.
_PLACEHOLDERS = {
    rb'\s*version https://git-lfs.github.com/spec/': (
        'is a pointer of Git LFS to the file, not the file; run `git lfs pull` in its repository, '
        'or download the file itself'),
    rb'\s*/annex/objects/': (
        'is a pointer of git-annex to the file, not the file; run `git annex get` in its '
        'repository'),
    rb'\x00\x05\x16\x07': (
        'holds what macOS notes about another file (AppleDouble), not its content; remove it, and '
        'use the file without `._` before its name'),
    rb'\s*<(!doctype )?html': (
        'is a page of a web site, not the file; download it again, after a login'),
    # What hubs answer in place of a file, as JSON and as text.
    rb'\s*(\{\s*"error"\s*:|Access to model \S+ is restricted|Invalid username or password\.|'
    rb'(Entry|Repository|Revision) not found\s*\Z)': (
        'is the refusal of a model hub ({start}), not the file; accept the licence of the model on '
        'its page if it asks for that, run `hf auth login`, and download the file again'),
    rb'\x1f\x8b\x08|BZh[1-9]1AY&SY|\xfd7zXZ\x00|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c': (
        'is compressed; unpack it (gunzip, bunzip2, unxz, unzstd, 7z), and use the file in it'),
}
# Bytes that tell such files apart, and letters of them in a message.
_MOST_START, _MOST_SHOWN = 512, 120


def placeholder(path: pathlib.Path) -> str | None:
  """Returns what is wrong and the remedy if a file stands for another one that is not there."""
  with path.open('rb') as stream:
    start = stream.read(_MOST_START)
  if is_safetensors(start):  # The size of the header may look like other files.
    return None
  for magic, text in _PLACEHOLDERS.items():
    if re.match(magic, start, re.IGNORECASE):
      shown = progress.visible(start.decode('utf-8', 'replace').strip())[:_MOST_SHOWN]
      return text.replace('{start}', shown)
  return None


def is_safetensors(start: bytes) -> bool:
  """Whether a file that begins with these bytes has the header of a safetensors file."""
  return start[8:9] == b'{' and int.from_bytes(start[:8], 'little') <= _MOST_HEADER


@contextlib.contextmanager
def _opened(file: pathlib.Path, formats: tuple[str, ...]) -> Iterator[Image.Image]:
  """Opens a picture without reading its pixels."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', Image.DecompressionBombWarning)  # Its limit is not ours.
    with Image.open(file, formats=formats) as image:
      if math.prod(image.size) > MOST_PIXELS:
        raise ValueError(f'it has {image.width}x{image.height} pixels, more than {MOST_PIXELS}')
      yield image


@contextlib.contextmanager
def opening(path: str | os.PathLike, form: str, remedy: str, name: str | None = None
            ) -> Iterator[pathlib.Path]:
  """Yields the path of an existing file, and turns all errors of the block into one ValueError.

  `form` is what the file should be, for the message; the other arguments are as for `text`.
  """
  file, other = paths.find(name or 'path', path), None
  subject = paths.shown(path)[1:-1] if name is None else f'{name} is {paths.shown(path)}, which'
  try:
    if not file.is_file():
      raise ValueError('it is not a file' if os.path.lexists(file) else 'there is no such file')
    other = placeholder(file)
    if other is not None:
      raise ValueError(other)
    yield file
  except MemoryError:
    raise
  except Exception as error:  # Damaged files raise almost anything.
    if other is not None:
      raise ValueError(f'{subject} {other}.') from None
    reason = (error.strerror if isinstance(error, OSError) and error.strerror
              else str(error) or type(error).__name__)
    raise ValueError(f'{subject} cannot be read as {form} '
                     f'({progress.visible(reason)[:300]}); {remedy}.') from error


def _check_depth(content: Any) -> None:
  """Raises ValueError for JSON with very many brackets within brackets."""
  level = [content]
  for _ in range(_MOST_DEPTH):
    level = [child for parent in level if isinstance(parent, (dict, list))
             for child in (parent.values() if isinstance(parent, dict) else parent)]
  if level:
    raise ValueError(f'it has more than {_MOST_DEPTH} brackets within each other')


def _integer(number: str) -> int | float:
  # Tokenizers without a longest text have a length of about 1e30.
  is_short = len(number) <= len(str(_INTEGERS[1]))  # Python refuses to parse very long ones.
  return value if is_short and _INTEGERS[0] <= (value := int(number)) <= _INTEGERS[1] else (
      _finite(number))


def _finite(number: str) -> float:
  value = float(number)
  if not math.isfinite(value):
    raise ValueError(f'it holds {number:.80}, which is not finite')
  return value


def _bytes(file: pathlib.Path) -> bytes:
  """Returns the bytes of a file, as many as the system reports, up to a limit."""
  with file.open('rb') as stream:
    size = os.fstat(stream.fileno()).st_size
    if size > MOST_TEXT:
      raise ValueError(f'it has {size} bytes, more than {MOST_TEXT}')
    content = stream.read(size + 1)
  if len(content) != size:
    raise ValueError(f'its size changes from {size} bytes while it is read')
  return content


def check_total(parts: str, total: int, size: int) -> None:
  """Raises ValueError if `parts` of a file of `size` bytes need far too many in memory, `total`."""
  limit = max(_MAX_UNPACKED, _MAX_RATIO * size)
  if total > limit:
    raise ValueError(f'its {parts} have {total} bytes and the file {size}; at most {limit} are '
                     'unpacked')


class _ListedBriefly(io.BufferedReader):
  """A zip file whose list of members is not read if it is long; members become larger objects."""

  limit: int | None = _MAX_LIST

  def read(self, size: int | None = -1, /) -> bytes:
    if size is None or size < 0:
      size = os.fstat(self.fileno()).st_size - self.tell()
    if self.limit is not None and size > self.limit:
      raise ValueError(f'the list of its members has {size} bytes, more than {self.limit}')
    return super().read(size)


@contextlib.contextmanager
def open_zip(path: pathlib.Path) -> Iterator[zipfile.ZipFile]:
  """Opens a zip file, if the list of its members has a usual length."""
  with _ListedBriefly(io.FileIO(path)) as stream:
    try:
      archive = zipfile.ZipFile(stream)
    except NotImplementedError as error:  # Of a version that there is not.
      raise zipfile.BadZipFile(str(error)) from error
    stream.limit = None  # Of the members themselves, `check_total` knows the sizes.
    with archive:
      yield archive
