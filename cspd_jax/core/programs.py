"""Compiled programs: those that a model keeps, and how decoders are compiled.

XLA records the kernels of a round as a CUDA graph, launched by the host once per round. With the
environment variable CSPD_JAX_GRAPHS=loop it records the whole decoding loop, so that the host waits
once per image. On other devices than NVIDIA GPUs that changes nothing.
"""

import os
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

Kept = TypeVar('Kept')

# Every program holds memory maps, up to two thousand on a CPU, of which Linux grants a process
# 65530.
MOST = 16

# What becomes one CUDA graph, XLA's choice first.
GRAPHS = ('round', 'loop')
_VARIABLE = 'CSPD_JAX_GRAPHS'
# What XLA records unless it is told otherwise, and then loops and branches too.
_RECORDED = 'FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL'


def jit(function: Callable[..., Any], graphs: str | None = None, **options: Any) -> Any:
  """Compiles a function that decodes, as `jax.jit` does.

  Args:
    function: to be compiled; not to be called while another function is traced.
    graphs: one of `GRAPHS`; None for what the environment says.
    **options: others of `jax.jit`.

  Raises:
    ValueError: if the environment variable CSPD_JAX_GRAPHS is none of them.
  """
  return jax.jit(function, compiler_options=compiler_options(graphs), **options)


class Compiled(NamedTuple):
  """A compiled program.

  Attributes:
    run: a `jax.stages.Compiled`, for the arguments of `compiled` or others of the same shapes.
    seconds: time to trace and compile.
  """

  run: Any
  seconds: float


def compiled(function: Callable, *args: Any, graphs: str | None = None) -> Compiled:
  """Compiles `function(*args)` ahead of time and tells how long that took.

  Args:
    function: to be compiled.
    *args: arrays, or what describes them.
    graphs: see `jit`.
  """
  start = time.perf_counter()
  run = jit(function, graphs).lower(*args).compile()
  return Compiled(run, time.perf_counter() - start)


def compiler_options(graphs: str | None = None) -> dict[str, str] | None:
  """What `jit` tells the compiler of the default device; None for nothing."""
  graphs = os.environ.get(_VARIABLE, GRAPHS[0]) if graphs is None else graphs
  if graphs not in GRAPHS:
    raise ValueError(f'the environment variable {_VARIABLE} is {graphs!r}; it must be one of '
                     f'{", ".join(GRAPHS)}.')
  if graphs == 'round' or not on_cuda():
    return None
  return {'xla_gpu_enable_command_buffer': _RECORDED}


def check_devices() -> None:
  """Raises ValueError if JAX cannot start on the devices that it is to use.

  What needs a device fails then in any way, as if its input were wrong.
  """
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:  # The latter without the package for a GPU.
    wanted = jax.config.jax_platforms
    reason = f' ({str(error).rstrip(".")})' if str(error) else ''
    raise ValueError(f'JAX_PLATFORMS is {wanted or "not set"}, and JAX cannot start on such a '
                     f'device{reason}; install JAX for it, or set JAX_PLATFORMS=cpu.') from error


def on_cuda() -> bool:
  """Whether the default device is an NVIDIA GPU."""
  try:
    return jax.devices()[0] in jax.devices('cuda')
  except RuntimeError:  # There is none.
    return False


def kept(model: Any, name: Hashable, make: Callable[[], Kept]) -> Kept:
  """What a model keeps under a name, made when it is first asked for; the oldest go.

  Args:
    model: has a dictionary `programs`.
    name: of the program: all that it was made from.
    make: makes it.
  """
  programs = model.programs
  programs[name] = programs.pop(name) if name in programs else make()
  while len(programs) > MOST:
    del programs[next(iter(programs))]
  return programs[name]


def is_guided(sampling: Any) -> bool:
  """Whether an image is drawn with guidance, so that the program runs the null condition."""
  return bool(np.any(np.asarray(sampling.guidance_scale) != 1))
