"""The example of Ray Serve in docs/serve.md, with the tiny model in place of the embedded one."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('ray', reason="replicas need pip install -e '.[ray]'")

from tests.docs import pages

ROOT = pathlib.Path(__file__).parents[2]
# Requests of two replicas, and one that is wrong.
_CLIENT = '''
import http.client, json
for seed in (3, 3, 4, 5, 6, 7, 8, 9):
  connection = http.client.HTTPConnection('127.0.0.1', 8000, timeout=300)
  connection.request('POST', '/v1/images/generations', json.dumps(dict(prompt='cat', seed=seed)),
                     {'Content-Type': 'application/json'})
  answer = connection.getresponse()
  data = json.loads(answer.read())
  print('answer', answer.status, data['data'][0]['b64_json'], flush=True)
connection.request('POST', '/v1/images/generations', json.dumps(dict(prompt='bird')),
                   {'Content-Type': 'application/json'})
print('wrong', connection.getresponse().status, flush=True)
serve.shutdown()
'''


@pytest.mark.slow
def test_two_replicas(tmp_path):
  code, = (block.text for block in pages.blocks(ROOT / 'docs' / 'serve.md')
           if 'from ray import serve' in block.text)
  code = code.replace("cspd_jax.load('emoji')", 'tiny.model()').replace(
      "'corrected_seed_exact'", 'tiny.SEED_EXACT')
  assert code.count('tiny.') == 2
  program = tmp_path / 'replicas.py'
  program.write_text(f'from tests.serve import tiny\n{code}\n{_CLIENT}', encoding='utf-8')
  out = subprocess.run(
      [sys.executable, program], capture_output=True, text=True, timeout=900, encoding='utf-8',
      env=os.environ | {'PYTHONPATH': str(ROOT), 'RAY_USAGE_STATS_ENABLED': '0'})
  answers = [line.split() for line in out.stdout.splitlines() if line.startswith('answer')]
  assert [status for _, status, _ in answers] == ['200'] * 8, out.stderr[-3000:]
  assert answers[0][2] == answers[1][2] and 'wrong 400' in out.stdout
