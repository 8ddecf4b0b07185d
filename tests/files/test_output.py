"""The rule by which programs fill folders, for each of them, with every write failing in turn."""

import errno
import functools
import json
import os
import pathlib
import stat
import subprocess

import jax
import numpy as np
import pytest

from cspd_jax.families import model_file
from cspd_jax.files import atomic, output, run_folder, store
from cspd_jax.files.run_folder import Report
from cspd_jax.models import llamagen, vq
from tests.marks import representative

CONFIG = llamagen.LlamaGenConfig(
    height=2, width=2, dim=8, num_layers=1, num_heads=2, ffn_dim=8, vocab_size=4, num_classes=3)
PIXELS = vq.VQConfig(ch=8, ch_mult=(1, 2), num_res_blocks=1, z_channels=8, codebook_size=4,
                     codebook_dim=4)
_KINDS = {'target': ('llamagen', CONFIG), 'tokenizer': ('vq', PIXELS)}


def _params(role, number):
  shapes = store.sketch(*_KINDS[role]).params
  return jax.tree.map(lambda leaf: np.full(leaf.shape, number, leaf.dtype), shapes)


def save(folder, number):
  """A network, as `cspd-train` and `cspd-convert` of one network write it."""
  store.save_groups(folder, *_KINDS['target'], [lambda: _params('target', number)],
                    state=dict(number=number))


def join(folder, number):
  """The networks of a model, as `cspd-convert` writes them."""
  states = {role: dict(number=number) for role in _KINDS}
  with model_file.joining(folder, 'llamagen', states, dict(top_k=number)) as new:
    for role, place in new.items():
      store.write(place, *_KINDS[role], [lambda role=role: _params(role, number)],
                  state=states[role], dtype=None, allow_nonfinite=False)


def report(folder, number):
  """A report, as `cspd-generate` writes it with its images."""
  out = Report(folder, ['a.png'], run=dict(number=number), program='it')
  for name in ('a.png', f'{number}.png'):
    if not out.has(name):
      atomic.write(out.path(name), f'{name} {number}'.encode())
  out.write(settings={}, rows=[dict(number=number)])


def fill(folder, number):
  """Files without a list of them, as `cspd-evaluate --layout` writes them."""
  names = ['x/a', 'b']
  taken = [name for name in names if os.path.lexists(folder / name)]
  with output.filling(folder, dict(number=number), names=taken, last='b', earlier=dict.fromkeys(
      taken, '')) as work:
    (work / 'x').mkdir(exist_ok=True)
    for name in names:
      atomic.write(work / name, str(number).encode())


PROGRAMS = pytest.mark.parametrize('program', [save, join, report, fill])


def content(folder):
  """The files in a folder by name, those of a report without the machine."""
  result = {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob('*')) if path.is_file()}
  if 'report.json' in result:
    result['report.json'] = json.loads(result['report.json'])['rows']
  return result


@pytest.fixture(autouse=True, scope='module')
def _traced_once():
  with pytest.MonkeyPatch.context() as patch:
    expected = functools.cache(lambda name, config, right=store._expected: right(
        store.KINDS[name], config))
    patch.setattr(store, '_expected', lambda kind, config: expected(
        next(name for name, other in store.KINDS.items() if other is kind), config))
    yield


@pytest.fixture(name='results', scope='module')
def _results(tmp_path_factory):
  """What the programs write, by program and number."""
  folder = tmp_path_factory.mktemp('results')
  for program in (save, join, report, fill):
    for number in (1, 2):
      program(folder / f'{program.__name__}{number}', number)
  return lambda program, number: content(folder / f'{program.__name__}{number}')


