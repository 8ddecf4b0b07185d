"""The log of a server: one line for each request, with an id that its client may choose.

Lines have the method and the path, but no query, header, body or address, which may be private.
"""

import contextlib
import datetime
import json
import re
import secrets
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Literal

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cspd_jax.core import progress

Format = Literal['text', 'json']
# Writes the line of a request, of its values by name.
Log = Callable[[Mapping[str, Any]], None]

HEADER = 'x-request-id'
# Ids of clients that are used. Others could be texts of any length.
_SANE = re.compile('[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}')
_KEY = 'cspd_jax.request'
_MOST_PATH = 200  # Letters of a path in the log.


class Logged:
  """What is logged of a request, while it is answered.

  Attributes:
    id: its id.
    status: the status of its line, if the head of the answer has another one: an event that
      ends a stream may be an error.
  """

  def __init__(self, id_of_request: str):
    self.id = id_of_request
    self.status: int | None = None


def begin(scope: MutableMapping[str, Any]) -> Logged:
  """Returns what is logged of a request from now on: the client's id if it is sane, else a new."""
  if _KEY not in scope:
    given = Headers(scope=scope).get(HEADER, '')
    scope[_KEY] = Logged(given if _SANE.fullmatch(given) else secrets.token_hex(16))
  return scope[_KEY]


def of(scope: Scope) -> Logged | None:
  """Returns what is logged of a request; None if nothing is."""
  return scope.get(_KEY)


class Access:
  """An ASGI application around another: gives every request an id, and logs it at its end.

  The status is the answer's; 499 if the client left before it was complete, and 500 if the
  server could not complete it.
  """

  def __init__(self, app: ASGIApp, log: Log):
    self._app, self.log = app, log

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope['type'] != 'http':
      await self._app(scope, receive, send)
      return
    logged, start = begin(scope), time.monotonic()
    status, is_complete, is_gone = 500, False, False

    async def receiving() -> Message:
      nonlocal is_gone
      message = await receive()
      is_gone |= message['type'] == 'http.disconnect'
      return message

    async def sending(message: Message) -> None:
      nonlocal status, is_complete
      if message['type'] == 'http.response.start':
        status = message['status']
        message = {**message, 'headers': [
            *message['headers'], (HEADER.encode(), logged.id.encode())]}
      await send(message)
      is_complete = (message['type'] == 'http.response.body' and not message.get('more_body'))

    try:
      await self._app(scope, receiving, sending)
    finally:
      if not is_complete:
        status = 499 if is_gone else 500
      self.log(record(logged.id, scope['method'], scope['path'], logged.status or status,
                      time.monotonic() - start))


def record(id_of_request: str, method: str, path: str, status: int, seconds: float
           ) -> dict[str, Any]:
  """Returns what a line about a request says; whatever was sent, it has no space and no control."""
  safe = lambda text: urllib.parse.quote(text, safe='/:@', errors='replace')
  return dict(id=id_of_request, method=safe(method)[:20], path=safe(path)[:_MOST_PATH],
              status=status, seconds=round(seconds, 3))


def text(values: Mapping[str, Any]) -> None:
  """Writes a line about a request: time, status, method, path, seconds and id."""
  progress.note('{time} {status} {method} {path} {seconds:.3f}s {id}'.format(time=_now(), **values))


@contextlib.contextmanager
def lines(form: Format) -> Iterator[Log]:
  """Yields how requests are logged in a format; with json, all output of the block is JSON lines.

  An object has `time`, `level` and `message`, and for a request also its values.
  """
  if form == 'text':
    yield text
    return
  err, out = _JsonLines(sys.stderr), _JsonLines(sys.stdout)
  with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
    try:
      yield lambda values: err.put(
          'error' if values['status'] == 500 else 'info',  # Others are answers that it means.
          '{method} {path} {status}'.format(**values), **values)
    finally:
      err.end()
      out.end()


class _JsonLines:
  """A text stream that writes every line as a JSON object."""

  def __init__(self, stream: Any):
    self._stream, self._rest, self._lock = stream, '', threading.Lock()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)

  def isatty(self) -> bool:
    return False  # Bars would not be lines.

  def write(self, text_of_lines: str) -> int:
    with self._lock:
      *complete, self._rest = (self._rest + text_of_lines).split('\n')
    for line in filter(str.strip, complete):
      level, _, _ = line.lower().partition(':')
      self.put(level if level in ('error', 'warning') else 'info', line)
    return len(text_of_lines)

  def put(self, level: str, message: str, **values: Any) -> None:
    """Writes an object."""
    self._stream.write(json.dumps(dict(
        time=_now(), level=level, message=message, **values)) + '\n')
    self._stream.flush()

  def end(self) -> None:
    """Writes what has no end of line yet."""
    if self._rest:
      self.write('\n')


def _now() -> str:
  now = datetime.datetime.now(datetime.UTC)
  return now.isoformat(timespec='milliseconds').replace('+00:00', 'Z')
