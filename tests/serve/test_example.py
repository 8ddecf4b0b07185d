"""The example that is stored with the page: what a server sends, of one picture."""

import json

import numpy as np
import pytest

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('uvicorn', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from cspd_jax.serve import wire
from docs import example
from tests.serve import running, tiny


@pytest.fixture(scope='module')
def stored():
  return json.loads(example.PATH.read_text(encoding='utf-8'))


def test_the_example_is_one_picture_in_the_form_of_an_event(stored):
  model = tiny.model()
  event = wire.completed_event(
      0, model.generate('cat', decoder='vanilla'), 1, wire.serving(model, ('vanilla',)),
      wire.Form(), created=0, used=wire.usage(model.images(['cat']).condition, model.num_tokens))
  pictures = []
  for image in stored['images']:
    assert image.keys() == event.keys()
    picture, texts = running.pixels(image['b64_json'])
    assert (texts['prompt'], texts['seed']) == (stored['prompt'], str(stored['seed']))
    pictures.append(picture)
  np.testing.assert_array_equal(*pictures)
  first, second = stored['images']
  assert first['guarantee'] == 'seed-exact' and second['decoder'] == 'vanilla'
  assert 4 * first['passes'] < second['passes']


@pytest.mark.slow
def test_the_example_is_what_its_program_writes(stored):
  made = example.example()
  for image, expected in zip(stored['images'], made['images'], strict=True):
    assert image['round_of_cell'] == expected['round_of_cell']
    pixels = [running.pixels(one['b64_json'])[0] for one in (image, expected)]
    np.testing.assert_array_equal(*pixels)
