"""Every reader with every damage: what was meant is read, or one sentence names the file.

Nothing is written, nothing in the files is run, and no size that they claim takes memory.
"""

import base64
import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import pathlib
import pickle
import re
import shutil
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image, PngImagePlugin

from checkpoints_conversion import read as convert_read
from cspd_jax import families
from cspd_jax.cli import wrapper
from cspd_jax.continuous import head_drafter, schedule
from cspd_jax.families import folder as folder_lib
from cspd_jax.files import atomic, npz, reading, run_folder, store
from cspd_jax.generation import defaults, given_rows, options, prompts
from cspd_jax.measure import tables
from cspd_jax.metrics import evaluation, image_sets, inception, layouts
from cspd_jax.models import inception as inception_network
from cspd_jax.text import bpe
from tests.builders import published
from tests.conversion import torch_files
from tests.reliability import damage, test_checkpoint_faults

REMEDY = 'make it anew'
COUNTS = [40, pytest.param(3000, marks=pytest.mark.slow)]
ARRAYS = {'tokens': np.arange(600).reshape(3, 200), 'labels': np.arange(3, dtype=np.int32),
          'none': np.zeros((0, 4)), 'column': np.asfortranarray(np.ones((4, 5), np.float16))}
BATCH = {name: ARRAYS[name] for name in ('labels', 'tokens')}
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 9, 3), np.uint8)
TENSORS = {'a.weight': np.arange(12, dtype=np.float32).reshape(3, 4),
           'b': np.arange(5, dtype=np.int64), 'c': np.array(3, np.float16)}
REPORT = {
    'program': 'cspd-generate', 'settings': {'output': 'x'}, 'files': {'a.png': '00' * 32},
    'rows': [{'file': 'a.png', 'prompt': 'cat', 'number': 0, 'seconds': 1.5},
             {'file': 'b.png', 'prompt': '', 'number': 1, 'seconds': None}],
    'tables': [{'title': 'all', 'columns': {'time': '{seconds:.2f}'}, 'rows': [0, 1]}]}
CAPTIONS = [{'file_name': 'a.png', 'caption': 'cat'}, {'file_name': 'b.png', 'caption': 'dog'}]
LEVELS = schedule.make(4)
TORCH = torch_files.mapping({'a': torch_files.tensor(shape=(3,))})


def _batch(path):
  structure = {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in BATCH.items()}
  return run_folder.Run(path.parent, {'seed': 1}).read(path.name, structure)


def _make_picture(path):
  texts = PngImagePlugin.PngInfo()
  texts.add_text('rounds', '12')
  Image.fromarray(IMAGES[0]).save(path, 'PNG', pnginfo=texts)


def _picture(path):
  texts = reading.texts_of_picture(path, REMEDY, needed=('rounds',))
  with Image.open(path) as image:  # What has been verified can be decoded.
    return {'pixels': np.asarray(image), 'rounds': texts['rounds']}


def _tokenizer(path):
  text = bpe.read({'file': np.frombuffer(path.read_bytes(), np.uint8)}, path.name)
  return text.encode('a cat on a mat, 5 times')


def _weights(path):
  return {name: np.asarray(tensor) for name, tensor in convert_read.read(path).tensors.items()}


def _rho(path):
  rho = head_drafter.stored_rho(LEVELS, reading.json(path, 'convert again'), guided=True)
  assert rho is None or np.isfinite(rho).all() and rho.shape == (4,)
  return rho


def _make_model(folder):
  """Saves a model with everything that its files may hold."""
  test_checkpoint_faults.save(folder / 'target', 1)
  path = folder / 'target' / 'model.json'
  content = json.loads(path.read_text())
  content['metadata'] |= {'labels': ['sea', 'sky', 'sand'], 'prompts': ['sea']}
  path.write_text(json.dumps(content))
  families.save(folder, 'llamagen', {'target': 'target'}, {
      'guidance_scale': 1.5, 'top_k': 2, 'dtype': 'float32',
      'decoder': {'cpu': {'1': 'mc_sjd(window=2)', '4': 'vanilla'}},
      'seconds': {'cpu': {'1': ['mc_sjd(window=2)', 1.5]}}})


