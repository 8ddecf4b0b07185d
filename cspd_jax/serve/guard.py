"""Refuses requests before the service reads them: of other hosts and origins, and without the key.

What is below a path, such as the path of a mounted application, is refused as at the root.

A page of another site that a browser shows can send requests to a server on the same machine, and a
site whose name it lets point to that machine can read the answers. The first are recognized by
their `Origin`, the others by their `Host`.
"""

import asyncio
import hmac
import ipaddress
import json
import traceback
import urllib.parse
from collections.abc import Collection
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cspd_jax.core import progress
from cspd_jax.serve import access
from cspd_jax.serve.wire import MOST_BYTES, ApiError

_LOOPBACK = ('localhost', '127.0.0.1', '::1')
_BODY_SECONDS = 15  # In which the body of a request must arrive.
# The page loads its own files only, shows data of answers, and runs nothing written into it.
_HEADERS = {
    'content-security-policy': (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    'cross-origin-opener-policy': 'same-origin',
    'cross-origin-resource-policy': 'same-origin',
    'cache-control': 'no-store',
}
# The files of the page, each with its name and type: all that needs no key, but for the probes.
FILES = {'/': ('index.html', 'text/html'), '/page.css': ('page.css', 'text/css'),
         '/page.js': ('page.js', 'text/javascript'), '/icon.svg': ('icon.svg', 'image/svg+xml'),
         '/example.json': ('example.json', 'application/json')}
# An orchestrator asks by the address of a machine, and without a key, whether the server is ready,
# and whether it is alive.
READY, ALIVE, METRICS = '/health', '/health/live', '/metrics'
# In the scope of a request: whether it has passed all checks, so that it may learn of the model.
CHECKED = 'cspd_jax.checked'
_MOST_REQUESTS = 512  # At once.
_NOT_IN_HOSTS = frozenset('/?#@')


def is_loopback(host: str) -> bool:
  """Returns whether an address that a server listens on is reached from its machine only."""
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return host == 'localhost'


def hosts(host: str, allowed: Collection[str], has_key: bool) -> frozenset[str] | None:
  """Returns the names by which a server that listens on `host` may be addressed; None for any.

  Names are checked always without a key, and on loopback addresses; with a key, any name may be
  that of the server.
  """
  if has_key and not allowed and not is_loopback(host):
    return None
  return frozenset(name.lower() for name in (*_LOOPBACK, host, *allowed))


def route(scope: Scope) -> str:
  """Returns the path of a request inside of its application, without a slash at its end.

  The application may be mounted below a path, the `root_path`, with which `path` begins then.
  """
  path, root = scope['path'], scope.get('root_path', '')
  inner = path.removeprefix(root)
  if inner and not inner.startswith('/'):  # /images is not below /img.
    inner = path
  return inner.rstrip('/') or '/'


def error_body(error: ApiError, scope: Scope) -> dict[str, Any]:
  """Returns an error as JSON values, with the id of the request if it is logged."""
  logged = access.of(scope)
  return error.body(None if logged is None else logged.id)


def error_response(error: ApiError, scope: Scope) -> Response:
  """Returns the answer of an error."""
  # In ASCII: the name of a field that it repeats may be no Unicode text.
  return Response(json.dumps(error_body(error, scope)), error.status, error.headers,
                  'application/json')


async def body(request: Request) -> bytes:
  """Reads the body of a request; ApiError if it is no JSON, is too large or does not arrive."""
  kind = request.headers.get('content-type', '').partition(';')[0].strip().lower()
  if kind != 'application/json':  # Other sites may send forms and plain text without asking.
    raise ApiError(415, f"Content-Type is {kind!r:.80}; it must be 'application/json'.")
  large = ApiError(413, f'the body has more than {MOST_BYTES} bytes; shorten the prompt.',
                   connection='close')
  length = request.headers.get('content-length', '')
  if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > MOST_BYTES):
    raise large
  data = bytearray()
  try:
    async with asyncio.timeout(_BODY_SECONDS):
      async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
          raise large
  except TimeoutError:
    raise ApiError(408, f'the body did not arrive in {_BODY_SECONDS} seconds.',
                   connection='close') from None
  except ClientDisconnect:
    raise ApiError(499, 'the client is gone.') from None
  return bytes(data)


