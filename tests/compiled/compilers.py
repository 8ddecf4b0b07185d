"""Compilers for devices that are not there, where their wheels are installed."""

from typing import Any

import pytest

from experiments.costs import devices


def find(name: str) -> tuple[devices.Accelerator, Any]:
  """What a device can do, and the device to compile for; skips the test if nothing does."""
  try:
    return devices.check(name), devices.describe(name)
  except ImportError as error:
    pytest.skip(str(error))
