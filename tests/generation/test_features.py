"""Features of generated images: once per number, whatever is killed."""

import contextlib
import pathlib

import numpy as np
import pytest
from PIL import Image

import cspd_jax
from cspd_jax.files import atomic
from cspd_jax.generation.gallery import Extractor, Gallery

PROMPTS = ['sea', 'sky', 'sea', 'sand', 'sky']


def _features(images):
  """Features of which no two images have the same."""
  x = images.astype(np.float32)
  return dict(pool=x.mean(axis=(1, 2)), rows=x[..., 0].sum(axis=2))


def _compute(paths, keep, features=_features):
  images = np.stack([np.asarray(Image.open(path)) for path in paths])
  parts = [keep((batch,), lambda batch=batch: features(batch))
           for batch in (images[:3], images[3:])]
  return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


EXTRACTOR = Extractor(_compute, dict(network='means'))


@pytest.fixture(name='model', scope='module')
def _model(beach):
  return cspd_jax.load(str(beach))


def _gallery(model, folder, extractor=EXTRACTOR, **options):
  request = model.images(PROMPTS, seed=4, decoder='vanilla', batch_size=2)
  return Gallery(request, folder, features=extractor, **options)


@pytest.fixture(name='whole', scope='module')
def _whole(model, tmp_path_factory):
  folder = tmp_path_factory.mktemp('whole') / 'out'
  assert _gallery(model, folder).generate({})
  return folder


def _contents(folder):
  return {file.name: file.read_bytes() for file in folder.iterdir()
          if file.is_file() and file.name != 'report.json'}


def test_every_number_has_the_features_of_its_image(model, whole):
  names = _gallery(model, whole.parent / 'other').names
  assert set(_contents(whole)) == {*names, 'features.npz'}
  stored = np.load(whole / 'features.npz')
  assert str(stored['network']) == 'means'
  images = np.stack([np.asarray(Image.open(whole / name)) for name in names])
  assert len(np.unique(stored['pool'], axis=0)) == len(PROMPTS)
  np.testing.assert_array_equal(stored['pool'], images.astype(np.float32).mean(axis=(1, 2)))
  np.testing.assert_array_equal(stored['rows'], images[..., 0].astype(np.float32).sum(axis=2))


class _Killer:
  """Raises KeyboardInterrupt in place of the file operation of a number."""

  def __init__(self, monkeypatch, number):
    self.left = number
    for owner, name in ((atomic, 'write'), (atomic, 'write_arrays'), (pathlib.Path, 'unlink')):
      monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

  def _counted(self, function):
    def call(*arguments, **options):
      self.left -= 1
      if self.left < 0:
        raise KeyboardInterrupt
      return function(*arguments, **options)
    return call


def test_a_kill_at_any_operation_changes_nothing(model, whole, tmp_path, monkeypatch):
  expected, number, stopped = _contents(whole), 0, True
  while stopped:
    folder = tmp_path / str(number)
    with monkeypatch.context() as patched:
      gallery = _gallery(model, folder)
      killer = _Killer(patched, number)
      with contextlib.suppress(KeyboardInterrupt):
        gallery.generate({})
      stopped = killer.left < 0
    del gallery  # It holds the folder.
    if stopped and not (folder / 'report.json').exists():
      assert _gallery(model, folder).generate({})
    assert _contents(folder) == expected
    number += 1
  # Five images, two batches of features, one of all, two removals, and those of the report.
  assert number > 12


def test_each_image_is_computed_once(model, tmp_path):
  counts = []

  def stopped(images):
    counts.append(len(images))
    if len(counts) == 2:
      raise KeyboardInterrupt
    return _features(images)

  extractor = EXTRACTOR._replace(compute=lambda *arguments: _compute(*arguments, stopped))
  first = _gallery(model, tmp_path / 'out', extractor)
  with pytest.raises(KeyboardInterrupt):
    first.generate({})
  del first
  other = EXTRACTOR._replace(identity=dict(network='sums'))
  with pytest.raises(ValueError, match='another run was stopped'):
    _gallery(model, tmp_path / 'out', other)
  with pytest.raises(ValueError, match='another run was stopped'):
    _gallery(model, tmp_path / 'out', None)
  assert _gallery(model, tmp_path / 'out', extractor).generate({})
  assert counts == [3, 2, 2]


def test_processes_join_their_features(model, whole, tmp_path):
  share = lambda index: _gallery(
      model, tmp_path / 'out', process=(index, 2)).generate({})
  assert not share(0) and share(1)
  assert _contents(tmp_path / 'out') == _contents(whole)


def test_damaged_features_are_refused(model, tmp_path):
  def compute(paths, keep):
    _compute(paths, keep)
    raise KeyboardInterrupt

  first = _gallery(model, tmp_path / 'out', EXTRACTOR._replace(compute=compute))
  with pytest.raises(KeyboardInterrupt):
    first.generate({})
  del first
  part = next((tmp_path / 'out' / '.unfinished').glob('kept_*.npz'))
  part.write_bytes(part.read_bytes()[:-30])
  with pytest.raises(ValueError, match=part.name[:20]):
    _gallery(model, tmp_path / 'out').generate({})
