"""Reports: complete or absent, files of the user untouched, no stale files."""

import hashlib
import json
import os
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest

from cspd_jax.files import atomic, locks, run_folder
from cspd_jax.files.run_folder import Report, Run


def test_a_run_has_one_folder_and_its_pieces(tmp_path):
  like = dict(x=np.zeros(3, ml_dtypes.bfloat16), y=[np.zeros((2, 0), bool), np.int32(0)])
  tree = dict(x=np.arange(3).astype(ml_dtypes.bfloat16), y=[np.ones((2, 0), bool), np.int32(7)])
  (tmp_path / 'x').mkdir()
  (tmp_path / 'x' / '.run.json.0123ab.part').write_text('of a process that was killed at once')
  settings = {'seed': 1, 'sampling': {'top_k': 3, 'top_p': None}}
  run = Run(tmp_path / 'x', settings)
  assert run.read('a.npz', like) is None
  run.write('a.npz', tree)
  result = Run(tmp_path / 'x', settings).read('a.npz', like)
  jax.tree.map(np.testing.assert_array_equal, result, tree)
  assert result['x'].dtype == ml_dtypes.bfloat16
  with pytest.raises(ValueError, match=r"holds int32\[\] as 'y.1' instead of int32\[1\], the"):
    run.read('a.npz', like | dict(y=[like['y'][0], np.zeros(1, np.int32)]))
  with pytest.raises(ValueError, match=r'workdir is .* \(sampling.top_k was 3, now 4\); use'):
    Run(tmp_path / 'x', settings | {'sampling': {'top_k': 4, 'top_p': None}}, name='workdir')
  (tmp_path / 'y').mkdir()
  (tmp_path / 'y' / 'mine').touch()
  with pytest.raises(ValueError, match="holds other files, such as 'mine'; use an empty"):
    Run(tmp_path / 'y', settings)
  with pytest.raises(ValueError, match='was removed or replaced'), Run(
      tmp_path / 'y', settings, alone=False):
    shutil.rmtree(tmp_path / 'y')


def _write(folder, names, **more):
  report = Report(folder, names)
  for name in names:
    report.path(name).write_text(f'{name} of a report')
  report.write(settings={'seed': 1}, rows=[{'x': np.float32([0.9]), 'y': None}], **more)


def _names(folder):
  """All files except the marker of an unfinished report."""
  return sorted(name for path in folder.rglob('*') if path.is_file()
                and (name := path.relative_to(folder).as_posix()) != '.unfinished/run.json')


def test_content(tmp_path):
  _write(tmp_path, ['a.png', 'b.png'], model='m')
  report = json.loads((tmp_path / 'report.json').read_text())
  assert report['settings'] == {'seed': 1} and report['rows'] == [{'x': [0.9], 'y': None}]
  assert report['model'] == 'm' and report['device'] and report['versions']['jax']
  assert list(report['files']) == ['a.png', 'b.png']
  assert _names(tmp_path) == ['a.png', 'b.png', 'report.json']


def test_a_new_report_removes_the_files_of_the_earlier_one_only(tmp_path):
  (tmp_path / 'mine.png').write_text('mine')
  _write(tmp_path, ['a.png', 'b.png', 'c.png'])
  (tmp_path / 'b.png').write_text('changed by the user')
  _write(tmp_path, ['c.png', 'd.png'])
  assert _names(tmp_path) == ['b.png', 'c.png', 'd.png', 'mine.png', 'report.json']
  assert (tmp_path / 'mine.png').read_text() == 'mine'


def test_files_that_no_report_wrote_are_not_replaced(tmp_path):
  (tmp_path / 'a.png').write_text('mine')
  with pytest.raises(ValueError, match='a.png was not written by this program'):
    Report(tmp_path, ['a.png'])
  with pytest.raises(ValueError, match='a.png was not written by this program'):
    Report(tmp_path).path('a.png')
  (tmp_path / 'report.json').write_text('{}')
  with pytest.raises(ValueError, match='report.json is that of another program'):
    Report(tmp_path)
  assert _names(tmp_path) == ['a.png', 'report.json']


