"""The HTTP service, as OpenAI's client, flaky clients and attackers use it."""

import asyncio
import base64
import contextlib
import functools
import json
import re
import sys
import threading
import time
import types
import urllib.parse

import numpy as np
import pytest

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('uvicorn', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from starlette.applications import Starlette
from starlette.routing import Mount

import cspd_jax
from cspd_jax.generation import memory
from cspd_jax.generation.sampler import Sampler
from cspd_jax.serve import access, app, guard, server, wire
from tests.generation.test_rollouts import counted
from tests.serve import running, tiny
from tests.serve.running import Running, head, until

pytestmark = pytest.mark.usefixtures('signals_left_alone')


@pytest.fixture(scope='module')
def running_server(model):
  instance = Running(model)
  yield instance
  assert instance.value('cspd_slots_busy') == 0
  assert instance.end() == 0


@pytest.fixture(scope='module')
def client(running_server):
  openai = pytest.importorskip('openai', reason='the published client is not installed')
  return openai.OpenAI(base_url=f'http://localhost:{running_server.port}/v1', api_key='none',
                       max_retries=0)


def test_the_published_client_gets_the_files_of_generate(model, client):
  expected = model.generate(['dog'] * 2, seed=7, decoder=tiny.SEED_EXACT, top_k=2, batch_size=1)
  answer = client.images.generate(
      prompt='dog', model='tiny', n=2, size='6x6', response_format='b64_json', quality='auto',
      extra_body=dict(seed=7, top_k=2))
  assert [base64.b64decode(image.b64_json) for image in answer.data] == [
      expected.png(i) for i in range(2)]
  assert running.pixels(answer.data[1].b64_json)[1]['number'] == '1'
  assert answer.size == '6x6' and answer.usage.output_tokens == 18 and answer.output_format == 'png'
  assert answer.data[0].passes == expected.decoded.rounds[0] and answer.data[0].seed == 7
  assert answer.data[0].slots == 2  # Of its program.
  described, = client.models.list().data
  assert described == client.models.retrieve('tiny') and described.prompts == ['cat', 'dog']
  assert described.root == 'tiny' and described.words == list(tiny.NAMES)
  assert [one['guarantee'] for one in described.decoders] == ['seed-exact'] * 2
  assert client.images.generate(prompt='dog').data[0].seed != (
      client.images.generate(prompt='dog').data[0].seed)


@pytest.mark.parametrize('decoder', [tiny.SEED_EXACT, 'vanilla()'])
def test_streams_of_several_images(model, running_server, client, decoder, monkeypatch):
  for name in running_server.served.decoders:  # Long enough for the client to look.
    batch = tiny.batch(running_server.scheduler, name)
    monkeypatch.setattr(batch.runner, 'step', lambda rounds=1, step=batch.runner.step: (
        time.sleep(0.1), step(rounds))[1])
  events = list(client.images.generate(
      prompt='cat', n=2, stream=True, partial_images=3,
      extra_body=dict(seed=3, decoder=decoder, progress=True)))
  expected = model.generate(['cat'] * 2, seed=3, decoder=decoder, batch_size=1)
  for index in range(2):
    own = [event for event in events if event.image_index == index]
    by_type = {kind: [event for event in own if event.type == f'image_generation.{kind}']
               for kind in ('progress', 'partial_image', 'completed')}
    assert own[0].stage == 'waiting' and own[-1].type == 'image_generation.completed'
    assert running.pixels(own[-1].b64_json)[1]['seed'] == '3'
    np.testing.assert_array_equal(running.pixels(own[-1].b64_json)[0], expected.images[index])
    np.testing.assert_array_equal(own[-1].round_of_cell, expected.round_of_cell[index])
    assert own[-1].usage.output_tokens == 9
    partial = by_type['partial_image']
    assert 1 <= len(partial) <= 3
    assert [event.partial_image_index for event in partial] == list(range(len(partial)))
    # Pixels of tokens that are committed are those of the image; the others are grey.
    final = running.pixels(own[-1].b64_json)[0]
    for event in partial:
      picture = running.pixels(event.b64_json)[0]
      assert np.all((picture == final) | (picture == 128)) and np.any(picture == 128)
    cells = np.full((3, 3), -1)
    for event in by_type['progress'][1:]:
      for row, column, number in event.new_cells:
        assert cells[row, column] == -1  # Each token is in one event, its first.
        cells[row, column] = number
      assert np.sum(cells >= 0) == event.tokens and event.total == 9
    assert np.all((cells == -1) | (cells == expected.round_of_cell[index]))


def test_errors_are_those_that_the_client_knows(client):
  import openai
  for kwargs, error, param in (
      (dict(prompt='a bird'), openai.BadRequestError, 'prompt'),
      (dict(prompt='cat', model='dall-e-3'), openai.NotFoundError, 'model'),
      (dict(prompt='cat', n=7), openai.BadRequestError, 'n'),
      (dict(prompt='nan'), openai.InternalServerError, None)):
    with pytest.raises(error) as caught:
      client.images.generate(**kwargs)
    assert caught.value.body['param'] == param
  with pytest.raises(openai.APIError, match='no valid probabilities'):
    list(client.images.generate(prompt='nan', stream=True))
  assert client.images.generate(prompt='cat').data  # The others are decoded as before.


CAT = dict(prompt='cat')
WRONG = [
    (b'{', 'the body is no JSON'), (b'[]', 'it must be a JSON object'), (b'\xff', 'no JSON'),
    (b'[' * 60000, 'the body is no JSON'), (b'{"prompt": NaN}', 'NaN is not a number'),
    (b'{"prompt": "cat", "n": ' + b'9' * 5000 + b'}', 'n is inf; it must be a whole number'),
    (b'{"prompt": "cat", "prompt": "dog"}', "'prompt' is there twice"), ({}, 'prompt is missing'),
    (dict(prompt=3), 'prompt is 3; it must be a string'),
    (dict(prompt='x' * 4001), 'it must be at most 4000 letters'),
    (dict(prompt='a\x1bb'), "it must be without the control character '\\x1b'"),
    (b'{"prompt": "\\ud800"}', 'not Unicode text'),
    (CAT | dict(n=0), 'n is 0; it must be a whole number from 1 to 10'),
    (CAT | dict(n=True), 'n is True'), (CAT | dict(n=10), 'at most 6 images at once'),
    (CAT | dict(seed=[1]), r'seed is [1]'), (CAT | dict(quality='high'), "quality is 'high'"),
    (CAT | dict(size='512x512'), "size is '512x512'; it must be '6x6' or 'auto'"),
    (CAT | dict(response_format='url'), "response_format is 'url'"),
    (CAT | dict(output_format='webp'), "output_format is 'webp'"),
    (CAT | dict(background='transparent'), "background is 'transparent'"),
    (CAT | dict(style='vivid'), "style is 'vivid', but the model has no styles"),
    (CAT | dict(user=3), 'user is 3; it must be a string'),
    (CAT | dict(moderation='low'), 'moderation is'),
    (CAT | dict(negative_prompt='dog'), 'negative_prompt is'),
    (CAT | dict(stream='yes'), "stream is 'yes'"),
    (CAT | dict(partial_images=2), 'partial_images is 2; it must be left out, or stream true'),
    (CAT | dict(progress=True), 'progress is True; it must be left out, or stream true'),
    (CAT | dict(stream=True, partial_images=65), 'from 0 to 64'),
    (CAT | dict(decoder='mc_sjd'), "decoder is 'mc_sjd'; this server has seed_exact"),
    (CAT | dict(guidance_scale=10**400), 'guidance_scale is inf; it must be finite'),
    (CAT | dict(prompt=' \n '), "prompt is ' "),
    (b'{"prompt": "cat", "temperature": 1e999}', 'temperature is inf'),
    (CAT | dict(top_k=2.5), 'top_k is 2.5; it must be a whole number'),
    (CAT | dict(unknown=None), "'unknown' is not a field"),
    (CAT | dict(cfg_scale=2), 'did you mean guidance_scale?'),
    (CAT | {'x' * 500: 1}, "is not a field of a request for images"),
    (b'{"prompt": "cat", "\\ud800": 1}', "'\\ud800' is not a field"),
]


@pytest.mark.parametrize('body, message', WRONG, ids=[message for _, message in WRONG])
def test_wrong_requests_are_refused_with_a_sentence(running_server, body, message):
  status, headers, answer = running_server.call('POST', '/v1/images/generations', body)
  error = answer['error']
  assert status == 400 and message in error['message'], error
  assert error['type'] == 'invalid_request_error' and len(error['message']) < 500


def test_other_requests_are_refused(running_server):
  call = running_server.call
  for method, path, status in (
      ('GET', '/v1/images/generations', 405), ('POST', '/', 405), ('GET', '/v1/edits', 404),
      ('GET', '/../setup.cfg', 404), ('GET', '/page/%2e%2e/app.py', 404),
      ('GET', '/v1/models/other', 404), ('DELETE', '/v1/models/tiny', 405)):
    answer = call(method, path)
    assert answer[0] == status and answer[2]['error']['message'], path
  images = '/v1/images/generations'
  assert call('POST', images, b'prompt=cat', Content_Type='text/plain')[0] == 415
  assert call('POST', images, b'x' * (wire.MOST_BYTES + 1))[0] == 413
  for host in ('evil.example', 'localhost.evil.example', '127.0.0.1.evil.example', '[', ''):
    assert call('GET', '/v1/models', Host=host)[0] == 403, host
  assert call('GET', '/metrics', Host='10.0.0.7:8000')[0] == 403  # There is no key.
  for host in ('localhost/?', 'localhost?', 'localhost#', 'localhost/v1', 'user@localhost'):
    assert call('GET', '/health', Host=host)[0] == 400, host
  for origin in ('http://evil.example', 'null', 'http://localhost:1', 'file://localhost'):
    answer = call('POST', images, CAT, Origin=origin)
    assert answer[0] == 403 and 'pages of other sites' in answer[2]['error']['message'], origin
  for host in ('localhost', '127.0.0.1', '[::1]'):
    place = f'{host}:{running_server.port}'
    assert call('POST', images, CAT, Host=place, Origin=f'http://{place}')[0] == 200


def test_a_slash_at_the_end_of_a_path_makes_no_difference(running_server):
  """It was redirected, which clients do not follow with a body, or read as the name of a model."""
  call = running_server.call
  assert call('POST', '/v1/images/generations/', CAT)[0] == 200
  for path in ('/v1/models', '/v1/models/tiny', '/health', '/health/live', '/page.css'):
    assert call('GET', path + '/')[::2] == call('GET', path)[::2] and call('GET', path)[0] == 200
  for method, path, status in (('GET', '/v1/images/generations/', 405), ('POST', '/v1/', 404)):
    answer = call(method, path)
    assert answer[0] == status and answer[2]['error']['message'], path


def test_the_description_has_the_fields_of_answers(running_server):
  described = running_server.call('GET', '/openapi.json')[2]
  image = described['components']['schemas']['Images']['properties']['data']['items']['properties']
  answer, = running_server.generate(prompt='cat')[2]['data']
  assert answer.keys() == image.keys() - {'url'}
  for path, operations in described['paths'].items():
    for method in operations:
      status = running_server.call(method.upper(), path.replace('{name}', 'tiny'), CAT)[0]
      assert status == 200, path


def test_pages_and_headers(running_server):
  for path, kind in (('/', 'text/html'), ('/page.js', 'text/javascript'),
                     ('/page.css', 'text/css'), ('/icon.svg', 'image/svg+xml'),
                     ('/example.json', 'application/json'), ('/docs', 'text/html'),
                     ('/openapi.json', 'application/json')):
    status, headers, data = running_server.call('GET', path)
    assert status == 200 and headers.get_content_type() == kind and len(data)
    assert headers['content-security-policy'].startswith("default-src 'none'; script-src 'self';")
    assert headers['x-content-type-options'] == 'nosniff' and 'server' not in headers
    assert 'access-control-allow-origin' not in headers
  status, headers, _ = running_server.call('OPTIONS', '/v1/images/generations')
  assert status == 405 and 'access-control-allow-origin' not in headers


def test_metrics(running_server):
  before = {name: running_server.value(name) for name in (
      'cspd_images_total{decoder="vanilla",outcome="completed"}', 'cspd_requests_total',
      'cspd_tokens_total{decoder="vanilla"}', 'cspd_passes_total', 'cspd_image_seconds_count',
      'cspd_image_passes_total{decoder="vanilla"}')}
  assert running_server.generate(prompt='cat', n=2, decoder='vanilla')[0] == 200
  after = {name: running_server.value(name) for name in before}
  changes = [after[name] - value for name, value in before.items()]
  assert changes[:3] == [2, 1, 18] and changes[3] >= 8 and changes[4] == 2
  assert changes[5] == 18  # Of two images: eight passes each, and a prefill.
  assert running_server.value('cspd_slots{') == 4
  if sys.platform == 'linux':
    assert running_server.value('process_resident_memory_bytes') > 1e6


def test_images_need_no_memory_besides_their_slots(running_server, monkeypatch):
  monkeypatch.setattr(memory, 'free', lambda devices: 0.0)
  assert running_server.generate(prompt='cat')[0] == 200


def test_a_server_that_is_ready_compiles_nothing():
  instance = Running(tiny.model())
  with counted() as compiled:
    for body in (dict(prompt='cat', seed=7), dict(prompt='dog', n=3, temperature=0, top_k=2),
                 dict(prompt='cat', stream=True, partial_images=2, progress=True)):
      assert instance.generate(**body)[0] == 200
  assert instance.end() == 0 and compiled == []


@pytest.fixture
def held(running_server):
  with running.held(running_server) as go:
    yield go


@pytest.mark.parametrize('stream', [False, True])
def test_clients_that_leave_free_their_slots(running_server, held, stream):
  left = 'cspd_images_total{decoder="seed_exact(window=3)",outcome="cancelled"}'
  before = running_server.value(left)
  body = json.dumps(dict(prompt='cat', n=3, stream=stream, partial_images=2 * stream))
  with running_server.connect() as gone:
    gone.sendall(head(body))
    until(lambda: running_server.value('cspd_slots_busy') == 2)
  jobs = tiny.batch(running_server.scheduler).jobs
  until(lambda: all(job.cancelled for job in jobs.values()))
  held.set()
  until(lambda: running_server.value(left) == before + 3)
  assert running_server.value('cspd_slots_busy') == 0 == running_server.value('cspd_images_wa')
  assert running_server.generate(prompt='cat')[0] == 200


def test_full_queues_and_late_answers(running_server, held, monkeypatch):
  body = json.dumps(dict(prompt='cat', n=6))
  with running_server.connect() as first:
    first.sendall(head(body))
    until(lambda: running_server.value('cspd_images_waiting') == 4)
    status, headers, answer = running_server.generate(prompt='cat')
    assert status == 429 and int(headers['retry-after']) >= 1
    assert answer['error']['type'] == 'rate_limit_error'
    held.set()
    assert first.recv(20).startswith(b'HTTP/1.1 200 OK')


def test_bodies_and_heads_that_do_not_arrive(running_server, monkeypatch):
  monkeypatch.setattr(guard, '_BODY_SECONDS', 0.2)
  monkeypatch.setattr(server, '_LOOK', 0.1)
  monkeypatch.setattr(server, '_IDLE', 0.3)
  for data, answer in (
      (head('{"prompt": "c', Content_Length=900), b'HTTP/1.1 408'),
      (head('{}', Content_Length=10**9), b'HTTP/1.1 413'),
      (head(Transfer_Encoding='chunked').replace(b'Content-Length: 0\r\n', b'')
       + b'fffff\r\n' + b'x' * 0xfffff + b'\r\n', b'HTTP/1.1 413'),
      (head(X_Large='x' * 3_000_000), b'HTTP/1.1 400'),
      (b'\x16\x03\x01 TLS\r\n\r\n', b'HTTP/1.1 400'),
      (b'POST /v1/images/generations HTTP/1.1\r\nHost: local', b''), (b'', b'')):
    with running_server.connect() as sock:
      with contextlib.suppress(ConnectionError):  # The server need not read all of it.
        sock.sendall(data)
      received = b''
      with contextlib.suppress(ConnectionError):
        while part := sock.recv(65536):
          received += part
      assert received.startswith(answer) if received or not answer else len(data) > 10**6, received
  assert running_server.generate(prompt='cat')[0] == 200


def test_deadlines_and_readers_that_stop(model, monkeypatch):
  """The deadline ends requests, and a connection whose client does not read is closed."""
  monkeypatch.setattr(server, '_LOOK', 0.1)
  monkeypatch.setattr(server, '_IDLE', 0.3)
  lost, connection_lost = [], server._Connection.connection_lost
  monkeypatch.setattr(server._Connection, 'connection_lost', lambda self, error: (
      lost.append(self.flow.write_paused), connection_lost(self, error)))
  instance = Running(model, deadline=0.5)
  go, runner = threading.Event(), tiny.batch(instance.scheduler).runner
  step = runner.step
  runner.step = lambda rounds=1: go.wait(running.WAIT) and step(1)
  try:
    status, headers, answer = instance.generate(prompt='cat')
    assert status == 504 and headers['x-should-retry'] == 'false'
    assert 'after 0.5 seconds' in answer['error']['message']
    status, _, data = instance.generate(prompt='cat', stream=True)
    assert status == 200 and b'data: {"error":{"message":"the images were not' in data
    # Preparation counts, and what it has prepared too late is not decoded.
    go.set()
    until(lambda: instance.scheduler.left == 0)
    late, done, request = threading.Event(), threading.Event(), Sampler.images
    monkeypatch.setattr(Sampler, 'images', lambda *arguments, **options: (
        late.wait(running.WAIT), done.set(), request(*arguments, **options))[-1])
    outcomes = instance.value('cspd_images_total')
    for stream in (False, True):
      assert instance.generate(prompt='cat', stream=stream)[0] == 504
    late.set()
    until(done.is_set)
    monkeypatch.setattr(Sampler, 'images', request)
    assert instance.generate(prompt='cat')[0] == 200
    assert instance.value('cspd_images_total') == outcomes + 1
    # An answer that is larger than all buffers.
    monkeypatch.setattr(wire, 'event', lambda values: b'x' * 50_000_000)
    with instance.connect() as reader:
      reader.sendall(head(json.dumps(dict(prompt='cat', stream=True))))
      until(lambda: instance.value('cspd_images_total') > outcomes + 1)
      until(lambda: True in lost)
      received = 0
      with contextlib.suppress(ConnectionError):
        while part := reader.recv(2**20):
          received += len(part)
      assert received < 50_000_000
  finally:
    go.set()
    assert instance.end() == 0


def test_keys(model):
  instance = Running(model, key='k' * 16, allowed_hosts=('images.example.org',))
  own = dict(Host='images.example.org')
  try:
    for headers, status in (
        ({}, 401), (dict(Authorization='Bearer wrong'), 401), (dict(Authorization='k' * 16), 401),
        (dict(Authorization='Bearer \xe9'), 401), (dict(Authorization='Bearer ' + 'k' * 16), 200)):
      for path in ('/v1/models', '/metrics', '/openapi.json', '/docs'):
        answer = instance.call('GET', path, **own, **headers)
        assert answer[0] == status, (path, headers)
        assert status == 200 or answer[1]['www-authenticate'] == 'Bearer'
    assert instance.call('GET', '/', **own)[0] == instance.call('GET', '/health')[0] == 200
    # A proxy that serves HTTPS and passes the name of the host on, or replaces it.
    key = dict(Authorization='Bearer ' + 'k' * 16, Origin='https://images.example.org')
    for host in ('images.example.org', '127.0.0.1:8000'):
      assert instance.call('POST', '/v1/images/generations', CAT, Host=host, **key)[0] == 200
    key['Origin'] = 'https://other.example.org'
    assert instance.call('POST', '/v1/images/generations', CAT, Host=host, **key)[0] == 403
  finally:
    assert instance.end() == 0
  assert guard.hosts('0.0.0.0', (), True) is None
  assert 'x.org' in guard.hosts('0.0.0.0', ('X.org',), True)


def test_probes_and_metrics_are_answered_by_the_address_of_a_machine(model):
  """Orchestrators restarted a server whose `/health` refused their probes."""
  instance = Running(model, key='k' * 16, allowed_hosts=('images.example.org',))
  key = dict(Authorization='Bearer ' + 'k' * 16)
  full = dict(status='ready', version=cspd_jax.__version__, model='tiny')
  try:
    for headers in ({}, key, dict(Authorization='Bearer wrong'), dict(Origin='http://evil.example')):
      for host in ('10.1.2.3:8000', '[fe80::1]:8000', 'evil.example', 'images.example.org'):
        for path in ('/health', '/health/', '/health/live'):
          status, _, body = instance.call('GET', path, Host=host, **headers)
          # Of the model it says nothing to those who may not ask for it.
          is_full = headers == key and host == 'images.example.org'
          assert (status, body) == (200, full if is_full else dict(status='ready')), (host, headers)
        status = 200 if headers == key else 401 if host == 'images.example.org' else 403
        if 'Origin' not in headers:
          assert instance.call('GET', '/metrics', Host=host, **headers)[0] == status, host
    for host, path in (('10.1.2.3', '/v1/models'), ('10.1.2.3', '/'), ('10.1.2.3', '/healthy')):
      assert instance.call('GET', path, Host=host, **key)[0] == 403
    bearer = 'Authorization: Bearer ' + 'k' * 16 + '\r\n'
    for path, header, status in (('/health', '', 200), ('/health/live', '', 200),
                                 ('/metrics', '', 403), ('/metrics', bearer, 200),
                                 ('/v1/models', bearer, 403)):
      with instance.connect() as old:  # Without a Host.
        old.sendall(f'GET {path} HTTP/1.0\r\n{header}\r\n'.encode())
        assert old.recv(12) == f'HTTP/1.1 {status}'.encode(), (path, header)
  finally:
    assert instance.end() == 0


@pytest.fixture(scope='module')
def service(model):
  """An application whose scheduler is not started."""
  served = wire.serving(model, (tiny.SEED_EXACT, 'vanilla'))
  return app.Service(served, server.make_scheduler(served, slots=1, queue=1), deadline=1.0).app()


def _ask(application, path, root='', query='', **headers):
  """Status, headers and body of the answer of an application to a GET."""
  sent = []
  named = {'host': 'localhost', **{name.lower(): value for name, value in headers.items()}}

  async def receive():
    return dict(type='http.request', body=b'')

  async def send(message):
    sent.append(message)

  asyncio.run(application(dict(
      type='http', method='GET', path=path, root_path=root, query_string=query.encode(),
      headers=[(name.encode(), value.encode()) for name, value in named.items()]), receive, send))
  answer = {name.decode(): value.decode() for name, value in sent[0]['headers']}
  return sent[0]['status'], answer, b''.join(part.get('body', b'') for part in sent[1:])


def _places(service, key=None):
  """The application at the root of a host and below paths, with `path -> answer` for each."""
  guarded = guard.Guard(service, None, key)
  mounted = Starlette(routes=[Mount('/img', guarded)])
  twice = Starlette(routes=[Mount('/a', Starlette(routes=[Mount('/v1', guarded)]))])
  return {
      '': functools.partial(_ask, guarded), '/img': functools.partial(_ask, mounted),
      '/a/v1': functools.partial(_ask, twice),
      # By servers that are told the path: with it in `path`, and before ASGI demanded it, without.
      '/root': functools.partial(_ask, guarded, root='/root'),
      '/gone': lambda path, **more: _ask(guarded, path.removeprefix('/gone'), root='/gone', **more)}


def _followed(ask, address, **headers):
  """The address and the answer of a page, after redirections."""
  while (answer := ask(address, **headers))[0] == 308:
    address = urllib.parse.urljoin(address, answer[1]['location'])
  return address, answer


@pytest.mark.parametrize('root', ['', '/img', '/a/v1', '/root', '/gone'])
def test_pages_and_what_they_link_to_are_below_any_path(service, root):
  ask, linked = _places(service)[root], set()
  for page in ('/', '/docs', '/docs/'):
    address, (status, _, html) = _followed(ask, root + page)
    assert status == 200 and address == root + page.replace('s/', 's')
    links = re.findall(r'(?:href|src)="([^"]*)"', html.decode())
    assert len(links) >= 3
    linked |= {urllib.parse.urljoin(address, link) for link in links}
  assert linked == {root + path for path in (
      '/', '/icon.svg', '/page.css', '/page.js', '/openapi.json')}
  for address in linked:
    assert ask(address)[0] == 200, address
  for page in ('/openapi.json', '/openapi.json/'):
    address, (status, _, text) = _followed(ask, root + page)
    described = json.loads(text)
    base = urllib.parse.urljoin(address, described['servers'][0]['url']).rstrip('/')
    assert status == 200 and base == root
    for path in described['paths']:
      expected = {'/health': 503, '/v1/images/generations': 405}.get(path, 200)
      assert ask(base + path.replace('{name}', 'tiny'))[0] == expected, path
      assert ask(base + path.replace('{name}', 'tiny') + '/')[0] == expected, path
  for path in ('/v1', '/nowhere', '/img', '/v1/models/x'):
    assert ask(root + path)[0] == 404, path
  assert ask(root + '/docs/', query='a=b')[1]['location'].endswith('../docs?a=b')


def test_the_page_has_one_address(service):
  """Without the slash, its links would lead out of its path."""
  for path in ('/', '/v1/models', '/docs'):  # Some servers say that the root is a path.
    assert _ask(guard.Guard(service, None, None), path, root='/')[0] == 200
  answer = _ask(guard.Guard(service, None, None), '/img', root='/img', query='prompt=cat')
  assert answer[0] == 308 and answer[1]['location'] == './img/?prompt=cat'


@pytest.mark.parametrize('root', ['', '/img', '/a/v1', '/root', '/gone'])
def test_the_key_is_asked_for_below_any_path(service, root):
  """It was not inside of a mounted application."""
  key = 'k' * 16
  ask, described = _places(service, key)[root], _ask(service, '/openapi.json')[2]
  private = {path.replace('{name}', 'tiny') for path in json.loads(described)['paths']}
  private -= {'/health', '/health/live'}
  private |= {'/docs', '/openapi.json', '/v1', '/v1/', '//v1/models', '/V1/models', '/nowhere',
              '/img/v1/models', '/health/x', '/page.css/x', '/metrics/', '/docs/', '/root/docs'}
  for path in private:
    for headers in ({}, dict(Authorization='Bearer wrong'), dict(Authorization=key)):
      status, answer, _ = ask(root + path, **headers)
      assert status == 401 and answer['www-authenticate'] == 'Bearer', path
    assert ask(root + path, Authorization=f'Bearer {key}')[0] in (200, 308, 404, 405), path
  for path in guard.FILES:
    assert ask(root + path)[0] == 200, path
  for path, status in (('/health', 503), ('/health/live', 200)):
    assert ask(root + path)[::2] == (status, b'{"status":"compiling"}')


def test_which_paths_need_the_key_does_not_depend_on_the_host(monkeypatch):
  """Of which Starlette makes the URL: old versions had the path `/` for `Host: localhost/?`."""
  sent = []

  async def answer(scope, receive, send):
    await send(dict(type='http.response.start', status=200, headers=[]))

  async def send(message):
    sent.append(message)

  monkeypatch.setattr(guard.Request, 'url', types.SimpleNamespace(path='/'))
  scope = dict(type='http', method='GET', path='/v1/models', headers=[(b'host', b'localhost')])
  asyncio.run(guard.Guard(answer, None, 'k' * 16)(scope, None, send))
  assert sent[0]['status'] == 401


def test_what_is_logged(model, capfd, monkeypatch):
  """No text of a request, whatever happens."""
  instance = Running(model, log=access.text)
  monkeypatch.setattr(wire, 'image', lambda generated, slots, form: 1 / 0)
  status, _, answer = instance.generate(prompt='cat')
  assert status == 500 and answer['error']['message'].startswith('the server has a bug')
  assert instance.generate(prompt='nan')[0] == 500
  assert instance.generate(prompt='bird')[0] == 400
  instance.call('GET', '/?prompt=cat')
  assert instance.end() == 0
  errors = capfd.readouterr().err
  assert 'ZeroDivisionError in line' in errors and 'Traceback' not in errors
  assert ' 400 POST /v1/images/generations ' in errors and ' 200 GET / ' in errors
  assert not any(word in errors for word in ('cat', 'nan', 'bird', 'prompt'))


def test_not_ready_and_failed(model):
  """A server answers while it compiles, and ends with an error when decoding fails."""
  scheduler = server.make_scheduler(
      wire.serving(model, (tiny.SEED_EXACT, 'vanilla')), slots=1, queue=1)
  go, join = threading.Event(), tiny.batch(scheduler, 'vanilla').runner.join

  def failing(requests):
    raise RuntimeError('no memory')

  def compiling(requests):
    assert go.wait(running.WAIT)
    return join(requests)

  tiny.batch(scheduler, 'vanilla').runner.join = compiling
  instance = Running(model, scheduler=scheduler, ready=False)
  until(lambda: instance.health() == 503)
  status, headers, answer = instance.generate(prompt='cat')
  assert status == 503 and headers['retry-after'] == '5'
  assert answer['error']['message'] == 'the server is compiling.'
  go.set()
  until(lambda: instance.health() == 200)
  tiny.batch(scheduler, 'vanilla').runner.join = failing
  for _ in range(3):
    status, _, answer = instance.generate(prompt='cat', decoder='vanilla')
    assert status == 500 and 'decoding failed' in answer['error']['message']
  instance._thread.join(running.WAIT)
  assert instance.codes == [1]
