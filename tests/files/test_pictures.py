"""Pictures of every mode: upright on white for a prefix, as Pillow converts them in evaluation."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cspd_jax.files import reading
from cspd_jax.metrics import image_sets

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
GREY = COLOURS[..., 0]
GREYS = np.dstack([GREY] * 3)
RGB = Image.fromarray(COLOURS)


def _stored(image, form, **options):
  content = io.BytesIO()
  image.save(content, form, **options)
  return content.getvalue()


def _png(values, kind, transparent=None):
  """A PNG of 16 bits per channel, which Pillow reads and does not write."""
  height, width = values.shape[:2]
  part = lambda name, data: struct.pack('>I', len(data)) + name + data + struct.pack(
      '>I', zlib.crc32(name + data))
  rows = b''.join(b'\0' + row.astype('>u2').tobytes() for row in values)
  return b''.join([
      b'\x89PNG\r\n\x1a\n',
      part(b'IHDR', struct.pack('>IIBBBBB', width, height, 16, kind, 0, 0, 0)),
      b'' if transparent is None else part(b'tRNS', np.asarray(transparent, '>u2').tobytes()),
      part(b'IDAT', zlib.compress(rows)), part(b'IEND', b'')])


def _read(content, tmp_path, convert):
  (tmp_path / 'picture').write_bytes(content)
  return np.asarray(reading.photograph(tmp_path / 'picture', 'replace it', convert=convert))


def _shown(content, tmp_path):
  return _read(content, tmp_path, reading.as_shown)


@pytest.mark.parametrize('form, options', [
    ('jpeg', dict(quality=100, subsampling=0)), ('png', {}), ('webp', dict(lossless=True)),
    ('tiff', {})])
@pytest.mark.parametrize('orientation, turned', [
    (1, COLOURS), (2, COLOURS[:, ::-1]), (3, COLOURS[::-1, ::-1]), (4, COLOURS[::-1]),
    (5, COLOURS.swapaxes(0, 1)), (6, COLOURS[::-1].swapaxes(0, 1)),
    (7, COLOURS[::-1, ::-1].swapaxes(0, 1)), (8, COLOURS[:, ::-1].swapaxes(0, 1)), (77, COLOURS)])
def test_the_orientation_of_a_camera(tmp_path, form, options, orientation, turned):
  """A photograph was completed sideways; evaluators leave it as it is stored."""
  blocks = lambda pixels: np.kron(pixels, np.ones((8, 8, 1), np.uint8))  # As JPEG stores them.
  exif = Image.Exif()
  exif[0x0112] = orientation
  content = _stored(Image.fromarray(blocks(COLOURS)), form, exif=exif, **options)
  np.testing.assert_allclose(_shown(content, tmp_path), blocks(turned), atol=3)
  if form != 'tiff':  # Pillow itself turns them.
    np.testing.assert_allclose(
        _read(content, tmp_path, reading.as_evaluated), blocks(COLOURS), atol=3)


def test_damaged_exif_data_turn_nothing(tmp_path):
  content = _stored(RGB, 'png', exif=b'Exif\0\0not a TIFF header')
  np.testing.assert_array_equal(_shown(content, tmp_path), COLOURS)


def _over_white(colours, alpha):
  share = alpha[..., None] / 255
  return np.rint(colours * share + 255 * (1 - share))


ALPHA = np.linspace(0, 255, 48).reshape(6, 8).astype(np.uint8)
PALETTE = RGB.quantize(32)
_KEYED = PALETTE.getpixel((0, 0))
_SHARES = bytes(range(0, 256, 8))
DEEP = COLOURS.astype(np.uint16) * 257
FIRST = COLOURS[0, 0]
KEPT = (COLOURS != FIRST).any(axis=2)


@pytest.mark.parametrize('content, colours, alpha', [
    (_stored(Image.fromarray(np.dstack([COLOURS, ALPHA])), 'png'), COLOURS, ALPHA),
    (_stored(Image.fromarray(np.dstack([COLOURS, ALPHA])), 'tiff'), COLOURS, ALPHA),
    (_stored(Image.fromarray(np.dstack([GREY, ALPHA]), 'LA'), 'png'),
     GREYS, ALPHA),
    (_stored(PALETTE, 'gif', transparency=_KEYED), np.asarray(PALETTE.convert('RGB')),
     255 * (np.asarray(PALETTE) != _KEYED)),
    (_stored(PALETTE, 'png', transparency=_SHARES), np.asarray(PALETTE.convert('RGB')),
     np.frombuffer(_SHARES, np.uint8)[np.asarray(PALETTE)]),
    (_stored(RGB, 'png', transparency=RGB.getpixel((0, 0))), COLOURS,
     255 * KEPT),
    (_png(np.dstack([DEEP, ALPHA.astype(np.uint16) * 257]), 6), COLOURS, ALPHA),
    (_png(DEEP, 2, DEEP[0, 0]), COLOURS, 255 * KEPT),
    (_png(DEEP[..., 0], 0, DEEP[0, 0, :1]), GREYS, 255 * (GREYS[..., 0] != GREY[0, 0]))])
def test_transparency_is_white(tmp_path, content, colours, alpha):
  """What lay under it appeared."""
  np.testing.assert_allclose(_shown(content, tmp_path), _over_white(colours, alpha), atol=1)


@pytest.mark.filterwarnings('error')
def test_evaluators_read_what_lies_under_it(tmp_path):
  for content, colours in (
      (_stored(Image.fromarray(np.dstack([COLOURS, ALPHA])), 'png'), COLOURS),
      (_stored(PALETTE, 'png', transparency=_SHARES), np.asarray(PALETTE.convert('RGB')))):
    np.testing.assert_array_equal(_read(content, tmp_path, reading.as_evaluated), colours)


_PGM = lambda most, values: f'P5 8 6 {most}\n'.encode() + values.astype('>u2').tobytes()
_F = lambda values: _stored(Image.fromarray(values.astype(np.float32)), 'tiff')


@pytest.mark.parametrize('content, expected, depth', [
    (_png(DEEP[..., 0], 0), GREYS, '16 bits'),
    (_stored(Image.fromarray(DEEP[..., 0]), 'tiff'), GREYS, '16 bits'),
    (_PGM(65535, DEEP[..., 0]), GREYS, '16 bits'),
    (_PGM(1023, GREY * (1023 / 255)), GREYS, '16 bits'), (_png(DEEP, 2), COLOURS, '16 bits'),
    (b'P6 8 6 65535\n' + DEEP.astype('>u2').tobytes(), COLOURS, '16 bits'),
    (_F(GREY), GREYS, 'a floating-point number'),
    (_F(GREY / 255), GREYS, 'a floating-point number')])
def test_more_than_8_bits(tmp_path, content, expected, depth):
  """All but the darkest pixels became white."""
  np.testing.assert_allclose(_shown(content, tmp_path), expected, atol=1)
  with pytest.raises(ValueError, match=f'it has {depth} per channel, and evaluators read 8'):
    _read(content, tmp_path, reading.as_evaluated)
  (tmp_path / 'picture').rename(tmp_path / 'picture.png')
  with pytest.raises(ValueError, match='picture.png cannot be read as an image .it has'):
    image_sets.opened('images', str(tmp_path))


@pytest.mark.parametrize('content, message', [
    (_F(GREY - 100.0), r'numbers from -\d+ to \d+; they must be in \[0, 1\] or \[0, 255\]'),
    (_F(GREY * np.nan), 'numbers from nan'), (_F(GREY * 2.0), 'they must be in'),
    (_stored(Image.fromarray(GREY.astype(np.int32)), 'tiff'), 'integers of 32 bits')])
def test_numbers_without_a_white_are_refused(tmp_path, content, message):
  with pytest.raises(ValueError, match=message):
    _shown(content, tmp_path)


@pytest.mark.parametrize('mode, form', [
    ('L', 'png'), ('1', 'bmp'), ('P', 'gif'), ('RGB', 'bmp'), ('RGB', 'ppm'), ('CMYK', 'tiff'),
    ('YCbCr', 'tiff')])
def test_pictures_of_8_bits_are_converted_alike(tmp_path, mode, form):
  content = _stored(RGB.convert(mode), form)
  for convert in (reading.as_shown, reading.as_evaluated):
    np.testing.assert_allclose(
        _read(content, tmp_path, convert), RGB.convert(mode).convert('RGB'), atol=1)


@pytest.mark.parametrize('form, is_refused', [
    ('gif', True), ('webp', True), ('png', True), ('tiff', True), ('mpo', False)])
def test_frames(tmp_path, form, is_refused):
  """Evaluation used the first one without a word; the further ones of a camera are previews."""
  content = _stored(RGB, form, save_all=True, append_images=[Image.new('RGB', RGB.size, 'red')])
  assert _shown(content, tmp_path).shape == COLOURS.shape
  if is_refused:
    with pytest.raises(ValueError, match='it has 2 frames, and evaluators read one'):
      _read(content, tmp_path, reading.as_evaluated)
  else:
    assert _read(content, tmp_path, reading.as_evaluated).shape == COLOURS.shape
