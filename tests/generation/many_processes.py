"""Processes that write images into one folder, each killed at one of its file operations.

`disturbed` starts as many processes as it takes until a number of them were killed, at random
operations and in random numbers at a time; each runs this file as a program.
"""

import os
import pathlib
import random
import signal
import subprocess
import sys

import cspd_jax
from cspd_jax import families
from cspd_jax.generation import stored_run
from cspd_jax.generation.gallery import Gallery
from tests.families import tiny

PROMPTS = ['sea', 'sky', 'sand', 'sea', 'sky'] * 4
_WRITES = ('open', 'os.mkdir', 'os.remove', 'os.rename', 'os.rmdir')
# File operations of a process per image, about.
_PER_IMAGE = 2


def opened(model, prompts, folder, *, batch_size=None, **options):
  """A gallery of images, with the batch size of the run in the folder if it is None."""
  named, own = ({name: options.pop(name) for name in names if name in options} for names in (
      ('seed', 'decoder', 'most'), ('overwrite', 'process')))
  size = batch_size or stored_run.batch_size_of(folder)
  return Gallery(model.images(prompts, options, batch_size=size, **named), folder, **own)


def gallery(model, folder, index=0, count=1, **options):
  """The images of one of `count` processes."""
  options = dict(seed=4, decoder='mc_sjd(window=4)', batch_size=2) | options
  return opened(model, PROMPTS, folder, process=(index, count), **options)


def contents(folder):
  """The bytes of the images in a folder by name; the report, which holds times, apart."""
  return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()
          if path.name != 'report.json'}


def kill_at(folder, operation):
  """Kills this process at one of its file operations in a folder, counted from 1."""
  count = 0

  def hook(event, arguments):
    nonlocal count
    if event not in _WRITES or folder not in str(arguments[0]):
      return
    if event == 'open' and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
      return
    count += 1
    if count == operation:
      os.kill(os.getpid(), signal.SIGKILL)

  sys.addaudithook(hook)


def disturbed(model, folder, kills, seed=0):
  """Writes images with processes that are killed; returns how many were."""
  rng, killed = random.Random(seed), 0
  # Most processes are killed before the images are complete, the others while the folder is
  # completed.
  latest = max(8, 3 * _PER_IMAGE * len(PROMPTS) // (kills + 1))
  while not pathlib.Path(folder, 'report.json').exists():
    count = rng.choice([2, 3])
    processes = []
    for index in range(count):
      operation = rng.randint(1, latest) if killed < kills else 0
      arguments = map(str, (model, folder, index, count, operation))
      processes.append(subprocess.Popen(
          [sys.executable, __file__, *arguments], stderr=subprocess.PIPE, text=True,
          env=os.environ | {'PYTHONPATH': str(pathlib.Path(__file__).parents[2])}))
    for process in processes:
      problems = process.communicate()[1]
      assert process.returncode in (0, -signal.SIGKILL), problems[-2000:]
      killed += process.returncode == -signal.SIGKILL
  return killed


def _main(model, folder, index, count, operation):
  """One process; it is killed at an operation unless that is 0."""
  families.register(tiny.FAMILY)
  loaded = cspd_jax.load(model)
  kill_at(folder, int(operation))
  gallery(loaded, folder, int(index), int(count)).generate({})


if __name__ == '__main__':
  _main(*sys.argv[1:])
