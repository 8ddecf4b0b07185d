"""A server of the tiny model that runs in a thread, and a client of plain sockets."""

import base64
import contextlib
import http.client
import io
import json
import socket
import threading
import time

import numpy as np
import pytest
from PIL import Image

from cspd_jax.serve import server, wire
from tests.serve import tiny

WAIT = 120.0


@contextlib.contextmanager
def without_signals():
  """Lets servers run in threads, which cannot handle signals."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(server._Server, 'capture_signals', lambda self: contextlib.nullcontext())
    yield


def pixels(data):
  """The image of a file in base64, and the texts in the file."""
  with Image.open(io.BytesIO(base64.b64decode(data))) as image:
    return np.asarray(image), image.info


class Running:
  """A running server.

  Attributes:
    served: what it offers.
    scheduler: its scheduler.
    port: its port.
    codes: its exit code, when it has ended.
    logged: the lines of its requests, unless another log is passed.
  """

  def __init__(self, of, *, slots=2, queue=4, deadline=WAIT, ready=True, scheduler=None, names=None,
               lenient=False, fixed_slots=True, decoders=(tiny.SEED_EXACT, 'vanilla'), **options):
    self.served = wire.serving(of, decoders, names, lenient)
    self.scheduler = scheduler or server.make_scheduler(
        self.served, slots=slots, queue=queue, fixed_slots=fixed_slots)
    self.codes, self.logged, sock = [], [], server.bind('127.0.0.1', 0)
    options = dict(log=self.logged.append) | options
    self.port = sock.getsockname()[1]
    self._thread = threading.Thread(target=lambda: self.codes.append(server.run(
        self.served, self.scheduler, sock, deadline=deadline, **options)))
    self._thread.start()
    if ready:
      until(lambda: self.health() == 200)

  def health(self):
    """The status of /health; None if nobody answers."""
    with contextlib.suppress(OSError):
      return self.call('GET', '/health')[0]

  def call(self, method, path, body=None, timeout=WAIT, **headers):
    """Returns status, headers and body of an answer; `body` is JSON unless it is bytes."""
    connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout)
    with contextlib.closing(connection):
      headers = {name.replace('_', '-'): value for name, value in headers.items()}
      if body is not None:
        headers = {'Content-Type': 'application/json', **headers}
        body = body if isinstance(body, bytes) else json.dumps(body)
      connection.request(method, path, body, headers)
      answer = connection.getresponse()
      data = answer.read()
      kind = answer.headers.get_content_type()
      return answer.status, answer.headers, json.loads(data) if kind.endswith('json') else data

  def generate(self, **values):
    """Returns status, headers and body of the answer to a request for images."""
    return self.call('POST', '/v1/images/generations', values)

  def connect(self):
    """Returns a connected socket."""
    return socket.create_connection(('127.0.0.1', self.port), timeout=WAIT)

  def value(self, name):
    """Returns a line of /metrics as a number; 0 if there is none."""
    lines = self.call('GET', '/metrics')[2].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

  def end(self):
    """Ends the server as a signal does; returns its exit code."""
    self.scheduler.close()
    self._thread.join(WAIT)
    return self.codes[0]


@contextlib.contextmanager
def held(instance):
  """Makes the steps of a server's default decoder wait for an event, which is yielded."""
  go, runner = threading.Event(), tiny.batch(instance.scheduler).runner
  step = runner.step
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(runner, 'step', lambda rounds=1: go.wait(WAIT) and step(1))
    yield go
  go.set()


def until(condition):
  """Waits until a condition holds."""
  end = time.monotonic() + WAIT
  while not condition():
    assert time.monotonic() < end, 'too late'
    time.sleep(0.01)


def head(body='', **headers):
  """Returns a request for images as bytes, with any headers."""
  headers = {'Host': 'localhost', 'Content-Type': 'application/json',
             'Content-Length': len(body), **{
                 name.replace('_', '-'): value for name, value in headers.items()}}
  lines = [f'{name}: {value}' for name, value in headers.items()]
  return '\r\n'.join(['POST /v1/images/generations HTTP/1.1', *lines, '', body]).encode()
