"""`experiments.papers.fidelity`: many images of decoders compared with those of the baseline."""

import functools
import json

import pytest

from experiments.papers import fidelity
from experiments.papers.published import ROWS, Row
from tests.builders import models
from tests.experiments import calls

_ROWS = (
    Row('Table 1', 'one token at a time', 'FID 10', 'vanilla'),
    Row('Table 1', 'seed-exact', '2.00x, FID 10', 'seed_exact(window=4)'),
    Row('Table 2', 'the same', 'FID 10', 'seed_exact(window=4)'),
    Row('Table 1', 'relaxed', '3.00x, FID 12', 'model(length=2)+lantern(delta=0.9, k=8)'),
    Row('Table 1', 'cut', 'FID 9', 'vanilla', top_k=2),
    Row('Table 1', 'no FID', '3.00x', 'mc_sjd(window=4)'),
    Row('Table 1', 'greedy', 'FID 10', 'vanilla', temperature=0.0),
    Row('Table 1', 'other model', 'FID 10', 'sjd(window=4)', 'demo'),
    Row('Table 1', 'pictures', 'FID 10', missing='there are none'))


@pytest.fixture(autouse=True)
def rows(monkeypatch):
  for paper in ROWS:
    monkeypatch.setitem(ROWS, paper, _ROWS if paper == 'sjd' else ())


_call = functools.partial(calls.call_with_classes, fidelity.main)


@pytest.mark.slow
def test_decoders_are_compared_with_other_images_of_one_token_at_a_time(
    capsys, tmp_path, monkeypatch):
  models.llamagens(tmp_path)
  measured = []
  score = fidelity.score
  monkeypatch.setattr(fidelity, 'score', lambda bench, reference, decoder: (
      measured.append(decoder), score(bench, reference, decoder))[1])
  call = lambda *words: _call(
      tmp_path / 'model', capsys, tmp_path / 'out', '--num_images=40', *words)
  two = call("--decoder=vanilla,seed_exact(window=4)")
  assert two.code == 0, two.err
  vanilla, cut, exact = sorted(
      json.loads((two.folder / 'report.json').read_text())['rows'],
      key=lambda row: (row['decoder'] != 'vanilla', row['top_k'] or 0))
  assert measured == ['vanilla', 'seed_exact(window=4)', 'vanilla']
  assert exact['frechet'] == pytest.approx(vanilla['frechet'], rel=1e-4), 'the same images'
  assert vanilla['frechet'] > 0 and vanilla['frechet'] != cut['frechet']
  assert vanilla['device'] == 'cpu'
  every = call()
  assert every.code == 0, every.err
  report = json.loads((every.folder / 'report.json').read_text())
  assert [(row['decoder'], row['top_k']) for row in report['rows']] == [
      (row.decoder, row.top_k) for row in (*_ROWS[:2], *_ROWS[3:5])]
  relaxed = report['rows'][2]
  assert relaxed['frechet'] not in (vanilla['frechet'], cut['frechet'])
  assert all(0 <= row[name] <= 1 for row in report['rows'] for name in ('precision', 'recall'))
