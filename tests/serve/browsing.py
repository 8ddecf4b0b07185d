"""A headless Chromium, if the machine has one."""

import contextlib
import shutil

import pytest

_NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')


@contextlib.contextmanager
def browser():
  """Yields a browser of playwright; skips the test without one."""
  api = pytest.importorskip('playwright.sync_api', reason='playwright is not installed')
  path = next(filter(None, map(shutil.which, _NAMES)), None)
  if path is None:
    pytest.skip(f'none of {", ".join(_NAMES)} is installed')
  with api.sync_playwright() as play:
    instance = play.chromium.launch(executable_path=path, args=['--no-sandbox'])
    try:
      yield instance
    finally:
      instance.close()
