"""The HTTP service: images, models, health, metrics, and the page."""

import asyncio
import contextlib
import functools
import json
import pathlib
import time
from collections.abc import Callable, Coroutine
from concurrent import futures
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cspd_jax.core import progress
from cspd_jax.generation.cascade import in_turn
from cspd_jax.generation.decode import Partial
from cspd_jax.generation.slots import FinishedImage
from cspd_jax.serve import access, guard, openapi, wire
from cspd_jax.serve.scheduler import ClosedError, DeviceError, FullError, ImageJob, Scheduler
from cspd_jax.serve.wire import ApiError, Order, Served
from cspd_jax.version import __version__

_PAGE = pathlib.Path(__file__).parent / 'page'
# What has links to its neighbours.
_LINKING = ('/', '/docs', '/openapi.json')
# Seconds after which an event stream without news sends a comment, so that proxies wait and pages
# know that the server is there, and for the last event of a stream that is too late.
_HEARTBEAT, _LAST_EVENT = 5, 5


class _GoneError(Exception):
  """The client has closed the connection."""


class _Images:
  """The images of a request, as the event loop sees them; `jobs` when they are checked."""

  def __init__(self, count: int):
    self.jobs: list[ImageJob] = []
    self.given_up = False  # Whether nobody waits for them any more.
    self.looks: list[Partial | None] = [None] * count  # After the last step; None if one waits.
    self.results: list[Any] = [None] * count  # What `ImageJob.listener` received at the end.
    self.changed = asyncio.Event()
    self._loop = asyncio.get_running_loop()

  def listener(self, index: int) -> Callable[[Any], None]:
    """Returns the listener of an image, which the scheduler's thread calls."""
    def listen(value: Any) -> None:
      with contextlib.suppress(RuntimeError):  # The event loop has ended.
        self._loop.call_soon_threadsafe(self._set, index, value)
    return listen

  def _set(self, index: int, value: Any) -> None:
    (self.looks if isinstance(value, Partial) else self.results)[index] = value
    self.changed.set()


