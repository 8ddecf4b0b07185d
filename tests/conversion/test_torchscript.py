"""TorchScript files: their tensors without torch, and nothing else.

The bytes `script` of `tests/data/cosmos.npz` were written by `torch.jit.save` of torch 2.14 for a
scripted module with a parameter `scale`, the view `arange(6).reshape(3, 2).T[:, 1:]` of float32, a
text, a list, and a module `layer` with a bfloat16 parameter `weight`, `arange(6).reshape(2, 3)`,
and an integer buffer `count`, 7 and 8.
"""

import collections
import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from checkpoints_conversion import convert, read, rules, torchscript
from cspd_jax.checkpoints import reading
from tests.models import published


@pytest.fixture
def script(tmp_path):
  """The recorded file."""
  path = tmp_path / 'encoder.jit'
  path.write_bytes(published.recorded('cosmos')['script'].tobytes())
  return path


def test_tensors_are_those_of_the_module(script):
  tensors = torchscript.read(script)
  assert tensors.keys() == {'scale', 'layer.weight', 'layer.count'}
  assert tensors['scale'].tolist() == [[2, 4], [3, 5]]
  assert str(tensors['layer.weight'].dtype) == 'bfloat16'
  assert tensors['layer.weight'].astype(float).tolist() == [[0, 1, 2], [3, 4, 5]]
  assert tensors['layer.count'].tolist() == [7, 8]


def test_torch_agrees(script):
  torch = pytest.importorskip('torch')
  state = torch.jit.load(script).state_dict()
  tensors = torchscript.read(script)
  assert state.keys() == tensors.keys()
  for name, value in state.items():
    np.testing.assert_array_equal(tensors[name].astype(np.float64), value.double().numpy())


def test_two_files_are_one_source(script, tmp_path):
  with pytest.raises(read.ReadError, match='where decoder.jit is missing; download it'):
    read.read(tmp_path)
  (tmp_path / 'decoder.jit').write_bytes(script.read_bytes())
  with pytest.raises(read.ReadError, match='repeats tensors of another file'):
    read.read(tmp_path)
  assert read.read(script).tensors.keys() == torchscript.read(script).keys()
  with pytest.raises(read.ReadError, match="key is 'ema', but .* is jit and has no parts"):
    read.read(script, key='ema')
  with pytest.raises(rules.ConversionError, match='The file is not a Cosmos-Tokenizer DV'):
    convert.open_source('cosmos_dv', script)


class _Command:
  """Runs a command when it is opened as a pickle."""

  def __reduce__(self):
    return os.system, ('touch opened',)


def _archive(path, content):
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('model/data.pkl', content)
    archive.writestr('model/data/0', np.arange(4, dtype=np.float32).tobytes())


def test_objects_are_not_opened(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  _archive(tmp_path / 'encoder.jit', pickle.dumps(_Command(), protocol=2))
  with pytest.raises(read.ReadError, match='encoder.jit: it is not a complete TorchScript file '
                     r'\(UnpicklingError: it holds posix.system\); download it again'):
    read.read(tmp_path / 'encoder.jit')
  assert not (tmp_path / 'opened').exists()


def _tensor_pickle(offset, size, strides):
  """A pickled tensor of a storage of four numbers, with its arguments as they are."""
  class Pickler(pickle.Pickler):
    def persistent_id(self, value):
      return ('storage', None, '0', 'cpu', 4) if value is Pickler else None

  arguments = io.BytesIO()
  Pickler(arguments, protocol=2).dump(
      (Pickler, offset, size, strides, False, collections.OrderedDict()))
  head, body = b'\x80\x02', arguments.getvalue()[2:-1]
  body = body.replace(b'N', b'ctorch\nFloatStorage\n', 1)
  return head + b'ctorch._utils\n_rebuild_tensor_v2\n' + body + b'R.'


@pytest.mark.parametrize('content, message', [
    (b'', 'EOFError'), (pickle.dumps(3), 'it holds no module'),
    (_tensor_pickle(0, (5,), (1,)), 'a tensor of shape .5,. is larger than its storage'),
    (_tensor_pickle(2, (2,), (-1,)), 'is larger than its storage'),
    (_tensor_pickle(1, (2, 2), (2, 1)), 'is larger than its storage')])
def test_damaged_files_are_refused(tmp_path, content, message):
  _archive(tmp_path / 'encoder.jit', content)
  with pytest.raises(read.ReadError, match=message):
    read.read(tmp_path / 'encoder.jit')


def test_files_of_other_formats_are_refused(tmp_path):
  (tmp_path / 'encoder.jit').write_bytes(b'nothing')
  with pytest.raises(read.ReadError, match='BadZipFile'):
    read.read(tmp_path / 'encoder.jit')
  with zipfile.ZipFile(tmp_path / 'encoder.jit', 'w') as archive:
    archive.writestr('model/other', b'')
  with pytest.raises(read.ReadError, match='it has no data.pkl'):
    read.read(tmp_path / 'encoder.jit')


def test_archives_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(reading, '_MAX_UNPACKED', 1000)
  with zipfile.ZipFile(tmp_path / 'encoder.jit', 'w', zipfile.ZIP_DEFLATED) as archive:
    archive.writestr('model/data.pkl', bytes(10**6))
  with pytest.raises(read.ReadError, match='its members have 1000000 bytes and the file'):
    read.read(tmp_path / 'encoder.jit')