@PROGRAMS
def test_a_folder_that_exists_is_filled_and_stays_the_folder_it_is(
    tmp_path, monkeypatch, program, results):
  """Empty or with files of a user, named or `.`, below a folder that nobody may write."""
  folder, mine = tmp_path / 'out', dict.fromkeys(
      ('mine', 'photos/mine.png', 'model.safetensors.old'), b'x')
  folder.mkdir()
  folder.chmod(0o2750)
  before, access = folder.stat(), os.access
  monkeypatch.chdir(folder)
  # Root may write everywhere; `access` is what programs ask.
  monkeypatch.setattr(os, 'access', lambda path, mode: pathlib.Path(path) != tmp_path and access(
      path, mode))
  tmp_path.chmod(0o555)
  try:
    program(pathlib.Path(), 1) if program in (save, join, report) else program(folder, 1)
    assert content(folder) == results(program, 1)
    for name, text in mine.items():
      (folder / name).parent.mkdir(exist_ok=True)
      (folder / name).write_bytes(text)
    program(folder, 2)
  finally:
    tmp_path.chmod(0o755)
  assert content(folder) == results(program, 2) | mine
  after = folder.stat()
  assert (after.st_ino, after.st_mode, after.st_gid) == (before.st_ino, before.st_mode,
                                                         before.st_gid)
  assert stat.S_IMODE(after.st_mode) == 0o2750
  assert os.path.samefile('.', folder) and os.listdir(tmp_path) == ['out']


@PROGRAMS
def test_a_mount_point_is_filled(tmp_path, program, results):
  folder = tmp_path / 'out'
  folder.mkdir()
  if os.geteuid() or subprocess.run(['mount', '-t', 'tmpfs', 'none', folder], check=False,
                                    capture_output=True).returncode:
    pytest.skip('only root may mount')
  try:
    for number in (1, 2):
      program(folder, number)
      assert content(folder) == results(program, number) and os.path.ismount(folder)
  finally:
    subprocess.run(['umount', folder], check=True)


@PROGRAMS
def test_a_missing_folder_is_made_with_its_parents(tmp_path, program, results):
  program(tmp_path / 'fresh' / 'deep', 1)
  assert content(tmp_path / 'fresh' / 'deep') == results(program, 1)
  assert os.listdir(tmp_path) == ['fresh'] and os.listdir(tmp_path / 'fresh') == ['deep']


class _Stopped(BaseException):
  """The process is killed."""


def _failing(monkeypatch, number, error):
  """Lets one rename, removal or new folder fail; returns a list that holds each of them."""
  calls = []

  def failing(function):
    def run(*arguments, **options):
      calls.append((function.__name__, *map(str, arguments)))
      if len(calls) == number:
        raise error
      if isinstance(error, _Stopped) and len(calls) > number:
        raise error  # Nothing runs any more after a kill.
      return function(*arguments, **options)
    return run

  for name in ('rename', 'replace', 'unlink', 'mkdir', 'rmdir'):
    monkeypatch.setattr(os, name, failing(getattr(os, name)))
  return calls


@PROGRAMS
@pytest.mark.parametrize('how, first', representative(
    [(how, first) for how in ('kill', 'full') for first in (False, True)],
    ('kill', False), ('full', True)))
def test_a_fault_at_every_write(tmp_path, monkeypatch, program, results, first, how):
  """There is the old, the new, or what the next program completes; and a user's file."""
  old = {} if first else results(program, 1)
  new = results(program, 2)
  mine = {'mine': b'x'}
  seen, number, ends = [], 0, False
  while not ends:
    number += 1
    assert number < 60
    folder = tmp_path / str(number)
    folder.mkdir()
    (folder / 'mine').write_bytes(b'x')
    if not first:
      program(folder, 1)
    error = _Stopped() if how == 'kill' else OSError(errno.ENOSPC, 'No space left on device')
    with monkeypatch.context() as patch:
      calls = _failing(patch, number, error)
      try:
        program(folder, 2)
        raised = False
      except (_Stopped, OSError):
        raised = True
      ends = len(calls) < number
    assert raised or how == 'full' or ends
    output.finish(folder)  # As every reader does.
    there = {name: value for name, value in content(folder).items()
             if not name.startswith(output.FOLDER)}
    assert there in (old | mine, new | mine), (number, calls[-1])
    seen.append('new' if there == new | mine else 'old')
    program(folder, 2)
    assert content(folder) == new | mine and not (folder / output.FOLDER).exists(), number
  assert seen[0] == 'old' and seen[-1] == 'new'
  assert seen.count('old') > 3 and seen.count('new') > 2


