"""Requests as clients send them by default, each to a server with the flags of docs/serve.md.

The bodies are those that the clients' own code builds, with a prompt that the tiny model has.
"""

import base64
import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('uvicorn', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from cspd_jax.serve import wire
from tests.serve import running, tiny
from tests.serve.running import Running

NAMES = ('tiny', 'gpt-image-1', 'gpt-image-1-mini', 'dall-e-2', 'dall-e-3', 'openai/tiny')
# By client: the body; whether a strict server that has the name answers it; the size of the answer.
BODIES = {
    'Open WebUI': (dict(model='dall-e-2', prompt='cat', n=1, size='512x512',
                        response_format='b64_json'), False, '512x512'),
    'Open WebUI, gpt-image-1, auto': (
        dict(model='gpt-image-1', prompt='cat', n=1, size='auto'), True, '6x6'),
    'LibreChat': (dict(model='gpt-image-1', prompt='cat', n=1, background='auto',
                       output_format='png', quality='auto', size='auto'), True, '6x6'),
    'LiteLLM': (dict(model='tiny', prompt='cat', user='default_user_id'), True, '6x6'),
    'Nextcloud': (dict(prompt='cat', size='1024x1024', n=1), False, '1024x1024'),
    'Nextcloud, before services': (
        dict(prompt='cat', size='1024x1024', n=1, model='gpt-image-1-mini'), False, '1024x1024'),
    'openai-python': (dict(prompt='cat'), True, '6x6'),
    'openai-python, of DALL-E': (
        dict(model='dall-e-3', prompt='cat', n=1, quality='hd', response_format='url',
             size='1792x1024', style='vivid'), False, '1024x1024'),
    'curl': (dict(model='gpt-image-1', prompt='cat', n=1, size='1024x1024'), False, '1024x1024'),
}


pytestmark = pytest.mark.usefixtures('signals_left_alone')


@pytest.fixture(scope='module')
def lenient(model):
  instance = Running(model, names=NAMES, lenient=True)
  yield instance
  assert instance.end() == 0


@pytest.fixture(scope='module')
def strict(model):
  return wire.serving(model, ('vanilla',), NAMES)


@pytest.mark.parametrize('client', BODIES)
def test_clients_get_images(lenient, strict, client):
  body, works_strictly, size = BODIES[client]
  status, _, answer = lenient.generate(**body)
  assert status == 200, answer
  assert answer['size'] == size and ('native_size' in answer) == (size != '6x6')
  assert answer.get('ignored', []) == [name for name in ('quality', 'style')
                                       if body.get(name, 'auto') != 'auto']
  image, = answer['data']
  if body.get('response_format') == 'url':
    assert 'b64_json' not in image
    data = image['url'].removeprefix('data:image/png;base64,')
  else:
    data = image['b64_json']
  picture, info = running.pixels(data)
  assert f'{picture.shape[1]}x{picture.shape[0]}' == size and info['prompt'] == 'cat'
  if works_strictly:
    assert wire.order(json.dumps(body).encode(), strict).form == wire.Form()
  else:
    with pytest.raises(wire.ApiError, match='leave it out, or start the server with --lenient'):
      wire.order(json.dumps(body).encode(), strict)


def test_lenient_answers_say_what_they_are(model, lenient):
  """The picture is resampled, unless it has the size; what no model has is refused as ever."""
  expected = model.generate('cat', seed=3, decoder=tiny.SEED_EXACT, batch_size=1)
  body = dict(prompt='cat', seed=3, background='transparent', moderation='low', style=None)
  _, _, answer = lenient.generate(**body, size='6x6', quality='auto', user='me')
  assert base64.b64decode(answer['data'][0]['b64_json']) == expected.png(0)
  assert answer['ignored'] == ['moderation', 'background'] and answer['background'] == 'opaque'
  assert 'native_size' not in answer
  _, _, answer = lenient.generate(**body, size='12x18')
  larger = Image.fromarray(expected.images[0]).resize((12, 12), Image.Resampling.LANCZOS)
  picture, _ = running.pixels(answer['data'][0]['b64_json'])
  np.testing.assert_array_equal(picture, np.asarray(larger))
  assert (answer['size'], answer['native_size']) == ('12x12', '6x6')
  for field, value, message in (
      ('size', '4096x4096', "it must be 'auto', or width and height of 1 to 2048 pixels"),
      ('size', '0x6', 'width and height'), ('size', 6, 'size is 6'), ('size', [], 'size is []'),
      ('response_format', 'file', "it must be 'b64_json', because"),
      ('output_format', 'webp', "it must be 'png'"), ('negative_prompt', 'dog', 'null condition'),
      ('output_compression', 3, 'leave it out.'), ('model', 'other', 'model is')):
    status, _, answer = lenient.generate(prompt='cat', **{field: value})
    assert status in (400, 404) and message in answer['error']['message'], answer


def test_lenient_streams_have_one_size(lenient):
  _, _, data = lenient.generate(prompt='cat', stream=True, partial_images=2, size='24x24',
                                response_format='url', quality='hd')
  events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith('data')]
  assert events[-1]['type'] == 'image_generation.completed'
  for event in events:
    assert event['size'] == '24x24' and event['ignored'] == ['quality', 'response_format']
    assert running.pixels(event['b64_json'])[0].shape == (24, 24, 3)


def test_sizes_keep_the_proportions_of_the_model(strict):
  wide = dataclasses.replace(strict, size='64x32', lenient=True)
  for size, expected in (('1024x1024', (1024, 512)), ('256x2048', (256, 128)), ('1x1', (1, 1)),
                         ('64x32', None), ('auto', None), ('65x32', None)):
    body = json.dumps(dict(prompt='cat', size=size)).encode()
    assert wire.order(body, wide).form.size == expected, size


def test_a_model_has_all_of_its_names(model, lenient):
  models = lenient.call('GET', '/v1/models')[2]['data']
  assert [entry['id'] for entry in models] == list(NAMES)
  assert {entry['root'] for entry in models} == {'tiny'}
  for entry in models:  # A name may have a slash.
    assert lenient.call('GET', f'/v1/models/{entry["id"]}')[2] == entry
  renamed = wire.serving(model, ('vanilla',), ('gpt-image-1',))
  message = "model is 'tiny'; this server has 'gpt-image-1', and those of --served_model_name"
  with pytest.raises(wire.ApiError, match=message):
    wire.order(b'{"prompt": "cat", "model": "tiny"}', renamed)
