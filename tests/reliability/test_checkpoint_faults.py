"""Saving networks while files fail: what was there or what is new, and nothing of others lost."""

import dataclasses
import errno
import os
import resource
import shutil

import jax
import numpy as np
import pytest

from cspd_jax.files import store, weights
from cspd_jax.models import llamagen
from tests.reliability import faults

CONFIG = llamagen.LlamaGenConfig(
    height=2, width=2, dim=16, num_layers=1, num_heads=2, ffn_dim=24, vocab_size=12, num_classes=3)


def params(number):
  shapes = jax.eval_shape(lambda: llamagen.init(CONFIG, jax.random.key(0)))
  return jax.tree.map(lambda leaf: np.full(leaf.shape, number, leaf.dtype), shapes)


def save(path, number):
  store.save(path, 'llamagen', CONFIG, params(number))


def number(path):
  """The number that all parameters are."""
  numbers = {float(number) for leaf in jax.tree.leaves(store.load(path).params)
             for number in np.unique(leaf)}
  assert len(numbers) == 1
  return numbers.pop()


def test_a_checkpoint_behind_a_link_is_replaced_and_the_link_stays(tmp_path):
  save(tmp_path / 'disk' / 'm', 1)
  (tmp_path / 'm').symlink_to(tmp_path / 'disk' / 'm')
  save(tmp_path / 'm', 2)
  assert (tmp_path / 'm').is_symlink() and number(tmp_path / 'disk' / 'm') == 2


def test_a_network_is_not_begun_on_a_disk_without_room(tmp_path, monkeypatch):
  save(tmp_path / 'm', 1)
  usage = type('usage', (), dict(free=(1 << 20) + 500, total=10**9))
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
  with pytest.raises(store.CheckpointError, match='1.0 MB left, and .* free some space'):
    save(tmp_path / 'm', 2)
  monkeypatch.undo()
  assert number(tmp_path / 'm') == 1 and os.listdir(tmp_path) == ['m']


def test_a_disk_that_fills_up_during_a_save_is_one_error(tmp_path):
  """The system lets no file grow above 64 kB."""
  large = dataclasses.replace(CONFIG, dim=64, ffn_dim=256, vocab_size=1024)
  shapes = jax.eval_shape(lambda: llamagen.init(large, jax.random.key(0)))
  numbers = np.random.default_rng(0)
  many = jax.tree.map(lambda leaf: numbers.standard_normal(leaf.shape, leaf.dtype), shapes)
  save(tmp_path / 'm', 1)
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
  try:
    with pytest.raises(OSError, match='m/.unfinished') as result:
      store.save(tmp_path / 'm', 'llamagen', large, many)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert result.value.errno == errno.EFBIG
  assert number(tmp_path / 'm') == 1 and os.listdir(tmp_path) == ['m']


def test_a_folder_that_is_removed_during_a_save_is_an_error(tmp_path):
  groups = weights.divided(params(1))

  def remove(done, total):
    shutil.rmtree(tmp_path / 'm' / '.unfinished')

  with pytest.raises(OSError, match='No such file'):
    store.save_groups(tmp_path / 'm', 'llamagen', CONFIG, groups, progress=remove)
  assert not (tmp_path / 'm').exists()


def work(path):
  """What `faults` lets fail: a save in the place of an older one."""
  save(path / 'm', 2)


@pytest.mark.parametrize('how, stops', [
    ('kill', (4, 19)),
    pytest.param('kill', range(1, 70), marks=pytest.mark.slow),
    pytest.param('raise', range(1, 30), marks=pytest.mark.slow)])
def test_a_fault_at_any_operation_leaves_the_old_or_the_new(tmp_path, how, stops):
  save(tmp_path / 'first', 1)
  for stop in stops:
    shutil.copytree(tmp_path / 'first', tmp_path / f'{stop}' / 'm')
  codes = faults.run(__file__, tmp_path, [(f'{stop}', how, stop) for stop in stops])
  result = []
  for stop in stops:
    path = tmp_path / f'{stop}' / 'm'
    result.append(number(path))
    if how == 'raise' and result[-1] == 1:
      assert os.listdir(path.parent) == ['m']
    save(path, 3)
    assert number(path) == 3 and os.listdir(path.parent) == ['m']
  assert result[0] == 1 and set(result) <= {1, 2}
  assert codes[0] == {'kill': -9, 'raise': 2}[how] and (len(stops) < 10 or codes[-1] == 0)
  assert len(stops) < 10 or result[-1] == 2
