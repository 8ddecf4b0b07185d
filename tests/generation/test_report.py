"""Reports: complete or not there, nothing of the user's touched, no stale files."""

import contextlib
import json
import pathlib

import numpy as np
import pytest

from cspd_jax.generation import report as report_lib
from cspd_jax.generation.report import Report


def _write(folder, names, **more):
  report = Report(folder, names)
  for name in names:
    report.path(name).write_text(f'{name} of a report')
  report.write(settings={'seed': 1}, rows=[{'x': np.float32([0.9]), 'y': None}], **more)


def _names(folder):
  return sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*')
                if path.is_file())


def test_content(tmp_path):
  _write(tmp_path, ['a.png', 'images/b.png'], model='m')
  report = json.loads((tmp_path / 'report.json').read_text())
  assert report['settings'] == {'seed': 1} and report['rows'] == [{'x': [0.9], 'y': None}]
  assert report['model'] == 'm' and report['device'] and report['versions']['jax']
  assert list(report['files']) == ['a.png', 'images/b.png']
  assert _names(tmp_path) == ['a.png', 'images/b.png', 'report.json']


def test_a_new_report_removes_the_files_of_the_earlier_one_only(tmp_path):
  (tmp_path / 'mine.png').write_text('mine')
  _write(tmp_path, ['a.png', 'b.png', 'c.png'])
  (tmp_path / 'b.png').write_text('changed by the user')
  _write(tmp_path, ['c.png', 'd.png'])
  assert _names(tmp_path) == ['b.png', 'c.png', 'd.png', 'mine.png', 'report.json']
  assert (tmp_path / 'mine.png').read_text() == 'mine'


def test_files_that_no_report_wrote_are_not_replaced(tmp_path):
  (tmp_path / 'a.png').write_text('mine')
  with pytest.raises(ValueError, match='a.png was not written by a report'):
    Report(tmp_path, ['a.png'])
  with pytest.raises(ValueError, match='a.png was not written by a report'):
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


def test_a_report_that_is_there_may_be_kept(tmp_path):
  _write(tmp_path, ['a.png'])
  with pytest.raises(ValueError, match='holds a report already'):
    Report(tmp_path, ['b.png'], overwrite=False)
  Report(tmp_path / 'new', ['b.png'], overwrite=False)


def test_a_stopped_run_goes_on_if_it_is_the_same(tmp_path):
  first = Report(tmp_path, run={'seed': 1})
  first.path('a.png').write_text('a')
  assert Report(tmp_path, run={'seed': 1}).has('a.png')
  with pytest.raises(ValueError, match='another run was stopped'):
    Report(tmp_path, run={'seed': 2}, overwrite=False)
  assert Report(tmp_path, run={'seed': 1}, overwrite=False).has('a.png')
  assert not Report(tmp_path, run={'seed': 2}).has('a.png')
  Report(tmp_path, run={'seed': 2}).path('a.png').write_text('a')
  assert not Report(tmp_path).has('a.png')
  again = Report(tmp_path, run={'seed': 2})
  again.path('b.png').write_text('b')
  again.write(settings={}, rows=[])
  assert _names(tmp_path) == ['b.png', 'report.json']


@pytest.mark.parametrize('stop_at', range(5))
def test_a_stop_at_any_move_is_mended_by_the_next_report(tmp_path, monkeypatch, stop_at):
  _write(tmp_path, ['a.png', 'b.png'])
  moves, replace, unlink = [], pathlib.Path.replace, pathlib.Path.unlink

  def counted(change):
    def run(self, *args, **kwargs):
      if 'unfinished' in str(self) and not self.name.startswith('.') or not args:
        if len(moves) == stop_at:
          raise KeyboardInterrupt
        moves.append(self.name)
      return change(self, *args, **kwargs)
    return run

  report = Report(tmp_path, ['b.png', 'c.png'])
  for name in ('b.png', 'c.png'):
    report.path(name).write_text('new')
  monkeypatch.setattr(pathlib.Path, 'replace', counted(replace))
  monkeypatch.setattr(pathlib.Path, 'unlink', counted(unlink))
  with contextlib.suppress(KeyboardInterrupt):
    report.write(settings={}, rows=[])
  monkeypatch.undo()
  Report(tmp_path)
  assert (tmp_path / 'report.json').exists()
  names = _names(tmp_path)
  assert names in (['a.png', 'b.png', 'report.json'], ['b.png', 'c.png', 'report.json'])
  listed = json.loads((tmp_path / 'report.json').read_text())['files']
  assert sorted([*listed, 'report.json']) == names


@pytest.mark.parametrize('name', ['../a.png', '/tmp/a.png', 'unfinished_report'])
def test_names_stay_in_the_folder(tmp_path, name):
  with pytest.raises(ValueError, match='must be a file in the folder'):
    Report(tmp_path / 'report').path(name)


def test_folder_that_cannot_be_written(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(ValueError, match='is no folder; give a folder'):
    Report(tmp_path / 'file' / 'out')


@pytest.mark.parametrize('content, words', [
    ({'a': [1.0, float('inf')]}, r'report.a\[1\] is inf'),
    ({'a': {'b': np.array([np.nan])}}, r'report.a.b\[0\] is nan'),
    ({'a': object()}, 'report.a is a object')])
def test_what_json_cannot_hold(content, words):
  with pytest.raises(ValueError, match=words):
    report_lib.plain(content)
