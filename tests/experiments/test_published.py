"""`experiments.papers.published`, and the kept reports of all papers."""

import csv
import dataclasses
import functools
import json

import pytest

from configs import papers
from cspd_jax.decoding import specification
from cspd_jax.files import atomic
from docs import tables
from experiments.papers import cspd, fidelity, published
from experiments.papers.published import ROWS, Row
from tests.builders import models
from tests.experiments import calls

_ROWS = (
    Row('Table 1', 'one token at a time', '1.00x, FID 10', 'vanilla', shown=True),
    Row('Table 1', 'seed-exact', '2.00x, FID 10', 'seed_exact(window=4)', shown=True),
    Row('Table 1', 'relaxed', '3.00x', 'model(length=2)+lantern(delta=0.9, k=8)', top_k=2,
        shown=True),
    Row('Table 1', 'greedy', '3.00x', 'mc_sjd(window=4)', temperature=0.0),
    Row('Table 2', 'two metrics', '4.00x', 'sjd(window=4)', top_k=3,
        metrics=('accepted_length', 'one_token_rounds')),
    Row('Table 2', 'other model', '4.00x', 'sjd(window=4)', 'demo'),
    Row('Table 2', 'trained', '5.00x', 'eagle(tree=EAGLE)+rejection', shown=True),
    Row('Figure 1', 'pictures', 'curve', missing='there is none'))


_call = functools.partial(calls.call_with_classes, published.main)


def test_a_row_has_a_decoder_or_a_reason():
  for row in (dict(), dict(decoder='sjd', missing='cannot run')):
    with pytest.raises(ValueError, match='Table 1, ours: one of decoder and missing'):
      Row('Table 1', 'ours', '2x', **row)


def test_no_two_rows_of_a_paper_are_the_same_measurement():
  for rows in ROWS.values():
    measured = [row for row in rows if row.decoder is not None]
    names = [(row.model, row.decoder if row.model == 'mar_demo' else _canonical(row.decoder),
              row.temperature, row.top_k) for row in measured]
    assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1]


def _canonical(decoder):
  """A decoder of discrete tokens with all parameters of its drafter."""
  drafter, verifier = specification.expand(decoder)
  defaults = {name: parameter.default for name, parameter in
              specification.DRAFTERS[drafter.name].parameters.items()}
  return str(dataclasses.replace(drafter, arguments=defaults | drafter.arguments)), str(verifier)


@pytest.mark.slow
def test_rows_are_measured_with_their_own_options_and_scored(capsys, tmp_path, monkeypatch):
  monkeypatch.setitem(ROWS, 'sjd', _ROWS)
  monkeypatch.setattr(models, 'NAMES', ['a cat on white', 'a dog', 'an owl flat'])
  models.llamagens(tmp_path)
  result = _call(tmp_path / 'model', capsys, tmp_path / 'out', '--paper=sjd', '--num_images=4')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  vanilla, same, relaxed, greedy, both, trained, missing = report['rows']
  assert same['here'].startswith('step compr. ') and ' +- ' in same['here']
  assert same['price'] == f'{same["nll_excess"]:+.3f} +- {same["nll_excess_error"]:.3f}'
  assert greedy['price'] is None and greedy['step_compression'] != same['step_compression']
  assert 'acc. length' in both['here'] and 'one-token' in both['here']
  assert both['nll_excess'] != same['nll_excess']
  assert trained['here'] == 'needs an EAGLE network, which model does not have'
  assert missing['here'] == 'there is none' and missing['decoder'] is None
  for row in (vanilla, same):
    assert row['asked'] == vanilla['asked']
    assert row['asked_change'] == row['asked_change_error'] == 0
  assert relaxed['asked_change'] is not None
  assert relaxed['price'] == '-' and relaxed['nll_excess'] is None, 'it draws excluded tokens'
  [table] = report['tables']
  assert table['title'] == 'sjd' and table['rows'] == list(range(7))
  assert list(table['columns']) == list(published.COLUMNS)
  assert report['weights']['target'] and 'strip_sjd.png' in report['files']
  assert len(list(csv.DictReader((result.folder / 'rows.csv').open()))) == 7


def test_rows_are_kept_until_the_report_is_complete(beach, capsys, tmp_path, monkeypatch):
  monkeypatch.setitem(ROWS, 'sjd', (_ROWS[0], *_ROWS[3:5]))
  measured, stop = [], ['sjd(window=4)']

  def measure(lab, row):
    measured.append(row.decoder)
    if row.decoder in stop:
      raise KeyboardInterrupt
    return dict(here=row.setting)

  monkeypatch.setattr(published.Lab, 'measure', measure)
  call = lambda *words: _call(beach, capsys, tmp_path / 'out', '--paper=sjd', '--num_images=2',
                              '--asked=false', *words)
  first = call()
  assert first.code == 130 and 'measured rows are kept' in first.err
  stop.clear()
  second = call()
  assert second.code == 0 and measured == [
      'vanilla', 'mc_sjd(window=4)', 'sjd(window=4)', 'sjd(window=4)']
  report = json.loads((second.folder / 'report.json').read_text())
  assert [row['here'] for row in report['rows']] == [row.setting for row in ROWS['sjd']]
  assert report['minutes'] is None, 'those of the first run are unknown'
  assert sorted(path.name for path in second.folder.iterdir()) == ['report.json', 'rows.csv']
  assert call('--seed=1').code == 0 and len(measured) == 7, 'other images are measured again'


def _kept(name):
  """A report of the documentation."""
  return json.loads((tables.REPORTS / f'{name}.json').read_text())


_CONFIGS = papers.CONFIGS | dict(
    published=published.Config(), cspd=cspd.Config(), fidelity=fidelity.Config())
_REPORTS = {name: config for name, config in _CONFIGS.items()
            if isinstance(config, published.Config)}


def _set(settings):
  """Settings without those that are off or empty, which may be options that exist since."""
  if not isinstance(settings, dict):
    return settings
  values = {name: _set(value) for name, value in settings.items() if name != 'workdir'}
  return {name: value for name, value in values.items()
          if value is not None and value is not False and value not in ({}, [])}


@pytest.mark.parametrize('name', sorted(
    _CONFIGS.keys() & {path.stem for path in tables.REPORTS.glob('*.json')}))
def test_kept_reports_have_todays_settings(name):
  wanted = atomic.plain(dataclasses.asdict(_CONFIGS[name]))
  kept = dict(_kept(name)['settings'])
  if kept.get('window') == 8:  # The default on a CPU.
    del kept['window']
  if isinstance(_CONFIGS[name], fidelity.Config):
    del kept['decoder']  # Those that were measured.
  assert _set(kept) == _set(wanted)


@pytest.mark.parametrize('name', _REPORTS)
def test_kept_reports_belong_to_todays_rows(name):
  """A changed row without a new measurement would show another decoder's numbers."""
  report, config = _kept(name), _REPORTS[name]
  kept = [{name: row[name] for name in atomic.plain(dataclasses.asdict(_ROWS[0]))}
          for row in report['rows']]
  assert kept == [atomic.plain(dataclasses.asdict(row))
                  for paper in config.paper for row in config.rows_of(paper)]
  assert all(row['here'] for row in report['rows'])


def test_every_row_is_measured_by_one_configuration():
  rows = [row for config in _REPORTS.values() for paper in config.paper
          for row in config.rows_of(paper)]
  assert sorted(map(id, rows)) == sorted(id(row) for several in ROWS.values() for row in several)
  assert all((tables.REPORTS / f'published_{name}.md').exists() for name in ROWS)
