"""A stand-in for the Hugging Face Hub: repositories of bytes by path, behind its HTTP interface."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

COMMIT = '1' * 40
_ROUTES = r'/api/models/([\w.-]+/[\w.-]+)(?:/(revision|tree)/([^/?]+))?|' \
          r'/([\w.-]+/[\w.-]+)/resolve/([^/]+)/([^?]+)'


class Hub:
  """Repositories, `{name: {path: bytes}}`, and requests for their files.

  Attributes:
    url: for HF_ENDPOINT.
    gated: names of repositories that answer as those behind a licence do.
    cut: the number of bytes after which the next file ends early; None sends all files whole.
    refused: paths that are not sent, as by a server that is busy.
    fetched: path and first byte of every file that was sent.
    requests: the paths of all requests.
    stop: closes the port.
  """

  def __init__(self, url, repositories):
    self.url, self.repositories = url, repositories
    self.gated, self.refused, self.cut = set(), set(), None
    self.fetched, self.requests, self.stop = [], [], None


@contextlib.contextmanager
def running(repositories):
  """Yields a Hub with these repositories at a port of this machine."""
  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *arguments):
      pass

    def do_GET(self):
      hub.requests.append(self.path)
      _answer(self, hub)

    do_HEAD = do_GET

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  hub = Hub(f'http://127.0.0.1:{server.server_port}', repositories)
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()

  def stop():
    server.shutdown()
    server.server_close()
    thread.join()

  hub.stop = stop
  try:
    yield hub
  finally:
    stop()


def _answer(handler, hub):
  match = re.fullmatch(_ROUTES, urllib.parse.unquote(handler.path.partition('?')[0]))
  if match is None:
    return _send(handler, 404, b'{}')
  api, kind, _, resolved, revision, path = match.groups()
  name = api or resolved
  if name in hub.gated:
    return _send(handler, 401, b'{}', {'X-Error-Code': 'GatedRepo'})
  if name not in hub.repositories:
    return _send(handler, 401, b'{}', {'X-Error-Code': 'RepoNotFound'})
  if (match[3] or revision) not in ('main', COMMIT, None):
    return _send(handler, 404, b'{}', {'X-Error-Code': 'RevisionNotFound'})
  files = hub.repositories[name]
  if api and kind == 'tree':
    return _send(handler, 200, json.dumps([
        {'type': 'file', 'path': path, 'size': len(content), 'oid': _digest(content)}
        for path, content in files.items()]).encode())
  if api:
    return _send(handler, 200, json.dumps({
        'id': name, 'sha': COMMIT, 'siblings': [{'rfilename': path} for path in files]}).encode())
  if path not in files:
    return _send(handler, 404, b'{}', {'X-Error-Code': 'EntryNotFound'})
  return _file(handler, hub, path, files[path])


def _file(handler, hub, path, content):
  if path in hub.refused and handler.command == 'GET':
    return _send(handler, 403, b'{}')
  headers = {'ETag': f'"{_digest(content)}"', 'X-Repo-Commit': COMMIT, 'Accept-Ranges': 'bytes'}
  if handler.command == 'HEAD':
    return _send(handler, 200, content, headers)
  start = int((re.match(r'bytes=(\d+)-', handler.headers.get('Range', '')) or [0, 0])[1])
  status = 206 if start else 200
  if start:
    headers['Content-Range'] = f'bytes {start}-{len(content) - 1}/{len(content)}'
  hub.fetched.append((path, start))
  cut, hub.cut = hub.cut, None
  return _send(handler, status, content[start:], headers, cut)


def _digest(content):
  return hashlib.sha1(content).hexdigest()


def _send(handler, status, body, headers=(), cut=None):
  handler.send_response(status)
  for name, value in dict(headers).items():
    handler.send_header(name, value)
  handler.send_header('Content-Length', str(len(body)))
  handler.send_header('Connection', 'close')  # So that a server that is stopped answers nobody.
  handler.end_headers()
  if handler.command != 'HEAD':
    handler.wfile.write(body[:cut])