class Service:
  """Answers in `deadline` seconds with a scheduler whose runners are named as `served.decoders`."""

  def __init__(self, served: Served, scheduler: Scheduler, *, deadline: float):
    self._served, self._scheduler, self._deadline = served, scheduler, deadline
    self._preparing = futures.ThreadPoolExecutor(1, 'preparing')
    self._drawing = futures.ThreadPoolExecutor(2, 'drawing')

  def app(self) -> Starlette:
    """Returns the ASGI application, without a guard."""
    files = [Route(path, functools.partial(_file, (_PAGE / name).read_bytes(), kind))
             for path, (name, kind) in guard.FILES.items()]
    routes = [
        Route('/v1/images/generations', self._generate, methods=['POST']),
        Route('/v1/models', self._models), Route('/v1/models/{name:path}', self._model),
        Route(guard.READY, self._health), Route(guard.ALIVE, self._alive),
        Route(guard.METRICS, self._metrics)]
    most = min(map(self._scheduler.most, self._served.decoders))
    described = openapi.document(self._served, most, [
        openapi.Path(route.path, 'post' if route.methods == {'POST'} else 'get',
                     str(route.endpoint.__doc__)) for route in routes])
    files += [Route(path, functools.partial(_file, text.encode(), kind)) for path, text, kind in (
        ('/openapi.json', json.dumps(described), 'application/json'),
        ('/docs', openapi.page(described), 'text/html'))]
    result = Starlette(
        routes=[*routes, *files], middleware=[Middleware(_Inside)],
        exception_handlers={ApiError: _refusal,
                            HTTPException: _no_such, Exception: _bug})
    result.router.redirect_slashes = False
    return result

  async def _health(self, request: Request) -> Response:
    """Returns the state of the server: 200 if it is ready."""
    return self._probe(request, self._scheduler.state == 'ready')

  async def _alive(self, request: Request) -> Response:
    """Returns the state of the server: 200 from the start on, unless it has failed."""
    return self._probe(request, self._scheduler.state != 'failed')

  def _probe(self, request: Request, is_well: bool) -> Response:
    return _probed(request.scope, self._scheduler.state, is_well, model=self._served.model.name)

  async def _metrics(self, request: Request) -> Response:
    """Returns counters for Prometheus."""
    text, kind = self._scheduler.metrics.text()
    return Response(text, headers={'content-type': kind})

  async def _models(self, request: Request) -> Response:
    """Returns the model with its decoders and options, once for each of its names."""
    return JSONResponse(dict(object='list', data=[
        self._served.description(name) for name in self._served.names]))

  async def _model(self, request: Request) -> Response:
    """Returns the model, by one of its names."""
    name = request.path_params['name']
    wire.check_name(name, self._served)
    return JSONResponse(self._served.description(name))

  async def _generate(self, request: Request) -> Any:
    """Generates images of what a prompt describes."""
    status: int | None = 500
    end = asyncio.get_running_loop().time() + self._deadline
    try:
      order = wire.order(await guard.body(request), self._served)
      images, is_stream = _Images(order.n), False
      try:
        await self._until_gone(
            self._in(self._preparing, self._submit, order, images), request.receive, end)
        is_stream = order.stream  # From here on, the stream gives its images up itself.
        if is_stream:
          status = None  # Counted when the stream ends.
          return functools.partial(self._stream, order, images, end)
        answer = await self._until_gone(self._answer(order, images), request.receive, end)
      finally:
        if not is_stream:
          self._give_up(images)
      status = 200
      return JSONResponse(answer)
    except ApiError as error:
      status = error.status
      raise
    except _GoneError:
      status = 499
      raise ApiError(status, 'the client is gone.') from None
    finally:
      self._count(status)

  def _count(self, status: int | None) -> None:
    """Counts a request for images, unless its status is None."""
    if status is not None:
      self._scheduler.metrics.requests.labels(str(status)).inc()

  def _give_up(self, images: _Images) -> None:
    """Removes the images of a request from the scheduler, those that are still checked as well."""
    images.given_up = True
    self._scheduler.cancel(images.jobs)

  def _submit(self, order: Order, images: _Images) -> None:
    """Checks the images of a request and passes them to the scheduler."""
    served = self._served
    try:
      self._scheduler.check_room(order.decoder, order.n)
      # Encoding may take seconds, so room is checked first.
      sampler = served.model.sampler(
          served.decoders[order.decoder],
          batch_size=1,  # The memory of the slots is allocated already.
          **order.options)
      first = sampler.images([order.prompt], seed=order.seed)
      images.jobs = [
          ImageJob(first.with_seeds([(order.seed, i)]), order.decoder, images.listener(i),
                   watched=order.progress or order.partial_images > 0)
          for i in range(order.n)]
      if not images.given_up:  # If it is from here on, the jobs are cancelled.
        self._scheduler.submit(images.jobs)
    except ValueError as error:
      raise wire.invalid(error, served) from error
    except FullError as error:
      raise ApiError(429, str(error), 'rate_limit_error', retry_after=str(error.retry_after)
                     ) from error
    except ClosedError as error:
      raise ApiError(503, str(error), 'server_error', retry_after='5') from error

  async def _answer(self, order: Order, images: _Images) -> dict[str, Any]:
    """Returns the answer without a stream, when all images are complete."""
    done: dict[int, Any] = {}
    while len(done) < order.n:
      await images.changed.wait()
      images.changed.clear()
      for index, result in enumerate(images.results):
        if result is not None and index not in done:
          done[index] = await self._in(self._drawing, lambda r=result, i=index: wire.image(
              _generated(r), images.jobs[i].slots, order.form))
    return dict(created=int(time.time()), data=[done[i] for i in range(order.n)],
                usage=self._usage(images, order.n), **order.form.described(self._served))

  def _usage(self, images: _Images, count: int) -> dict[str, Any]:
    prompt = in_turn(images.jobs[0].images)[0].condition
    return wire.usage(prompt, count * self._served.model.num_tokens)

  async def _stream(self, order: Order, images: _Images, end: float, scope: Scope,
                    receive: Receive, send: Send) -> None:
    """Sends the events of a request: the ASGI application of its answer."""
    async def put(data: bytes, more: bool = True) -> None:
      await send({'type': 'http.response.body', 'body': data, 'more_body': more})

    status = 500
    try:
      # Chromium reports an error for each stream with `no-store`, complete ones included.
      await send({'type': 'http.response.start', 'status': 200, 'headers': [
          (b'content-type', b'text/event-stream'), (b'cache-control', b'no-cache'),
          (b'x-accel-buffering', b'no')]})
      try:
        await self._until_gone(self._events(order, images, put), receive, end)
        await put(b'', more=False)
        status = 200
      except ApiError as error:
        status = error.status
        if (logged := access.of(scope)) is not None:
          logged.status = status
        async with asyncio.timeout(_LAST_EVENT):
          await put(wire.event(guard.error_body(error, scope)))
          await put(b'', more=False)
    except _GoneError:
      status = 499
    except TimeoutError:  # The client does not read the error.
      pass
    finally:
      self._give_up(images)
      self._count(status)

  async def _events(self, order: Order, images: _Images,
                    put: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
    """Puts the events of all images, the newest state of each, as fast as the client reads them."""
    total, created = self._served.model.num_tokens, int(time.time())
    pending = set(range(order.n))
    shown: list[Partial | None] = [None] * order.n
    reached, pictures = [0] * order.n, [0] * order.n
    if order.progress:
      for index in range(order.n):
        await put(wire.event(wire.progress_event(index, None, None, total)))
    while pending:
      try:
        async with asyncio.timeout(_HEARTBEAT):
          await images.changed.wait()
      except TimeoutError:
        await put(b': waiting\n\n')
        continue
      images.changed.clear()
      for index in sorted(pending):
        if images.results[index] is not None:
          pending.remove(index)
          await put(await self._in(self._drawing, lambda i=index: wire.event(wire.completed_event(
              i, _generated(images.results[i]), images.jobs[i].slots, self._served, order.form,
              created, self._usage(images, 1)))))
          continue
        look = images.looks[index]
        if look is None or look is shown[index]:
          continue
        if order.progress:
          await put(wire.event(wire.progress_event(index, look, shown[index], total)))
        shown[index] = look
        parts = order.partial_images + 1
        share = 0 if look.is_prior else min(
            order.partial_images, int(look.count[0]) * parts // total)
        if share > reached[index]:
          reached[index] = share
          await put(await self._in(self._drawing, lambda i=index, look=look: wire.event(
              wire.partial_event(i, pictures[i], look, self._served, order.form, created))))
          pictures[index] += 1

  async def _until_gone(self, work: Coroutine[Any, Any, Any], receive: Receive, end: float) -> Any:
    """Runs `work` until it is done.

    Raises _GoneError if the client closes the connection, and ApiError at the time `end` of the
    event loop.
    """
    tasks = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
      done, _ = await asyncio.wait(
          tasks, timeout=end - asyncio.get_running_loop().time(),
          return_when=asyncio.FIRST_COMPLETED)
    finally:
      for task in tasks:
        task.cancel()
      await asyncio.gather(*tasks, return_exceptions=True)
    if tasks[0] in done:
      return tasks[0].result()
    if done:
      raise _GoneError
    raise ApiError(504, f'the images were not complete after {self._deadline:g} seconds; request '
                   'fewer, or try again when the server has less to do.', 'server_error',
                   x_should_retry='false')

  async def _in(self, executor: futures.Executor, function: Callable, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)


class _Inside:
  """An ASGI application around another, which answers at every path as at the root of a host.

  A slash at the end of a path makes no difference: a redirection, as of Starlette, is no answer to
  clients that follow none with a body. Only files with links, which are relative, have one address.
  """

  def __init__(self, app: ASGIApp):
    self._app = app

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope['type'] != 'http':
      await self._app(scope, receive, send)
      return
    path, route = scope['path'], guard.route(scope)
    last = path.rstrip('/').rpartition('/')[2]
    if route in _LINKING and path.endswith('/') != (route == '/'):
      query = scope['query_string'].decode('latin-1')
      address = f'./{last}/' if route == '/' else '../' * (len(path) - len(path.rstrip('/'))) + last
      response = RedirectResponse(address + (f'?{query}' if query else ''), 308)
      await response(scope, receive, send)
      return
    await self._app({**scope, 'path': route, 'root_path': ''}, receive, send)


async def loading(scope: Scope, receive: Receive, send: Send) -> None:
  """Answers that there is no model yet: the ASGI application while it is loaded."""
  later = dict(connection='close')  # The next request is answered by another application.
  if (path := guard.route(scope)) in (guard.READY, guard.ALIVE):
    response = _probed(scope, 'loading', path == guard.ALIVE)
    response.headers.update(later)
    await response(scope, receive, send)
    return
  raise ApiError(503, 'the server is loading its model.', 'server_error', retry_after='5', **later)


def _probed(scope: Scope, state: str, is_well: bool, **about: str) -> Response:
  """Returns the answer to a probe, which says what is served to those who may know it."""
  about = dict(version=__version__, **about) if scope.get(guard.CHECKED, True) else {}
  return JSONResponse(dict(status=state, **about), 200 if is_well else 503)


def _generated(result: FinishedImage | DeviceError | ClosedError) -> Any:
  """Returns a complete image; raises ApiError if it could not be decoded."""
  if isinstance(result, DeviceError):
    raise ApiError(500, f'{result}; try again, with fewer images at once.', 'server_error')
  if isinstance(result, ClosedError):
    raise ApiError(503, f'{result}; try again later.', 'server_error', retry_after='5')
  try:
    return result.result()
  except ValueError as error:  # NaN, which the same request yields again.
    raise ApiError(500, str(error), 'server_error', x_should_retry='false') from error
  except Exception as error:
    progress.note(f'error: no picture of an image ({type(error).__name__}).')
    raise ApiError(500, 'the image could not be drawn; try again.', 'server_error') from error


async def _gone(receive: Receive) -> None:
  """Returns when the client has closed the connection."""
  while (await receive())['type'] != 'http.disconnect':
    pass


def _no_such(request: Request, error: Any) -> Response:
  """Answers a request for another path, or by another method than the path has."""
  return guard.error_response(ApiError(
      error.status_code, f'{request.method:.20} {request.scope["path"]:.80} is not served here.',
      **{name.lower(): value for name, value in (error.headers or {}).items()}), request.scope)


def _refusal(request: Request, error: Any) -> Response:
  return guard.error_response(error, request.scope)


def _bug(request: Request, error: Exception) -> Response:
  return guard.error_response(ApiError(
      500, 'the server has a bug; its log names the error.', 'server_error'), request.scope)


async def _file(data: bytes, kind: str, request: Request) -> Response:
  return Response(data, media_type=kind)