def _use_model(folder):
  model = families.load(folder)
  model.condition(list(model.prompts)[:1])
  model.prompt_kind.titles(list(model.prompts)[:1])
  defaults.seconds(model.defaults.get('seconds'), 'cpu', 1, 'mc_sjd(window=2)')
  options.default(model.table, model.defaults.get('decoder'), model.drafts, model.devices[0], 1)


def _json(content):
  return lambda path: path.write_text(json.dumps(content))


class Reader(NamedTuple):
  """Attributes: writes a sound file; reads it; whether checksums show every change; its names."""

  make: Callable
  read: Callable
  checked: bool = False
  names: tuple[str, ...] = ('{path}',)


# By the name of the file.
READERS = {
    'a.npz': Reader(lambda path: atomic.write_arrays(path, ARRAYS),
                    lambda path: npz.arrays(path, REMEDY, needed=tuple(ARRAYS)), True),
    'images.npz': Reader(
        lambda path: atomic.write_arrays(path, {'arr_0': IMAGES}), lambda path: {
            'arr_0': np.concatenate([*image_sets.opened('images', str(path)).batches(2)])}, True),
    'a.png': Reader(_make_picture, _picture, True),
    'batch_0000000.npz': Reader(lambda path: run_folder.Run(path.parent, {'seed': 1}).write(
        path.name, BATCH), _batch, True),
    'x.safetensors': Reader(lambda path: safetensors.numpy.save_file(TENSORS, path), _weights),
    'encoder.jit': Reader(lambda path: path.write_bytes(
        published.recorded('cosmos')['script'].tobytes()), _weights),
    'x.pt': Reader(lambda path: torch_files.archive(path, TORCH), _weights),
    'old.pt': Reader(lambda path: torch_files.series(path, TORCH), _weights),
    'report.json': Reader(_json(REPORT), tables.read_tables),
    'any.json': Reader(_json(REPORT), lambda path: reading.json(path, REMEDY)),
    'prompts.txt': Reader(lambda path: path.write_text('a cat\nun café\n\n狗\n'),
                          lambda path: prompts.listed(pathlib.Path(path))),
    't5': Reader(lambda path: path.write_bytes(published.recorded('llamagen_words')[
        'tokenizer'].tobytes()), _tokenizer, names=('the tokenizer file',)),
    'emu3': Reader(lambda path: path.write_bytes(b''.join(
        b'%s %d\n' % (base64.b64encode(bytes([byte])), byte) for byte in range(256))),
                   _tokenizer, names=('the tokenizer file', 'emu3.tiktoken')),
    'model.json': Reader(lambda path: _make_model(path.parent),
                         lambda path: folder_lib.read(path.parent), names=('{path.parent}',)),
    'target/model.json': Reader(lambda path: _make_model(path.parents[1]),
                                lambda path: store.describe(path.parent), names=('{path.parent}',)),
}


def _checked(read, path, names, shown=str.isprintable):
  """What a file holds, or None: one sentence with one of the names."""
  try:
    return read(path)
  except ValueError as error:
    message = ' '.join(str(error).split('\n  '))  # Lists of problems.
    assert shown(message) and len(message) < 2500, message
    assert any(name.format(path=path) in message for name in names), message
  return None


def _made(tmp_path, name):
  path = tmp_path / name
  path.parent.mkdir(exist_ok=True)
  READERS[name].make(path)
  return path


def _files(folder):
  return sorted(folder.rglob('*'))


