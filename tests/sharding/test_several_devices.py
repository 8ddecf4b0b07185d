"""Models over several devices, which a CPU can pretend to have."""

import json
import math
import os
import pathlib
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from cspd_jax import sharding
from tests.sharding import several_devices

_LAYERS = 2


def _start(devices, *words):
  """A process of `several_devices` with so many devices."""
  flags = f'{os.environ.get("XLA_FLAGS", "")} --xla_force_host_platform_device_count={devices}'
  return subprocess.Popen(
      [sys.executable, pathlib.Path(__file__).with_name('several_devices.py'), *map(str, words)],
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
      env=os.environ | dict(XLA_FLAGS=flags))


def _printed(process):
  out, problems = process.communicate(timeout=600)
  assert not process.returncode, problems[-3000:]
  return json.loads(out.splitlines()[-1])


def _run(decoders, *shapes):
  """What so many decoders give on meshes such as '2x4'."""
  size = lambda shape: math.prod(map(int, shape.split('x')))
  return _printed(_start(max(map(size, shapes), default=1), decoders, *shapes))


def _near(result):
  """What equals it up to the rounding of log-probabilities."""
  if not isinstance(result, dict):
    return result
  return result | dict(log_probs=pytest.approx(result['log_probs'], abs=1e-3))


def _check(result, shapes):
  alone = result['1']
  assert len({tuple(row) for row in alone['mc_sjd(window=8)']['tokens']}) == 3
  for shape in shapes:
    runs, (data, model) = result[shape], map(int, shape.split('x'))
    for decoder in runs.keys() & alone.keys():
      assert runs[decoder] == _near(alone[decoder]), (shape, decoder)
    assert runs['part'] == 4 // model and runs['slices'] == [4 // model]
    # The prefill and a round: one sum behind the attention of a layer and one behind the rest.
    wanted = {'all-reduce': 2 * 2 * _LAYERS} if model > 1 else {}
    assert runs['collectives'] == wanted, (shape, data)
    assert shape == '2x2' or 0.8 < runs['memory'] < 1.5, shape


def test_one_image_over_two_devices_and_two_images_at_a_time():
  _check(_run(1, '2x2'), ['2x2'])


@pytest.mark.slow
def test_other_meshes():
  shapes = '1x2', '1x4', '2x1', '4x1', '8x1', '2x4'
  _check(_run(1, *shapes), shapes)


@pytest.mark.slow
def test_other_decoders():
  _check(_run(3, '2x2', '2x4'), ['2x2', '2x4'])


@pytest.mark.slow
def test_two_processes(tmp_path):
  several_devices.save(tmp_path)
  alone = _run(1)['1']['mc_sjd(window=8)']
  with socket.socket() as free:
    free.bind(('localhost', 0))
    port = free.getsockname()[1]
  processes = [_start(2, 'process', tmp_path, number, port) for number in range(2)]
  for process in processes:
    assert _printed(process) == _near(alone) | dict(devices=4)


@pytest.mark.slow
def test_seed_exact_images_of_eight_devices_are_those_of_vanilla_bit_for_bit():
  meshes = '8x1', '2x4'
  results = _printed(_start(8, 'seed_exact', *meshes))
  for mesh in meshes:
    assert results[f'{mesh} seed_exact(window=5)'] == results[f'{mesh} vanilla(window=5)'], mesh
    assert results[f'{mesh} seed_exact(window=5)']['guarantee'] == 'seed-exact'


def test_parameters_that_cannot_be_divided_are_named():
  devices = jax.sharding.AbstractMesh((1, 3), ('data', 'model'))
  shapes = {'layers': {'query': jax.ShapeDtypeStruct((8, 4, 2), jnp.float32)}}
  with pytest.raises(
      ValueError, match=r'over 3 devices, but axis 1 of its layers/query has size 4; it can be '
      r'divided over 1 or 2 or 4, by make_mesh\(1, 4\) or --mesh=1x4\.'):
    sharding.split(shapes, {'.*/query': 1}, devices)
  other = jax.sharding.AbstractMesh((1, 2), ('x', 'y'))
  with pytest.raises(ValueError, match=r"a mesh with the axes \('x', 'y'\); it must have"):
    sharding.split(shapes, {'.*/query': 1}, other)
  pair = jax.sharding.AbstractMesh((1, 2), ('data', 'model'))
  placed = sharding.split(shapes, {'.*/query': 1}, pair)
  assert placed['layers']['query'].spec == jax.sharding.PartitionSpec(None, 'model')
