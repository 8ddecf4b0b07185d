"""Command lines: flags from dataclasses, configuration files, checks before the work."""

from cspd_jax.cli.wrapper import command, named

__all__ = ('command', 'named')