def test_until_it_is_finished_the_earlier_report_stays(tmp_path):
  _write(tmp_path, ['a.png'])
  before = (tmp_path / 'a.png').read_text(), (tmp_path / 'report.json').read_text()
  report = Report(tmp_path, ['a.png'])
  report.path('a.png').write_text('new')
  with pytest.raises(ValueError, match=r'report.rows\[0\].x is nan'):
    report.write(settings={}, rows=[{'x': float('nan')}])
  assert ((tmp_path / 'a.png').read_text(), (tmp_path / 'report.json').read_text()) == before
  _write(tmp_path, ['b.png'])
  assert _names(tmp_path) == ['b.png', 'report.json']


def test_a_finished_run_says_what_differs(tmp_path):
  run = dict(seed=1, prompts='0' * 16, sampling=dict(top_k=0))
  report = Report(tmp_path, run=run)
  report.path('a.png').write_text('a')
  report.write(settings={}, rows=[])
  for changes, words in (
      (dict(seed=2), 'seed was 1, now 2'), (dict(prompts='1' * 16), 'other prompts'),
      (dict(sampling=dict(top_k=3)), 'sampling.top_k was 0, now 3')):
    with pytest.raises(ValueError, match=rf'a report already \({words}.*\); use .*--output'):
      Report(tmp_path, run=run | changes, overwrite=False)
  assert Report(tmp_path, run=run, overwrite=False).is_complete
  (tmp_path / 'a.png').write_text('b')
  with pytest.raises(ValueError, match='already .files of it have changed since.; use another'):
    Report(tmp_path, run=run, overwrite=False)


def test_a_stopped_run_goes_on_if_it_is_the_same(tmp_path):
  first = Report(tmp_path, run={'seed': 1})
  first.path('a.png').write_text('a')
  assert Report(tmp_path, run={'seed': 1}).has('a.png')
  with pytest.raises(ValueError, match=r'stopped \(seed was 1, now 2\); .* remove .unfinished'):
    Report(tmp_path, run={'seed': 2}, overwrite=False)
  with pytest.raises(ValueError, match=r'was None, now 4; 3 more\)'):
    Report(tmp_path, run=dict(zip('abcdefgh', range(8))), overwrite=False)
  assert Report(tmp_path, run={'seed': 1}, overwrite=False).has('a.png')
  assert not Report(tmp_path, run={'seed': 2}).has('a.png')
  Report(tmp_path, run={'seed': 2}).path('a.png').write_text('a')
  again = Report(tmp_path, run={'seed': 2})
  again.path('b.png').write_text('b')
  again.write(settings={}, rows=[])
  assert _names(tmp_path) == ['a.png', 'b.png', 'report.json']


NAMES = ['../taken.txt', '..', '.', '', 'a/b.png', 'a\\b.png', 'a\nb.png', 'a\0b', 'x' * 256,
         'caf\udce9', '.unfinished', 'run.json']


@pytest.mark.parametrize('name', [*NAMES, '/tmp/a.png'])
def test_names_stay_in_the_folder(tmp_path, name):
  with pytest.raises(ValueError, match='must be a file in the folder'):
    Report(tmp_path / 'report').path(name)


@pytest.mark.parametrize('content, words', [
    ({'a': [1.0, float('inf')]}, r'report.a\[1\] is inf'),
    ({'a': {'b': np.array([np.nan])}}, r'report.a.b\[0\] is nan'),
    ({'a': object()}, 'report.a is a object')])
def test_values_that_json_cannot_hold_are_refused(content, words):
  with pytest.raises(ValueError, match=words):
    atomic.plain(content, 'report')


def _contents(folder):
  """Everything in a folder, links as links."""
  return {path.relative_to(folder).as_posix(): os.readlink(path) if path.is_symlink()
          else path.read_bytes() if path.is_file() else None for path in folder.rglob('*')}


def _refused(tmp_path, match, **more):
  """Checks that a report in `tmp_path / 'x'` is refused, and nothing changed anywhere."""
  before = _contents(tmp_path)
  for run in (None, {'seed': 1}):
    for overwrite in (False, True):
      with pytest.raises(ValueError, match=match):
        Report(tmp_path / 'x', run=run, overwrite=overwrite, **more)
      assert _contents(tmp_path) == before
  with pytest.raises(ValueError, match=match):
    run_folder.check(tmp_path / 'x', **more)


