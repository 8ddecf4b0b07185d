"""The page of the server in a headless Chromium."""

import time
import urllib.parse

import pytest

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('uvicorn', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from tests.serve import tiny
from tests.serve.browsing import browser
from tests.serve.running import Running, without_signals

pytestmark = pytest.mark.browser
# Counts the pictures that each side has shown.
_COUNT = '''() => {
  window.pictures = {};
  new MutationObserver((changes) => {
    for (const change of changes) {
      const side = change.target.closest('figure').querySelector('h3').textContent;
      window.pictures[side] = (window.pictures[side] ?? 0) + 1;
    }
  }).observe(document.getElementById('sides'),
             {subtree: true, attributes: true, attributeFilter: ['src']});
}'''
# The pixels of the pictures that are shown.
_PIXELS = '''() => [...document.querySelectorAll('#sides img')].map((image) => {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  return [...context.getImageData(0, 0, canvas.width, canvas.height).data].join();
})'''


@pytest.fixture(scope='module')
def address():
  """The address of a server whose steps take a while."""
  with without_signals():
    instance = Running(tiny.model(), key='k' * 16)
    for name in instance.served.decoders:
      batch = tiny.batch(instance.scheduler, name)
      step = batch.runner.step
      batch.runner.step = lambda rounds=1, step=step: (time.sleep(0.1), step(rounds))[1]
    yield f'http://localhost:{instance.port}/'
    assert instance.end() == 0


@pytest.fixture(scope='module')
def chromium():
  with browser() as instance:
    yield instance


@pytest.fixture
def page(chromium, address):
  """The page, which must not log errors, nor end requests that are answered."""
  page, errors = chromium.new_page(viewport=dict(width=400, height=800)), []
  page.on('console', lambda message: message.type == 'error' and errors.append(message.text))
  page.on('pageerror', lambda error: errors.append(str(error)))
  page.on('requestfailed', lambda request: errors.append(f'{request.url}: {request.failure}'))
  page.errors = errors
  yield page
  page.close()


def _open(page, address):
  """Opens an address, passes the key that the page asks for, and waits for the model's lists."""
  page.goto(address)
  page.locator('#status:has-text("Enter the key of this server.")').wait_for()
  page.locator('#key').fill('k' * 16)
  page.locator('#key').blur()
  page.locator('#words').wait_for()


def test_two_decoders_yield_one_picture_that_is_watched(page, address):
  _open(page, address)
  page.locator('#prompt').fill('dog')
  page.locator('#seed').fill('5')
  page.evaluate(_COUNT)
  page.keyboard.press('Enter')
  page.locator('#status:has-text("The same picture, pixel for pixel")').wait_for()
  first, second = page.evaluate(_PIXELS)
  assert first == second and len(set(first.split(','))) > 2
  pictures = page.evaluate('window.pictures')
  assert len(pictures) == 2 and min(pictures.values()) > 2
  passes = [int(text) for text in page.locator('.passes').all_text_contents()]
  assert passes[0] < passes[1] == 9
  assert page.locator('#sides img').first.get_attribute('alt') == (
      f'dog, decoded by {tiny.SEED_EXACT}, seed 5')
  assert page.locator('#gallery img').count() == 2
  assert page.evaluate('document.documentElement.scrollWidth') == 400
  with page.expect_download() as download:
    page.locator('.download').first.click()
  assert download.value.suggested_filename == 'dog_seed5.png'
  page.locator('#colours').uncheck()
  assert page.locator('#sides canvas:visible').count() == 0
  # The link fills the form in, and starts nothing.
  links = [link.get_attribute('href') for link in page.locator('.repeat').all()]
  assert links == 2 * ['?' + urllib.parse.urlencode(dict(
      prompt='dog', seed=5, decoder=tiny.SEED_EXACT, compare='vanilla'))]
  assert [error for error in page.errors if '401' not in error] == []


def test_the_first_visit_shows_a_stored_example(page, address):
  """Before the key is there; no words are required until the model's are."""
  page.goto(address)
  page.locator('#stored', has_text='A stored example, “a fox on white” by the model emoji. '
               'The same picture, pixel for pixel: ').wait_for()
  assert page.locator('#sides img:visible').count() == 2 == page.locator('#sides canvas').count()
  assert page.locator('.time:visible').count() == 0  # Two at once share the processor.
  assert page.locator('#seed').input_value() == '4'
  assert page.locator('#prompt').get_attribute('required') is None
  page.locator('#key').fill('k' * 16)
  page.keyboard.press('Enter')
  page.locator('#status:has-text("The same picture, pixel for pixel")').wait_for()
  assert page.locator('#stored:visible').count() == 0
  page.locator('#words:has-text("The 3 words that this model knows")').wait_for()
  assert page.locator('#words p').text_content() == 'cat, dog, nan'
  assert page.locator('#prompt').get_attribute('required') == ''


def test_words_that_the_model_does_not_know_are_a_warning(page, address):
  _open(page, f'{address}?prompt=cat&seed=3&compare=')
  page.locator('#generate').click()
  page.locator('#status:has-text("Complete.")').wait_for()
  assert float(page.locator('.seconds').text_content()) > 0  # One decoder alone.
  assert page.locator('#unknown:visible').count() == 0 == page.locator('#stored:visible').count()
  page.locator('#prompt').fill('a Dog, a bird')
  page.locator('#seed').focus()
  page.locator('#unknown:has-text("This model does not know: a, bird.")').wait_for()
  page.locator('#gallery button').click()
  page.locator('#unknown').wait_for(state='hidden')
  texts = page.locator('#gallery span')
  assert all(node.evaluate('node => node.scrollWidth <= node.clientWidth') for node in texts.all())
  assert page.errors == [] or all('401' in error for error in page.errors)


def test_a_connection_that_is_lost_is_an_error(page, address):
  page.clock.install()
  _open(page, f'{address}?prompt=cat&seed=3&compare=')
  page.locator('#generate').click()
  page.locator('#stop').wait_for()
  page.clock.fast_forward(30_000)
  page.locator('.message.error:has-text("connection lost")').wait_for()
  assert page.locator('#stop:visible').count() == 0


def test_errors_are_readable_and_texts_are_no_html(page, address):
  _open(page, f'{address}?prompt=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E&seed=3&compare=')
  assert page.locator('#seed').input_value() == '3'
  page.locator('#key').press('Enter')
  message = page.locator('.message.error').first
  message.filter(has_text="prompts holds '<img src=x onerror=alert(1)>'").wait_for()
  assert message.get_attribute('role') == 'alert' and page.locator('#sides img[src=x]').count() == 0
  page.locator('#prompt').fill('nan')
  page.keyboard.press('Enter')
  message.filter(has_text='no valid probabilities').wait_for()
  page.locator('#prompt').fill('cat')
  page.keyboard.press('Enter')
  page.locator('#stop').wait_for()
  page.keyboard.press('Escape')
  page.locator('.message').filter(has_text='Stopped.').wait_for()
  assert page.locator('.message.error').count() == 0
