"""Command lines: flags from dataclasses, configuration files, checks before the work."""

from cspd_jax.cli.wrapper import command, line, named

__all__ = ('command', 'line', 'named')
