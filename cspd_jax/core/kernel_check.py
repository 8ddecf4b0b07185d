"""Checks that kernels for NVIDIA GPUs work, once per process, before they are used."""

import concurrent.futures
import os
from collections.abc import Callable

import jax
from absl import logging

_SETTINGS = ('auto', 'plain')


def passes(name: str, variable: str, difference: Callable[[jax.Device], float],
           tolerance: float) -> bool:
  """Whether this process has a GPU on which kernels return the same as plain operations.

  If they fail, a warning with their name is logged. The value 'plain' of the environment variable
  disables them; others than 'auto' raise ValueError. `difference` is `device -> float`, the largest
  error of a small example, of which `tolerance` is accepted.
  """
  if (setting := os.environ.get(variable, _SETTINGS[0])) not in _SETTINGS:
    raise ValueError(f'the environment variable {variable} is {setting!r}; it must be one of '
                     f'{", ".join(_SETTINGS)}.')
  if setting == 'plain':
    return False
  try:
    device = jax.local_devices(backend='cuda')[0]
  except RuntimeError:
    return False
  try:
    # JAX's tracing state is local to a thread, so a new thread runs this outside of any trace.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      error = pool.submit(difference, device).result()
  except Exception as exception:  # cuDNN, Triton, XLA and JAX all have their own.
    logging.warning('%s does not run on %s (%s: %s); using plain operations.',
                    name, device, type(exception).__name__, exception)
    return False
  if not error <= tolerance:
    logging.warning('%s on %s is off by %.3g; using plain operations.', name, device, error)
  return error <= tolerance