@PROGRAMS
def test_a_second_run_of_the_same_command_changes_nothing(tmp_path, program):
  program(tmp_path / 'out', 1)
  before = content(tmp_path / 'out')
  program(tmp_path / 'out', 1)
  assert content(tmp_path / 'out') == before


def test_networks_that_are_there_are_not_built_again(tmp_path):
  build = pytest.fail
  join(tmp_path / 'm', 1)
  store.save_groups(tmp_path / 'm' / 'target', *_KINDS['target'], [build], state=dict(number=1))
  with model_file.joining(tmp_path / 'm', 'llamagen', dict(
      target=dict(number=2), tokenizer=dict(number=1)), {}) as new:
    assert [*new] == ['target']
    store.write(new['target'], *_KINDS['target'], [lambda: _params('target', 2)], state=dict(
        number=2), dtype=None, allow_nonfinite=False)
  assert float(store.load(tmp_path / 'm' / 'target').params['transformer']['norm']['scale'][0]) == 2
  path = tmp_path / 'm' / 'tokenizer' / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:-1] + b'x')  # One that is damaged is.
  join(tmp_path / 'm', 1)
  store.load(tmp_path / 'm' / 'tokenizer')


def test_work_that_was_stopped_is_resumed_by_the_same_run_only(tmp_path):
  with pytest.raises(KeyboardInterrupt), output.filling(tmp_path / 'x', dict(seed=1)) as work:
    (work / 'part').write_text('hours of work')
    raise KeyboardInterrupt
  for run, words in ((dict(seed=2), r'stopped \(seed was 1, now 2\); resume that one, use another'),
                     ({}, r'where another run was stopped; .* or remove \.unfinished in it')):
    with pytest.raises(ValueError, match=words), output.filling(tmp_path / 'x', run):
      pytest.fail('it was removed')
  for program in (save, join, lambda folder, _: Report(folder, run=dict(seed=3), overwrite=False),
                  lambda folder, _: Report(folder, ['b.png']),
                  lambda folder, _: run_folder.check(folder, ['b.png'])):
    with pytest.raises(ValueError, match='another run was stopped'):
      program(tmp_path / 'x', 1)
  with output.filling(tmp_path / 'x', dict(seed=1)) as work:
    assert (work / 'part').read_text() == 'hours of work'
  assert content(tmp_path) == {'x/part': b'hours of work'}


def test_work_that_cannot_be_resumed_is_left_nowhere(tmp_path):
  with pytest.raises(KeyboardInterrupt), output.filling(tmp_path / 'a' / 'b', {}) as work:
    (work / 'part').write_text('x')
    raise KeyboardInterrupt
  with pytest.raises(ValueError, match='no'), output.filling(tmp_path / 'a', dict(seed=1)) as work:
    (work / 'part').write_text('x')
    raise ValueError('no')
  assert not os.listdir(tmp_path)


@pytest.mark.parametrize('program, name', [
    (save, 'model.safetensors'), (save, 'model.json'), (join, 'target/model.safetensors'),
    (join, 'target'), (report, 'a.png'), (report, 'report.json')])
@pytest.mark.parametrize('kind', ['file', 'link', 'folder'])
def test_a_file_in_the_way_is_named_before_the_work(tmp_path, monkeypatch, program, name, kind):
  folder = tmp_path / 'out'
  (folder / name).parent.mkdir(parents=True)
  if kind == 'file':
    (folder / name).write_text('{"mine": 1}')
  elif kind == 'link':
    (folder / name).symlink_to(tmp_path / 'elsewhere')
    (tmp_path / 'elsewhere').mkdir()
  elif name == 'target':  # A folder that is filled.
    return
  else:
    (folder / name).mkdir()
  before = sorted(tmp_path.rglob('*'))
  monkeypatch.setattr('cspd_jax.files.weights._append', lambda *_: pytest.fail('it has begun'))
  with pytest.raises(ValueError, match=name.split('/')[-1] + '|not a checkpoint'):
    program(folder, 1)
  assert sorted(tmp_path.rglob('*')) == before


