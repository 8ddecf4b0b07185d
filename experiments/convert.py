"""Converts published weights to a model folder: `cspd-convert` by another name."""

import sys
from collections.abc import Sequence

from checkpoints_conversion import command


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command with the words of a command line, the program's name first."""
  return command.main(None if argv is None else argv[1:])


if __name__ == '__main__':
  sys.exit(main())