def _listing(path, names, content='x'):
  """Writes a report.json that lists files."""
  digest = hashlib.sha256(content.encode()).hexdigest()
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps({'rows': [], 'files': dict.fromkeys(names, digest)}))


@pytest.mark.parametrize('name', [*NAMES, '{tmp}/taken.txt'])
def test_names_in_a_report_of_a_stranger_lead_nowhere(tmp_path, name):
  """Not to the removal of a file outside."""
  (tmp_path / 'taken.txt').write_text('x')
  folder = tmp_path / 'x'
  _listing(folder / 'report.json', [name.format(tmp=tmp_path)])
  _refused(tmp_path, r'holds the name|lists .* as a file|is a link, a folder or a device')


@pytest.mark.parametrize('link', [
    'a.png', 'report.json', '.unfinished', '.unfinished/a.png',
    '.unfinished/run.json', '.unfinished/report.json', '.unfinished/b.png'])
def test_links_in_a_folder_of_a_stranger_lead_nowhere(tmp_path, link):
  """Either report lists `a.png`; none lists `b.png`."""
  folder, outside = tmp_path / 'x', tmp_path / 'outside'
  _listing(folder / 'report.json', ['a.png'])
  _listing(folder / '.unfinished' / 'report.json', ['a.png'])
  (folder / '.unfinished' / 'a.png').write_text('x')
  (folder / '.unfinished' / 'run.json').write_text('{"seed": 1}')
  if link == '.unfinished':
    (folder / link).rename(outside)
  else:
    outside.write_text((folder / link).read_text() if (folder / link).exists() else 'x')
    (folder / link).unlink(missing_ok=True)
  (folder / link).symlink_to(outside)
  _refused(tmp_path, 'is a link|is not the folder of unfinished work')


def test_a_stopped_run_without_a_finished_file_is_in_nobodys_way(tmp_path):
  Report(tmp_path, run={'seed': 1})
  (tmp_path / '.unfinished' / '.a.png.0123ab.part').write_text('half of a picture')
  _write(tmp_path, ['b.png'])
  assert _names(tmp_path) == ['b.png', 'report.json']


@pytest.mark.parametrize('gone', ['', '.unfinished'])
@pytest.mark.parametrize('again', [False, True])
def test_a_folder_that_is_removed_during_the_run_is_an_error(tmp_path, gone, again):
  folder = tmp_path / 'x'
  report = Report(folder, ['a.png'])
  shutil.rmtree(folder / gone)
  if again and not gone:
    folder.mkdir()
  with pytest.raises(ValueError, match='was removed'):
    report.path('a.png')
  with pytest.raises(ValueError, match='was removed'):
    report.write(settings={}, rows=[])
  assert not list(tmp_path.rglob('report.json'))


def _earlier(folder, program):
  """A finished report of a file; `program` None is a report that names none."""
  report = Report(folder, program=program)
  report.path('a.png').write_text('hours of work')
  report.write(settings={}, rows=[])


@pytest.mark.parametrize('writer, program, whose', [
    ('mine', 'other', "'other'"), (None, 'other', "'other'"), ('mine', None, 'another program')])
def test_the_report_of_another_program_is_not_replaced(tmp_path, writer, program, whose):
  """Its files were removed, because any report counted as an earlier one."""
  _earlier(tmp_path / 'x', program)
  _refused(tmp_path, f"x', which holds a report of {whose}.*with --output", program=writer)


@pytest.mark.parametrize('program', ['mine', None])
def test_a_program_replaces_its_own_report(tmp_path, program):
  _earlier(tmp_path, program)
  run_folder.check(tmp_path, program=program)
  Report(tmp_path, program=program).write(settings={}, rows=[])
  assert _names(tmp_path) == ['report.json']
  assert json.loads((tmp_path / 'report.json').read_text()).get('program') == program


def test_a_report_that_another_process_completes_meanwhile(tmp_path, monkeypatch):
  hold, options = locks.hold, dict(program='it', run={'seed': 1}, overwrite=False)

  def late(*arguments, **waits):
    monkeypatch.undo()
    run_folder.Report(tmp_path / 'out', **options).write(settings={}, rows=[])
    return hold(*arguments, **waits)

  monkeypatch.setattr(locks, 'hold', late)
  assert run_folder.Report(tmp_path / 'out', shared=True, **options).is_complete
