"""Kernels of NVIDIA GPUs: whether ours are used, and which ones XLA has chosen for products."""

import json
import os
import re
from collections.abc import Callable, Iterable

import jax
from absl import logging

from cspd_jax.core import fields, tracing

# Products that are calls of a library, by the start of their target.
_LIBRARIES = 'custom_call_target="__cublas', 'custom_call_target="__cudnn'
_CONFIG = ', backend_config='


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


def chosen(program: str) -> frozenset[str]:
  """Returns the products of a program optimised for a GPU, each with the kernel that computes it.

  `program` is its text, `jax.stages.Compiled.as_text()`. A product is a fusion with a `dot`, and
  its kernel the kind and the tiles of the fusion, or a call of a library, and its kernel the
  algorithm. Both are one text without names and positions in the source, so that
  `chosen(baseline) - chosen(program)` are the products of a baseline that a program lacks, or that
  another kernel computes.
  """
  bodies: dict[str, list[str]] = {}
  calls, products, body = [], [], None
  for line in program.splitlines():
    if start := re.match(r'(?:ENTRY )?%([\w.\-]+) \(.*\{$', line):
      body = bodies.setdefault(start[1], [])
    elif line == '}':
      body = None
    elif body is not None:
      body.append(line)
      if call := re.search(r' fusion\(.*, calls=%([\w.\-]+)', line):
        calls.append((call[1], line))
      elif any(target in line for target in _LIBRARIES):
        products.append(_unnamed([line]))
  with_dot = {name for name, lines in bodies.items() if any(' dot(' in line for line in lines)}
  return frozenset(products).union(
      f'{_unnamed(bodies[name])}\n{_config(line)}'
      for name, line in calls if name in with_dot)


def _unnamed(lines: Iterable[str]) -> str:
  """Instructions with numbers as names, without metadata and what concerns their schedule."""
  names: dict[str, str] = {}
  number = lambda match: names.setdefault(match[0], f'%{len(names)}')
  return re.sub(r'%[\w.\-]+', number, '\n'.join(
      re.sub(r', (?:metadata|frontend_attributes)=\{.*?\}(?=,|$)', '', line.partition(_CONFIG)[0])
      + _config(line) for line in lines))


def _config(line: str) -> str:
  """The configuration of an instruction's kernel; empty if it has none."""
  text = line.partition(_CONFIG)[2]
  if not text.startswith('{'):
    return ''
  config, _ = json.JSONDecoder().raw_decode(text)
  # The other fields describe the schedule, which differs from program to program.
  kernel = {name: value for name, value in config.items()
            if name == 'sizes' or name.endswith('_config')}
  return f'{_CONFIG}{json.dumps(kernel, sort_keys=True)}' if kernel else ''
