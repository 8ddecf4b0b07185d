"""Compiles for accelerators on a machine without one.

XLA compiles for a described device, with compilers from wheels that run on any CPU. Nothing is
timed: kernels, traffic and copies are facts of the program; times are computed from them.
"""

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from unittest import mock

import jax
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental import topologies

from cspd_jax.continuous.chains import draft_loop
from cspd_jax.core import fields
from cspd_jax.files import placement
from cspd_jax.models import attention, fused_head

# XLA's description of the device, with the versions that decide what becomes part of a CUDA graph.
_H200 = '''gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 151397597184 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 driver_version: "13.0.0"
  runtime_version: "12.9.0" compile_time_toolkit_version: "12.9.0" dnn_version: "9.10.0" }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H200"
'''
# The versions of it that JAX's fused attention checks.
_CUDNN, _CAPABILITY = 91000, (9, 0)
# Keeps libtpu from looking for a TPU, and lets several processes compile at once.
_NO_TPU = dict(TPU_SKIP_MDS_QUERY='1', TPU_ACCELERATOR_TYPE='v5litepod-4',
               TPU_WORKER_HOSTNAMES='localhost', ALLOW_MULTIPLE_LIBTPU_LOAD='1')


class Accelerator(NamedTuple):
  """A device."""

  bandwidth: float  # Bytes per second of its main memory, as stated by the vendor.
  flops: float  # Multiplications and additions per second in bfloat16, as stated by the vendor.
  kernel_seconds: float  # Launch overhead of a kernel; on a GPU, with CUDA graphs.
  fast_memory: int  # Bytes of an additional memory in which XLA stores parameters.
  platform: str  # XLA's name of the platform.
  topology: str  # XLA's name of the smallest topology.
  wheels: tuple[str, ...]  # The packages that compile for it.

  @property
  def balance(self) -> float:
    """Multiplications and additions that it does for each byte that it moves."""
    return self.flops / self.bandwidth


ACCELERATORS = {
    'h200': Accelerator(4.8e12, 989e12, 1.5e-6, 0, 'cuda', '1x1x1', (
        'jax-cuda12-plugin', 'jax-cuda12-pjrt', 'nvidia-cuda-nvcc-cu12')),
    'v5e': Accelerator(819e9, 197e12, 0.5e-6, 128 << 20, 'tpu', 'v5e:2x2', ('libtpu',)),
}


def check(name: str) -> Accelerator:
  """Returns the accelerator of this name; raises ValueError for an unknown one.

  If wheels that compile for it are missing, ImportError has the command that installs them.
  """
  fields.check_choice('device', name, ACCELERATORS)
  accelerator = ACCELERATORS[name]
  if missing := [wheel for wheel in accelerator.wheels
                 if not any(importlib.metadata.distributions(name=wheel))]:
    raise ImportError(
        f'device is {name!r}, for which {", ".join(missing)} must be installed; run '
        f'pip install --no-deps {" ".join(map(_pinned, accelerator.wheels))}')
  return accelerator


def describe(name: str) -> Any:
  """Returns a JAX device to compile for; raises the same errors as `check`."""
  accelerator = check(name)
  if jax.config.jax_platforms is None:
    jax.config.update('jax_platforms', 'cpu')  # Otherwise the wheels look for their devices.
  if accelerator.platform == 'cuda':
    topology = topologies.get_topology_desc(
        platform='cuda', target_config=_H200, topology=accelerator.topology)
  else:
    for key, value in _NO_TPU.items():
      os.environ.setdefault(key, value)
    topology = topologies.get_topology_desc(accelerator.topology, platform=accelerator.platform)
  return topology.devices[0]


def compiled(function: Any, arguments: Any, device: Any,
             orders: Mapping[str, tuple[int, ...]] | None = None,
             options: Mapping[str, Any] | None = None) -> Any:
  """Compiles a function for a described device, by shapes and dtypes of its arguments.

  `orders` are memory orders of parameters on a TPU, `options` compiler options as for `jax.jit`.
  """
  sharding = jax.sharding.SingleDeviceSharding(device)

  def shape_of(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    # Sampling options may be numbers of Python.
    shape = jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.numpy.result_type(leaf))
    return shape.update(sharding=placement.of(name, shape, sharding, orders or {}))

  shapes = jax.tree_util.tree_map_with_path(shape_of, arguments)
  with _fused_kernels() if device.platform == 'gpu' else contextlib.nullcontext():
    return jax.jit(function, compiler_options=options).lower(*shapes).compile()


@contextlib.contextmanager
def _fused_kernels() -> Iterator[None]:
  """Enables the fused GPU kernels, which JAX and the models otherwise enable on a real GPU only."""
  version = lambda text: tuple(map(int, text.split('.')))
  # JAX queries these versions from the real device.
  versions: dict[str, Any] = dict(
      check_cudnn_version=lambda: _CUDNN,
      check_compute_capability=lambda text: version(text) <= _CAPABILITY,
      is_cuda_compute_capability_equal=lambda text: version(text) == _CAPABILITY)
  with contextlib.ExitStack() as stack:
    stack.enter_context(mock.patch.multiple(cudnn, **versions))
    for module in (attention, draft_loop, fused_head):
      stack.enter_context(mock.patch.object(module, 'is_available', lambda: True))
    yield


def _pinned(wheel: str) -> str:
  """Returns a pip requirement with the version of a wheel that matches this version of JAX."""
  if wheel.startswith('jax-'):
    return f'{wheel}=={jax.__version__}'
  required = next((line.split(';')[0].strip() for line in importlib.metadata.requires('jax') or ()
                   if line.startswith(wheel)), wheel)
  return f'"{required}"' if required != wheel else wheel
