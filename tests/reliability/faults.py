"""Work that is killed, or meets a full disk, at each of its file operations.

`run` imports a test module in a process of its own and there, for every case, lets a copy of that
process call the module's `work`. Python tells of every operation before it happens.
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable

_ROOT = pathlib.Path(__file__).parents[2]
_PROGRAM = '''
import errno, importlib, json, os, pathlib, signal, sys

root, cases = sys.argv[2], json.loads(sys.argv[3])
sys.path.insert(0, os.path.dirname(sys.argv[1]))
module = importlib.import_module(pathlib.Path(sys.argv[1]).stem)
from cspd_jax.cli import exits
step = stop = 0

def hook(event, arguments):
  global step
  if not stop or event not in ('open', 'os.mkdir', 'os.remove', 'os.rename', 'os.rmdir'):
    return
  name = str(arguments[0])
  if event == 'open' and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
    return
  if root in name:
    step += 1
    if step == stop:
      if how == 'raise':
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
      os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
codes = []
for name, how, number in cases:
  process = os.fork()
  if not process:
    os.dup2(os.open(os.path.join(root, f'{name}.err'), os.O_WRONLY | os.O_CREAT), 2)
    stop, code = number, 1
    try:
      code = exits.code_of(lambda: module.work(pathlib.Path(root, name)))
    finally:
      os._exit(code)
  codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
print(json.dumps(codes))
'''


def run(file: str, folder: pathlib.Path, cases: Iterable[tuple[str, str, int]]) -> list[int]:
  """Runs `work(folder / name)` with faults; what it prints on stderr is in `NAME.err` there.

  Args:
    file: of a module with a function `work(path)`.
    folder: of all paths. Operations on others do not count.
    cases: name, 'kill' or 'raise' (a full disk), and the number of the operation that fails, from
      1 on.

  Returns:
    The exit code for each: -9 if it was killed, 2 if it ended with a message, 0 if it went through.
  """
  done = subprocess.run(
      [sys.executable, '-c', _PROGRAM, file, str(folder), json.dumps(list(cases))],
      env=os.environ | {'PYTHONPATH': str(_ROOT), 'PYTHONWARNINGS': 'ignore'}, cwd=_ROOT,
      check=True, stdout=subprocess.PIPE, text=True)
  return json.loads(done.stdout.splitlines()[-1])
