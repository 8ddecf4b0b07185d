"""The files of docs/serve.md for those who operate a server, as far as they can be tried here."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('uvicorn', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from cspd_jax.cli import fields
from cspd_jax.commands import serve
from tests.docs import pages
from tests.serve.running import Running

pytestmark = pytest.mark.usefixtures('signals_left_alone')
PAGE = pages.ROOT / 'docs' / 'serve.md'
SETTINGS = {f'CSPD_{fields.short_name(serve.Config(), field).upper()}'
            for field in fields.every(serve.Config())}


def _block(start):
  """The block of the page that begins so."""
  text, = (block.text for block in pages.blocks(PAGE) if block.text.startswith(start))
  return text


def _unit():
  """The lines of the unit: the values of each name."""
  values = {}
  for name, value in re.findall(r'^(\w+)=(.*)$', _block('[Unit]'), re.MULTILINE):
    values.setdefault(name, []).append(value)
  return values


def _settings(words):
  return dict(word.split('=', 1) for word in words)


def _config(monkeypatch, settings, words=()):
  """The configuration of the command with settings of an environment, all of which it has."""
  ours = {name: text for name, text in settings.items() if name.startswith('CSPD_')}
  assert ours and ours.keys() <= SETTINGS
  for name, text in ours.items():
    monkeypatch.setenv(name, text)
  config, = serve.main._arguments(serve.Config(), words)
  return config


def test_the_unit_is_one_of_systemd(tmp_path):
  if shutil.which('systemd-analyze') is None:
    pytest.skip('systemd is not installed')
  text = _block('[Unit]').replace('/opt/cspd/bin/cspd-serve', sys.executable)
  (tmp_path / 'cspd-serve.service').write_text(text)
  out = subprocess.run(
      ['systemd-analyze', 'verify', '--man=no', tmp_path / 'cspd-serve.service'], text=True,
      capture_output=True, timeout=120, env=os.environ | {'SYSTEMD_LOG_LEVEL': 'warning'})
  ours = [line for line in out.stderr.splitlines() if 'cspd-serve.service' in line]
  assert out.returncode == 0 and ours == [], out.stderr


def test_the_settings_of_the_unit(monkeypatch):
  unit = _unit()
  settings = _settings(shlex.split(' '.join(unit['Environment'])))
  program, *words = shlex.split(unit['ExecStart'][0])
  config = _config(monkeypatch, settings, words)
  assert pathlib.PurePath(program).name == 'cspd-serve'
  assert config.api_key_file == '%d/key' and unit['LoadCredential'][0].startswith('key:')
  # The cache, which a restart reads, is one that may be written.
  assert settings['XDG_CACHE_HOME'] == f'%C/{unit["CacheDirectory"][0]}'
  assert config.grace + 10 < float(unit['TimeoutStopSec'][0])


def test_the_settings_of_the_container(monkeypatch):
  lines = dict(line.split(' ', 1) for line in _block('FROM').splitlines())
  settings = _settings(shlex.split(lines['ENV']))
  config = _config(monkeypatch, settings)
  assert config.host == '0.0.0.0' and config.api_key_file is not None
  assert config.port == int(lines['EXPOSE']) and settings['XDG_CACHE_HOME'] == lines['VOLUME']
  assert lines['CMD'] == '["cspd-serve"]' and lines['VOLUME'] in lines['RUN']


def test_the_health_of_the_container(model):
  """Its command succeeds while the server is ready."""
  line = next(line for line in _block('FROM').splitlines() if line.startswith('HEALTHCHECK'))
  program, option, code = re.findall('"([^"]*)"', line)
  assert program == 'python' and option == '-c' and '127.0.0.1:8000' in code
  instance = Running(model, key='k' * 16, allowed_hosts=('images.example.org',))
  check = [sys.executable, '-c', code.replace('8000', str(instance.port))]
  try:
    assert subprocess.run(check, timeout=60).returncode == 0
  finally:
    assert instance.end() == 0
  assert subprocess.run(check, timeout=60, capture_output=True).returncode == 1


def test_the_probes_of_the_page(model):
  """As an orchestrator asks: by address, without a key."""
  text, unit = _block('env:'), _unit()
  probes = dict(re.findall(r'(\w+)Probe:\n  httpGet: {path: (\S+), port: 8000}', text))
  assert probes == dict(startup='/health', liveness='/health/live', readiness='/health')
  assert f'terminationGracePeriodSeconds: {unit["TimeoutStopSec"][0]}' in text
  grace, = re.findall(r'CSPD_GRACE=(\d+)', ' '.join(unit['Environment']))
  assert f'{{name: CSPD_GRACE, value: "{grace}"}}' in text
  instance = Running(model, key='k' * 16, allowed_hosts=('images.example.org',))
  try:
    for path in probes.values():
      assert instance.call('GET', path, Host='10.1.2.3:8000')[0] == 200
  finally:
    assert instance.end() == 0


def test_the_variables_of_the_page_are_settings():
  named = set(re.findall(r'\bCSPD_[A-Z_]+', PAGE.read_text()))
  assert len(named) > 5 and named <= SETTINGS
