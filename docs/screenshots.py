"""Takes the pictures of the server's page, docs/pictures/serve.png and serve_phone.png.

    python -m docs.screenshots

Starts cspd-serve with its default model, and requires playwright and an installed Chromium.
"""

import contextlib
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

from playwright import sync_api

_PICTURES = pathlib.Path(__file__).parent / 'pictures'
# Name, size of the window and colours of a picture.
_KINDS = (('serve', 1300, 1110, 'light'), ('serve_phone', 400, 980, 'dark'))
_SECONDS = 600
_QUERY = '?prompt=a+fox+on+white&seed=4'


@contextlib.contextmanager
def serving():
  """Yields the address of a server that is ready."""
  with socket.create_server(('127.0.0.1', 0)) as free:
    port = free.getsockname()[1]
  address = f'http://127.0.0.1:{port}/'
  process = subprocess.Popen(
      [sys.executable, '-m', 'cspd_jax.commands.serve', f'--port={port}', '--slots=1'])
  try:
    for _ in range(_SECONDS):
      with contextlib.suppress(OSError), urllib.request.urlopen(f'{address}health'):
        break
      time.sleep(1)
    yield address
  finally:
    process.terminate()
    process.wait()


def main() -> None:
  """Takes all pictures."""
  path = shutil.which('chromium') or shutil.which('google-chrome')
  with serving() as address, sync_api.sync_playwright() as play:
    browser = play.chromium.launch(executable_path=path, args=[
        '--no-sandbox', '--disable-background-networking'])
    for name, width, height, scheme in _KINDS:
      page = browser.new_page(viewport=dict(width=width, height=height), color_scheme=scheme)
      page.goto(address + _QUERY)
      page.locator('#generate:focus').wait_for()
      page.keyboard.press('Enter')
      page.locator('#status:has-text("passes")').wait_for(timeout=1000 * _SECONDS)
      page.locator('#prompt').focus()
      page.screenshot(path=_PICTURES / f'{name}.png')
    browser.close()


if __name__ == '__main__':
  main()
