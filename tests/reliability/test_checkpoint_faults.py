"""Saving networks while files fail: what was there or what is new, and nothing of others lost."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.core import checkpoint
from cspd_jax.models import llamagen

_ROOT = pathlib.Path(__file__).parents[2]
CONFIG = llamagen.LlamaGenConfig(
    height=2, width=2, dim=16, num_layers=1, num_heads=2, ffn_dim=24, vocab_size=12, num_classes=3)


def params(number):
  shapes = jax.eval_shape(lambda: llamagen.init(CONFIG, jax.random.key(0)))
  return jax.tree.map(lambda leaf: np.full(leaf.shape, number, leaf.dtype), shapes)


def save(path, number):
  checkpoint.save(path, 'llamagen', CONFIG, params(number))


def number(path):
  """The number that all parameters are."""
  numbers = {float(number) for leaf in jax.tree.leaves(checkpoint.load(path).params)
             for number in np.unique(leaf)}
  assert len(numbers) == 1
  return numbers.pop()


@pytest.mark.parametrize('stranger', ['notes.txt', 'arrays/photo.png', 'arrays/0000/deep/x'])
def test_files_of_others_in_a_checkpoint_are_never_removed(tmp_path, stranger):
  save(tmp_path / 'm', 1)
  other = tmp_path / 'm' / stranger
  other.parent.mkdir(exist_ok=True)
  other.write_text('mine')
  with pytest.raises(checkpoint.CheckpointError, match=r'holds .*(notes|photo|deep).*move such'):
    save(tmp_path / 'm', 2)
  assert other.read_text() == 'mine' and number(tmp_path / 'm') == 1


def test_models_of_several_networks_are_not_replaced_by_one(tmp_path):
  save(tmp_path / 'm' / 'target', 1)
  families.save(tmp_path / 'm', 'llamagen', {'target': 'target'})
  with pytest.raises(checkpoint.CheckpointError, match='not a checkpoint; give another'):
    save(tmp_path / 'm', 2)
  assert number(tmp_path / 'm' / 'target') == 1


def test_no_list_leads_out_of_its_folder(tmp_path):
  save(tmp_path / 'm', 1)
  (tmp_path / 'mine').write_text('mine')
  path = tmp_path / 'm' / 'model.json'
  description = json.loads(path.read_text())
  description['files'] |= {'arrays/../../mine': 4, str(tmp_path / 'mine'): 4}
  path.write_text(json.dumps(description))
  save(tmp_path / 'm', 2)
  assert (tmp_path / 'mine').read_text() == 'mine' and number(tmp_path / 'm') == 2


def test_a_checkpoint_behind_a_link_is_replaced_and_the_link_stays(tmp_path):
  save(tmp_path / 'disk' / 'm', 1)
  (tmp_path / 'm').symlink_to(tmp_path / 'disk' / 'm')
  save(tmp_path / 'm', 2)
  assert (tmp_path / 'm').is_symlink() and number(tmp_path / 'disk' / 'm') == 2


def test_a_load_puts_right_what_a_kill_left_between_two_renames(tmp_path):
  save(tmp_path / 'm', 1)
  work = tmp_path / '.m.unfinished'
  work.mkdir()
  (tmp_path / 'm').rename(work / 'old')
  assert checkpoint.describe(tmp_path / 'm').config == CONFIG
  assert number(tmp_path / 'm') == 1
  save(tmp_path / 'm', 2)
  assert os.listdir(tmp_path) == ['m'] and number(tmp_path / 'm') == 2


# Each case is a process of its own, which fails at one of the file operations of a save.
_PROGRAM = '''
import os, pathlib, shutil, signal, sys
sys.path.insert(0, sys.argv[1])
import test_checkpoint_faults as tests

root, how, step, stop = sys.argv[2], sys.argv[3], 0, 0

def hook(event, arguments):
  global step
  if not stop or event not in ('open', 'os.mkdir', 'os.remove', 'os.rename', 'os.rmdir'):
    return
  name = str(arguments[0])
  if event == 'open' and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
    return
  if how == 'raise' and 'arrays' in name:  # Orbax waits for minutes if its operations raise.
    return
  if root in name:
    step += 1
    if step == stop:
      if how == 'raise':
        raise OSError('no space left')
      os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
for number in map(int, sys.argv[4:]):
  path = pathlib.Path(root, f'{number}', 'm')
  shutil.copytree(pathlib.Path(root, 'first'), path)
  process = os.fork()
  if not process:
    stop = number
    try:
      tests.save(path, 2)
    finally:
      os._exit(0)
  os.waitpid(process, 0)
'''


@pytest.mark.parametrize('how, stops', [
    ('kill', (4, 19)), ('raise', (4,)),
    pytest.param('kill', range(1, 70), marks=pytest.mark.slow),
    pytest.param('raise', range(1, 30), marks=pytest.mark.slow)])
def test_a_fault_at_any_operation_leaves_the_old_or_the_new(tmp_path, how, stops):
  save(tmp_path / 'first', 1)
  subprocess.run(
      [sys.executable, '-c', _PROGRAM, str(_ROOT / 'tests/reliability'), str(tmp_path), how,
       *map(str, stops)], env=os.environ | {'PYTHONPATH': str(_ROOT)}, cwd=_ROOT, check=True)
  found = []
  for stop in stops:
    path = tmp_path / f'{stop}' / 'm'
    found.append(number(path))
    if how == 'raise' and found[-1] == 1:
      assert os.listdir(path.parent) == ['m']
    save(path, 3)
    assert number(path) == 3 and os.listdir(path.parent) == ['m']
  assert found[0] == 1 and set(found) <= {1, 2}
  assert len(stops) < 10 or found[-1] == 2
