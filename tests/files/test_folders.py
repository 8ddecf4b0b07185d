"""Folders that replace older ones, with every file operation failing in turn."""

import json
import os

import pytest

from cspd_jax.files import atomic, folders
from tests.reliability import faults


def listed(folder):
  """Files of a folder that `write` wrote."""
  if not (folder / 'list.json').exists():
    raise ValueError(f'{folder} has no list')
  return [*json.loads((folder / 'list.json').read_text()), 'list.json']


def write(path, text, state=None):
  with folders.replacing(path, listed, state) as new:
    (new / 'inner').mkdir(exist_ok=True)
    for name in ('inner/a', 'b'):
      (new / name).write_text(text)
    atomic.write_json(new / 'list.json', ['inner/a', 'b'])


def content(path):
  return {name.relative_to(path).as_posix(): name.read_text()
          for name in path.rglob('*') if name.is_file() and name.name != 'list.json'}


OLD, NEW = ({'inner/a': text, 'b': text} for text in ('old', 'new'))


def test_a_folder_takes_the_place_of_nothing_an_empty_one_and_an_older_one(tmp_path):
  (tmp_path / 'empty').mkdir()
  for name in ('empty', 'fresh/deep'):
    write(tmp_path / name, 'old')
    assert content(tmp_path / name) == OLD
    write(tmp_path / name, 'new')
    assert content(tmp_path / name) == NEW
  assert sorted(os.listdir(tmp_path)) == ['empty', 'fresh']
  assert os.listdir(tmp_path / 'fresh') == ['deep']


@pytest.mark.parametrize('stranger', ['mine', 'inner/mine', 'empty/', 'link'])
def test_files_of_others_are_named_and_stay(tmp_path, stranger):
  path = tmp_path / 'x'
  write(path, 'old')
  other = path / stranger
  if stranger == 'link':
    other.symlink_to(tmp_path)
  elif stranger == 'empty/':
    other.mkdir()
  else:
    other.write_text('mine')
  with pytest.raises(ValueError, match=f"holds '{stranger.rstrip('/')}'.*choose another folder"):
    write(path, 'new')
  assert other.exists() and content(path).items() >= OLD.items()
  assert os.listdir(tmp_path) == ['x']


def test_files_and_unknown_folders_are_refused(tmp_path):
  (tmp_path / 'file').write_text('mine')
  with pytest.raises(ValueError, match='which is a file'):
    write(tmp_path / 'file', 'new')
  (tmp_path / 'photos').mkdir()
  (tmp_path / 'photos' / 'mine').write_text('mine')
  with pytest.raises(ValueError, match='has no list'):
    write(tmp_path / 'photos', 'new')
  (tmp_path / '.x.unfinished' / 'new').mkdir(parents=True)
  (tmp_path / '.x.unfinished' / 'new' / 'mine').write_text('mine')
  with pytest.raises(ValueError, match='new was not written by cspd_jax'):
    write(tmp_path / 'x', 'new')
  assert [path.read_text() for path in tmp_path.rglob('*') if path.is_file()] == ['mine'] * 3


def test_two_writers_of_one_folder_do_not_meet(tmp_path):
  with folders.replacing(tmp_path / 'x', listed) as new:
    with pytest.raises(ValueError, match='being written by another process'):
      write(tmp_path / 'x', 'other')
    atomic.write_json(new / 'list.json', [])
  write(tmp_path / 'x', 'new')


def test_interrupted_work_is_kept_for_the_same_state_only(tmp_path):
  def interrupted(state):
    with folders.replacing(tmp_path / 'x', listed, state) as new:
      (new / 'part').write_text('done')
      raise KeyboardInterrupt

  for state, result in (('a', ['part']), ('b', [])):
    with pytest.raises(KeyboardInterrupt):
      interrupted('a')
    with folders.replacing(tmp_path / 'x', listed, state) as new:
      assert sorted(os.listdir(new)) == result
      atomic.write_json(new / 'list.json', result)
    assert os.listdir(tmp_path) == ['x']


def work(path):
  """Runs under `faults`: replaces an older folder."""
  write(path / 'x', 'new')


@pytest.mark.parametrize('how', [pytest.param('kill', marks=pytest.mark.slow), 'raise'])
def test_a_fault_at_every_operation_leaves_the_old_or_the_new(tmp_path, how):
  cases = [(f'{number}', how, number) for number in range(1, 41)]
  for name, *_ in cases:
    write(tmp_path / name / 'x', 'old')
  codes, result = faults.run(__file__, tmp_path, cases), []
  for name, *_ in cases:
    path = tmp_path / name / 'x'
    if how == 'raise':
      assert path.exists()
    folders.recover(path)
    result.append(content(path))
    write(path, 'new')
    assert content(path) == NEW and os.listdir(path.parent) == ['x']
  assert all(files in (OLD, NEW) for files in result)
  assert 8 < result.count(OLD) < 32 and (result[0], result[-1]) == (OLD, NEW)
  assert (codes[0], codes[-1]) == ({'kill': -9, 'raise': 2}[how], 0)
