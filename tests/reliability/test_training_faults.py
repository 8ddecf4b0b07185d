"""Training folders while files fail: every run ends with what an undisturbed one has."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax import cli
from cspd_jax.files import atomic, locks, run_folder
from cspd_jax.files.run_folder import Report
from cspd_jax.training import loop
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import stages
from tests.reliability import damage, faults

STEPS = 6
OPTIMIZER = OptimizerConfig(num_steps=STEPS, batch_size=1, warmup_steps=0)


class State(NamedTuple):
  """Attributes: steps done; numbers that all earlier steps made."""

  step: np.ndarray
  value: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toy(stages.Stages):
  """A recipe whose only network is a number."""

  family = 'toy'
  models = ()

  tokenizer: object = None
  tokenizer_train: object = None
  target: object = None
  target_train: object = None

  def crops(self, seed, index, split, size):
    return np.full((size, 2, 2, 3), seed + index, np.float32), np.arange(size)


Toy.__abstractmethods__ = frozenset()
RECIPE = Toy(num_train_images=40, num_held_out_images=8, checkpoint_every=2, log_every=1)


def work(workdir):
  """What training programs do to their folder."""
  with run_folder.Run(workdir, dataclasses.asdict(RECIPE), name='workdir', alone=False):
    tokens, _ = RECIPE.encode_crops(workdir / 'tokens_train.npz', 'tokens', 'train',
                                    lambda images: images[:, 0, 0, 0].astype(np.int32))

    def step(state, batch):
      value = np.float32(0.5) * state.value + batch
      return State(state.step + np.int32(1), value), {'value': value[0]}

    state = RECIPE.train(
        'net', State(np.int32(0), np.ones(50, np.float32)), step,
        lambda split, index: np.float32(tokens[index]), OPTIMIZER, workdir,
        lambda *_: {'nll': 1.0})
    report = Report(workdir, ['rows.csv'])
    atomic.write(report.path('rows.csv'), b'x')
    report.write(settings={}, rows=[dict(value=float(state.value[0]))])


def content(workdir):
  """What is in the folder of a finished run, without times."""
  lines = [json.loads(line) for line in (workdir / 'net.jsonl').read_text().splitlines()]
  # Orbax chooses the names of its files.
  names = sorted(path.relative_to(workdir).as_posix() for path in workdir.rglob('*')
                 if path.parent in (workdir, workdir / 'net'))
  state = loop.restore(loop.manager(workdir / 'net'), State(np.int32(0), np.ones(50, np.float32)))
  return (names, [(line['step'], line['value']) for line in lines],
          np.asarray(state.value).tolist(),
          json.loads((workdir / 'report.json').read_text())['rows'])


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('whole') / 'run'
  work(workdir)
  return content(workdir)


def test_an_undisturbed_run(whole):
  names, lines, _, rows = whole
  assert names == ['net', 'net.jsonl', 'net/step_00000004', 'net/step_00000006',
                   'report.json', 'rows.csv', 'run.json', 'tokens_train.npz']
  assert [step for step, _ in lines] == list(range(1, STEPS + 1))
  assert rows == [dict(value=lines[-1][1])]


@pytest.mark.slow
@pytest.mark.parametrize('how', ['kill', 'raise'])
def test_a_fault_at_any_operation_is_repaired_by_the_next_run(tmp_path, whole, how):
  stops = range(1, 150)
  codes = faults.run(__file__, tmp_path, [(f'{stop}', how, stop) for stop in stops])
  for number, code in zip(stops, codes):
    said = (tmp_path / f'{number}.err').read_text()
    if code == 2:
      # Orbax, which finds the space reserved before it writes, prints pages in front of it.
      assert said.splitlines()[-1].startswith('error: No space left on device'), said
      assert said.count('\n') == 1 or 'orbax' in said, said
    else:
      assert not said or how == 'kill'
    work(tmp_path / f'{number}')
    assert content(tmp_path / f'{number}') == whole, number
  faulty = {'kill': -9, 'raise': 2}[how]
  assert set(codes) <= {faulty, 0} and codes[0] == faulty
  assert codes[-1] == 0 and codes.count(faulty) > 25


def _damage(path, how):
  data = path.read_bytes()
  path.write_bytes({'cut': data[:len(data) // 2], 'empty': b'', 'flip': next(
      one for one in damage.changed(data, 60, 3) if len(one) == len(data) and one != data),
                    'zeros': bytes(len(data))}[how])


@pytest.mark.slow
@pytest.mark.parametrize('how', ['cut', 'flip', 'zeros', 'digests'])
def test_a_damaged_state_is_told_of_and_left_behind(tmp_path, whole, caplog, how):
  work(tmp_path / 'run')
  for damaged in (['step_00000006'], ['step_00000004', 'step_00000006']):
    for name in damaged:
      step = tmp_path / 'run' / 'net' / name
      if how == 'digests':
        _damage(step / 'digests' / 'metadata', 'cut')
      else:
        _damage(max((step / 'state').rglob('d/*'), key=lambda file: file.stat().st_size), how)
    caplog.clear()
    work(tmp_path / 'run')
    assert content(tmp_path / 'run') == whole
    for name in damaged:
      assert re.search(f'step {int(name[5:])} in .* cannot be read', caplog.text)
    assert 'going back to an earlier step' in caplog.text


def test_lines_of_metrics_that_are_none_are_left_out(tmp_path, whole):
  work(tmp_path / 'run')
  with (tmp_path / 'run' / 'net.jsonl').open('ab') as file:
    file.write(b'5\n[]\n{}\n\xff\xfe\n{"step": null}\n' + b'x' * (3 << 20)
               + b'\n{"step": 7, "va')
  work(tmp_path / 'run')
  assert content(tmp_path / 'run') == whole


@pytest.mark.parametrize('name', ['tokens_train.npz', 'run.json'])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path, name):
  work(tmp_path / 'run')
  _damage(tmp_path / 'run' / name, 'cut')
  with pytest.raises(ValueError, match=f'{name} cannot be read .*(remove it|another folder)'):
    work(tmp_path / 'run')


def test_states_of_something_else_are_refused(tmp_path):
  work(tmp_path / 'run')
  other = State(np.int32(0), np.ones((5, 10), np.float32))
  with pytest.raises(ValueError, match=r"holds float32\[50\] as 'value' instead of float32\[5, 10"):
    loop.restore(loop.manager(tmp_path / 'run' / 'net'), other)


def test_what_a_user_puts_among_the_steps_stays(tmp_path, whole):
  (tmp_path / 'run' / 'net' / '4').mkdir(parents=True)
  (tmp_path / 'run' / 'net' / 'notes').write_text('mine')
  work(tmp_path / 'run')
  assert sorted({*content(tmp_path / 'run')[0]} - {*whole[0]}) == ['net/4', 'net/notes']
  assert (tmp_path / 'run' / 'net' / 'notes').read_text() == 'mine'


_HOLDER = ('import fcntl, os, sys, time; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), '
           'fcntl.LOCK_EX); print("held", flush=True); time.sleep(100)')


def test_a_second_process_is_refused_until_the_first_has_died(tmp_path, capsys, whole):
  (tmp_path / 'run').mkdir()
  first = subprocess.Popen([sys.executable, '-c', _HOLDER, str(tmp_path / 'run')],
                           stdout=subprocess.PIPE)
  try:
    assert first.stdout.readline() == b'held\n'
    program = cli.command(flags=RECIPE)(lambda flags: work(tmp_path / 'run'))
    assert program(['program']) == 2
    err = capsys.readouterr().err
    assert 'run is being written by another process' in err and err.count('\n') == 1
    assert not list((tmp_path / 'run').iterdir())
  finally:
    first.kill()
    first.wait()
  assert program(['program']) == 0 and content(tmp_path / 'run') == whole


@pytest.mark.parametrize('again', [False, True])
def test_a_folder_that_is_removed_during_a_run_is_an_error(tmp_path, again):
  with pytest.raises(ValueError, match='run was removed or replaced'), locks.hold(tmp_path / 'run'):
    work(tmp_path / 'run')
    shutil.rmtree(tmp_path / 'run')
    if again:
      (tmp_path / 'run').mkdir()


def test_states_keep_numbers_of_every_kind(tmp_path):
  state = {'step': jnp.int32(3), 'narrow': jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
           'half': jnp.float16(0.1), 'flags': jnp.asarray([True, False]), 'none': None,
           'bytes': jnp.arange(4, dtype=jnp.uint8), 'empty': jnp.zeros((0, 2))}
  steps = loop.manager(tmp_path)
  loop.save(steps, 3, state)
  result = loop.restore(steps, jax.tree.map(jnp.zeros_like, state))
  assert jax.tree.map(lambda leaf: leaf.dtype, result) == jax.tree.map(
      lambda leaf: leaf.dtype, state)
  jax.tree.map(np.testing.assert_array_equal, result, state)


# A small recipe of many steps, which --smoke would make few.
_LONG = """
from configs.train import demo
from cspd_jax.training import loop


