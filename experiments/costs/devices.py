"""Accelerators to compile for on a machine that has none.

XLA compiles for a described device; what it needs comes with wheels that run on any CPU. Nothing is
timed: the kernels, what they read and where they copy are facts, times are arithmetic on them.
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

from cspd_jax.checkpoints import kinds
from cspd_jax.models import attention, fused_head

# As XLA describes it, with the versions that decide what becomes part of a CUDA graph.
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
# The versions in it that fused attention asks for.
_CUDNN, _CAPABILITY = 91000, (9, 0)
# So that libtpu looks for no machine, and lets other processes compile too.
_NO_TPU = dict(TPU_SKIP_MDS_QUERY='1', TPU_ACCELERATOR_TYPE='v5litepod-4',
               TPU_WORKER_HOSTNAMES='localhost', ALLOW_MULTIPLE_LIBTPU_LOAD='1')


class Accelerator(NamedTuple):
  """A device.

  Attributes:
    bandwidth: bytes per second of its main memory, as the vendor states it.
    flops: multiplications and additions per second in bfloat16, likewise.
    kernel_seconds: what a kernel costs beside its work: with CUDA graphs on a GPU.
    fast_memory: bytes beside the main memory in which XLA keeps parameters.
    cache: bytes of the second-level cache that all cores share; 0 if there is none.
    platform: XLA's name of it.
    topology: name of the smallest one.
    wheels: what compiles for it.
  """

  bandwidth: float
  flops: float
  kernel_seconds: float
  fast_memory: int
  cache: int
  platform: str
  topology: str
  wheels: tuple[str, ...]


ACCELERATORS = {
    # 50 MB of cache by NVIDIA's H100 architecture paper, the same chip; as XLA describes it above.
    'h200': Accelerator(4.8e12, 989e12, 1.5e-6, 0, 52428800, 'cuda', '1x1x1', (
        'jax-cuda12-plugin', 'jax-cuda12-pjrt', 'nvidia-cuda-nvcc-cu12')),
    'v5e': Accelerator(819e9, 197e12, 0.5e-6, 128 << 20, 0, 'tpu', 'v5e:2x2', ('libtpu',)),
}


def check(name: str) -> Accelerator:
  """The accelerator of this name, if it can be compiled for here.

  Raises:
    ValueError: if there is none of this name.
    ImportError: if wheels are missing, naming the command that installs them.
  """
  if name not in ACCELERATORS:
    raise ValueError(f'device is {name!r}; it must be one of {", ".join(ACCELERATORS)}.')
  found = ACCELERATORS[name]
  if missing := [wheel for wheel in found.wheels if not _is_installed(wheel)]:
    raise ImportError(
        f'device is {name!r}, for which {", ".join(missing)} must be installed; run '
        f'pip install --no-deps {" ".join(map(_pinned, found.wheels))}')
  return found


def describe(name: str) -> Any:
  """The device to compile for, as a JAX device; raises as `check` does."""
  found = check(name)
  if jax.config.jax_platforms is None:
    jax.config.update('jax_platforms', 'cpu')  # The wheels look for devices of theirs otherwise.
  if found.platform == 'cuda':
    topology = topologies.get_topology_desc(
        platform='cuda', target_config=_H200, topology=found.topology)
  else:
    for key, value in _NO_TPU.items():
      os.environ.setdefault(key, value)
    topology = topologies.get_topology_desc(found.topology, platform=found.platform)
  return topology.devices[0]


def compiled(function: Any, arguments: Any, device: Any,
             orders: Mapping[str, tuple[int, ...]] | None = None,
             options: Mapping[str, Any] | None = None) -> Any:
  """A function, compiled for a described device.

  Args:
    function: to be jitted.
    arguments: of the function; only shapes and dtypes are looked at.
    device: see `describe`.
    orders: order in memory of the axes of arguments; see `checkpoints.kinds.placement`.
    options: of the compiler, as `jax.jit` takes them.
  """
  place = jax.sharding.SingleDeviceSharding(device)

  def describe_one(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    shape = jax.ShapeDtypeStruct(jax.numpy.shape(leaf), leaf.dtype)
    return shape.update(sharding=kinds.placement(name, shape, place, orders or {}))

  described = jax.tree_util.tree_map_with_path(describe_one, arguments)
  with _fused() if device.platform == 'gpu' else contextlib.nullcontext():
    return jax.jit(function, compiler_options=options).lower(*described).compile()


@contextlib.contextmanager
def _fused() -> Iterator[None]:
  """Has programs for a GPU that is not there use the kernels that are tried on one that is."""
  # What JAX asks a device that is there.
  told: dict[str, Any] = dict(
      check_cudnn_version=lambda: _CUDNN,
      check_compute_capability=lambda version: _version(version) <= _CAPABILITY,
      is_cuda_compute_capability_equal=lambda version: _version(version) == _CAPABILITY)
  with contextlib.ExitStack() as stack:
    stack.enter_context(mock.patch.multiple(cudnn, **told))
    for module in (attention, fused_head):
      stack.enter_context(mock.patch.object(module, 'is_available', lambda: True))
    yield


def _version(text: str) -> tuple[int, ...]:
  return tuple(map(int, text.split('.')))


def _is_installed(wheel: str) -> bool:
  try:
    importlib.metadata.version(wheel)
  except importlib.metadata.PackageNotFoundError:
    return False
  return True


def _pinned(wheel: str) -> str:
  """A wheel with the version that goes with this version of JAX."""
  if wheel.startswith('jax-'):
    return f'{wheel}=={jax.__version__}'
  wanted = next((line.split(';')[0].strip() for line in importlib.metadata.requires('jax') or ()
                 if line.startswith(wheel)), wheel)
  return f'"{wanted}"' if wanted != wheel else wheel
