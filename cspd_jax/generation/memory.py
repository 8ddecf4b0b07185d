"""Memory of parameters, caches and decoding, computed from shapes and dtypes alone.

Nothing is allocated or compiled, so models that were only described (`families.describe`) work too.
An `Estimate` compares what a decode needs with what is free on the device, before it compiles.
"""

import math
import pathlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import sharding
from cspd_jax.continuous import base as continuous
from cspd_jax.core import matrices, random as random_lib
from cspd_jax.core.decoder import AnyDecoder
from cspd_jax.core.spec import Spec
from cspd_jax.decoding import continuous_batching
from cspd_jax.decoding.base import Condition, Params, Target

# The part of the free memory that a batch size is chosen for. Compiled programs need up to a
# quarter more than the estimate.
_SHARE = 0.75
# Where Linux reports the memory of the machine and of control groups.
_MEMINFO, _GROUPS = pathlib.Path('/proc/meminfo'), pathlib.Path('/sys/fs/cgroup')
_OWN_GROUPS = pathlib.Path('/proc/self/cgroup')
# Files of a control group: limit, usage, and the names of reclaimable pages in memory.stat.
_FILES = (('memory.max', 'memory.current', ('inactive_file', 'active_file')),
          ('memory.limit_in_bytes', 'memory.usage_in_bytes',
           ('total_inactive_file', 'total_active_file')))


def size(tree: Any) -> float:
  """Returns the bytes of all leaves of a tree, arrays or `jax.ShapeDtypeStruct`s."""
  return float(sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
                   for leaf in jax.tree.leaves(tree)))


def cache_size(target: Target | continuous.Target, params: Params, condition: Condition,
               num_slots: int) -> float:
  """Returns the bytes of a target's cache with its condition; 0 for masked models, without one.

  Parameters and condition are arrays or shapes; `num_slots` are the image tokens that it has room
  for. With guidance, it holds both streams.
  """
  def cache(params, condition):
    cached = target if isinstance(target, Target) else target.cached
    return () if cached is None else cached.prefill(params, condition, num_slots)[-1]

  return size(jax.eval_shape(cache, params, condition))


