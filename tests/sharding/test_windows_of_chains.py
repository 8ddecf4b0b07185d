"""Windows of continuous tokens on four devices, which a CPU pretends to have."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.continuous import test_windows_modes as modes


@pytest.mark.slow
def test_rows_over_two_and_four_devices():
  flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_force_host_platform_device_count=4'
  process = subprocess.run(
      [sys.executable, '-m', 'tests.sharding.windows_of_chains'], capture_output=True, text=True,
      cwd=pathlib.Path(__file__).parents[2], env=os.environ | dict(XLA_FLAGS=flags), timeout=600)
  assert not process.returncode, process.stderr[-3000:]
  shares = json.loads(process.stdout.splitlines()[-1])
  assert len(shares) == 3 * len(modes.MODELS) and min(shares.values()) >= modes.SAME, shares
