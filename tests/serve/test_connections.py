"""Connections that clients end as they like."""

import socket
import struct
import threading

import pytest

pytest.importorskip('uvicorn', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

from cspd_jax.serve import app, server
from tests.serve import running
from tests.serve.running import until

pytestmark = pytest.mark.usefixtures('signals_left_alone')


def test_clients_that_reset_a_connection_write_nothing_into_the_log(monkeypatch, caplog):
  """asyncio warned of all writes but the first few before it notices."""
  gone, done = threading.Event(), threading.Event()

  async def answer(scope, receive, send):
    await send(dict(type='http.response.start', status=200, headers=[]))
    gone.wait(running.WAIT)
    for number in range(1, 21):
      await send(dict(type='http.response.body', body=b'x' * 10_000, more_body=number < 20))
    done.set()

  monkeypatch.setattr(app, 'loading', answer)
  with server.bind('127.0.0.1', 0) as sock, server.loading(sock):
    with socket.create_connection(sock.getsockname()) as client:
      client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
      client.sendall(b'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n')
      client.recv(1)
    gone.set()
    until(done.is_set)
  assert caplog.records == []
