"""Files that are cut, changed or extended: read as they were meant, or one clear error."""

import base64
import io
import json
import os
import pathlib
import re
import shutil
import warnings
import zipfile
import zlib

import jax
import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from checkpoints_conversion import read as convert_read
from cspd_jax.cli import wrapper
from cspd_jax.families import folder as folder_lib
from cspd_jax.files import atomic, npz, reading, run_folder, store
from cspd_jax.generation import given_rows, prompts
from cspd_jax.measure import tables
from cspd_jax.metrics import image_sets
from cspd_jax.text import bpe
from tests.models import published
from tests.reliability import damage

REMEDY = 'make it anew'
ARRAYS = {'tokens': np.arange(600).reshape(3, 200), 'labels': np.arange(3, dtype=np.int32),
          'none': np.zeros((0, 4)), 'column': np.asfortranarray(np.ones((4, 5), np.float16))}
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 9, 3), np.uint8)
REPORT = {'settings': {'seed': 1}, 'rows': [{'decoder': 'vanilla', 'speed': 1.0}, {'x': None}],
          'files': {'a.png': '00' * 32}, 'tables': [
              {'title': 'all', 'columns': {'decoder': '{decoder}'}, 'rows': [0, 1]}]}


def read_batch(path):
  structure = {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in BATCH.items()}
  return run_folder.Run(path.parent, {'seed': 1}).read(path.name, structure)


def make_batch(path):
  run_folder.Run(path.parent, {'seed': 1}).write(path.name, BATCH)


BATCH = {name: ARRAYS[name] for name in ('labels', 'tokens')}


def make_picture(path):
  texts = PngImagePlugin.PngInfo()
  texts.add_text('rounds', '12')
  pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
  Image.fromarray(pixels).save(path, 'PNG', pnginfo=texts)


def read_picture(path):
  texts = reading.texts_of_picture(path, REMEDY, needed=('rounds',))
  with Image.open(path) as image:  # What has been verified can be decoded.
    return {'pixels': np.asarray(image), 'rounds': texts['rounds']}


def make_tokenizer(path):
  path.write_bytes(published.recorded('llamagen_words')['tokenizer'].tobytes())


def make_ranks(path):
  path.write_bytes(b''.join(
      b'%s %d\n' % (base64.b64encode(bytes([byte])), byte) for byte in range(256)))


def read_tokenizer(path):
  text = bpe.read({'file': np.frombuffer(path.read_bytes(), np.uint8)}, path.parent.name)
  return text.encode('a cat on a mat, 5 times')


# What has checksums reads as it was. In text, a change may mean something else.
CHECKED = {
    'a.npz': (lambda path: atomic.write_arrays(path, ARRAYS),
              lambda path: npz.arrays(path, REMEDY, needed=tuple(ARRAYS))),
    'b.npz': (lambda path: atomic.write_arrays(path, {'arr_0': IMAGES}),
              lambda path: {'arr_0': np.concatenate(
                  [*image_sets.opened('images', str(path)).batches(2)])}),
    'a.png': (make_picture, read_picture),
    'batch_0000000.npz': (make_batch, read_batch),
}
PLAIN = {
    'report.json': (lambda path: atomic.write_json(path, REPORT), tables.read_tables),
    'any.json': (lambda path: atomic.write_json(path, REPORT),
                 lambda path: reading.json(path, REMEDY)),
    'prompts.txt': (lambda path: path.write_text('a cat\nun café\n\n狗\n'),
                    lambda path: prompts.listed(pathlib.Path(path))),
    't5': (make_tokenizer, read_tokenizer),
    'emu3': (make_ranks, read_tokenizer),
}


def _check(name, make, read, count, folder):
  """Reads changed versions of a file; returns what was read and the messages."""
  path = folder / name / name
  path.parent.mkdir()
  make(path)
  original, meant = path.read_bytes(), read(path)
  result, messages = [], []
  for data in damage.changed(original, count):
    path.write_bytes(data)
    try:
      result.append(read(path))
    except ValueError as error:
      messages.append(str(error))
      assert '\n' not in messages[-1] and len(messages[-1]) < 1000
  path.write_bytes(original)
  jax.tree.map(np.testing.assert_array_equal, read(path), meant)
  assert len(result) + len(messages) == count and len(messages) > count / 5
  return meant, result, messages


