"""A served model whose condition a prior draws: both stages in slots, one after the other."""

import base64
import json
import threading

import numpy as np
import pytest

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('uvicorn', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from cspd_jax.serve import openapi
from tests.generation import test_cascade
from tests.serve import running
from tests.serve.running import Running

pytestmark = pytest.mark.usefixtures('signals_left_alone')
SPEC = 'vanilla | seed_exact(window=3)'


@pytest.fixture(scope='module')
def model():
  return test_cascade.pair()


@pytest.fixture(scope='module')
def server(model):
  instance = Running(model, decoders=(SPEC, 'vanilla'), queue=20)
  yield instance
  assert instance.value('cspd_slots_busy') == 0
  assert instance.end() == 0


def test_images_are_those_of_generate(model, server):
  expected = model.generate(['dog'] * 6, seed=7, decoder=SPEC, prior=dict(top_k=1), top_k=2,
                            batch_size=1)
  status, _, answer = server.generate(prompt='dog', n=6, seed=7, prior=dict(top_k=1), top_k=2)
  assert status == 200
  images = [image['b64_json'] for image in answer['data']]
  assert [base64.b64decode(image) for image in images] == [expected.png(i) for i in range(6)]
  first = answer['data'][0]
  assert first['decoder'] == SPEC and first['guarantee'] == 'seed-exact'
  assert first['prior_passes'] == 2 and first['passes'] == expected.decoded.rounds[0]
  assert running.pixels(images[1])[1]['prior_passes'] == '2'


def test_several_requests_share_the_slots_of_both_stages(model, server):
  """Of two decoders, more images than slots."""
  answers = {}

  def ask(decoder):
    answers[decoder] = server.generate(prompt='cat', n=5, seed=3, decoder=decoder)

  threads = [threading.Thread(target=ask, args=(decoder,)) for decoder in (SPEC, 'vanilla')]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(running.WAIT)
  expected = model.generate(['cat'] * 5, seed=3, decoder=SPEC)
  for status, _, answer in answers.values():
    assert status == 200
    for i, image in enumerate(answer['data']):
      np.testing.assert_array_equal(running.pixels(image['b64_json'])[0], expected.images[i])


def test_streams_show_both_stages(model, server):
  _, _, data = server.generate(prompt='dog', seed=5, stream=True, progress=True, partial_images=2)
  events = [json.loads(line.removeprefix('data: ')) for line in data.decode().splitlines()
            if line.startswith('data: ')]
  progress = [event for event in events if event['type'] == 'image_generation.progress']
  stages = [event['stage'] for event in progress]
  order = 'waiting', 'prior', 'decoding'
  assert stages[0] == 'waiting' and stages == sorted(stages, key=order.index)
  assert all(event['total'] == (2 if event['stage'] == 'prior' else 4) for event in progress)
  done = events[-1]
  expected = model.generate('dog', seed=5, decoder=SPEC)
  np.testing.assert_array_equal(running.pixels(done['b64_json'])[0], expected.images[0])
  assert done['prior_passes'] == 2


def test_options_of_the_prior_are_described_and_checked(server):
  described = server.served.description('pair')
  assert described['options']['prior']['temperature'] == 1.2
  assert described['decoders'][1] == dict(
      id='vanilla', specification='vanilla | vanilla', guarantee='seed-exact')
  field = openapi.request(server.served, 9)['properties']['prior']['properties']['top_k']
  assert field['type'] == ['integer', 'null'] and field['minimum'] == 0
  for param, wrong, message in (
      ('prior.top_k', dict(prior=dict(top_k=1.5)), 'prior.top_k is 1.5; it must be a whole'),
      ('prior.temperature', dict(prior=dict(temperature=-1)), 'prior.temperature is -1'),
      ('prior', dict(prior=dict(tempature=1)), "prior is {'tempature': 1}; it must be an object"),
      ('prior', dict(prior=1.5), 'prior is 1.5; it must be an object'),
      ('decoder', dict(decoder='vanilla | mc_sjd(window=2)'), 'this server has')):
    status, _, answer = server.generate(prompt='dog', **wrong)
    assert status == 400 and message in answer['error']['message']
    assert answer['error']['param'] == param


@pytest.mark.parametrize('body, is_right', [
    (dict(decoder='vanilla | vanilla'), True), (dict(prior=dict(top_k=2.0, top_p=None)), True),
    (dict(decoder='vanilla(window=1) | seed_exact(window=3)'), True),
    (dict(prior=dict(temperature=0, min_p=1)), True), (dict(prior=None), True),
    (dict(prior=dict(top_p=7)), False), (dict(prior=dict(temperature=-1)), False),
    (dict(prior=dict(top_k=1.5)), False), (dict(prior=dict(guidance_interval=-2)), False),
    (dict(prior=dict(nothing=None)), False), (dict(prior=[1]), False)])
def test_requests_of_a_pair_fit_their_schema(server, body, is_right):
  jsonschema = pytest.importorskip('jsonschema', reason='jsonschema is not installed')
  schema = server.call('GET', '/openapi.json')[2]['components']['schemas']['ImageRequest']
  assert jsonschema.Draft202012Validator(schema).is_valid(body | dict(prompt='dog')) == is_right
  status, _, answer = server.generate(prompt='dog', **body)
  assert status == (200 if is_right else 400), answer
