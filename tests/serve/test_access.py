"""The log of a server: one line for each request, whatever becomes of it."""

import asyncio
import contextlib
import json
import re

import pytest

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('uvicorn', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from cspd_jax.core import progress
from cspd_jax.serve import access, app, guard, wire
from tests.serve import running
from tests.serve.running import Running, head, until

pytestmark = pytest.mark.usefixtures('signals_left_alone')
_KEY = dict(Authorization='Bearer ' + 'k' * 16)
_IMAGES = '/v1/images/generations'


@pytest.fixture(scope='module')
def logging_server(model):
  instance = Running(model, key='k' * 16)
  yield instance
  assert instance.end() == 0


@pytest.fixture
def logged(logging_server):
  """The lines of a test, without those that come after the answers of the last one."""
  lines = logging_server.logged
  logging_server.call('GET', '/', X_Request_Id='last')
  until(lambda: lines and lines[-1]['id'] == 'last')
  lines.clear()
  return lines


def _call(instance, method='GET', path='/', body=None, **headers):
  return instance.call(method, path, body, **{**_KEY, **headers})


def _line(logged):
  """The only line, when it is there."""
  until(lambda: logged)
  line, = logged
  return line


@pytest.mark.parametrize('method, path, body, headers, status', [
    ('GET', '/', None, {}, 200), ('HEAD', '/', None, {}, 200),
    ('GET', '/health/', None, dict(Host='evil.example'), 200),
    ('GET', '/docs/', None, {}, 308), ('GET', '/v1/nowhere', None, {}, 404),
    ('DELETE', _IMAGES, None, {}, 405),
    ('POST', _IMAGES, dict(prompt='cat', seed=3, n=2), {}, 200),
    ('POST', _IMAGES, dict(prompt='cat', stream=True, partial_images=2), {}, 200),
    ('POST', _IMAGES, dict(prompt='bird'), {}, 400), ('POST', _IMAGES, b'{', {}, 400),
    ('POST', _IMAGES, b'{}', dict(Content_Type='text/plain'), 415),
    ('POST', _IMAGES, dict(prompt='nan'), {}, 500),
    ('POST', _IMAGES, dict(prompt='nan', stream=True), {}, 500),  # In an event of a stream.
    ('POST', _IMAGES, dict(prompt='cat'), dict(Authorization='none'), 401),
    ('GET', '/v1/models', None, dict(Host='evil.example'), 403),
    ('GET', '/health', None, dict(Host='a/b'), 400)])
def test_a_request_is_one_line(logging_server, logged, method, path, body, headers, status):
  requests = logging_server.scheduler.metrics.requests.labels(str(status))._value
  before = requests.get()
  answer, heads, data = _call(
      logging_server, method, path, body, X_Request_Id='client-1/a', **headers)
  line = _line(logged)
  assert (line['method'], line['path'], line['status']) == (method, path, status)
  assert line['id'] == heads['x-request-id'] == 'client-1/a' and 0 <= line['seconds'] < 60
  if answer >= 400:
    assert data['error']['request_id'] == 'client-1/a'
  else:
    assert answer == status or b'"request_id":"client-1/a"' in data
  reaches = path == _IMAGES and method == 'POST' and status != 401
  assert requests.get() == before + reaches


@pytest.mark.parametrize('given, is_used', [
    ('0af7651916cd43dd8448eb211c80319c', True), ('Root=1-67891233-abcdef/x:y+z', True),
    ('x' * 128, True), ('x' * 129, False), ('', False), ('two words', False), ('-dash', False),
    ('a\tb', False), ('caf\xe9', False), ('<script>', False), ('{"a":1}', False), ('%0a', False)])
def test_ids_of_clients_are_used_if_they_are_sane(logging_server, logged, given, is_used):
  _, heads, _ = _call(logging_server, X_Request_Id=given)
  used = heads['x-request-id']
  assert _line(logged)['id'] == used
  assert (used == given) == is_used and (is_used or re.fullmatch('[0-9a-f]{32}', used))


def test_ids_of_the_server_differ(logging_server, logged):
  assert len({_call(logging_server)[1]['x-request-id'] for _ in range(3)}) == 3


@pytest.mark.parametrize('target, path', [
    ('/a%0aGET%20/b%20200', '/a%0AGET%20/b%20200'), ('/%1b%5b31m%0d%00', '/%1B%5B31m%0D%00'),
    ('/%e2%80%a8%C2%85%E2%80%AE', '/%E2%80%A8%C2%85%E2%80%AE'), ('/%ff', '/%EF%BF%BD'),
    ('/a?prompt=cat&key=k', '/a'), ('/' + 'x' * 500, '/' + 'x' * 199), ('//%22%5c', '//%22%5C')])
def test_a_path_is_one_word_of_one_line(logging_server, logged, capsys, target, path):
  assert _call(logging_server, 'GET', target)[0] == 404
  line = _line(logged)
  assert line['path'] == path
  access.text(line)
  words = capsys.readouterr().err
  assert words.count('\n') == 1 == len(words.splitlines()) and len(words.split(' ')) == 6
  assert re.fullmatch(
      r'\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z 404 GET \S+ \d+\.\d{3}s [0-9a-f]{32}\n', words)


@pytest.fixture
def held(logging_server):
  with running.held(logging_server) as go:
    yield go


@pytest.mark.parametrize('stream', [False, True])
def test_a_client_that_leaves_is_one_line(logging_server, logged, held, stream):
  body = json.dumps(dict(prompt='cat', stream=stream))
  with logging_server.connect() as gone:
    gone.sendall(head(body, X_Request_Id='leaves', **_KEY))
    until(lambda: logging_server.scheduler.left == 1)
  line = _line(logged)
  assert (line['id'], line['status'], line['path']) == ('leaves', 499, _IMAGES)
  held.set()
  until(lambda: logging_server.scheduler.left == 0)
  assert len(logged) == 1


@pytest.mark.parametrize('stream', [False, True])
def test_what_is_late_is_one_line(logging_server, logged, held, stream, monkeypatch):
  """Also in a stream, whose head says 200."""
  until_gone = app.Service._until_gone
  monkeypatch.setattr(app.Service, '_until_gone', lambda self, work, receive, end: until_gone(
      self, work, receive, asyncio.get_running_loop().time() + 0.2))
  _, _, data = _call(logging_server, 'POST', _IMAGES, dict(prompt='cat', stream=stream))
  assert 'the images were not complete' in str(data) and _line(logged)['status'] == 504


def test_bugs_are_one_line_and_their_id_is_in_the_log(logging_server, logged, monkeypatch, capsys):
  monkeypatch.setattr(wire, 'image', lambda generated, slots, form: 1 / 0)
  for stream in (False, True):
    logged.clear()
    with contextlib.suppress(Exception):  # A stream is cut.
      _call(logging_server, 'POST', _IMAGES, dict(prompt='cat', stream=stream), X_Request_Id='bug7')
    assert _line(logged)['status'] == 500
    assert re.search('error: ZeroDivisionError in line .* in the answer to bug7[.]',
                     capsys.readouterr().err)


@pytest.mark.parametrize('data, status, method', [
    (head('{"prompt": "c', Content_Length=900, **_KEY), 408, 'POST'),
    (head('{}', Content_Length=10**9, **_KEY), 413, 'POST'),
    # Before the body, which is not read.
    (head('{}', Content_Length=10**9, Connection='close'), 401, 'POST'),
    (b'\x16\x03\x01 TLS\r\n\r\n', 400, '-'), (b'GET / HTTP/1.1\r\n\r\n', 400, '-'),
    (b'GET /\x1b[31m HTTP/1.1\r\nHost: localhost\r\n\r\n', 400, '-'),
    (head(Transfer_Encoding='chunked').replace(b'Content-Length: 0\r\n', b'') + b'zz\r\n',
     400, 'POST'),  # Before it is refused for another reason.
    (head(Transfer_Encoding='chunked', **_KEY).replace(b'Content-Length: 0\r\n', b'') + b'zz\r\n',
     400, 'POST')])
def test_what_does_not_arrive_is_one_line(
    logging_server, logged, data, status, method, monkeypatch):
  monkeypatch.setattr(guard, '_BODY_SECONDS', 0.2)
  with logging_server.connect() as sock:
    sock.sendall(data)
    sock.settimeout(2.0)
    received = b''
    with contextlib.suppress(OSError):
      while part := sock.recv(65536):
        received += part
  heads, _, body = received.partition(b'\r\n\r\n')
  line = _line(logged)
  assert (line['status'], line['method']) == (status, method)
  assert heads.startswith(f'HTTP/1.1 {status}'.encode())
  assert f'\r\nx-request-id: {line["id"]}'.encode() in heads
  assert json.loads(body)['error']['request_id'] == line['id']


def test_garbage_after_an_answer_is_no_second_line(logging_server, logged, caplog):
  """uvicorn answered it again, which ended with a traceback in the log."""
  with logging_server.connect() as sock:
    sock.sendall(head(Transfer_Encoding='chunked').replace(b'Content-Length: 0\r\n', b''))
    assert sock.recv(65536).startswith(b'HTTP/1.1 401')
    sock.sendall(b'zz\r\n')
    with contextlib.suppress(ConnectionError):
      while sock.recv(65536):
        pass
  assert _line(logged)['status'] == 401 and caplog.records == []


def test_too_many_requests_at_once_are_one_line_and_probes_are_answered(
    logging_server, logged, held, monkeypatch):
  monkeypatch.setattr(guard, '_MOST_REQUESTS', 1)
  with logging_server.connect() as first:
    first.sendall(head(json.dumps(dict(prompt='cat')), **_KEY))
    until(lambda: logging_server.scheduler.left == 1)
    status, heads, answer = _call(logging_server, 'GET', '/v1/models')
    assert status == 503 and heads['retry-after'] == '5'
    assert answer['error']['request_id'] == heads['x-request-id'] == _line(logged)['id']
    for path in ('/health', '/health/live', '/metrics'):
      assert _call(logging_server, 'GET', path)[0] == 200
    held.set()
    assert first.recv(20).startswith(b'HTTP/1.1 200 OK')


def test_json_lines(capsys):
  """Everything that is written is an object: notes, errors, warnings, and lines of requests."""
  with access.lines('json') as log:
    progress.note('error: it failed \x1b[31m.\nAnd more.')
    print('Serving', end='')
    print(' it.')
    log(access.record('a1', 'GET', '/caf\xe9 "', 200, 0.25))
    log(access.record('a2', 'GET', '/', 503, 0.5))
    log(access.record('a3', 'GET', '/', 500, 0.5))
    print('no end', end='')
  out, err = capsys.readouterr()
  printed, errors = ([json.loads(line) for line in text.splitlines()] for text in (out, err))
  assert [line['message'] for line in printed] == ['Serving it.', 'no end']
  assert [(line['level'], line['message']) for line in errors] == [
      ('error', 'error: it failed \x1b[31m.'), ('info', 'And more.'),
      ('info', 'GET /caf%C3%A9%20%22 200'), ('info', 'GET / 503'), ('error', 'GET / 500')]
  assert errors[2] | dict(time='') == dict(
      time='', level='info', message='GET /caf%C3%A9%20%22 200', id='a1', method='GET',
      path='/caf%C3%A9%20%22', status=200, seconds=0.25)
  assert all(re.fullmatch(r'\d{4}-\d\d-\d\dT[\d:.]+Z', line['time']) for line in printed + errors)
