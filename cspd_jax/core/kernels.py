"""Whether kernels for NVIDIA GPUs are used: once they were tried out on the device."""

import os
from collections.abc import Callable

import jax
from absl import logging

from cspd_jax.core import fields, tracing


def work(name: str, variable: str, difference: Callable[[jax.Device], float],
                 tolerance: float) -> bool:
  """Whether this process has a GPU on which kernels return the same as plain operations.

  If they fail, a warning with their name is logged. The value 'plain' of the environment variable
  disables them; others than 'auto' raise ValueError. `difference` is `device -> float`, the largest
  error of a small example, of which `tolerance` is accepted.
  """
  setting = os.environ.get(variable, 'auto')
  fields.check_choice(f'the environment variable {variable}', setting, ('auto', 'plain'))
  if setting == 'plain':
    return False
  try:
    device = jax.local_devices(backend='cuda')[0]
  except RuntimeError:
    return False
  try:
    error = tracing.untraced(difference, device)
  except Exception as exception:  # cuDNN, Triton, XLA and JAX all have their own.
    logging.warning('%s does not run on %s (%s: %s); using plain operations.',
                    name, device, type(exception).__name__, exception)
    return False
  if not error <= tolerance:
    logging.warning('%s on %s is off by %.3g; using plain operations.', name, device, error)
  return error <= tolerance
