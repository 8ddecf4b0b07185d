"""Suggestions for names that do not exist: flags of commands and keyword arguments of functions."""

import difflib
from collections.abc import Collection

# Names of other programs and packages, and the name here.
ALIASES = {
    'cfg': 'guidance_scale', 'cfg_scale': 'guidance_scale',
    'guidance': 'guidance_scale', 'cfg_interval': 'guidance_interval',
    'seeds': 'seed', 'workdir': 'output', 'out': 'output', 'export': 'output',
    'output': 'workdir', 'checkpoint': 'model', 'target': 'model', 'ckpt': 'model',
    'batch': 'batch_size', 'n': 'num_images', 'num_samples': 'num_images',
    'precision': 'dtype'}


def nearest(name: str, supported: Collection[str]) -> str | None:
  """Returns the supported name that an unsupported one may mean, or None."""
  if (alias := ALIASES.get(name)) in supported:
    return alias
  return next(iter(difflib.get_close_matches(name, supported, n=1)), None)


def suggestion(name: str, supported: Collection[str]) -> str:
  """Returns a question to append to an error message, or '.' if no supported name is near."""
  near = nearest(name, supported)
  return '.' if near is None else f'; did you mean {near}?'