@pytest.mark.parametrize('count', [150, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', READERS)
def test_bytes_that_changed(tmp_path, monkeypatch, name, count):
  """What has checksums reads as it was. In text, a change may mean something else."""
  monkeypatch.setattr(bpe, '_FIRST_SPECIAL', 256)  # A file of as many tokens is read fast.
  if package := {'t5': 'tokenizers', 'emu3': 'tiktoken'}.get(name):
    pytest.importorskip(package)
  reader, path = READERS[name], _made(tmp_path, name)
  original, meant, files = path.read_bytes(), reader.read(path), _files(tmp_path)
  result = []
  for data in damage.changed(original, count):
    path.write_bytes(data)
    # Programs escape what a terminal would obey.
    result.append(_checked(reader.read, path, reader.names, lambda message: '\n' not in message))
    if reader.checked and result[-1] is not None:
      jax.tree.map(np.testing.assert_array_equal, meant, {key: result[-1][key] for key in meant})
  path.write_bytes(original)
  jax.tree.map(np.testing.assert_array_equal, reader.read(path), meant)
  assert _files(tmp_path) == files
  assert count / 5 < sum(one is None for one in result) < count + reader.checked


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('name, make, read, names', [
    ('model.json', lambda path: _make_model(path.parent), lambda path: _use_model(path.parent),
     ('model.json', "model 'm'")),
    ('target/model.json', lambda path: _make_model(path.parents[1]),
     lambda path: _use_model(path.parents[1]), ('model.json', 'of the target', "model 'm'")),
    ('report.json', _json(REPORT), tables.read_tables, ()),
    ('report.json', _json(REPORT), lambda path: layouts.generated(str(path.parent)), ()),
    ('report.json', _json(REPORT), lambda path: run_folder.check(
        path.parent, program='cspd-generate'), ()),
    ('captions.json', _json(CAPTIONS), lambda path: layouts.captioned(str(path.parent)), ()),
    ('rho.json', _json(head_drafter.describe_rho(LEVELS, np.full(4, .5), np.full(4, .5))), _rho,
     ('head_drafter of the target',))])
def test_json_whose_values_are_of_another_type(tmp_path, name, make, read, names, count):
  path = tmp_path / 'm' / name
  path.parent.mkdir(parents=True)
  make(path)
  content, refused = json.loads(path.read_text()), []
  for text in damage.replaced(content, count):
    path.write_text(text)
    refused.append(_checked(lambda path: [read(path)], path, (str(tmp_path), *names)) is None)
  path.write_text(json.dumps(content))
  read(path)
  assert sum(refused) > count / 16


# What lies in the place of a file, whatever reads it, and what is said.
STANDS_FOR_OTHERS = [
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:', 'is a pointer of Git LFS'),
    (b'\0\5\x16\7\0\2\0\0Mac OS X', r'holds what macOS notes about another file \(AppleDouble\)')]
# What lies in the place of published weights, and in that of any other file of a model.
DOWNLOADED = [
    *STANDS_FOR_OTHERS,
    (b'/annex/objects/SHA256E-s1--0.pt\n', 'is a pointer of git-annex'),
    (b'\n<!DOCTYPE html><html>', 'is a page of a web site, not the file; download it again'),
    (b'{"error":"Access to model a/b is restricted"}',
     'is the refusal of a model hub .*is restricted.*; accept the licence'),
    (b'Access to model a/b is restricted and you are not', 'is the refusal of a model hub'),
    (b'Entry not found', r'is the refusal of a model hub \(Entry not found\), not the file'),
    (b'Invalid username or password.', 'is the refusal of a model hub .*run `hf auth login`'),
    *((content, 'is compressed; unpack it') for content in (
        gzip.compress(b'x', mtime=0), bz2.compress(b'x'), lzma.compress(b'x'),
        b'7z\xbc\xaf\x27\x1c'))]


def _archive(*names):
  with zipfile.ZipFile(content := io.BytesIO(), 'w') as archive:
    for name in names:
      archive.writestr(name, b'x')
  return content.getvalue()


OF_OTHER_FORMS = [
    (b'GGUF\3\0\0\0' + bytes(99), 'is GGUF, .* convert the safetensors or PyTorch files'),
    (b'\x89HDF\r\n\x1a\n' + bytes(99), 'is HDF5, .*; save the weights as safetensors'),
    (b'\x93NUMPY\1\0', 'is one array of NumPy; save'),
    (bytes(257) + b'ustar', 'is a tar archive; unpack it'),
    (_archive('m/config.json', 'm/model.safetensors'),
     'is a zip archive, which holds m/config.json, m/model.safetensors; unpack it'),
    (_archive('a.npy', 'b.npy'), r'is an archive of arrays of NumPy \(npz\); save them'),
    (pickle.dumps({'a': 1}), 'is a pickle, which is a program and is not run; save the weights'),
    (b'{"architectures": ["LlamaForCausalLM"]}', "is text, which begins with '{\"arch.*specify"),
    (b'\x89PNG\r\n\x1a\n' + bytes(9), 'is a picture; specify')]
NAMED_AS = {'downloaded': (
    'model.safetensors', 'x.pt', 'tokenizer.json', 'x.jit', 'pytorch_model.bin', 'consolidated.pth',
    'model.safetensors.index.json'), 'of another form': (
        'x.pt', 'x.safetensors', 'x.bin', 'x.gguf')}


@pytest.mark.parametrize('name, content, words', [
    (name, *case) for kind, cases in (
        ('downloaded', DOWNLOADED), ('of another form', OF_OTHER_FORMS))
    for name in NAMED_AS[kind] for case in cases])
def test_other_files_in_the_place_of_weights(tmp_path, name, content, words):
  (tmp_path / name).write_bytes(content)
  for source in {tmp_path / name, tmp_path} if 'model' in name or 'gguf' in name else {
      tmp_path / name}:
    with pytest.raises(ValueError, match=f'{name} {words}') as error:
      convert_read.read(source)
    assert (content, words) in DOWNLOADED or 'download it again' not in str(error.value)


# Readers of any file, without a name of its own.
ANY = {
    **{name: lambda path, read=read: read(path, REMEDY) for name, read in dict(
        text=reading.text, json=reading.json, data=reading.data, arrays=npz.arrays,
        picture=reading.texts_of_picture, photograph=reading.photograph).items()},
    'batches': lambda path: next(npz.batches(path, REMEDY, 'arr_0', 2)),
    'prefix': lambda path: given_rows._picture(path, (8, 8)), 'tables': tables.read_tables,
    'prompts': prompts.listed, 'images': lambda path: image_sets.opened('images', str(path)),
    'config': lambda path: wrapper.load(str(path)), 'network': store.load, 'model': folder_lib.load,
    'weights': convert_read.read}
NO_FILES = {
    'pipe': os.mkfifo, 'folder': pathlib.Path.mkdir, 'loop': lambda path: path.symlink_to(path),
    'nothing': lambda path: None, 'long': 'x' * 300, 'device': '/dev/zero',
    'nobody': '~nobody_of_this_name/x'}


@pytest.mark.parametrize('reader', [reader for reader in ANY if reader != 'weights'])
def test_paths_that_are_no_files(tmp_path, reader):
  for kind, make in NO_FILES.items():
    path = tmp_path / (make if isinstance(make, str) else kind)
    path = pathlib.Path(make) if kind in ('device', 'nobody') else path
    if callable(make):
      make(path)
    with pytest.raises(ValueError, match='no such f|it is not a file|no model.json|is no folder|'
                       'is not a folder|cannot be a path|cannot be read|not a checkpoint|'
                       'without images') as error:
      ANY[reader](path)
    assert str(error.value).isprintable() and path.name[:9] in str(error.value)


@pytest.mark.parametrize('reader', ['text', 'json', 'arrays', 'picture', 'photograph', 'data'])
def test_files_that_stand_for_others(tmp_path, reader):
  for content, words in STANDS_FOR_OTHERS:
    (tmp_path / 'x').write_bytes(content)
    with pytest.raises(ValueError, match=f'x {words}'):
      ANY[reader](tmp_path / 'x')


def test_a_model_in_version_control(tmp_path):
  """A folder that was cloned without Git LFS; and keys that are there twice."""
  shutil.copytree(store.ASSETS / 'demo', tmp_path / 'demo')
  for path, key in ((tmp_path / 'demo' / 'target' / 'model.json', 'kind'),
                    (tmp_path / 'demo' / 'model.json', 'family')):
    text = path.read_text()
    path.write_text(text.replace(f'"{key}"', f'"{key}": "llamagen", "{key}"', 1))
    with pytest.raises(ValueError, match=f"{path} cannot be read as JSON .'{key}' is there twice"):
      folder_lib.load(tmp_path / 'demo')
    path.write_text(text)
  for name in ('model.safetensors', 'model.json'):
    (tmp_path / 'demo' / 'target' / name).write_bytes(STANDS_FOR_OTHERS[0][0])
    with pytest.raises(store.CheckpointError, match=f'{name} is a pointer of Git LFS'):
      folder_lib.load(tmp_path / 'demo')


@pytest.mark.parametrize('reader', ['text', 'json', 'data', 'prompts', 'tables', 'weights'])
def test_text_of_20_gb_is_not_read(tmp_path, reader):
  path = tmp_path / ('tokenizer.json' if reader == 'weights' else 'x.txt')
  path.touch()
  os.truncate(path, 20 << 30)  # It takes no place on the disk.
  with pytest.raises(ValueError, match=f'{path.name}.*it has 21474836480 bytes, more than 268435'):
    ANY[reader](path)


def _safetensors(header, data=b'', length=None):
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  return (len(text) if length is None else length).to_bytes(8, 'little') + text + data


def _tensor(first=0, last=8, dtype='F32', shape=(2,)):
  return {'dtype': dtype, 'shape': list(shape), 'data_offsets': [first, last]}


def _table(columns, rows, title='x', shown=(0,)):
  return json.dumps(dict(rows=rows, tables=[dict(title=title, columns=columns, rows=list(shown))]))


def _member(shape, size):
  """An array of zeros, of another size than its header says."""
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(header, dict(descr='<f8', fortran_order=False, shape=shape))
  return header.getvalue() + bytes(8 * size)


def _headed(header):
  text = header.encode() + b'\n'
  return b'\x93NUMPY\1\0' + len(text).to_bytes(2, 'little') + text + bytes(16)


def _zip(member, method=zipfile.ZIP_DEFLATED, count=1):
  with zipfile.ZipFile(content := io.BytesIO(), 'w', method) as archive, warnings.catch_warnings():
    warnings.simplefilter('ignore')
    for _ in range(count):
      archive.writestr('tokens.npy', member)
  return content.getvalue()


def _npz(change):
  """An archive of nine numbers with a change."""
  np.savez(content := io.BytesIO(), tokens=np.arange(9.))
  data = bytearray(content.getvalue())
  change(data)
  return bytes(data)


def _flip(data):
  data[data.rindex(np.float64(8.).tobytes())] ^= 1


def _encrypt(data):
  data[data.rindex(b'PK\1\2') + 8] |= 1


def _claimed():
  """An archive whose list says that a member has 3 GB."""
  size = len(_member((1 << 29,), 0))
  old, new = (number.to_bytes(4, 'little') for number in (size, size + (3 << 30)))
  return _zip(_member((1 << 29,), 0), zipfile.ZIP_STORED).replace(old, new)


def _png(width, height):
  """A picture of the size that its header says, and a line of pixels."""
  chunk = lambda kind, data: (len(data).to_bytes(4, 'big') + kind + data
                              + zlib.crc32(kind + data).to_bytes(4, 'big'))
  size = width.to_bytes(4, 'big') + height.to_bytes(4, 'big')
  return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', size + bytes([8, 2, 0, 0, 0]))
          + chunk(b'IDAT', zlib.compress(bytes(1 + 3 * min(width, 100)))) + chunk(b'IEND', b''))


def _of_a_later_version():
  data = bytearray(_archive('m/data.pkl'))
  data[data.index(b'PK\1\2') + 6] = 255
  return bytes(data)


_HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': (%s)}"
# What a stranger may write, by reader: words, and contents that are refused with them.
WRITTEN: dict[str, list[tuple[str, list[Any]]]] = {
    'x.safetensors': [('x.safetensors.*not a complete safetensors file.*; download it again', [
        b'', b'\0' * 7, _safetensors({}, length=1 << 62), _safetensors(b'{"a": '),
        _safetensors([1]), _safetensors(b'{"\xff": 1}'),
        _safetensors(b'{"a":' + b'[' * 100_000), _safetensors({'a': 3}),
        _safetensors({'a': _tensor(dtype='F31')}, b'\0' * 8),
        *(_safetensors({'a': _tensor(shape=shape)}, b'\0' * 8) for shape in (
            (-1, -2), (1 << 40, 1 << 40), (3,))),
        _safetensors({'a': _tensor(8, 0)}, b'\0' * 8),
        _safetensors({'a': _tensor(), 'b': _tensor(4, 12)}, b'\0' * 12),  # They overlap.
        _safetensors({'a': _tensor(), 'b': _tensor(12, 20)}, b'\0' * 20),  # A hole.
        *(_safetensors({'a': _tensor()}, b'\0' * size) for size in (7, 9)),
        _safetensors(b'{"a": %s, "a": %s}' % ((json.dumps(_tensor()).encode(),) * 2), b'\0' * 8)])],
    'model.safetensors.index.json': [
        ('index.json (is damaged|cannot be read as JSON)', [
            '{', '[]', '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}']),
        ('index.json is damaged .*weight_map is empty', ['{"weight_map": {}}'])],
    'a.pt': [('a.pt: it is not a complete PyTorch file .*download it', [
        b'', b'PK\3\4', bytes(10**4), _of_a_later_version(),
        pickle.dumps(0x1950a86a20f9469cfc6c) + pickle.dumps(1001) + b'N.'])],
    'report.json': [('report is .*report.json.* (cannot be read|is not a valid report)', [
        '5', '[]', 'null', '"text"', '{"rows": 3}', '{"rows": [1]}', '{"rows": {"a": 1}}',
        '{"rows": [], "tables": [{}]}', '{"rows": [], "tables": 3}',
        '{"rows": [{}], "tables": [[]]}', '[' * 10**5, '{"rows": [], "rows": []}',
        '{"rows": [NaN]}', '{"rows": [1e999]}', '{"rows": [-Infinity]}', '9' * 5000, '\ufeff{}', '',
        '[' * 70 + ']' * 70, json.dumps(dict(rows=[{'a': 10**400}])),
        json.dumps(dict(rows=[{'a:>1000000000': 1}])), _table([], [{'a': 1}], shown=[9]),
        _table({}, [], [3]), _table({'b': '{a:>9}'}, [{'a': []}]),
        _table({'b': '{a:.2f}'}, [{'a': 'x'}]), *(_table({'b': form}, [{'a': 1}]) for form in (
            '{a:>1000000000}', '{a:.999999999f}', '{a:{a}}', '{a.__class__}', '{a[0]}', '{}',
            '{a!r:>9}', '{a:x>99}', '{a', 3, '{a:²}'))])],
    'a.npz': [
        (r'shape \(-2, -1\)', [_zip(_headed(_HEADER % ('<f8', '-2, -1')))]),
        ('Python objects', [_zip(_headed(_HEADER % ('|O', '2,')))]),
        ('has 16 bytes for', [_zip(_headed(_HEADER % ('|V0', '2,')))]),
        ('cannot be read', [_zip(_headed(header)) for header in (
            _HEADER % ('<f8', '10**9,'), _HEADER % ('<f8', '9' * 9000 + ','), '-' * 9000 + '1',
            '(' * 9000, '[' * 90 + ']' * 90, '')]),
        ('magic string', [_zip(b'text of some length')]), ("two arrays 'tokens'", [
            _zip(_member((1,), 1), count=2)]),
        ('is encrypted', [_npz(_encrypt)]), ('a.npz cannot be read as .npz .*Bad CRC-32', [
            _npz(_flip)]),
        # Neither are more numbers unpacked nor is memory allocated for those that are not there.
        (r'has 8388608 bytes for float64 of shape \(4,', [_zip(_member((4,), 1 << 20))]),
        (r'has 16 bytes for float64 of shape \(1000000000000,', [_zip(_member((10**12,), 2))]),
        ('its members have 3221225600 bytes', [_claimed()]),
        # Its dictionary alone may have 4 GB.
        ('compressed in a way that NumPy does not use', [
            _zip(_member((4,), 4), zipfile.ZIP_LZMA)])],
    'x.png': [
        ('x.png.* cannot be read .*pixels', [
            _png(*size) for size in ((12000,) * 2, (60000,) * 2, (2**31 - 1,) * 2)]),
        # Pillow would start Ghostscript.
        ('x.png.* cannot be read as .*cannot identify', [
            b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EOF\n'])],
}
READ_BY = {'report.json': ['tables'], 'a.npz': ['arrays'], 'x.png': ['prefix', 'picture']}


@pytest.mark.parametrize('name', WRITTEN)
@pytest.mark.filterwarnings('error')
def test_what_a_stranger_may_write(tmp_path, name):
  path = tmp_path / name
  for words, contents in WRITTEN[name]:
    for content in contents:
      path.write_bytes(content if isinstance(content, bytes) else content.encode())
      for reader in READ_BY.get(name, ['weights']):
        tracemalloc.start()
        with pytest.raises(ValueError, match=words) as error:
          ANY[reader](path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40 << 20, content[:99]
        assert len(str(error.value)) < 1000 and str(error.value).isprintable()
  assert _files(tmp_path) == [path]


def test_a_header_of_200_mb_is_not_read(tmp_path):
  with (tmp_path / 'x.safetensors').open('wb') as file:
    file.write((200_000_000).to_bytes(8, 'little'))
    file.truncate(300_000_000)  # Uses no space on the disk.
  with pytest.raises(ValueError, match='header too large'):
    convert_read.read(tmp_path / 'x.safetensors')
  header = b'{"__metadata__": {"seed": "1", "seed": "2"}}'
  (tmp_path / 'x.safetensors').write_bytes(_safetensors(header))
  with pytest.raises(ValueError, match="x.safetensors cannot be read .*'seed' is there twice"):
    reading.texts_of_arrays(tmp_path / 'x.safetensors', REMEDY)


def test_headers_and_archives_of_numpy_that_are_right(tmp_path, monkeypatch):
  """By columns, of Python 2, and compressed as `numpy.savez_compressed` does it."""
  path = tmp_path / 'a.npz'
  for header in (_HEADER % ('<f8', '2L,'), (_HEADER % ('<f8', '2,')).replace('False', 'True')):
    path.write_bytes(_zip(_headed(header)))
    assert npz.arrays(path, REMEDY)['tokens'].tolist() == [0, 0]
    assert npz.headers(path, REMEDY)['tokens'].shape == (2,)
    with (pytest.raises(ValueError, match='not stored row by row') if 'True' in header
          else contextlib.nullcontext()):
      assert np.concatenate([*npz.batches(path, REMEDY, 'tokens', 1)]).tolist() == [0, 0]
  np.savez_compressed(path, tokens=np.zeros(1 << 17))
  assert not npz.arrays(path, REMEDY)['tokens'].any()
  monkeypatch.setattr(reading, '_MAX_UNPACKED', 1 << 18)
  with pytest.raises(ValueError, match='its members have 1048704 bytes and the file .* unpacked'):
    npz.arrays(path, REMEDY)
  path.write_bytes(_npz(_flip))
  with pytest.raises(ValueError, match='a.npz cannot be read as .npz .*Bad CRC-32'):
    list(npz.batches(path, REMEDY, 'tokens', 2))


def test_pictures_of_prefixes(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'x.png').write_bytes(_png(1, 1))
  assert given_rows._picture(pathlib.Path('~/x.png'), (2, 2)).shape == (2, 2, 3)
  for data in damage.changed(_png(1, 1), 60):
    (tmp_path / 'x.png').write_bytes(data)
    _checked(lambda path: given_rows._picture(path, (2, 2)), tmp_path / 'x.png', ('{path}',))


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
  load = lambda path: folder_lib.load(path.parents[1], draft=None, eagle=None, medusa=None,
                                      corrector=None, neighbours=None, local=None, tokenizer=None)
  assert _checked(load, path, (str(tmp_path), 'labels of the target')) is None


def _statistics(rng, width):
  """Arrays that a file of statistics may hold, one of which is not what it should be."""
  arrays = {'mu': np.zeros(width), 'sigma': np.eye(width)}
  strange = (np.eye(width, dtype=complex), np.eye(width - 1), np.ones(()), np.zeros(0),
             np.float64(1), np.asarray('x'), np.eye(width).astype('S3'),
             np.zeros(width, [('a', float)]), np.full(width, np.nan), -np.eye(width),
             np.full((width, width), 1e308), np.eye(width, dtype=bool), np.zeros((width, 1)))
  name = rng.choice(['mu', 'sigma', 'mu_s', 'sigma_s', 'pool', 'arr_0'])
  return arrays | {str(name): strange[rng.integers(len(strange))]}


@pytest.mark.parametrize('count', COUNTS)
def test_statistics(tmp_path, count):
  config = inception.InceptionConfig(unit=1, num_classes=6)
  width, path, refused = inception_network.widths(config).pool, tmp_path / 'a.npz', 0
  network = evaluation.InceptionEvaluator(None, config, 'adm', '')
  for seed in range(count):
    np.savez(path, **_statistics(np.random.default_rng(seed), width))
    refused += _checked(lambda path: evaluation.opened('reference', str(path), network, 4), path,
                        ('{path}',)) is None
  assert count / 2 < refused < count


@pytest.mark.parametrize('digits', [25, 400, 5000])
def test_long_integers_are_numbers(tmp_path, digits):
  """Python does not parse those of more than 4300 digits, and its error says how to let it."""
  (tmp_path / 'a.json').write_text(f'{{"a": -{"9" * digits}}}')
  if digits == 25:
    assert reading.json(tmp_path / 'a.json', 'remove it') == {'a': -1e25}
  else:
    with pytest.raises(ValueError, match='not finite') as caught:
      reading.json(tmp_path / 'a.json', 'remove it')
    assert re.search('^.{,400}$', str(caught.value).replace(str(tmp_path), ''))
