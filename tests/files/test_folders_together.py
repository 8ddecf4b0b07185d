"""Folders that are replaced together, with every file operation failing in turn."""

import json
import os

import pytest

from cspd_jax.files import folders, locks
from tests.files import test_folders
from tests.reliability import faults

NAMES = ('a', 'b', 'c')


def join(path, text, names=NAMES):
  """Writes the folders and the file that names them."""
  with folders.replacing_together(path, dict.fromkeys(names, text), test_folders.listed, 'all.json',
                                  lambda: [text, *names]) as new:
    assert list(new) == list(names)
    for folder in new.values():
      for name in ('x', 'list.json'):
        (folder / name).write_text(json.dumps(['x'] if name == 'list.json' else text))


def old(path):
  """Creates a folder with two older folders and a file of the user."""
  join(path, 'old', ('a', 'b'))
  (path / 'mine').write_text('"mine"')


def content(path):
  """Returns the content of all files except the lists."""
  names = [os.path.join(folder, name) for folder, _, names in os.walk(path, followlinks=True)
           for name in names if name != 'list.json']
  return {os.path.relpath(name, path): json.loads(open(name).read()) for name in names}


def hidden(path):
  """Returns the remains of unfinished work."""
  return [name for name in path.rglob('.*') if not name.name.endswith('.err')]


OLD = {'a/x': 'old', 'b/x': 'old', 'mine': 'mine', 'all.json': ['old', 'a', 'b']}
NEW = {'a/x': 'new', 'b/x': 'new', 'c/x': 'new', 'mine': 'mine', 'all.json': ['new', *NAMES]}


def work(path):
  """Runs under `faults`."""
  join(path, 'new')


def test_all_folders_are_replaced(tmp_path):
  old(tmp_path / 'm')
  assert content(tmp_path / 'm') == OLD
  join(tmp_path / 'm', 'new')
  assert content(tmp_path / 'm') == NEW
  assert sorted(os.listdir(tmp_path / 'm')) == ['a', 'all.json', 'b', 'c', 'mine']


@pytest.mark.parametrize('where', ['last folder', 'content', 'stranger', 'file'])
def test_a_failure_leaves_nothing(tmp_path, where):
  old(tmp_path / 'm')

  def fail():
    raise ValueError('no')

  def run(folder, names):
    with folders.replacing_together(folder, dict.fromkeys(names, 0), test_folders.listed,
                                    'all.json', fail if where == 'content' else dict) as new:
      for folder_ in new.values():
        (folder_ / 'list.json').write_text('[]')
      if where == 'last folder':
        fail()
      if where == 'stranger':  # It comes while the folders are written.
        (folder / 'a').mkdir(exist_ok=True)
        (folder / 'a' / 'photo').write_text('1')
      if where == 'file':  # The last file cannot be written.
        (folder / 'all.json').unlink(missing_ok=True)
        (folder / 'all.json').mkdir()

  for folder, names in ((tmp_path / 'm', NAMES), (tmp_path / 'fresh' / 'deep', NAMES)):
    with pytest.raises((ValueError, IsADirectoryError)):
      run(folder, names)
  kept = content(tmp_path / 'm')
  assert kept.pop('a/photo', 1) == 1
  assert kept == {name: OLD[name] for name in OLD if where != 'file' or name != 'all.json'}
  assert not hidden(tmp_path)
  assert (tmp_path / 'fresh').exists() == (where in ('stranger', 'file'))


@pytest.mark.parametrize('link', [
    '.all.json.unfinished', '.a.unfinished', '.a.unfinished/complete', 'a'])
def test_cleaning_up_after_a_stopped_process_follows_no_links(tmp_path, link):
  other, folder = tmp_path / 'other', tmp_path / 'm'
  (folder / '.a.unfinished' / 'complete').mkdir(parents=True)
  (folder / '.a.unfinished' / 'state.json').write_text('null')
  (folder / '.all.json.unfinished').write_text('{}')
  path = folder / link
  if path.exists():
    path.rename(other)
  else:
    other.mkdir()
  path.symlink_to(other)
  with pytest.raises(ValueError, match='is a link'):
    folders.recover_together(folder, test_folders.listed, 'all.json')
  assert other.exists() and path.is_symlink() and not (folder / 'all.json').exists()


def test_parts_that_another_process_writes_are_not_moved(tmp_path):
  """They are no part of what a killed process left complete."""
  for name, inside in (('a', 'complete'), ('b', 'new')):
    (tmp_path / f'.{name}.unfinished' / inside).mkdir(parents=True)
    (tmp_path / f'.{name}.unfinished' / 'state.json').write_text('1')
  (tmp_path / '.all.json.unfinished').write_text('{}')
  with locks.exclusive(tmp_path / '.b.unfinished'):
    folders.recover_together(tmp_path, test_folders.listed, 'all.json')
  assert sorted(os.listdir(tmp_path)) == ['.b.unfinished', 'a', 'all.json']


@pytest.mark.slow
def test_a_fault_at_any_operation_leaves_the_old_or_the_new(tmp_path):
  cases = [(f'{how}/{number}/m', how, number)
           for how in ('kill', 'raise') for number in range(1, 51)]
  for name, *_ in cases:
    old(tmp_path / name)
  codes, result = faults.run(__file__, tmp_path, cases), {'kill': [], 'raise': []}
  for (name, how, _), code in zip(cases, codes):
    path = tmp_path / name
    if how == 'raise' and code:  # A full disk.
      assert code == 2 and content(path) == OLD and not hidden(path.parent)
    folders.recover_together(path, test_folders.listed, 'all.json')
    result[how].append({file: value for file, value in content(path).items() if file[0] != '.'})
    join(path, 'new')
    assert content(path) == NEW and not hidden(path.parent)
  for contents in result.values():
    assert all(files in (OLD, NEW) for files in contents)
    assert contents.count(OLD) > 10 and (contents[0], contents[-1]) == (OLD, NEW)
  assert (codes[0], codes[49], codes[50], codes[-1]) == (-9, 0, 2, 0)
