"""`experiments.papers.published` and `experiments.papers.all`."""

import csv
import dataclasses
import json

import pytest

from configs.papers import published_cspd
from cspd_jax.files import atomic
from docs import tables
from experiments.papers import all as all_papers, published
from experiments.papers.published_rows import ROWS, Row
from tests.experiments import calls
from tests.families import tiny

_ROWS = (
    Row('Table 1', 'sampled', '2.00x', 'mc_sjd(window=4)'),
    Row('Table 1', 'greedy', '3.00x', 'mc_sjd(window=4)', temperature=0.0),
    Row('Table 2', 'two metrics', '4.00x', 'sjd(window=4)', top_k=3,
        metrics=('accepted_length', 'one_token_rounds')),
    Row('Figure 1', 'pictures', 'curve', missing='there is none'))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny.saved(tmp_path_factory.mktemp('models') / 'beach')


def _call(folder, capsys, out, *words):
  return calls.call(published.main, capsys, out, f'--model={folder}', '--guidance_scale=1', *words)


@pytest.mark.slow
@pytest.mark.parametrize('words, result', [
    (['--paper=sjdd'], ["paper holds 'sjdd'", 'sjd, sjd_pac']),
    (['--paper='], ['paper is empty']),
    (['--paper=cspd'], ['Table 1, MAR-L', 'cspd_released']),
    (['--paper=lantern'], ['Table 1, LlamaGen-3B', 'model'])])
def test_bad_input(folder, capsys, tmp_path, words, result):
  calls.check_refused(_call(folder, capsys, tmp_path / 'out', *words), result)


def test_a_row_has_a_decoder_or_a_reason():
  for row in (dict(), dict(decoder='sjd', missing='cannot run')):
    with pytest.raises(ValueError, match='Table 1, ours: one of decoder and missing'):
      Row('Table 1', 'ours', '2x', **row)


@pytest.mark.slow
def test_rows_are_measured_with_their_own_options(folder, capsys, tmp_path, monkeypatch):
  monkeypatch.setitem(ROWS, 'sjd', _ROWS)
  result = _call(folder, capsys, tmp_path / 'out', '--paper=sjd', '--num_images=4')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  sampled, greedy, both, missing = report['rows']
  assert sampled['here'].startswith('step compr. ') and ' +- ' in sampled['here']
  assert sampled['price'] == f'{sampled["nll_excess"]:+.3f} +- {sampled["nll_excess_error"]:.3f}'
  assert greedy['price'] is None and greedy['step_compression'] != sampled['step_compression']
  assert 'acc. length' in both['here'] and 'one-token' in both['here']
  assert both['nll_excess'] != sampled['nll_excess']
  assert missing['here'] == 'there is none' and missing['decoder'] is None
  [table] = report['tables']
  assert table['title'] == 'sjd' and table['rows'] == [0, 1, 2, 3]
  assert len(list(csv.DictReader((result.folder / 'rows.csv').open()))) == 4


@pytest.mark.slow
def test_a_table_without_prices_has_no_column_for_them(folder, capsys, tmp_path, monkeypatch):
  monkeypatch.setitem(ROWS, 'sjd', _ROWS[1:2] + _ROWS[3:])
  result = _call(folder, capsys, tmp_path / 'out', '--paper=sjd', '--num_images=2')
  assert result.code == 0, result.err
  [table] = json.loads((result.folder / 'report.json').read_text())['tables']
  assert list(table['columns']) == list(published.COLUMNS)[:-1]


def _kept(name):
  """A report of the documentation."""
  return json.loads((tables.ROOT / 'docs' / 'reports' / f'{name}.json').read_text())


@pytest.mark.parametrize('name', sorted(all_papers.PROGRAMS.keys() & tables.REPORTS.keys()))
def test_kept_reports_have_todays_settings(name):
  assert all_papers.has_settings(_kept(name), all_papers.settings(name))


@pytest.mark.parametrize('name, config', [
    ('published', published.Config()), ('published_cspd', published_cspd.get_config())])
def test_kept_reports_belong_to_todays_rows(name, config):
  """A changed row without a new measurement would show another decoder's numbers."""
  report = _kept(name)
  kept = [{name: row[name] for name in atomic.plain(dataclasses.asdict(_ROWS[0]))}
          for row in report['rows']]
  assert kept == [atomic.plain(dataclasses.asdict(row))
                  for paper in config.paper for row in ROWS[paper]]
  for row in report['rows']:
    assert row['here'] and (row['decoder'] or row['here'] == row['missing'])


def test_every_paper_has_a_table():
  papers = {*published.Config().paper, *published_cspd.get_config().paper}
  assert papers == ROWS.keys()
  assert {f'published_{name}' for name in papers} <= tables.TABLES.keys()


def test_every_configuration_has_a_program():
  folder = tables.ROOT / 'configs' / 'papers'
  assert {path.stem for path in folder.glob('*.py')} - {'__init__'} <= all_papers.PROGRAMS.keys()


@pytest.fixture(name='programs')
def _programs(monkeypatch):
  """Three programs, of which one is finished, and a clock that `start` moves."""
  durations, seconds, started = dict(sjd=10.0, lantern=None, cspd=40.0), [0.0], []
  monkeypatch.setattr(all_papers, 'minutes', durations.get)
  monkeypatch.setattr(all_papers, 'is_finished', lambda name: name == 'cool_sd')

  def start(name):
    started.append(name)
    seconds[0] += 60 * (durations[name] or 5)

  def run(**options):
    names = ('cool_sd', *durations)
    omitted = all_papers.run(all_papers.Config(names, **options), start, lambda: seconds[0])
    return started, omitted

  return run


def test_all_programs_that_are_not_finished(programs, capsys):
  assert programs() == (['sjd', 'lantern', 'cspd'], [])
  lines = capsys.readouterr().out.splitlines()
  assert lines == [
      'cool_sd: finished',
      'sjd: about 10 minutes; all that are left: about 50 minutes, and 1 of unknown duration',
      'lantern: unknown duration; all that are left: about 40 minutes, and 1 of unknown duration',
      'cspd: about 40 minutes; all that are left: about 40 minutes']


def test_programs_beyond_the_budget_are_not_started(programs, capsys):
  assert programs(budget=30.0) == (['sjd', 'lantern'], ['cspd'])
  assert 'cspd: not started, 15 minutes of the budget are left' in capsys.readouterr().out


def test_a_finished_program_has_a_report_with_todays_settings(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert not all_papers.is_finished('sjd')
  folder = tmp_path / 'runs' / 'papers' / 'sjd'
  report = _kept('sjd')
  folder.mkdir(parents=True)
  (folder / 'report.json').write_text(json.dumps(report))
  assert all_papers.is_finished('sjd')
  report['settings']['sampling']['an option that exists since'] = None
  (folder / 'report.json').write_text(json.dumps(report))
  assert all_papers.is_finished('sjd')
  report['settings']['batch_size'] += 1
  (folder / 'report.json').write_text(json.dumps(report))
  assert not all_papers.is_finished('sjd')


def test_a_program_that_fails_stops_the_others(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setitem(all_papers.PROGRAMS, 'sjd', 'not_a_program')
  with pytest.raises(ValueError, match='not_a_program .* ended with exit code 1'):
    all_papers.run(all_papers.Config(('sjd',)))


@pytest.mark.slow
@pytest.mark.parametrize('options, result', [
    (dict(program=('sjdd',)), "program holds 'sjdd'"), (dict(budget=0.0), 'budget is 0.0')])
def test_bad_options_of_all(options, result):
  with pytest.raises(ValueError, match=result):
    all_papers.Config(**options)
