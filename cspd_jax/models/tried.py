"""Kernels of NVIDIA GPUs that are tried once, on a few numbers, before a process uses them."""

import concurrent.futures
import os
from collections.abc import Callable

import jax
from absl import logging

_CHOICES = ('auto', 'plain')


def works(what: str, variable: str, difference: Callable[[jax.Device], float],
          tolerance: float) -> bool:
  """Whether this process has a GPU on which kernels give what plain operations give.

  If they fail there, that is logged.

  Args:
    what: the kernels, in words.
    variable: an environment variable that keeps them out if it is 'plain'.
    difference: `device -> number`: how far a small example on the device is from the plain one.
    tolerance: the largest difference of kernels that work.

  Raises:
    ValueError: if the environment variable is neither 'auto' nor 'plain'.
  """
  if (choice := os.environ.get(variable, _CHOICES[0])) not in _CHOICES:
    raise ValueError(f'the environment variable {variable} is {choice!r}; it must be one of '
                     f'{", ".join(_CHOICES)}.')
  if choice == 'plain':
    return False
  try:
    device = jax.local_devices(backend='cuda')[0]
  except RuntimeError:
    return False
  try:
    # A thread of its own stands outside of the program that is being traced, and of its modes.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      found = pool.submit(difference, device).result()
  except Exception as error:  # cuDNN, Triton, XLA and JAX all have their own.
    logging.warning('%s does not run on %s (%s: %s); plain operations serve.',
                    what, device, type(error).__name__, error)
    return False
  if not found <= tolerance:
    logging.warning('%s on %s is off by %.3g; plain operations serve.', what, device, found)
  return found <= tolerance