def test_a_file_that_comes_during_the_work_stays(tmp_path):
  for text, words in (('other', 'b was not written by this program'), ('1', None)):
    (tmp_path / 'b').unlink(missing_ok=True)
    def run(text=text):
      with output.filling(tmp_path, {}, last='b') as work:
        (work / 'b').write_text('1')
        (tmp_path / 'b').write_text(text)
    if words:
      with pytest.raises(ValueError, match=words):
        run()
    else:
      run()  # The same content.
    assert content(tmp_path) == {'b': text.encode()}


def test_two_writers_of_one_folder_do_not_meet(tmp_path):
  with output.filling(tmp_path / 'x', {}), pytest.raises(
      ValueError, match='being written by another process'):
    fill(tmp_path / 'x', 1)


@pytest.mark.parametrize('name', ['../mine', '/tmp/x', 'a/../../mine', 'link/mine', '', 'a\\b', 7])
@pytest.mark.parametrize('entry', ['files', 'gone'])
def test_a_list_of_a_stranger_leads_nowhere(tmp_path, name, entry):
  work = tmp_path / 'x' / output.FOLDER
  work.mkdir(parents=True)
  (tmp_path / 'mine').write_text('mine')
  (tmp_path / 'x' / 'link').symlink_to(tmp_path)
  (work / 'link').mkdir()
  (work / 'link' / 'mine').write_text('other')
  lists = dict(files=[], replaced={}, gone={})
  lists[entry] = [name] if entry == 'files' else {str(name): ''}
  (work / 'moves.json').write_text(json.dumps(lists))
  if entry == 'files' or name not in ('link/mine', 7):
    with pytest.raises(ValueError, match='holds the name|link is a link'):
      output.finish(tmp_path / 'x')
  else:
    output.finish(tmp_path / 'x')
  assert (tmp_path / 'mine').read_text() == 'mine'


def test_a_stopped_move_does_not_replace_what_came_meanwhile(tmp_path):
  work = tmp_path / output.FOLDER
  work.mkdir()
  for path in (work / 'a', tmp_path / 'a'):
    path.write_text(path.parent.name)
  (work / 'moves.json').write_text(json.dumps(dict(files=['a'], replaced={'a': '0' * 64}, gone={})))
  with pytest.raises(ValueError, match='a was not written by this program, or changed since'):
    output.finish(tmp_path)
  assert (tmp_path / 'a').read_text() == tmp_path.name
  (tmp_path / 'a').unlink()
  output.finish(tmp_path)
  assert content(tmp_path) == {'a': b'.unfinished'}


@PROGRAMS
@pytest.mark.parametrize('link', ['', 'part', '00000.part', 'model.safetensors', 'moves.json'])
def test_links_among_unfinished_work_are_not_followed(tmp_path, program, link):
  """Through them, checkpoints and folders of others would be removed."""
  with pytest.raises(KeyboardInterrupt), output.filling(tmp_path / 'x', dict(number=1)):
    raise KeyboardInterrupt
  work, other = tmp_path / 'x' / output.FOLDER, tmp_path / 'other'
  work.mkdir(parents=True, exist_ok=True)
  if link:
    other.write_text('{}')
    (work / 'run.json').write_text('{}')
  else:
    work.rename(other)
  (work / link).symlink_to(other)
  for _ in range(2):
    with pytest.raises(ValueError, match='is a link|not the folder'):
      program(tmp_path / 'x', 1)
    assert (work / link).is_symlink() and other.exists()


@PROGRAMS
def test_what_no_program_left_is_not_removed(tmp_path, program):
  (tmp_path / output.FOLDER).mkdir()
  (tmp_path / output.FOLDER / 'mine').write_text('mine')
  with pytest.raises(ValueError, match='does not hold work that can be resumed'):
    program(tmp_path, 1)
  assert (tmp_path / output.FOLDER / 'mine').read_text() == 'mine'
