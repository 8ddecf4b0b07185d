"""Measures a server: throughput against the decoding of a list, latency, and a soak of bad clients.

  python -m experiments.serving
  python -m experiments.serving --model=demo --num_images=16 --clients=1,4 --soak=200

Starts cspd-serve and requests the same images with several numbers of clients. Before and after
each of them `Model.generate` decodes these images while the server is idle, as many at once as
there are clients, at most `slots`. Both have compiled their programs before. Seconds are also those
of the machine's other load; the time that the processors worked, and the passes over all slots of a
program, are the server's own.

Then clients send wrong requests, leave while their images are decoded, and read slowly. A request
with another answer than its kind must have ends the program with an error. Reported are the numbers
of answers by kind and of images, and the memory at the end relative to that of a server in use.
"""

import contextlib
import dataclasses
import functools
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

import cspd_jax
from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import decode
from cspd_jax.generation.images import Images
from cspd_jax.measure.tables import Table
from cspd_jax.models.conditions import Prompt
from experiments import measured

_SECONDS = 3600.0
_PATH = '/v1/images/generations'
_WARM = 500  # Requests of the soak, at most, after which the memory is that of a server in use.
_COLUMNS = {
    'clients': '{clients}', 'of offline throughput': '{of_offline:.0%}',
    'processor time / offline': '{processor:.2f}', 'passes / offline': '{passes:.2f}',
    'of one client': '{of_one:.2f}x', 'p50 / offline image': '{p50:.1f}',
    'p95 / offline image': '{p95:.1f}'}


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    loading: the model, and how it is loaded.
    decoder: specification of the decoder.
    slots: images that are decoded at once, by the server and offline, at most.
    clients: numbers of clients that request images at the same time.
    num_images: images that are requested with each number of clients.
    soak: requests of the soak.
    workdir: folder of the results.
  """

  loading: groups.ModelFlags = groups.ModelFlags()
  decoder: str = 'corrected_seed_exact'
  slots: int = 8
  clients: tuple[int, ...] = (1, 4, 16, 64)
  num_images: int = 128
  soak: int = 10_000
  workdir: str = 'runs/serving'

  def __post_init__(self):
    fields.check(self, soak=(0, 10**6))


class _Cost(NamedTuple):
  """The cost of images: seconds, seconds of all processors together, passes over all slots."""

  seconds: float
  processor: float
  passes: float


@dataclasses.dataclass(frozen=True)
class _Server:
  """A running server; its process is a child of this one."""

  port: int
  process: subprocess.Popen

  def call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """Returns status and body of an answer."""
    connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=_SECONDS)
    with contextlib.closing(connection):
      connection.request(method, path, body if body is None else json.dumps(body),
                         {'Content-Type': 'application/json'})
      answer = connection.getresponse()
      return answer.status, answer.read()

  def value(self, name: str) -> float:
    """Returns the sum of the metrics whose names begin so."""
    lines = self.call('GET', '/metrics')[1].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

  @property
  def memory(self) -> float:
    """Bytes of memory that the server uses; NaN where the system does not say."""
    return self.value('process_resident_memory_bytes') or float('nan')

  @property
  def cost(self) -> _Cost:
    """The cost of all so far; the processors' time is NaN where the system does not say it."""
    return _Cost(time.perf_counter(), self.value('process_cpu_seconds_total') or float('nan'),
                 self.value('cspd_passes_total'))


@contextlib.contextmanager
def _serving(config: Config, images: Images) -> Iterator[_Server]:
  """Starts a server for such images and yields it when it is ready; ends it with SIGTERM."""
  with socket.create_server(('127.0.0.1', 0)) as free:
    port = free.getsockname()[1]
  flags = [f'--{name}={value}' for name, value in inputs.overrides(config.loading).items()]
  if isinstance(images.condition, Prompt):  # Longer prompts would make every pass longer.
    flags.append(f'--prompt_length={images.condition.tokens.shape[-1]}')
  process = subprocess.Popen([
      sys.executable, '-m', 'cspd_jax.commands.serve', f'--port={port}',
      f'--decoder={config.decoder}', f'--slots={config.slots}', f'--queue={max(config.clients)}',
      *flags])
  server = _Server(port, process)
  try:
    while True:
      with contextlib.suppress(OSError):
        if server.call('GET', '/health')[0] == 200:
          break
      if process.poll() is not None:
        raise ValueError(f'cspd-serve ended with code {process.returncode}; see its message.')
      time.sleep(0.5)
    yield server
    process.send_signal(signal.SIGTERM)
    if code := process.wait(_SECONDS):
      raise RuntimeError(f'the server ended with code {code}')
  finally:
    process.kill()


def _offline(model: cspd_jax.Model, images: Images, passes: float) -> _Cost:
  """Returns the cost of the images without a server; their passes are known."""
  start, processor = time.perf_counter(), time.process_time()
  model.generate(images.prompts, seed=images.seeds, decoder=images.sampler.specification,
                 batch_size=images.batch_size)
  return _Cost(time.perf_counter() - start, time.process_time() - processor, passes)


def _served(server: _Server, prompts: list[str], clients: int) -> tuple[_Cost, list[float]]:
  """Returns the cost of the images, and the seconds of each, with a number of clients."""
  def one(number: int) -> float:
    start = time.perf_counter()
    status, answer = server.call('POST', _PATH, dict(prompt=prompts[number], seed=number))
    if status != 200:
      raise RuntimeError(f'the server answered {status}: {answer[:200]!r}')
    return time.perf_counter() - start

  start = server.cost
  with futures.ThreadPoolExecutor(clients) as pool:
    latencies = list(pool.map(one, range(len(prompts))))
  return _Cost(*(after - before for before, after in zip(start, server.cost))), latencies


