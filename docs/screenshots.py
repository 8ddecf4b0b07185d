"""Takes the pictures of the server's page, docs/pictures/serve.png and serve_phone.png.

    cspd-serve --slots=1    # with its default model, in another terminal
    python -m docs.screenshots

Needs playwright and an installed Chromium.
"""

import pathlib
import shutil

from playwright import sync_api

_PICTURES = pathlib.Path(__file__).parent / 'pictures'
_ADDRESS = 'http://127.0.0.1:8000/?prompt=a+fox+on+white&seed=4'
_MOST = 600_000  # Milliseconds that the images may take.

path = shutil.which('chromium') or shutil.which('google-chrome')
with sync_api.sync_playwright() as play:
  browser = play.chromium.launch(executable_path=path, args=[
      '--no-sandbox', '--disable-background-networking'])
  for name, width, height, scheme in (
      ('serve', 1300, 1110, 'light'), ('serve_phone', 400, 980, 'dark')):
    page = browser.new_page(viewport=dict(width=width, height=height), color_scheme=scheme)
    page.goto(_ADDRESS)
    page.locator('#generate:focus').wait_for()
    page.keyboard.press('Enter')
    page.locator('#status:has-text("passes")').wait_for(timeout=_MOST)
    page.locator('#prompt').focus()
    page.screenshot(path=_PICTURES / f'{name}.png')
  browser.close()