def get_config():
  return loop.smoke(demo.get_config().small())
"""


@pytest.mark.slow
def test_ctrl_c_and_the_same_command_again(tmp_path):
  pytest.importorskip('skimage')
  (tmp_path / 'long.py').write_text(_LONG)
  command = [sys.executable, '-m', 'experiments.train', f'--config={tmp_path}/long.py',
             '--stage=tokenizer', '--tokenizer_train.optimizer.num_steps=2000']
  first = subprocess.Popen([*command, f'--workdir={tmp_path}/run'], stderr=subprocess.PIPE,
                           text=True)
  for line in first.stderr:
    if re.search(r'step 20/', line):
      first.send_signal(signal.SIGINT)
      break
  rest = first.stderr.read()
  assert first.wait() == 130 and rest.endswith('; the same command resumes\n')
  assert 'Traceback' not in rest
  again = subprocess.Popen([*command, f'--workdir={tmp_path}/run'], stderr=subprocess.PIPE,
                           text=True)
  assert any('continuing after step' in line for line in again.stderr)
  again.kill()
  again.wait()


@pytest.mark.slow
def test_a_full_disk_is_told_of_at_once(tmp_path):
  """The system lets no file grow above 20 kB, which states of this network need."""
  limited = ('import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); '
             'from experiments import train; sys.exit(train.main(sys.argv))')
  began = time.time()
  done = subprocess.run(
      [sys.executable, '-c', limited, '--config=configs/train/demo.py', '--smoke',
       '--stage=tokenizer', f'--workdir={tmp_path}/run'],
      env=os.environ | {'JAX_ENABLE_COMPILATION_CACHE': 'false'},
      capture_output=True, text=True, check=False)
  assert done.returncode == 2 and time.time() - began < 200
  assert done.stderr.splitlines()[-1].startswith('error: File too large')
  assert 'Traceback' not in done.stderr
  assert not list((tmp_path / 'run' / 'tokenizer').iterdir()), 'nothing half-written is left'
