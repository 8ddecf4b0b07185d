"""Sockets, signals and parts of a server."""

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, h11

from cspd_jax.core import progress
from cspd_jax.files import reading
from cspd_jax.generation import memory
from cspd_jax.generation.cascade import in_turn
from cspd_jax.generation.images import Images
from cspd_jax.generation.slots import Runner
from cspd_jax.models.conditions import Prompt
from cspd_jax.serve import access, app, guard, wire
from cspd_jax.serve.scheduler import Scheduler
from cspd_jax.serve.wire import Served

_MOST_HEAD = 2**15  # Bytes of a request's head.
# Seconds between two looks at a connection, and those without progress after which it is closed.
_LOOK, _IDLE = 5.0, 20.0
# Seconds between two lines about the images that are left when the server ends, and those after the
# grace in which their requests are answered.
_REPORT, _ANSWERED = 5.0, 5
_SHORTEST_KEY = 16
# The most tokens of a prompt, unless the caller sets it, and how many of an image's tokens there
# are for one; longer prompts need more memory for every slot.
_PROMPT, _LONG_PROMPT, _PER_PROMPT = 64, 256, 4


def bind(host: str, port: int) -> socket.socket:
  """Returns a socket that listens at an address; raises ValueError if it is taken.

  Connections wait until a server accepts them.
  """
  sock = None
  try:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    sock.listen()  # With SO_REUSEADDR, others may have the address too until one listens.
    return sock
  except OSError as error:
    if sock is not None:
      sock.close()
    raise ValueError(f'host is {host!r:.80} and port is {port}, where the server cannot listen '
                     f'({error.strerror}); choose another one.') from error


def read_key(path: str) -> str:
  """Reads the key that clients must know; raises ValueError if the file has none."""
  remedy = (f'write a key of at least {_SHORTEST_KEY} letters and digits into it, such as what '
            'openssl rand -hex 32 prints')
  key = reading.text(path, remedy, 'api_key_file').strip()
  if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or ' ' in key:
    raise ValueError(f'api_key_file is {path!r}, which holds no key; {remedy}.')
  return key


