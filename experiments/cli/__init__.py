"""What programs share: the command line, configurations, checks before the work."""

from experiments.cli.wrapper import program

__all__ = ('program',)
