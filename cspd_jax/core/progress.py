"""Progress bars of long jobs."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import tqdm


@contextlib.contextmanager
def bar(label: str, unit: str = 'image') -> Iterator[Callable[[int, int], None]]:
  """Shows a line on stderr with the steps done, the pace and the remaining time.

    with progress.bar('vanilla') as show:
      batches.run(model, 'vanilla', prompts, progress=show)

  Args:
    label: the job; the beginning of the line.
    unit: the unit of the steps.

  Yields:
    `(done, total) -> None`, to be called after each step.
  """
  # In a log file each update is a new line, so updates are rare.
  interval = 0.2 if sys.stderr.isatty() else 30.0
  with contextlib.ExitStack() as stack:
    lines: list[tqdm.tqdm] = []

    def show(done: int, total: int) -> None:
      if not lines:  # The clock starts with the first step, after compilation.
        lines.append(stack.enter_context(tqdm.tqdm(
            desc=label, total=total, unit=unit, mininterval=interval, maxinterval=interval,
            dynamic_ncols=True, leave=False)))
      lines[0].update(done - lines[0].n)

    yield show


def say(line: str) -> None:
  """Prints a line, above the progress bar if one is shown."""
  tqdm.tqdm.write(line, file=sys.stdout)
  sys.stdout.flush()
