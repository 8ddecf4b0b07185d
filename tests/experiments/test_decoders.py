"""`experiments.decoders` on a tiny model: overhead, a queue, and what may differ by rounding."""

import json
import types

import numpy as np
import pytest

from cspd_jax.measure.bench import Bench
from experiments import decoders
from tests.experiments import calls


def _call(measure, beach, capsys, out, *words):
  result = calls.call(decoders.main, capsys, out, f'--measure={measure}', f'--model={beach}',
                      '--guidance_scale=1', *words)
  assert result.code == 0, result.err
  return result, json.loads((result.folder / 'report.json').read_text())


@pytest.mark.slow
def test_overhead_is_the_rest_of_a_round(beach, capsys, tmp_path):
  result, report = _call('overhead', beach, capsys, tmp_path / 'out', '--window=3', '--repeats=1',
                         '--decoder=vanilla,mc_sjd')
  assert [row['decoder'] for row in report['rows']] == ['vanilla', 'mc_sjd(window=3)']
  for row in report['rows']:
    assert row['ms_per_round'] > 0 and row['ms_of_forward_pass'] > 0
    assert row['rest'] == pytest.approx(1 - row['ms_of_forward_pass'] / row['ms_per_round'])
    assert row['decoder'] in result.out


@pytest.mark.slow
def test_rounds_of_batches_and_of_a_queue_are_those_of_their_images(beach, capsys, tmp_path):
  result, report = _call('queue', beach, capsys, tmp_path / 'out', '--decoder=mc_sjd',
                         '--window=4', '--num_images=12', '--batch_size=3', '--repeats=1')
  row, = report['rows']
  assert row['decoder'] == 'mc_sjd(window=4)' in result.out and row['same_images'] == 1
  # Three rows share the rounds of twelve images; a prefill is none of them.
  least, most = (4 * (row[name] - 1) for name in ('rounds', 'most_rounds'))
  assert least <= row['rounds_in_queue'] < row['rounds_in_batches'] <= most
  assert row['speedup'] == pytest.approx(row['seconds_in_batches'] / row['seconds_in_queue'])
  assert report['tables'][0]['title'].endswith('12 images, 3 at once')


@pytest.mark.slow
def test_images_in_the_same_shapes_do_not_differ(beach, capsys, tmp_path):
  result, report = _call(
      'rounding', beach, capsys, tmp_path / 'out', '--decoder=seed_exact', '--window=3',
      '--num_images=4', '--batch_size=2', '--dtype=bfloat16')
  row, = report['rows']
  assert (row['decoder'], row['same_shapes']) == ('seed_exact(window=3)', 'vanilla(window=3)')
  assert row['images_in_window'] == row['tokens_in_window'] == 0 and row['dtype'] == 'bfloat16'
  assert len(report['prompts']) == 4 and 'vanilla(window=3)' in result.out


def test_rounding_counts_the_images_and_tokens_that_differ(monkeypatch):
  tokens = {'seed_exact': np.zeros((4, 5), int), 'vanilla': np.zeros((4, 5), int),
            'vanilla(window=9)': np.zeros((4, 5), int)}
  tokens['vanilla'][1, 2:] = tokens['vanilla(window=9)'][:2, 4] = 1
  bench = Bench.__new__(Bench)
  bench.model, bench.batch_size = type('M', (), dict(params=np.zeros(1, np.float16))), 2
  log_probs = {name: np.zeros((4, 5), np.float32) for name in tokens}
  log_probs['seed_exact'][2, 3] = 1e-30
  monkeypatch.setattr(Bench, 'baseline', 'vanilla')
  monkeypatch.setattr(decoders, '_same_shapes', lambda bench, text: 'vanilla(window=9)')
  of = lambda **fields: types.SimpleNamespace(**fields)
  monkeypatch.setattr(bench, 'sample', lambda name: of(
      tokens=tokens[name], decoded=of(log_probs=log_probs[name])))
  monkeypatch.setattr(bench, 'check', lambda text: of(drafter=of(tree=of(num_nodes=8))))
  monkeypatch.setattr(bench, 'images', lambda text: of(sampler=of(guarantee='seed-exact')))
  assert decoders.rounding(bench, 'seed_exact', 1) == dict(
      dtype='float16', decoder='seed_exact', window=9, batch_size=2, guarantee='seed-exact',
      log_probs_in_window=0.05, same_shapes='vanilla(window=9)', num_tokens=20,
      images=0.25, tokens=0.15, images_in_window=0.5, tokens_in_window=0.1)