def make_scheduler(served: Served, *, slots: int, queue: int, prompt_length: int | None = None,
                   fixed_slots: bool = False) -> Scheduler:
  """Returns the scheduler of a server, not started, with as many slots for each decoder.

  Fewer images are decoded in 1, 2, 4, ... slots as far as memory allows, unless `fixed_slots`. A
  prompt of tokens has at most `prompt_length`, by default 256, or 64 for small images. Raises
  ValueError if the slots do not fit in memory, or the model cannot be served.
  """
  model = served.model
  example = model.prompts[0] if model.prompts else 'a cat'  # To compile the programs.
  images = {name: model.images([example], decoder=spec, batch_size=1)
            for name, spec in served.decoders.items()}
  longest = in_turn(next(iter(images.values())))[0].condition
  if isinstance(longest, Prompt):
    own = longest.longest
    if prompt_length is None:
      prompt_length = max(own, min(_LONG_PROMPT, max(_PROMPT, model.num_tokens // _PER_PROMPT)))
    if prompt_length < own:
      raise ValueError(f'prompt_length is {prompt_length}; {example!r} needs at least {own}.')
  elif prompt_length is not None:
    raise ValueError(f'prompt_length is {prompt_length}, but prompts of model {model.name!r} have '
                     'one length; leave it out.')

  def runner(image: Images, count: int) -> Runner:
    """Returns slots for images like this one."""
    return Runner(image.sampler.model, count, decoder=image.sampler.specification, prompt_length=(
        prompt_length if isinstance(image.condition, Prompt) else None))

  # By name of the decoder, an image of each model that draws in turn.
  stages = {name: in_turn(whole) for name, whole in images.items()}
  needs = [runner(image, slots).estimate(image) for turn in stages.values() for image in turn]
  needed, free = memory.needed_of_slots(needs, slots), needs[0].free
  if free is not None and needed > free:
    raise ValueError(
        f'slots is {slots}, but as many images at once with each of {len(needs)} decoders need '
        f'about {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free; pass fewer '
        '--slots, or one --decoder.')
  fewer = [] if fixed_slots else [2**i for i in range(slots.bit_length()) if 2**i < slots]
  while fewer and free is not None and memory.needed_of_slots(needs, slots + sum(fewer)) > free:
    fewer.pop()
  return Scheduler(
      {name: [[runner(image, count) for count in (*fewer, slots)] for image in turn]
       for name, turn in stages.items()}, queue=queue, warm_up=images)


@contextlib.contextmanager
def loading(sock: socket.socket, *, key: str | None = None, allowed_hosts: Collection[str] = (),
            log: access.Log = access.text) -> Iterator[None]:
  """Answers 503 to what arrives while the model is loaded in this block, `/health` included.

  A thread does it; `run` accepts connections at the same socket afterwards. SIGTERM ends the
  process at once, also the first one of a container, which has no handler of its own.
  """
  server = uvicorn.Server(_config(app.loading, sock, key, allowed_hosts, log))
  # uvicorn closes its socket at the end.
  thread = threading.Thread(
      target=server.run, kwargs=dict(sockets=[sock.dup()]), name='loading', daemon=True)
  previous = signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
  thread.start()
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, previous)
    server.should_exit = server.force_exit = True  # Without waiting for slow clients.
    thread.join()


def run(served: Served, scheduler: Scheduler, sock: socket.socket, *, deadline: float,
        key: str | None = None, allowed_hosts: Collection[str] = (), grace: float | None = None,
        log: access.Log = access.text) -> int:
  """Serves until a signal ends the process; returns its exit code.

  The first SIGTERM or SIGINT refuses what is new and completes what has been accepted, in `grace`
  seconds at most, after which the other requests end with 503; a second one ends the process at
  once. Clients must know the key, unless it is None. `log` writes a line for every request.
  """
  service = app.Service(served, scheduler, deadline=deadline)
  config = _config(service.app(), sock, key, allowed_hosts, log)
  if grace is not None:  # Also for steps that take longer, and clients that read slowly.
    config.timeout_graceful_shutdown = math.ceil(grace) + _ANSWERED
  server = _Server(config, scheduler, grace)
  scheduler.start(server.stop)
  server.run(sockets=[sock])
  code = int(scheduler.state == 'failed')
  if not scheduler.join(timeout=1.0):  # It compiles, which cannot be interrupted.
    sys.stderr.flush()
    os._exit(code)
  return code


def _config(application: ASGIApp, sock: socket.socket, key: str | None,
            allowed_hosts: Collection[str], log: access.Log) -> uvicorn.Config:
  """Returns how uvicorn serves an application, with its guard and its log."""
  for name in ('uvicorn.error', 'asyncio'):
    logging.getLogger(name).setLevel(logging.ERROR)  # Clients can cause the warnings.
  names = guard.hosts(sock.getsockname()[0], allowed_hosts, key is not None)
  return uvicorn.Config(
      access.Access(guard.Guard(application, names, key), log), loop='asyncio',
      http=_Connection, ws='none', lifespan='off', log_config=None,
      access_log=False, server_header=False, proxy_headers=False,
      h11_max_incomplete_event_size=_MOST_HEAD)


class _Server(uvicorn.Server):
  """A server whose scheduler completes what it has accepted when a signal ends it.

  In `grace` seconds at most, unless it is None.
  """

  def __init__(self, config: uvicorn.Config, scheduler: Scheduler, grace: float | None):
    super().__init__(config)
    self._scheduler, self._grace = scheduler, grace

  def stop(self) -> None:
    """Refuses new connections, and lets `run` return when the others are closed."""
    self.should_exit = True

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    """Handles signals while the server runs; uvicorn would raise them again at the end."""
    numbers = signal.SIGTERM, signal.SIGINT
    previous = {number: signal.signal(number, self._on_signal) for number in numbers}
    try:
      yield
    finally:
      for number, handler in previous.items():
        signal.signal(number, handler)

  def _on_signal(self, number: int, _: Any) -> None:
    if self.should_exit:
      os._exit(128 + number)
    self.stop()

  async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
    """See `stop`."""
    self._scheduler.close()
    completing = asyncio.create_task(self._complete())
    await super().shutdown(sockets)
    completing.cancel()

  async def _complete(self) -> None:
    """Logs how many images are left, until all are complete or the grace is over."""
    end = math.inf if self._grace is None else time.monotonic() + self._grace
    if self._scheduler.state != 'failed':
      limit = '' if self._grace is None else f' in at most {self._grace:g} seconds'
      progress.note(f'The server ends. It completes what it has accepted{limit}; a second signal '
                    'ends it at once.')
    while left := self._scheduler.left:
      if (rest := end - time.monotonic()) <= 0:
        progress.note(f'The server gives up {_images(left)}, and answers with 503.')
        self._scheduler.abandon()
        return
      progress.note(f'{_images(left)} left.')
      await asyncio.sleep(min(_REPORT, rest))


def _images(count: int) -> str:
  return f'{count} image{"" if count == 1 else "s"}'


class _Connection(H11Protocol):
  """A connection that is closed when its client neither sends a request nor reads the answer."""

  def connection_made(self, transport: Any) -> None:
    super().connection_made(transport)
    self._last: Any = None
    self._idle = 0.0
    self._clock = self.loop.call_later(_LOOK, self._look)

  def connection_lost(self, exc: Exception | None) -> None:
    self._clock.cancel()
    super().connection_lost(exc)

  def _look(self) -> None:
    unsent = self.transport.get_write_buffer_size()
    waits = self.cycle is None or self.cycle.response_complete or self.flow.write_paused
    state = self.cycle, unsent  # A client that reads slowly makes progress.
    self._idle = self._idle + _LOOK if waits and state == self._last else 0.0
    self._last = state
    if self._idle >= _IDLE:
      self.transport.abort()
    else:
      self._clock = self.loop.call_later(_LOOK, self._look)

  def send_400_response(self, msg: str) -> None:
    """Answers what is no HTTP, which reaches no application."""
    is_answering = self.cycle is not None and not self.cycle.response_complete
    if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # There is an answer already.
      self.transport.close()
      return
    scope: Any = self.cycle.scope if is_answering else {'headers': []}
    logged, application = access.begin(scope), self.config.app
    logged.status = 400
    body = json.dumps(wire.ApiError(400, 'what arrived is no HTTP/1.1.').body(logged.id)).encode()
    headers = {'content-type': 'application/json', 'content-length': str(len(body)),
               'connection': 'close', access.HEADER: logged.id}
    for event in (h11.Response(status_code=400, headers=[*headers.items()], reason=b'Bad Request'),
                  h11.Data(data=body), h11.EndOfMessage()):
      self.transport.write(self.conn.send(event))
    self.transport.close()
    if is_answering:  # The application ends, and its line is logged.
      self.cycle.disconnected = True
      self.cycle.message_event.set()
    else:
      assert isinstance(application, access.Access)
      application.log(access.record(logged.id, '-', '-', 400, 0.0))
