"""`experiments.rounding` on a tiny model: what differs by rounding, and what may not."""

import json

import numpy as np
import pytest

from cspd_jax.measure.bench import Bench
from experiments import rounding
from tests.experiments import calls
from tests.families import tiny


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny.saved(tmp_path_factory.mktemp('models') / 'beach')


@pytest.mark.slow
def test_shares(folder, capsys, tmp_path):
  result = calls.call(
      rounding.main, capsys, tmp_path / 'out', f'--model={folder}', '--decoder=seed_exact',
      '--window=3', '--num_images=4', '--batch_size=2', '--guidance_scale=1', '--dtype=bfloat16')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  row, = report['rows']
  assert (row['decoder'], row['same_shapes']) == ('seed_exact(window=3)', 'vanilla(window=3)')
  assert row['images_in_window'] == row['tokens_in_window'] == 0 and row['dtype'] == 'bfloat16'
  assert report['num_images'] == 4 and 'vanilla(window=3)' in result.out


def test_what_differs_is_counted(monkeypatch):
  tokens = {'seed_exact': np.zeros((4, 5), int), 'vanilla': np.zeros((4, 5), int),
            'vanilla(window=9)': np.zeros((4, 5), int)}
  tokens['vanilla'][1, 2:] = tokens['vanilla(window=9)'][:2, 4] = 1
  bench = Bench.__new__(Bench)
  monkeypatch.setattr(Bench, 'baseline', 'vanilla')
  monkeypatch.setattr(rounding, '_same_shapes', lambda bench, text: 'vanilla(window=9)')
  monkeypatch.setattr(bench, 'sample', lambda name: type('S', (), dict(tokens=tokens[name])))
  assert rounding.compared(bench, 'seed_exact') == dict(
      decoder='seed_exact', same_shapes='vanilla(window=9)', num_tokens=20,
      images=0.25, tokens=0.15, images_in_window=0.5, tokens_in_window=0.1)


@pytest.mark.slow
@pytest.mark.parametrize('words, message', [
    (['--decoder=sjd'], ["'sjd(window=4)' is exact", 'seed-exact']),
    (['--dtype=int8'], ["dtype holds 'int8'", 'float16']),
    (['--dtype=float64'], ["dtype holds 'float64'"]),
    (['--decoder='], ['decoder is empty']), (['--batch_size=0'], ['batch_size is 0']),
    (['--model=mar_demo'], ["decoder is 'seed_exact'", 'exact_head']),
    (['--window=999'], ['window is 999']), (['--decoder=eagle2'], ['EAGLE network'])])
def test_refused_options(folder, capsys, tmp_path, words, message):
  calls.check_refused(calls.call(
      rounding.main, capsys, tmp_path / 'out', f'--model={folder}', *words), message)
