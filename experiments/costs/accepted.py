"""Tokens per round of a decoder, from the report of a program that measured them."""

import os

from cspd_jax.checkpoints import reading
from cspd_jax.core import spec as spec_lib


def tokens_per_round(path: str | os.PathLike, text: str,
                     given: float | None = None) -> float | None:
  """Step compression of a decoder; 1 for vanilla, None if the report says nothing of it.

  Args:
    path: a report.json with rows of 'decoder' and 'step_compression'.
    text: the specification.
    given: what counts in place of the report, which is not read then; None for nothing.

  Raises:
    ValueError: if the file cannot be read as one.
  """
  wanted = spec_lib.parse(text)
  if wanted == spec_lib.parse('vanilla'):
    return 1.0
  if given is not None:
    return given
  report = reading.json(path, 'give another report, or tokens_per_round', 'accepted')
  try:
    known = {row['decoder']: float(row['step_compression']) for row in report['rows']}
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f'accepted is {str(path)!r}, which is no report with step_compression '
                     f'({type(error).__name__}: {error}); give another, or '
                     'tokens_per_round.') from error
  return next((value for name, value in known.items() if spec_lib.parse(name) == wanted), None)


def required(path: str | os.PathLike, text: str, given: float | None = None) -> float:
  """As `tokens_per_round`, where something must be known.

  Raises:
    ValueError: if nothing is, or if the file cannot be read.
  """
  found = tokens_per_round(path, text, given)
  if found is None:
    raise ValueError(f'decoder holds {text!r}, of which accepted ({str(path)!r}) says nothing; '
                     'give tokens_per_round.')
  return found
