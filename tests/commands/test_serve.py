"""The command of the server: what it refuses, and how signals end it."""

import dataclasses
import os
import re
import signal
import socket
import threading
import time

import pytest

pytest.importorskip('starlette', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('uvicorn', reason="the server needs pip install -e '.[serve]'")
pytest.importorskip('prometheus_client', reason="the server needs pip install -e '.[serve]'")

import cspd_jax
from cspd_jax.cli import groups
from cspd_jax.commands import serve
from cspd_jax.core import packages
from cspd_jax.generation import memory, options
from cspd_jax.serve import server, wire
from tests.serve import running, tiny


def _error(capsys, *words):
  """The one line of a command that fails before the work."""
  assert serve.main(['serve', *words]) == 2
  lines = [line for line in capsys.readouterr().err.splitlines()
           if not re.match(r'\S+Z \d{3} ', line)]  # Of requests.
  assert len(lines) == 1 and lines[0].startswith('error: ')
  return lines[0]


def test_wrong_flags_end_with_a_sentence(capsys, tmp_path, monkeypatch):
  key = tmp_path / 'key'
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = f'--port={taken.getsockname()[1]}'
    assert 'where the server cannot listen (Address already in use)' in _error(capsys, port)
  with (server.bind('127.0.0.1', 0) as taken,  # By a server whose model is still being loaded.
        pytest.raises(ValueError, match='where the server cannot listen .Address already in use')):
    server.bind('127.0.0.1', taken.getsockname()[1])
  assert 'pass a file with a key' in _error(capsys, '--host=0.0.0.0')
  assert "host is '203.0.113.9'" in _error(capsys, '--host=203.0.113.9')
  assert 'api_key_file' in _error(capsys, f'--api_key_file={key}')
  for text in ('short', 'k' * 15 + ' ' + 'k' * 9, ''):
    key.write_text(text)
    assert 'which holds no key' in _error(capsys, f'--api_key_file={key}')
  assert '--mesh is not a flag' in _error(capsys, '--mesh=1x1')
  (tmp_path / 'mesh.py').write_text(
      'from cspd_jax.cli import groups\nfrom cspd_jax.commands import serve\n'
      "get_config = lambda: serve.Config(groups.LoadFlags(mesh='1x1'))\n")
  assert "mesh is '1x1', and a server decodes on one device" in _error(
      capsys, f'--config={tmp_path / "mesh.py"}')
  assert 'slots is 0' in _error(capsys, '--slots=0')
  assert 'grace is -1.0' in _error(capsys, '--grace=-1')
  monkeypatch.setattr(packages, 'load', lambda name: (_ for _ in ()).throw(
      ImportError(f'{name} is not installed')))
  assert _error(capsys) == ('error: starlette is not installed, which the server needs; run pip '
                            "install -e '.[serve]' in a clone of cspd_jax.")


def test_settings_from_the_environment(capsys, monkeypatch):
  """Below the flags; an empty variable, and those of other programs, set nothing."""
  seen = []
  monkeypatch.setattr(serve.inputs, 'model', lambda loading, **options: seen.append(loading))
  monkeypatch.setattr(server, 'bind', lambda *place: (_ for _ in ()).throw(
      ValueError(f'bound to {place}')))
  bound = lambda *words: re.search(r"bound to \('(.*)', (\d+)\)", _error(capsys, *words)).groups()
  for variable, text in (
      ('CSPD_PORT', '8123'), ('CSPD_DTYPE', 'bfloat16'), ('CSPD_DECODER', 'vanilla,mc_sjd'),
      ('CSPD_GRACE', 'none'), ('CSPD_LENIENT', '1'), ('CSPD_HOST', ''), ('CSPD_JAX_GRAPHS', 'loop'),
      # What Kubernetes sets for services that are called cspd-serve and cspd.
      ('CSPD_SERVE_SERVICE_HOST', '10.0.0.1'), ('CSPD_SERVE_SERVICE_PORT', '80'),
      ('CSPD_SERVE_PORT', 'tcp://10.0.0.1:80'), ('CSPD_SERVE_PORT_80_TCP_ADDR', '10.0.0.1'),
      ('CSPD_SERVICE_HOST', '10.0.0.1'), ('CSPD_SERVICE_PORT', '80'),
      ('CSPD_PORT_80_TCP', 'tcp://10.0.0.1:80'), ('CSPD_PORT_80_TCP_PROTO', 'tcp')):
    monkeypatch.setenv(variable, text)
  assert bound() == ('127.0.0.1', '8123') and bound('--port=8124') == ('127.0.0.1', '8124')
  config, = serve.main._arguments(serve.Config(), ['--decoder=vanilla', '--nolenient'])
  assert config == serve.Config(
      groups.LoadFlags(dtype='bfloat16'), port=8123, decoder=('vanilla',), lenient=False)
  for variable, text, message in (
      ('CSPD_PORT', 'http', 'CSPD_PORT=http: it must be a whole number, such as 8000.'),
      ('CSPD_PORT', '70000', 'port is 70000; it must be a whole number from 0 to 65535.'),
      ('CSPD_DTYPE', 'fp8', 'CSPD_DTYPE=fp8: it must be one of float32, bfloat16'),
      ('CSPD_LENIENT', 'perhaps', 'CSPD_LENIENT=perhaps: it must be true or false'),
      ('CSPD_LOG_FORMAT', 'xml', 'CSPD_LOG_FORMAT=xml: it must be one of text, json'),
      ('CSPD_PROT', '1', 'CSPD_PROT is a variable of the environment, and no setting of this '
       'command; did you mean CSPD_PORT?')):
    with monkeypatch.context() as patch:
      patch.setenv(variable, text)
      assert message in _error(capsys), variable
      if variable == 'CSPD_PORT':  # A flag is there in its place.
        assert bound('--port=8124') == ('127.0.0.1', '8124')
  assert serve.main(['serve', '--help']) == 0
  assert 'environment, such as CSPD_MODEL, sets a field' in capsys.readouterr().out
  assert seen == []


def test_models_that_cannot_be_served_end_with_a_sentence(capsys, monkeypatch):
  assert 'which has continuous tokens' in _error(capsys, '--port=0', '--model=mar_demo')
  monkeypatch.setattr(serve.inputs, 'model', lambda *arguments, **options: tiny.model())
  assert 'decoder is empty' in _error(capsys, '--port=0', '--decoder=')
  assert 'corect' in _error(capsys, '--port=0', '--decoder=vanilla,corect')
  error = _error(capsys, '--port=0', '--prompt_length=9', '--decoder=vanilla')
  assert "prompt_length is 9, but prompts of model 'tiny' have one length; leave it out" in error
  monkeypatch.setattr(memory, 'free', lambda devices: 1e3)
  error = _error(capsys, '--port=0', '--slots=64', '--decoder=vanilla')
  assert 'slots is 64, but as many images at once with each of 1 decoders need about' in error


def test_a_server_answers_while_its_model_is_loaded(capsys, monkeypatch):
  client, seen, ends = running.Running.__new__(running.Running), [], []
  with socket.create_server(('127.0.0.1', 0)) as free:
    client.port = free.getsockname()[1]

  def load(*arguments, **options):
    seen.extend([client.call('GET', '/health'), client.generate(prompt='cat'),
                 client.call('GET', '/health/', Host='evil.example'),
                 client.call('GET', '/v1/models', Host='evil.example'),
                 client.call('GET', '/health/live')])
    ends.append(signal.getsignal(signal.SIGTERM))
    raise ValueError('model is broken.')

  monkeypatch.setattr(serve.inputs, 'model', load)
  assert _error(capsys, f'--port={client.port}') == 'error: model is broken.'
  assert [status for status, _, _ in seen] == [503, 503, 503, 403, 200]
  about = dict(status='loading', version=cspd_jax.__version__)
  assert seen[0][2] == seen[4][2] == about and seen[2][2] == dict(status='loading')
  assert seen[1][1]['retry-after'] == '5'
  # Without a handler, the first process of a container ignores the signal.
  assert ends[0] not in (signal.SIG_DFL, signal.SIG_IGN, signal.getsignal(signal.SIGTERM))
  assert seen[1][2]['error']['message'] == 'the server is loading its model.'
  assert client.health() is None


def test_the_socket_stays_open_after_loading():
  with server.bind('127.0.0.1', 0) as sock:
    client = running.Running.__new__(running.Running)
    client.port = sock.getsockname()[1]
    with server.loading(sock), socket.create_connection(sock.getsockname()) as slow:
      slow.sendall(b'POST /v1/im')  # It need not wait for this client.
      running.until(lambda: client.health() == 503)
    with socket.create_connection(sock.getsockname()):
      sock.setblocking(True)
      sock.accept()[0].close()


@pytest.mark.slow
def test_slots_have_room_for_the_longest_prompts(monkeypatch):
  """Not only for the prompt that the programs are compiled with."""
  served = wire.serving(cspd_jax.load('emoji'), ('vanilla',))
  with pytest.raises(ValueError, match="prompt_length is 1; 'a fox on white' needs at least 11"):
    server.make_scheduler(served, slots=1, queue=1, prompt_length=1)
  monkeypatch.setattr(memory, 'free', lambda devices: 1e9)
  server.make_scheduler(served, slots=8, queue=1)
  with pytest.raises(ValueError, match='slots is 8, but .* GB are free'):
    server.make_scheduler(served, slots=8, queue=1, prompt_length=2**15)


@pytest.mark.slow
def test_memory_is_that_of_guided_images_and_of_one_decoder_at_a_time(monkeypatch):
  """Whatever the model's own guidance; the copies of narrow parameters are not there twice."""
  model = cspd_jax.load('emoji', dtype='bfloat16')
  served = wire.serving(dataclasses.replace(model, defaults={'guidance_scale': 1.0}),
                        ('vanilla', 'mc_sjd(window=8)'))
  monkeypatch.setattr(memory, 'free', lambda devices: 1e12)
  samplers = [model.sampler(decoder, guidance_scale=2.0) for decoder in served.decoders]
  needs = [sampler.estimate(sampler.images(
      ['a fox on white'], condition=model.condition(['a fox on white']).padded(64)))
           for sampler in samplers]
  slots = 8 * sum(part.per_image for part in needs)
  assert needs[0].fixed > slots / 8
  least = memory.needed_of_slots(needs, 8)
  # A prefill needs more than a round of a small image: the state of another image.
  assert least == slots + max(part.fixed + part.per_image for part in needs)
  monkeypatch.setattr(memory, 'free', lambda devices: 1.01 * least)
  server.make_scheduler(served, slots=8, queue=1, prompt_length=64)
  monkeypatch.setattr(memory, 'free', lambda devices: 0.99 * least)
  with pytest.raises(ValueError, match='slots is 8, but .* with each of 2 decoders need'):
    server.make_scheduler(served, slots=8, queue=1, prompt_length=64)


def test_default_decoders():
  model = tiny.model()
  tuned = lambda decoder: dataclasses.replace(model, defaults=dict(decoder=decoder))
  assert serve.decoders(None, model, 1) == ['seed_exact', 'vanilla']
  sizes = tuned({'cpu': {'4': 'mc_sjd(window=2)', '8': 'mc_sjd(window=4)'}, 'other': 'mc_sjd'})
  assert serve.decoders(None, sizes, 1) == ['seed_exact', 'vanilla']
  assert serve.decoders(None, sizes, 4) == ['mc_sjd(window=2)', 'vanilla']
  assert serve.decoders(None, sizes, 16) == ['mc_sjd(window=4)', 'vanilla']
  for unusable in ({'other': 'mc_sjd'}, 'eagle'):
    assert serve.decoders(None, tuned(unusable), 8) == ['seed_exact', 'vanilla']


def test_a_model_names_the_decoder_that_a_server_shows_first():
  model, shown = tiny.model(), 'seed_exact(window=5)'
  named = lambda **more: serve.decoders(None, dataclasses.replace(model, defaults=dict(
      decoder='mc_sjd(window=2)', serve=dict(cpu=shown), **more)), 1)[0]
  assert named() == named(seconds={'NVIDIA H200': {}}) == shown
  assert named(seconds={model.devices[0].device_kind: {'1': ['mc_sjd(window=2)', 1.0]}}) == (
      'mc_sjd(window=2)')
  emoji = cspd_jax.load('emoji')
  assert serve.decoders(None, emoji, 1) == ['corrected_seed_exact(iterations=4, window=16)',
                                            'vanilla']
  with pytest.raises(ValueError, match="serve for 'cpu' is 3; it must be a text"):
    options.check_defaults(model.table, dict(serve=dict(cpu=3)))


def test_signals(monkeypatch, capsys):
  """The first one completes what is running and exits with 0, and the second ends at once."""
  served = wire.serving(tiny.model(), ('vanilla',))
  scheduler = server.make_scheduler(served, slots=1, queue=1)
  runner, go, answers, codes = tiny.batch(scheduler, 'vanilla').runner, threading.Event(), [], []
  step, sock = runner.step, server.bind('127.0.0.1', 0)
  client = running.Running.__new__(running.Running)
  client.port = sock.getsockname()[1]
  monkeypatch.setattr(os, '_exit', lambda code: codes.append(code))

  def use():
    running.until(lambda: client.health() == 200)
    runner.step = lambda rounds=1: go.wait(running.WAIT) and step(1)
    asking = threading.Thread(target=lambda: answers.append(client.generate(prompt='cat', n=2)))
    asking.start()
    running.until(lambda: client.value('cspd_slots_busy') == 1)
    os.kill(os.getpid(), signal.SIGTERM)
    running.until(lambda: client.health() is None)  # It does not accept connections any more.
    os.kill(os.getpid(), signal.SIGTERM)
    running.until(lambda: codes)
    go.set()
    asking.join(running.WAIT)

  using = threading.Thread(target=use)
  using.start()
  assert server.run(served, scheduler, sock, deadline=running.WAIT) == 0
  using.join(running.WAIT)
  (status, _, answer), = answers
  assert status == 200 and len(answer['data']) == 2 and codes == [143]
  errors = capsys.readouterr().err
  assert 'a second signal ends it at once' in errors and '2 images left.' in errors


def test_images_that_are_not_complete_after_the_grace_are_refused(capsys):
  served = wire.serving(tiny.model(), ('vanilla',))
  scheduler = server.make_scheduler(served, slots=1, queue=4)
  runner, go, answers = tiny.batch(scheduler, 'vanilla').runner, threading.Event(), {}
  step, sock = runner.step, server.bind('127.0.0.1', 0)
  client = running.Running.__new__(running.Running)
  client.port = sock.getsockname()[1]

  def slow(rounds=1):
    assert go.wait(running.WAIT)
    if scheduler.left < 5:  # The first image is complete in time, and no other one.
      time.sleep(0.5)
    return step(1)

  def ask(number, values):
    answers[number] = client.generate(prompt='cat', **values)

  def use():
    running.until(lambda: client.health() == 200)
    runner.step, asking = slow, []
    for number, values in enumerate((dict(), dict(n=2), dict(n=2, stream=True))):
      asking.append(threading.Thread(target=ask, args=(number, values)))
      asking[-1].start()
      running.until(lambda: scheduler.left == (1, 3, 5)[number])
    os.kill(os.getpid(), signal.SIGTERM)
    running.until(lambda: client.health() is None)
    go.set()
    for thread in asking:
      thread.join(running.WAIT)

  using = threading.Thread(target=use)
  using.start()
  assert server.run(served, scheduler, sock, deadline=running.WAIT, grace=2) == 0
  using.join(running.WAIT)
  (first, _, _), (second, headers, refused), (third, _, events) = map(answers.get, range(3))
  assert (first, second, third) == (200, 503, 200) and headers['retry-after'] == '5'
  assert refused['error']['message'] == (
      'the server ends before the image is complete; try again later.')
  assert b'data: {"error":{"message":"the server ends before' in events
  errors = capsys.readouterr().err
  assert 'in at most 2 seconds' in errors and '5 images left.' in errors
  assert 'The server gives up 4 images, and answers with 503.' in errors