class Guard:
  """An ASGI application around another: refuses requests, adds headers, and logs its errors."""

  def __init__(self, app: ASGIApp, names: frozenset[str] | None, key: str | None):
    """Guards an application with the `names` of `hosts`, whose clients must know a key, if any."""
    self._app, self._names, self._key = app, names, key
    self._active = 0

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope['type'] != 'http':
      await self._app(scope, receive, send)
      return

    async def guarded(message: Message) -> None:
      if message['type'] == 'http.response.start':
        names = {name for name, _ in message['headers']}
        message['headers'] = [*message['headers'], *(
            (name.encode(), value.encode()) for name, value in _HEADERS.items()
            if name.encode() not in names)]
      await send(message)

    self._active += 1
    try:
      checked = self._check(Request(scope))
      await self._app({**scope, CHECKED: checked}, receive, guarded)
    except ApiError as error:
      await error_response(error, scope)(scope, receive, guarded)
    except Exception as error:  # The application has answered it.
      logged = access.of(scope)
      which = 'an answer' if logged is None else f'the answer to {logged.id}'
      progress.note(f'error: {_place(error)} in {which}.')
    finally:
      self._active -= 1

  def _check(self, request: Request) -> bool:
    """Raises ApiError for a request that is refused; returns False for an unchecked probe."""
    host, path = request.headers.get('host', ''), route(request.scope)
    if not _NOT_IN_HOSTS.isdisjoint(host):
      raise ApiError(400, f'Host is {host!r:.80}; it must be the name of a host, and its port.')
    try:
      self._check_client(request, host, path)
    except ApiError:
      if path not in (READY, ALIVE):
        raise
      return False
    if self._active > _MOST_REQUESTS and path not in (READY, ALIVE, METRICS):
      raise ApiError(503, f'the server answers {_MOST_REQUESTS} requests at once; try again later.',
                     'server_error', retry_after='5')
    return True

  def _check_client(self, request: Request, host: str, path: str) -> None:
    """Raises ApiError unless a client may use a path by this name of the host."""
    origin, has_key = request.headers.get('origin'), self._has_key(request)
    # Who collects metrics asks by the address of a machine, too. Pages do not know the key.
    is_known = self._names is None or _name(host) in self._names or (
        path == METRICS and self._key is not None and has_key)
    if not is_known:
      raise ApiError(403, f'Host is {host!r:.80}, by which this server is not known; start it with '
                     '--allowed_host if it should be.')
    if origin is not None and not self._is_own(origin.lower(), host.lower()):
      raise ApiError(403, f'Origin is {origin!r:.80}; pages of other sites cannot use this server.')
    if path not in FILES and not has_key:
      raise ApiError(401, "Authorization is missing or wrong; it must be 'Bearer KEY' with the "
                     'key of this server.', code='invalid_api_key', www_authenticate='Bearer')

  def _has_key(self, request: Request) -> bool:
    """Whether a client knows the key, if there is one."""
    kind, _, given_key = request.headers.get('authorization', '').partition(' ')
    return self._key is None or kind.lower() == 'bearer' and hmac.compare_digest(
        given_key.strip().encode(), self._key.encode())

  def _is_own(self, origin: str, host: str) -> bool:
    """Whether a page of this origin is the server's."""
    scheme, _, place = origin.partition('://')
    if scheme not in ('http', 'https') or not place:
      return False
    # A proxy may replace the name of the host, but not the origin.
    return place == host or self._names is not None and _name(place) in (self._names - {*_LOOPBACK})


def _name(place: str) -> str:
  """The host of `host:port`; '' for anything else."""
  try:
    return urllib.parse.urlsplit(f'//{place}').hostname or ''
  except ValueError:
    return ''


def _place(error: Exception) -> str:
  """Returns type and place of an error; its message may be the client's text."""
  last = traceback.extract_tb(error.__traceback__)[-1]
  return f'{type(error).__name__} in line {last.lineno} of {last.filename}'
