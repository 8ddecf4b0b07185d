"""`cspd-compare` and `cspd-tune` over several devices and with int8."""

import json
import os
import subprocess
import sys

import pytest

from tests.builders import models

_ONCE = ('--decoder=vanilla,mc_sjd(window=4)', '--guidance_scale=1', '--seed=3')
_CALLS = {
    'compare': ('--mesh=1x2', '--num_images=2', '--budget=1e-3'),
    'tune': ('--mesh=1x2', '--num_images=4', '--batch_size=1,4', '--dry_run')}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('models')
  models.llamagens(folder)
  return folder / 'alone'


def _report(name, folder, output, *words):
  """The report of a command in a process with two devices."""
  flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_force_host_platform_device_count=2'
  process = subprocess.run(
      [sys.executable, '-m', f'cspd_jax.commands.{name}', f'--model={folder}',
       f'--output={output}', *_ONCE, *words],
      capture_output=True, text=True, env=os.environ | dict(XLA_FLAGS=flags))
  assert process.returncode == 0, process.stderr[-3000:]
  return json.loads((output / 'report.json').read_text())


@pytest.mark.slow
@pytest.mark.parametrize('name', _CALLS)
def test_as_on_one_device(name, folder, tmp_path):
  mesh, *words = _CALLS[name]
  several = _report(name, folder, tmp_path / 'several', mesh, *words)
  alone = _report(name, folder, tmp_path / 'alone', *words)
  rounds = lambda report: {
      (row['decoder'], row.get('batch_size')): row['rounds'] for row in report['rows']}
  assert len(alone['rows']) == len(rounds(alone)) and rounds(several) == rounds(alone)