@pytest.mark.parametrize('count', [150, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', CHECKED)
def test_damaged_files_with_checksums_are_read_right_or_refused(tmp_path, name, count):
  meant, result, messages = _check(name, *CHECKED[name], count, tmp_path)
  for one in result:
    jax.tree.map(np.testing.assert_array_equal, meant, {key: one[key] for key in meant})
  assert all(name in message for message in messages)


@pytest.mark.parametrize('count', [150, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', PLAIN)
def test_text_is_read_or_refused(tmp_path, monkeypatch, name, count):
  monkeypatch.setattr(bpe, '_FIRST_SPECIAL', 256)  # A file of as many tokens is read fast.
  if package := {'t5': 'tokenizers', 'emu3': 'tiktoken'}.get(name):
    pytest.importorskip(package)
  _, result, messages = _check(name, *PLAIN[name], count, tmp_path)
  assert result and messages


@pytest.mark.parametrize('count', [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_descriptions_of_models_and_networks(tmp_path, count):
  for name, read in (('target', store.describe), ('', folder_lib.read)):
    path = tmp_path / 'demo' / name / 'model.json'
    if not path.exists():
      shutil.copytree(store.ASSETS / 'demo', tmp_path / 'demo')
    original, refused = path.read_bytes(), 0
    for data in damage.changed(original, count):
      path.write_bytes(data)
      try:
        read(path.parent)
      except store.CheckpointError:
        refused += 1
    path.write_bytes(original)
    assert refused > count / 4


@pytest.mark.parametrize('content', [
    '5', '[]', 'null', '"text"', '{"rows": 3}', '{"rows": [1]}', '{"rows": {"a": 1}}', '{"rows": []'
    ', "tables": [{}]}', '{"rows": [], "tables": 3}', '{"rows": [{}], "tables": [[]]}', '[' * 10**5,
    '{"rows": [], "rows": []}',
    '{"rows": [NaN]}', '{"rows": [1e999]}', '{"rows": [-Infinity]}', '9' * 5000, '\ufeff{}', '',
    '{"rows": [{"a": 1}], "tables": [{"title": "x", "columns": [], "rows": [9]}]}',
    *(json.dumps(dict(rows=[{'a': 1}], tables=[dict(title='x', columns={'b': form}, rows=[0])]))
      for form in ('{a:>1000000000}', '{a:.999999999f}', '{a:{a}}', '{a.__class__}', '{a[0]}', '{}',
                   '{a!r:>9}', '{a:x>99}', '{a', 3, '{a:²}')),
    json.dumps(dict(rows=[{'a:>1000000000': 1}])), json.dumps(dict(rows=[{'a': []}], tables=[
        dict(title='x', columns={'b': '{a:>9}'}, rows=[0])])),
    json.dumps(dict(rows=[{'a': 'x'}], tables=[
        dict(title='x', columns={'b': '{a:.2f}'}, rows=[0])])),
    json.dumps(dict(rows=[], tables=[dict(title=[3], columns={}, rows=[0])])),
    json.dumps(dict(rows=[{'a': 10**400}])), '[' * 70 + ']' * 70])
def test_json_of_another_type(tmp_path, content):
  (tmp_path / 'report.json').write_text(content)
  with pytest.raises(
      ValueError, match='report is .*report.json.* (cannot be read|is not a valid report)'):
    tables.read_tables(tmp_path / 'report.json')


def test_keys_that_are_there_twice_are_named(tmp_path):
  """The last one counted, of model.json and the others."""
  shutil.copytree(store.ASSETS / 'demo', tmp_path / 'demo')
  for path, key in ((tmp_path / 'demo' / 'target' / 'model.json', 'kind'),
                    (tmp_path / 'demo' / 'model.json', 'family')):
    text = path.read_text()
    path.write_text(text.replace(f'"{key}"', f'"{key}": "llamagen", "{key}"', 1))
    with pytest.raises(ValueError, match=f"{path} cannot be read as JSON .'{key}' is there twice"):
      folder_lib.load(tmp_path / 'demo')
  path = tmp_path / 'a.safetensors'
  header = b'{"__metadata__": {"seed": "1", "seed": "2"}}'
  path.write_bytes(len(header).to_bytes(8, 'little') + header)
  with pytest.raises(ValueError, match="a.safetensors cannot be read .*'seed' is there twice"):
    reading.texts_of_arrays(path, REMEDY)


@pytest.mark.parametrize('change', [
    dict(kind=['vq']), dict(kind=None), dict(config=[]), dict(config={'ch': 1e999}),
    dict(files=3), dict(files={'x': []}), dict(files={'model.safetensors': 1e30}), dict(metadata=3),
    dict(files={}), dict(blake2b=[3]), dict(blake2b={'x': 'y'}), dict(format='1'),
    dict(metadata={'labels': 3}), dict(metadata={'labels': ['cat']}),
    dict(metadata={'labels': [1] * 8}), dict(metadata={'labels': [*'abcdefgA']})])
def test_descriptions_with_values_of_another_type(tmp_path, change):
  shutil.copytree(store.ASSETS / 'demo', tmp_path / 'demo')
  path = tmp_path / 'demo' / 'target' / 'model.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(ValueError) as result:
    folder_lib.load(tmp_path / 'demo', draft=None, eagle=None, medusa=None, corrector=None,
                    neighbours=None, local=None, tokenizer=None)
  assert str(tmp_path) in str(result.value) or 'labels of the target' in str(result.value)


@pytest.mark.parametrize('read', [
    lambda path: reading.text(path, REMEDY), lambda path: reading.json(path, REMEDY),
    lambda path: npz.arrays(path, REMEDY), lambda path: reading.texts_of_picture(path, REMEDY),
    lambda path: tables.read_tables(path), lambda path: prompts.listed(path),
    lambda path: wrapper.load(str(path)), store.load, folder_lib.load,
    lambda path: given_rows._picture(path, (8, 8)), lambda path: reading.data(path, REMEDY),
    lambda path: image_sets.opened('images', str(path)),
    lambda path: next(npz.batches(path, REMEDY, 'arr_0', 2))])
@pytest.mark.parametrize('kind', ['pipe', 'folder', 'nothing', 'long', 'device', 'nobody', 'loop'])
def test_paths_that_are_no_files_are_refused_at_once(tmp_path, read, kind):
  path = tmp_path / 'x'
  if kind == 'pipe':
    os.mkfifo(path)
  elif kind == 'folder':
    path.mkdir()
  elif kind == 'loop':
    path.symlink_to(path)
  path = {'long': tmp_path / ('x' * 300), 'device': pathlib.Path('/dev/zero'),
          'nobody': pathlib.Path('~nobody_of_this_name/x')}.get(kind, path)
  with pytest.raises(ValueError, match='no such file|it is not a file|no model.json|is no folder|'
                     'is not a folder|cannot be a path|cannot be read|not a checkpoint|'
                     'no such folder|without images'):
    read(path)


@pytest.mark.parametrize('read', [
    reading.text, reading.json, npz.arrays, reading.texts_of_picture, reading.photograph,
    reading.data])
def test_files_that_stand_for_others(tmp_path, read):
  for content, message in ((b'version https://git-lfs.github.com/spec/v1\n', 'pointer of Git LFS'),
                           (b'\0\5\x16\7\0\2', r'macOS notes about another file')):
    (tmp_path / 'x').write_bytes(content)
    with pytest.raises(ValueError, match=f'x (is a|holds what) {message}'):
      read(tmp_path / 'x', REMEDY)


def test_models_in_version_control(tmp_path):
  """A folder that was cloned without Git LFS."""
  shutil.copytree(store.ASSETS / 'demo', tmp_path / 'demo')
  for name in ('model.safetensors', 'model.json'):
    (tmp_path / 'demo' / 'target' / name).write_text('version https://git-lfs.github.com/spec/v1')
    with pytest.raises(store.CheckpointError, match=f'{name} is a pointer of Git LFS'):
      folder_lib.load(tmp_path / 'demo')


@pytest.mark.parametrize('header, message', [
    ("{'descr': '<f8', 'fortran_order': False, 'shape': (2L,)}", None),  # Of Python 2.
    ("{'descr': '<f8', 'fortran_order': True, 'shape': (2,)}", None),
    ("{'descr': '<f8', 'fortran_order': False, 'shape': (-2, -1)}", r'shape \(-2, -1\)'),
    ("{'descr': '<f8', 'fortran_order': False, 'shape': (10**9,)}", 'cannot be read'),
    ("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", 'Python objects'),
    ("{'descr': '|V0', 'fortran_order': False, 'shape': (2,)}", 'has 16 bytes for'),
    ("{'descr': '<f8', 'fortran_order': False, 'shape': (%s,)}" % ('9' * 9000), 'cannot be read'),
    ('-' * 9000 + '1', 'cannot be read'), ('(' * 9000, 'cannot be read'),
    ('[' * 90 + ']' * 90, 'cannot be read'), ('', 'cannot be read')])
def test_headers_of_arrays(tmp_path, header, message):
  content = header.encode() + b'\n'
  member = b'\x93NUMPY\1\0' + len(content).to_bytes(2, 'little') + content + bytes(16)
  _zip(tmp_path / 'a.npz', member)
  for read in (lambda path: npz.arrays(path, REMEDY)['tokens'].tolist(),
               lambda path: np.concatenate([*npz.batches(path, REMEDY, 'tokens', 1)]).tolist(),
               lambda path: [0.0] * npz.headers(path, REMEDY)['tokens'].shape[0]):
    try:
      assert read(tmp_path / 'a.npz') == [0.0, 0.0] and message is None
    except ValueError as error:
      by_columns = 'True' in header and 'not stored row by row' in str(error)
      assert by_columns or re.search(message, str(error)), error
      assert '\n' not in str(error) and len(str(error)) < 1000


def test_members_that_cannot_be_read(tmp_path):
  """Text, encrypted ones, two of one name, and bytes that another checksum belongs to."""
  path = tmp_path / 'a.npz'
  _zip(path, b'text of some length')
  with pytest.raises(ValueError, match='magic string'):
    npz.arrays(path, REMEDY)
  atomic.write_arrays(path, {'tokens': np.arange(9.)})
  content = bytearray(path.read_bytes())
  content[content.rindex(np.float64(8.).tobytes())] ^= 1
  path.write_bytes(content)
  for read in (lambda: npz.arrays(path, REMEDY),
               lambda: [*npz.batches(path, REMEDY, 'tokens', 2)]):
    with pytest.raises(ValueError, match="a.npz cannot be read as .npz .*Bad CRC-32"):
      read()
  content[content.rindex(b'PK\1\2') + 8] |= 1  # The flag of encryption.
  path.write_bytes(content)
  with pytest.raises(ValueError, match='is encrypted'):
    npz.headers(path, REMEDY)
  with zipfile.ZipFile(path, 'w') as archive, warnings.catch_warnings():
    warnings.simplefilter('ignore')
    for _ in range(2):
      archive.writestr('tokens.npy', _member((1,), 1))
  with pytest.raises(ValueError, match="two arrays 'tokens'"):
    npz.arrays(path, REMEDY)


def _zip(path, member, method=zipfile.ZIP_DEFLATED):
  with zipfile.ZipFile(path, 'w', method) as archive:
    archive.writestr('tokens.npy', member)


def _member(shape, size):
  """An array of zeros, of another size than its header says."""
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(header, dict(descr='<f8', fortran_order=False, shape=shape))
  return header.getvalue() + bytes(8 * size)


@pytest.mark.parametrize('shape, size', [((4,), 1 << 20), ((10**12,), 2)])
def test_arrays_are_unpacked_as_their_header_says(tmp_path, monkeypatch, shape, size):
  """Neither are more numbers unpacked nor is memory allocated for those that are not there."""
  _zip(tmp_path / 'a.npz', _member(shape, size))
  monkeypatch.setattr(zipfile.ZipFile, 'read', None)  # Nothing of the array is unpacked.
  with pytest.raises(ValueError, match=rf'has {8 * size} bytes for float64 of shape \({shape[0]},'):
    npz.arrays(tmp_path / 'a.npz', REMEDY)


def test_arrays_that_are_much_larger_than_their_file(tmp_path, monkeypatch):
  """A file as `numpy.savez_compressed` writes it is read, 3 GB in 14 MB are not."""
  path = tmp_path / 'a.npz'
  np.savez_compressed(path, tokens=np.zeros(1 << 17))
  assert not npz.arrays(path, REMEDY)['tokens'].any()
  monkeypatch.setattr(reading, '_MAX_UNPACKED', 1 << 18)
  with pytest.raises(ValueError, match='its members have 1048704 bytes and the file .* unpacked'):
    npz.arrays(path, REMEDY)
  monkeypatch.undo()
  with zipfile.ZipFile(path, 'w') as archive:  # What the list of the archive says.
    archive.writestr('tokens.npy', _member((1 << 29,), 0))
  size = len(_member((1 << 29,), 0))
  old, new = (number.to_bytes(4, 'little') for number in (size, size + (3 << 30)))
  path.write_bytes(path.read_bytes().replace(old, new))
  with pytest.raises(ValueError, match='its members have 3221225600 bytes'):
    npz.arrays(path, REMEDY)


def test_arrays_of_another_compression(tmp_path):
  """Its dictionary alone may have 4 GB."""
  _zip(tmp_path / 'a.npz', _member((4,), 4), zipfile.ZIP_LZMA)
  with pytest.raises(ValueError, match='compressed in a way that NumPy does not use'):
    npz.arrays(tmp_path / 'a.npz', REMEDY)


@pytest.mark.parametrize('read', [
    lambda path: reading.text(path, REMEDY), lambda path: reading.json(path, REMEDY),
    lambda path: reading.data(path, REMEDY), prompts.listed, tables.read_tables,
    lambda path: convert_read.read(path.rename(path.with_suffix('.json')))])
def test_text_of_20_gb_is_not_read(tmp_path, read):
  path = tmp_path / 'x.txt'
  path.touch()
  os.truncate(path, 20 << 30)  # It takes no place on the disk.
  with pytest.raises(ValueError, match='it has 21474836480 bytes, more than 268435456'):
    read(path)


def _png(width, height):
  """A picture of the size that its header says, and a line of pixels."""
  chunk = lambda kind, data: (len(data).to_bytes(4, 'big') + kind + data
                              + zlib.crc32(kind + data).to_bytes(4, 'big'))
  size = width.to_bytes(4, 'big') + height.to_bytes(4, 'big')
  return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', size + bytes([8, 2, 0, 0, 0]))
          + chunk(b'IDAT', zlib.compress(bytes(1 + 3 * min(width, 100)))) + chunk(b'IEND', b''))


@pytest.mark.parametrize('size', [(12000, 12000), (60000, 60000), (2**31 - 1, 2**31 - 1)])
@pytest.mark.parametrize('read', [
    lambda path: given_rows._picture(path, (8, 8)),
    lambda path: reading.texts_of_picture(path, REMEDY)])
@pytest.mark.filterwarnings('error')
def test_pictures_that_claim_too_many_pixels(tmp_path, size, read):
  (tmp_path / 'x.png').write_bytes(_png(*size))
  with pytest.raises(ValueError, match='x.png.* cannot be read .*pixels'):
    read(tmp_path / 'x.png')


def test_pictures_of_prefixes(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'x.png').write_bytes(_png(1, 1))
  assert given_rows._picture(pathlib.Path('~/x.png'), (2, 2)).shape == (2, 2, 3)
  # Pillow would start Ghostscript.
  (tmp_path / 'x.png').write_bytes(b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EOF\n')
  with pytest.raises(ValueError, match='prefix is .* cannot be read as an image .*cannot identify'):
    given_rows._picture(tmp_path / 'x.png', (2, 2))
  for data in damage.changed(_png(1, 1), 60):
    (tmp_path / 'x.png').write_bytes(data)
    try:
      given_rows._picture(tmp_path / 'x.png', (2, 2))
    except ValueError as error:
      assert '\n' not in str(error)