def live_cache(target: Target | continuous.Target, params: Params, condition: Condition) -> float:
  """Returns the bytes of the cache that a round reads on average over an image.

  That is the part for the condition, arrays or shapes, and half of the image's tokens.
  """
  return cache_size(target, params, condition, target.num_tokens // 2)


class Estimate(NamedTuple):
  """The memory that a decode needs on each of its devices, about, and the memory that is free.

  Compiled programs need 0.7 to 1.25 times as much.

  Attributes:
    per_image: bytes that an image carries from round to round.
    fixed: bytes of parameters still to be placed, and of their copies.
    free: bytes that are free; None if unknown.
    groups: of devices, over which images are divided.
    queue: the number of images, if rows that are complete start the next image; otherwise 0.
    intermediate: maps the images of a group to bytes of a round's intermediate results.
  """

  per_image: float
  fixed: float
  free: float | None
  groups: int = 1
  queue: int = 0
  intermediate: Callable[[int], float] = lambda num_rows: 0.0

  def needed(self, batch_size: int) -> float:
    """Returns the bytes that decoding `batch_size` images at once needs on each device."""
    rows = -(-batch_size // self.groups)
    waiting = continuous_batching.group(batch_size) if 1 < batch_size < self.queue else 0
    return self.fixed + (rows + waiting) * self.per_image + self.intermediate(rows)

  def fits(self, batch_size: int, share: float = 1.0) -> bool:
    """Returns whether `batch_size` images fit in a share of the free memory, or it is unknown."""
    return self.free is None or self.needed(batch_size) <= share * self.free

  def most(self, batch_size: int) -> int:
    """Returns the most images, at most `batch_size`, that fit with a margin; at least 1."""
    # One by one: fewer images may need more, for rows that wait or for tables that are not stored.
    sizes = range(batch_size, 1, -1)
    return next((size for size in sizes if self.fits(size, _SHARE)), 1)


def needed_of_slots(needs: Sequence[Estimate], num_slots: int) -> float:
  """Returns the bytes that `num_slots` slots of each of several decoders need, about.

  All keep their state, and one decoder runs at a time: rounds, or a prefill, whose image has a
  state of its own until that is in its slot.
  """
  return num_slots * sum(part.per_image for part in needs) + max(
      part.fixed + max(part.intermediate(num_slots), part.per_image) for part in needs)


def per_image(decoder: AnyDecoder, params: Params, condition: Condition, sampling: Any,
              draft_params: Params = None) -> tuple[float, float]:
  """Returns the bytes of what a round carries to the next one: of the cache, and of the rest.

  Condition and options are arrays, or shapes, of one image.
  """
  state = jax.eval_shape(
      lambda params, condition, sampling, draft_params: decoder.start(
          params, condition, random_lib.row_keys(jax.random.key(0), 1), sampling, draft_params),
      params, condition, sampling, draft_params)
  cache = size(state.cache)
  return cache, size(state) - cache


def estimate(model: Any, key: Hashable, decoder: AnyDecoder, condition: Any, sampling: Any,
             draft_params: Any = None, *, queue: int = 0) -> Estimate:
  """Estimates the memory of a decode of a `Model`.

  The bytes per image are kept under the key of the decoder's program. Condition and options are
  arrays of at least one image; `queue` is as for `Estimate`.
  """
  row = tuple(jax.tree.map(lambda leaf: leaf[:1] if np.ndim(leaf) else leaf, tree)
              for tree in (condition, sampling))
  name = key, jax.tree.structure(row), *((np.shape(leaf), jnp.result_type(leaf))
                                         for leaf in jax.tree.leaves(row))
  if name not in model.kept.estimates:
    model.kept.estimates[name] = per_image(decoder, model.params, row[0], row[1], draft_params)
  cache, rest = model.kept.estimates[name]
  devices, params = model.devices, (model.params, draft_params)
  groups = 1 if model.mesh is None else model.mesh.shape[sharding.DATA]
  # Within a group, the cache is divided as the parameters are, and everything else is not.
  placements = (getattr(leaf, 'sharding', None) for leaf in jax.tree.leaves(params))
  is_divided = any(place is not None and not place.is_fully_replicated for place in placements)
  parts = len(devices) // groups if is_divided else 1
  return Estimate(cache / parts + rest, _fixed(params, devices[0].platform), free(devices), groups,
                  queue, decoder.intermediate)


def _fixed(params: Any, platform: str) -> float:
  """Returns the bytes of parameters that a device does not hold yet, and of their copies.

  On CPUs, where XLA computes in float32, parameters in 16 bits have a copy in float32, and int8
  matrices one in the dtype of the others.
  """
  leaves = jax.tree.leaves(params)
  if platform != 'cpu':
    return size([leaf for leaf in leaves if not isinstance(leaf, jax.Array)])
  # XLA converts them once, before the rounds.
  narrow = [leaf for leaf in leaves if leaf.dtype in (jnp.bfloat16, jnp.float16)]
  rounded = size([leaf for leaf in leaves if leaf.dtype == jnp.int8])
  return 2 * size(narrow) + rounded * (2 if narrow else 4)


def check(model: Any, specification: str | Spec, needs: Estimate, batch_size: int,
          argument: str = 'batch_size') -> None:
  """Raises ValueError if decoding `batch_size` images at once clearly does not fit in memory.

  `argument` is the one that sets their number: 'batch_size' or 'prompts'.
  """
  if argument == 'prompts':
    needs = needs._replace(queue=0, groups=1)  # No image waits, and every group has all of them.
  if needs.free is None or needs.fits(batch_size):
    return
  images = f'{batch_size} image{"s"[:batch_size != 1]}'
  subject = f'batch_size is {batch_size}' if argument == 'batch_size' else f'prompts has {images}'
  remedies = []
  if batch_size > 1 and needs.fits(1):
    most = needs.most(batch_size)
    remedies.append(f'pass batch_size={most} or less' if argument == 'batch_size' else
                    f'pass at most {most} prompt{"s"[:most != 1]}')
  if model.devices[0].platform != 'cpu':  # Narrow parameters have wider copies there.
    loaded, cached = precision(model), has_cache(model)
    options = [option for option, helps in {
        "dtype='bfloat16'": loaded.get('dtype') == 'float32' and 'quantize' not in loaded,
        "quantize='int8'": cached and 'quantize' not in loaded,
        "cache_dtype='int8'": cached and 'cache_dtype' not in loaded,
        'sharding, a mesh of several devices': len(jax.devices()) > len(model.devices),
    }.items() if helps]
    if options:
      remedies.append(f'load the model with {" or ".join(options)}')
  raise ValueError(f'{subject}, but decoding {images} at once with {specification} needs at least '
                   f'{_gigabytes(needs.needed(batch_size))} of memory, and '
                   f'{_gigabytes(needs.free)} are free on {model.devices[0].device_kind}; '
                   f'{", or ".join(remedies) or "use a device with more memory"}.')


def precision(model: Any) -> dict[str, str]:
  """The options of `load` that round numbers, if set: dtype (of most), quantize, cache_dtype."""
  leaves = jax.tree.leaves(model.params, is_leaf=lambda leaf: isinstance(leaf, matrices.Int8))
  whole = [leaf for leaf in leaves if not isinstance(leaf, matrices.Int8)]
  options = {} if not whole else dict(dtype=str(max(whole, key=lambda leaf: leaf.size).dtype))
  if len(whole) < len(leaves):
    options['quantize'] = 'int8'
  return options if model.cache_dtype is None else options | dict(cache_dtype=model.cache_dtype)


def has_cache(model: Any) -> bool:
  """Whether the target of a `Model` caches keys and values; masked models do not."""
  target = model.target(False)
  return isinstance(target, Target) or target.cached is not None


def check_batch(batch_size: int, per_image: float, which: str = '') -> None:
  """Raises ValueError if a batch of images clearly does not fit in memory.

  Each needs at least `per_image` bytes, on the host and on the device; `which` describes them.
  """
  numbers = [number for number in (_available(), free(jax.devices()[:1])) if number is not None]
  least = min(numbers, default=math.inf)
  if batch_size * per_image > least:
    most, needed = int(_SHARE * least / per_image), _gigabytes(batch_size * per_image)
    raise ValueError(
        f'batch_size is {batch_size}, but {batch_size} image{"s"[:batch_size != 1]}{which} at once '
        f'need at least {needed} of memory, and {_gigabytes(least)} are free; '
        + (f'pass batch_size={most} or less.' if most else 'use smaller images.'))


def check_host(name: str, count: int, per_image: float, part: str) -> None:
  """Raises ValueError if what the host keeps of `count` images clearly does not fit in its memory.

  That is `part`, of at least `per_image` bytes each; `name` is the argument that sets their number.
  """
  available = _available()
  if available is not None and count * per_image > available:
    most, needed = int(_SHARE * available / per_image), _gigabytes(count * per_image)
    raise ValueError(
        f'{name} is {count}, but {part} of as many images need at least {needed} of memory on the '
        f'host, and {_gigabytes(available)} are free; '
        + (f'pass at most {most}.' if most else 'use a machine with more memory.'))


def _gigabytes(count: float) -> str:
  return f'{count / 1e9:.3g} GB'


def free(devices: Sequence[Any]) -> float | None:
  """Returns the bytes that are free on the device with the least; None if that is unknown.

  The devices of a CPU share the memory that is available to the process. Processes that share a
  mesh get the same number.
  """
  local = [device for device in devices if device.process_index == jax.process_index()]
  if all(device.platform == 'cpu' for device in local):
    available = _available()
    numbers = [None if available is None else available / max(len(local), 1)]
  else:
    numbers = [_left(device.memory_stats()) for device in local]
  least = min((math.inf if number is None else number for number in numbers), default=math.inf)
  if len(local) < len(devices):
    least = sharding.least(least)
  return None if least == math.inf else least


def _left(stats: dict[str, int] | None) -> float | None:
  """Returns the bytes that an accelerator's statistics report as free; None if they do not."""
  if stats is None or not {'bytes_limit', 'bytes_in_use'} <= stats.keys():
    return None
  return float(stats['bytes_limit'] - stats['bytes_in_use'])


def _available() -> float | None:
  """Returns the bytes of memory that are available to this process; None if that is unknown."""
  kilobytes = _numbers(_MEMINFO).get('MemAvailable:')  # Linux reports it.
  machine = None if kilobytes is None else 1024 * kilobytes
  numbers = [number for number in (machine, *map(_available_to_group, _groups()))
             if number is not None]
  return min(numbers, default=None)


def _groups() -> list[pathlib.Path]:
  """Returns the folders of the control groups that may limit the memory of this process."""
  folders = [_GROUPS, _GROUPS / 'memory']
  for line in _lines(_OWN_GROUPS):
    _, controllers, path = line.split(':', 2)
    if not controllers or 'memory' in controllers.split(','):
      root = _GROUPS / controllers
      own = root / path.strip('/')
      folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
  return list(dict.fromkeys(folders))


def _available_to_group(folder: pathlib.Path) -> float | None:
  """Returns the bytes that a control group can still use; None without a limit."""
  for limit, usage, reclaimable in _FILES:
    values = [_lines(folder / name) for name in (limit, usage)]
    if all(lines and lines[0].strip().isdecimal() for lines in values):
      stat = _numbers(folder / 'memory.stat')
      cached = sum(stat.get(name, 0) for name in reclaimable)
      return float(int(values[0][0]) - int(values[1][0]) + cached)
  return None


def _numbers(path: pathlib.Path) -> dict[str, int]:
  """Returns the first number of every line of a file by the word before it."""
  words = (line.split() for line in _lines(path))
  return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}


def _lines(path: pathlib.Path) -> list[str]:
  try:
    return path.read_text(encoding='utf-8', errors='replace').splitlines()
  except OSError:
    return []
