"""Converts published weights to a checkpoint folder: `cspd-convert` by another name."""

import sys

from checkpoints_conversion import command

if __name__ == '__main__':
  sys.exit(command.main())
