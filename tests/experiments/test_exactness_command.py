"""The exactness command: its rows, its file and its exit codes."""

import json
import subprocess
import sys

import pytest

from cspd_jax.core.spec import parse
from experiments import exactness


def run(*flags):
  return subprocess.run(
      [sys.executable, '-m', 'experiments.exactness', *flags], capture_output=True, text=True,
      check=False)


@pytest.mark.slow
def test_pairs():
  """Those that a verifier does not support, and no others, are left out."""
  every = exactness.pairs(exactness.prepare(exactness.Flags()))
  assert len(every) == 36
  of = lambda verifier: {str(parse(pair).parts[0].name) for pair in every
                         if pair.endswith(f'+{verifier}')}
  assert of('rejection') == {'ancestral', 'corrected', 'eagle', 'eagle2', 'jacobi', 'medusa'}
  assert of('block') == {'ancestral', 'eagle', 'medusa', 'model'}
  assert of('kseq') == {'eagle', 'medusa'}


@pytest.mark.slow
def test_decoders_pass(tmp_path):
  path = tmp_path / 'rows.json'
  names = ['vanilla', 'seed_exact', 'eagle', 'jacobi(coupling=maximal)+cool']
  done = run('--samples=65536', f'--json={path}', '--seed=3', f'--decoder={",".join(names)}')
  assert done.returncode == 0, done.stderr
  rows = json.loads(path.read_text())
  assert [row['decoder'] for row in rows] == names * 2
  assert [row['temperature'] for row in rows] == [0.9] * 4 + [0.0] * 4
  assert {row['guarantee'] for row in rows} == {'exact', 'seed-exact', 'bounded'}
  for row in rows:
    assert set(row) == {
        'decoder', 'temperature', 'guarantee', 'tv', 'tv_expected', 'bound', 'p_value', 'samples',
        'pass'}
    assert row['pass'] and row['samples'] == 65536
    assert row['decoder'] in done.stdout