def _passes(images: Images) -> float:
  """Returns the passes of the images, each over `batch_size` slots; compiles them as well."""
  if images.batch_size == 1:
    return float(np.sum(decode.decoded(images).rounds))
  return float(sum(part.rounds for part in decode.refilled(images)))


def _compile(server: _Server, prompts: list[str]) -> None:
  """Requests images together until the server has the programs for as many."""
  while True:
    _served(server, prompts, len(prompts))
    if not server.value('cspd_compiling'):
      return
    while server.value('cspd_compiling'):
      time.sleep(0.5)


def _rows(config: Config, model: cspd_jax.Model, images: Images, server: _Server
          ) -> Iterator[dict[str, Any]]:
  """Yields a row of the table for each number of clients."""
  prompts, first, size, after = images.prompts, None, None, None
  for clients in config.clients:
    before = after if size == min(clients, config.slots) else None
    size = min(clients, config.slots)
    images = dataclasses.replace(images, batch_size=size)
    offline = functools.partial(_offline, model, images, _passes(images))
    _compile(server, prompts[:clients])
    before = before or offline()
    served, latencies = _served(server, prompts, clients)
    after = offline()
    alone = _Cost(*(sum(pair) / 2 for pair in zip(before, after)))
    p50, p95 = np.quantile(latencies, (0.5, 0.95)) / (alone.seconds / len(prompts))
    first = first or served.seconds
    yield dict(
        clients=clients, of_offline=alone.seconds / served.seconds,
        processor=served.processor / alone.processor, passes=served.passes / alone.passes,
        of_one=first / served.seconds, p50=float(p50), p95=float(p95), served=served._asdict(),
        offline=alone._asdict())


def _first_picture(server: _Server, prompt: str) -> float:
  """Returns the share of an image's time after which its first partial picture is there."""
  body = json.dumps(dict(prompt=prompt, seed=0, stream=True, partial_images=3))
  connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=_SECONDS)
  with contextlib.closing(connection):
    start, first = time.perf_counter(), None
    connection.request('POST', _PATH, body, {'Content-Type': 'application/json'})
    for line in connection.getresponse():
      if first is None and line.startswith(b'data: '):
        first = time.perf_counter() - start
    assert first is not None
    return first / (time.perf_counter() - start)


def _soak(server: _Server, prompts: list[str], count: int, clients: int) -> dict[str, Any]:
  """Sends requests of all kinds, wrong ones too; returns what became of them."""
  kinds = ('image', 'image', 'stream', 'leave', 'leave', 'wrong', 'slow', 'half')
  outcomes = dict.fromkeys(kinds, 0)
  levels: list[float] = []
  images, counted = server.value('cspd_images_total'), threading.Lock()

  def raw(body: str, length: int, reads: int, pause: float) -> None:
    """Sends a request whose client closes the connection after some reads."""
    with socket.create_connection(('127.0.0.1', server.port), timeout=_SECONDS) as sock:
      sock.sendall((f'POST {_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json'
                    f'\r\nContent-Length: {length}\r\n\r\n{body}').encode())
      for _ in range(reads):
        time.sleep(pause)
        if not sock.recv(512):
          break

  def one(number: int) -> None:
    chooser = random.Random(number)
    kind = chooser.choice(kinds)
    body = dict(prompt=chooser.choice(prompts), seed=number)
    stream = json.dumps(body | dict(stream=True, partial_images=3, progress=True))
    if kind in ('image', 'stream'):
      status, _ = server.call('POST', _PATH, body | dict(stream=kind == 'stream'))
      assert status in (200, 429), status
    elif kind == 'wrong':
      status, _ = server.call('POST', _PATH, body | {chooser.choice(['n', 'seed', 'x']): -1})
      assert status == 400, status
    else:
      raw(stream[:10] if kind == 'half' else stream, len(stream),
          dict(leave=1, slow=20, half=0)[kind], chooser.random() / 10)
    with counted:
      outcomes[kind] += 1
      is_warm = sum(outcomes.values()) == min(_WARM, count // 2)
    if is_warm:
      levels.append(server.memory)

  with futures.ThreadPoolExecutor(clients) as pool:
    list(pool.map(one, range(count)))
  while server.value('cspd_slots_busy') or server.value('cspd_images_waiting'):
    time.sleep(0.1)
  # The counter of an image that left follows the slot that it freed.
  time.sleep(1)
  levels.append(server.memory)
  return dict(requests=count, answered=sum(outcomes.values()), kinds=outcomes,
              images=server.value('cspd_images_total') - images,
              memory=levels[-1] / levels[0], bytes=levels)


@cli.command(Config)
def main(config: Config) -> None:
  report = Report(config.workdir)
  model = inputs.model(config.loading, tokens='discrete', one_group=inputs.MEASURED)
  prompts = [str(model.prompts[i % len(model.prompts)]) for i in range(config.num_images)]
  images = model.images(prompts, seed=list(range(config.num_images)), decoder=config.decoder,
                        batch_size=config.slots)
  with _serving(config, images) as server:
    rows = measured.listed(_COLUMNS, _rows(config, model, images, server))
    first = float(np.median([_first_picture(server, prompt) for prompt in prompts[:8]]))
    print(f'first partial picture after {first:.0%} of the time of an image', flush=True)
    soak = _soak(server, prompts, config.soak, 2 * config.slots) if config.soak else None
    print(soak)
  title = f'{model.name}, {config.num_images} images, {config.slots} slots'
  measured.write(report, config, [Table(title, _COLUMNS, rows)], first_picture=first, soak=soak)


if __name__ == '__main__':
  sys.exit(main())
