"""Pixels of pictures of every mode as RGB: as a viewer shows them, or as evaluators read them."""

import re

import numpy as np
from PIL import ExifTags, Image

# How a picture is turned, by its EXIF orientation; 1 is upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90}
_MOST_16 = 2**16 - 1
# Formats whose mode of 32-bit integers holds 16 bits.
_OF_16 = ('PNG', 'PPM')
# Formats whose further pictures are frames; those of a JPEG file are previews.
_FRAMES = ('GIF', 'PNG', 'TIFF', 'WEBP')


def as_shown(image: Image.Image) -> Image.Image:
  """Returns an open picture, of several frames the first, upright, on white, with 8 bits per
  channel.

  Raises:
    ValueError: if no viewer would know what is white: 32-bit integers, or numbers that are neither
      in [0, 1] nor in [0, 255].
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

  That neither turns a picture by its EXIF orientation, nor regards transparency. Errors as for
  `check_evaluated`.
  """
  check_evaluated(image)
  image.info.pop('transparency', None)  # Pillow would warn about that of a palette.
  return image.convert('RGB')


def check_evaluated(image: Image.Image) -> None:
  """Raises ValueError, by its header, for a picture of which evaluators would read something else.

  That is one of more than 8 bits per channel, which they cut off at either end, or of several
  frames, of which they use the first.
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
  values, white = np.asarray(image), float(_MOST_16)
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
