"""Locks: released by a kill, on disks of every kind; temporary files of the dead and the living."""

import errno
import fcntl
import os
import pathlib
import stat
import subprocess
import sys

import pytest

from cspd_jax.commands import inspect
from cspd_jax.files import atomic, locks, output, paths, run_folder

_ROOT = pathlib.Path(__file__).parents[2]
_WRITER = '''
import pathlib, sys
from cspd_jax.files import atomic, locks
folder = pathlib.Path(sys.argv[1])
hold = locks.hold(folder)
with atomic.writing(folder / 'a.json') as stream:
  print('held', flush=True)
  input()
'''


@pytest.fixture(name='writer')
def _writer(tmp_path):
  """A process that holds a folder and writes a file in it."""
  with subprocess.Popen([sys.executable, '-c', _WRITER, str(tmp_path)], cwd=_ROOT,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    assert process.stdout.readline() == b'held\n'
    yield process
    process.kill()


@pytest.fixture(name='disk', params=['local', 'nfs', 'no locks'])
def _disk(request, monkeypatch):
  """The kinds of disks: NFS locks what is open for writing, and some lock nothing."""
  flock = fcntl.flock

  def of_disk(handle, operation):
    if request.param == 'no locks':
      raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    if request.param == 'nfs' and stat.S_ISDIR(os.fstat(handle).st_mode):
      raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    flock(handle, operation)

  monkeypatch.setattr(fcntl, 'flock', of_disk)
  return request.param


def test_a_kill_releases_the_folder_and_the_files_in_it(tmp_path, writer):
  left, = atomic.leftovers(tmp_path / 'a.json')
  with pytest.raises(locks.HeldError, match='is being written by another process'):
    locks.hold(tmp_path)
  atomic.write_json(tmp_path / 'a.json', 1)
  assert left.exists(), 'its process is alive'
  writer.kill()
  os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # Nobody has asked for its exit code.
  locks.hold(tmp_path)
  (tmp_path / '.a.json.backup').write_text('mine')
  (tmp_path / '.a.json.20240101').write_text('mine')
  atomic.write_json(tmp_path / 'a.json', 2)
  assert sorted(os.listdir(tmp_path)) == ['.a.json.20240101', '.a.json.backup', 'a.json']


def test_a_write_does_not_list_its_folder(tmp_path):
  """Folders of images have very many files."""
  (tmp_path / '.b.json.000000.part').write_text('of a process that was killed')
  (tmp_path / '.b.json.0123ab.part').write_text('of another one')
  listed, is_open = [], True
  sys.addaudithook(lambda event, arguments: listed.append(event) if is_open and event in (
      'os.listdir', 'os.scandir') else None)
  atomic.write_json(tmp_path / 'a.json', 1)
  atomic.write_json(tmp_path / 'a.json', 2)
  assert not listed
  atomic.write_json(tmp_path / 'b.json', 1)
  assert listed
  is_open = False
  assert sorted(os.listdir(tmp_path)) == ['a.json', 'b.json']


def test_a_temporary_file_of_the_next_writer_is_not_removed(tmp_path, monkeypatch):
  """All writers of a file first try the same name, which is free as soon as one is done."""
  temporary, lock, replace = tmp_path / '.a.json.000000.part', locks._lock, pathlib.Path.replace

  def done_meanwhile(handle, **options):
    replace(temporary, tmp_path / 'a.json')
    temporary.write_text('of the next writer')
    lock(handle, **options)

  temporary.write_text('of the first one')
  monkeypatch.setattr(locks, '_lock', done_meanwhile)
  locks.remove_unlocked(temporary)
  assert temporary.read_text() == 'of the next writer'
  monkeypatch.undo()

  temporary.unlink()
  monkeypatch.setattr(pathlib.Path, 'replace', lambda path, target: (
      replace(path, target), path.write_text('of the next writer')))
  atomic.write_json(tmp_path / 'a.json', 1)
  assert temporary.read_text() == 'of the next writer'
  assert (tmp_path / 'a.json').read_text() == '1\n'


def test_folders_on_disks_of_every_kind(tmp_path, disk):
  with output.filling(tmp_path / 'y', {}) as new:
    (new / 'a').write_text('x')
  assert os.listdir(tmp_path) == ['y'] and os.listdir(tmp_path / 'y') == ['a']
  first, again = locks.hold(tmp_path / 'x'), locks.hold(tmp_path / 'x')
  assert first is again
  if disk != 'no locks':
    with pytest.raises(locks.HeldError), locks.exclusive(tmp_path / 'x'):
      pass
  del first, again
  with locks.exclusive(tmp_path / 'x'):
    atomic.write_json(tmp_path / 'x' / 'a.json', 1)
  assert locks.hold(tmp_path / 'x').is_locked == (disk != 'no locks')
  if disk == 'no locks':
    with pytest.raises(ValueError, match='on a disk without locks.*use a single process'):
      run_folder.Report(tmp_path / 'z', shared=True)
  assert sorted(os.listdir(tmp_path / 'x')) == [locks.FILE] * (disk == 'nfs') + ['a.json']


@pytest.mark.parametrize('disk', ['nfs'], indirect=True)
@pytest.mark.usefixtures('disk')
def test_no_lock_is_opened_through_a_link(tmp_path):
  (tmp_path / locks.FILE).symlink_to(tmp_path / 'mine')
  with pytest.raises(OSError, match=locks.FILE):
    locks.hold(tmp_path)
  assert not (tmp_path / 'mine').exists()


def test_a_system_without_locks_is_refused(tmp_path, monkeypatch, capsys):
  """Two processes would write one folder there, and a test for a running one would end it."""
  monkeypatch.setattr(locks, 'fcntl', None)
  monkeypatch.setattr(locks.sys, 'platform', 'win32')
  assert inspect.main(['cspd-inspect', f'--output={tmp_path}/x']) == 2
  message = capsys.readouterr().err
  assert 'the system is win32' in message and 'WSL' in message and message.count('\n') == 1
  for write in (lambda: paths.file('stream', tmp_path / 'a.png'), lambda: locks.hold(tmp_path),
                lambda: atomic.write(tmp_path / 'a', b'')):
    with pytest.raises(ValueError, match='use Linux or macOS'):
      write()
  assert not os.listdir(tmp_path)
