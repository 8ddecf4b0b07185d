"""Several processes write images into one folder: every image once, whatever happens to them."""

import json

import pytest

import cspd_jax
from cspd_jax.files import paths
from tests.generation import many_processes
from tests.generation.many_processes import PROMPTS, contents, gallery


@pytest.fixture(scope='module')
def model(beach):
  return cspd_jax.load(str(beach))


@pytest.fixture(scope='module')
def alone(model, tmp_path_factory):
  folder = tmp_path_factory.mktemp('alone')
  assert gallery(model, folder).generate({})
  return contents(folder)


def test_the_last_process_completes_the_folder(model, alone, tmp_path):
  processes = [gallery(model, tmp_path, index, 2) for index in range(2)]
  steps = []
  assert not processes[0].generate({}, lambda *step: steps.append(step))
  assert not (tmp_path / 'report.json').exists()
  assert steps[0] == (0, 10) and steps[-1] == (10, 10)
  assert processes[1].generate({})
  assert contents(tmp_path) == alone
  rows = json.loads((tmp_path / 'report.json').read_text())['rows']
  assert [row['number'] for row in rows] == list(range(len(PROMPTS)))


def test_another_number_of_processes_resumes(model, alone, tmp_path):
  def stop(done, total):
    if done:
      raise KeyboardInterrupt

  for index in range(3):
    with pytest.raises(KeyboardInterrupt):
      gallery(model, tmp_path, index, 3).generate({}, stop)
  assert not gallery(model, tmp_path, 1, 2).generate({})
  assert gallery(model, tmp_path).generate({})  # One process alone takes what is left.
  assert contents(tmp_path) == alone


def test_refused(model, tmp_path):
  with pytest.raises(ValueError, match='process is 2/2; the first number must be less'):
    gallery(model, tmp_path, 2, 2)
  with pytest.raises(ValueError, match='overwrite is True and process is 0/2'):
    gallery(model, tmp_path, 0, 2, overwrite=True)
  first = gallery(model, tmp_path, 0, 2)
  assert not first.is_complete
  first._report.path(first.names[0]).write_bytes(b'x')
  with pytest.raises(ValueError, match=r'another run was stopped \(seed was 4, now 5\)'):
    gallery(model, tmp_path, 1, 2, seed=5)


def test_a_disk_that_cannot_hold_the_images(model, tmp_path, monkeypatch):
  images = gallery(model, tmp_path)
  pixels = 20 * model.generate('sea', decoder='vanilla').images.size
  monkeypatch.setattr(paths, '_free', lambda path: 0.25 * pixels - 1)
  with pytest.raises(ValueError, match='free some space'):
    images.generate({})
  monkeypatch.setattr(paths, '_free', lambda path: 1.25 * pixels)
  assert images.generate({})


@pytest.mark.slow
def test_processes_that_are_killed(beach, alone, tmp_path):
  folder = tmp_path / 'out'
  assert many_processes.disturbed(beach, folder, kills=6) >= 6
  assert contents(folder) == alone
