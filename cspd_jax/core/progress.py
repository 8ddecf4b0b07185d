"""How far a long job is, and when it will be done."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import tqdm


@contextlib.contextmanager
def bar(what: str, unit: str = 'image') -> Iterator[Callable[[int, int], None]]:
  """A line on stderr with what is done, the pace and the time that is left.

    with progress.bar('vanilla') as show:
      batches.run(model, 'vanilla', prompts, progress=show)

  Args:
    what: is being done; the line begins with it.
    unit: of what is counted.

  Yields:
    `(done, total) -> None`, to be called after each step.
  """
  # A file of a batch system gets a line now and then instead of one that moves.
  interval = 0.2 if sys.stderr.isatty() else 30.0
  with contextlib.ExitStack() as stack:
    lines: list[tqdm.tqdm] = []

    def show(done: int, total: int) -> None:
      if not lines:  # Time counts from the first step, after what is compiled before.
        lines.append(stack.enter_context(tqdm.tqdm(
            desc=what, total=total, unit=unit, mininterval=interval, maxinterval=interval,
            dynamic_ncols=True, leave=False)))
      lines[0].update(done - lines[0].n)

    yield show


def say(line: str) -> None:
  """Prints a line, above a bar if there is one."""
  tqdm.tqdm.write(line, file=sys.stdout)
  sys.stdout.flush()
