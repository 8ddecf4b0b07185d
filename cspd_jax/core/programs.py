"""Compiles programs, with options for the device, and caches a model's.

Everything that multiplies matrices is compiled by `jit`, because XLA's own choice for a CPU is
neither the fastest nor, in every version, right: it lets a library (YNNPACK) compute products
together with the reductions after them, and in jaxlib 0.10 the sum over the leading axis of such a
fusion is wrong for many rows (issue 39103 of jax-ml/jax). `jit` leaves single products to that
library, which is fastest for a `core.matrices.OutputMajor`, and everything else to XLA. Programs
that decode compute sums in one go (`short_sums`): XLA's way, a tree of partial sums, is the more
accurate one for millions of terms only.

XLA records the kernels of a round as a CUDA graph, which the host launches once per round. With the
environment variable CSPD_JAX_GRAPHS=loop it records the whole decoding loop, so that the host
synchronises once per image. The variable has no effect on devices other than NVIDIA GPUs.

For a GPU, XLA times several kernels for a product and keeps the fastest, by the text of the product
and the kind of GPU. Two programs that are compiled at the same time would each time their own, and
round differently with another one, so that programs for NVIDIA GPUs are compiled one at a time. The
choice is kept in the process, and with JAX's compilation cache in a folder below that, which XLA
reads and writes (its option `xla_gpu_per_fusion_autotune_cache_dir`, which jax 0.10 and 0.11 set to
a folder for all versions; XLA does not tell them apart, so here it is one per GPU and jaxlib).
"""

import contextlib
import functools
import importlib.metadata
import os
import pathlib
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from cspd_jax.core import compilations, fields, tracing

Built = TypeVar('Built')
# `(arguments, text) -> None`: reads the text of a program that was compiled for these arguments.
Inspect = Callable[[tuple[Any, ...], str], None]

# The most programs that a model caches. On a CPU each uses up to 2000 of 65530 memory maps.
MOST = 16

# What a CPU's compiler gives to YNNPACK, and the kind of fusion that is one product.
_FUSIONS, _PRODUCTS = 'xla_cpu_experimental_ynn_fusion_type', 'LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT'
# The pass of XLA by which a CPU computes sums and maxima as trees, in up to four times the time.
_PASSES, _TREES = 'xla_disable_hlo_passes', 'tree_reduction_rewriter'
# For programs that run only a few times: compiling them takes longest.
UNOPTIMISED = {'xla_backend_optimization_level': 0}

# The parts of a program that can become one CUDA graph; the first is the default of XLA.
GRAPHS = ('round', 'loop')
_VARIABLE = 'CSPD_JAX_GRAPHS'
# The commands that XLA records by default, with loops and branches added.
_RECORDED = 'FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL'

# JAX's option of XLA for the folder of chosen kernels, and its setting that uses it.
_KEPT, _KEEPS = 'xla_gpu_per_fusion_autotune_cache_dir', 'jax_persistent_cache_enable_xla_caches'
_COMPILING = threading.RLock()


def jit(function: Callable[..., Any], graphs: str | None = None, *, label: str | None = None,
        short_sums: bool = False, options: Mapping[str, Any] = MappingProxyType({}),
        inspect: Inspect | None = None, **static: Any) -> Any:
  """Compiles a function as `jax.jit` does, with the compiler's options for the default device.

  Args:
    function: the function. Do not call the result while another function is traced.
    graphs: one of `GRAPHS`, else ValueError; by default the environment variable CSPD_JAX_GRAPHS.
    label: the name under which its compilations are reported; None does not report them.
    short_sums: whether no sum has more than about 2^18 terms, as in all programs that decode.
    options: further options of the compiler, such as `UNOPTIMISED`.
    inspect: called after every compilation for an NVIDIA GPU; None for no call.
    **static: other arguments of `jax.jit`.
  """
  if label is not None:
    function = compilations.labelled(label, function)
  chosen = {**(compiler_options(graphs, short_sums) or {}), **options}
  static['compiler_options'] = chosen or None
  return SerializedJit(function, inspect, **static) if on_cuda() else jax.jit(function, **static)


class SerializedJit:
  """A `jax.jit` with one lock of the process, held while it traces and compiles, in any thread.

  Calls that do not compile wait for nothing.
  """

  def __init__(self, function: Callable[..., Any], inspect: Inspect | None, **static: Any):
    """Jits a function as `jax.jit`; `inspect` is as for `jit`."""
    self._inspect, self._thread = inspect, threading.local()

    # JAX traces a function exactly when no compiled program fits its arguments.
    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
      _COMPILING.acquire()
      self._thread.traces.append(True)
      return function(*args, **kwargs)

    self._jitted = jax.jit(traced, **static)

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    with self._turn() as traces:
      result = self._jitted(*args, **kwargs)
      if traces and self._inspect is not None:
        # From JAX's cache in memory; arguments that were donated have kept their shapes.
        self._inspect(args, self._jitted.lower(*args, **kwargs).compile().as_text())
      return result

  def lower(self, *args: Any, **kwargs: Any) -> Any:
    """Lowers the function for these arguments, as `jax.jit` does."""
    with self._turn():
      return self._jitted.lower(*args, **kwargs)

  def compiled(self, *args: Any) -> 'Compiled':
    """Compiles the function for these arguments; the time does not include other programs."""
    with _COMPILING, self._turn() as traces:
      result = _compiled(self._jitted, *args)
      if traces and self._inspect is not None:
        self._inspect(args, result.run.as_text())
      return result

  @contextlib.contextmanager
  def _turn(self) -> Iterator[list[bool]]:
    """Ends the turn of this thread, if it has one afterwards; yields an entry per trace."""
    traces = self._thread.traces = []
    try:
      yield traces
    finally:
      for _ in traces:
        _COMPILING.release()


def jit_unless_traced(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
  """Returns a function that is compiled by `jit`, but part of a program while that is traced."""
  jitted = jit(function, **options)

  def call(*args: Any) -> Any:
    # JAX refuses options of the compiler for a part of a program.
    return (jitted if tracing.is_concrete(jnp.zeros(()), *args) else function)(*args)

  return call


class Compiled(NamedTuple):
  """A compiled program and the time to trace and compile it."""

  run: Any  # A `jax.stages.Compiled` for arguments of the same shapes.
  seconds: float


def compiled(function: Callable, *args: Any, graphs: str | None = None,
             label: str | None = None) -> Compiled:
  """Compiles a decoder's `function(*args)`, of arrays or their shapes, ahead of time; see `jit`."""
  return compiled_for(jit(function, graphs, label=label, short_sums=True), *args)


def compiled_for(jitted: Any, *args: Any) -> Compiled:
  """Compiles a jitted function for these arguments, whose calls then do not."""
  return (jitted.compiled if isinstance(jitted, SerializedJit) else
          functools.partial(_compiled, jitted))(*args)


def _compiled(jitted: Any, *args: Any) -> Compiled:
  start = time.perf_counter()
  run = jitted.lower(*args).compile()
  return Compiled(run, time.perf_counter() - start)


def compiler_options(graphs: str | None = None, short_sums: bool = False) -> dict[str, str] | None:
  """Returns the compiler options of `jit` for the default device; None without any."""
  graphs = os.environ.get(_VARIABLE, GRAPHS[0]) if graphs is None else graphs
  fields.check_choice(f'the environment variable {_VARIABLE}', graphs, GRAPHS)
  if on_cuda():
    recorded = {'xla_gpu_enable_command_buffer': _RECORDED} if graphs == 'loop' else {}
    folder = kept_kernels()
    return (recorded if folder is None else {_KEPT: str(folder)} | recorded) or None
  options = _options_of_cpus() if jax.devices()[0].platform == 'cpu' else None
  if options is None or short_sums:
    return options
  return {name: value for name, value in options.items() if name != _PASSES} or None


def kept_kernels() -> pathlib.Path | None:
  """Returns the folder where XLA keeps the kernels that it has chosen for the default device.

  It is in JAX's compilation cache. None without that, and if JAX or XLA_FLAGS choose otherwise.
  """
  root, keeps = jax.config.jax_compilation_cache_dir, getattr(jax.config, _KEEPS, None) or ''
  if (not root or not jax.config.jax_enable_compilation_cache or '://' in root
      or not (keeps == 'all' or _KEPT in keeps) or _KEPT in os.environ.get('XLA_FLAGS', '')):
    return None
  kind = re.sub(r'\W+', '_', jax.devices()[0].device_kind)
  return _usable(pathlib.Path(root, f'kernels-{kind}-{importlib.metadata.version("jaxlib")}'))


@functools.cache  # Once per process and folder.
def _usable(folder: pathlib.Path) -> pathlib.Path | None:
  """Returns a folder, created if necessary; None if it cannot be, or XLA has no such option."""
  try:
    folder.mkdir(parents=True, exist_ok=True)
    tracing.untraced(jax.jit(lambda: 0, compiler_options={_KEPT: str(folder)}))
  except Exception as error:  # Of the system, and of XLA, which has more than one.
    logging.warning('XLA cannot keep the kernels that it chooses in %s (%s), so another process '
                    'may choose others.', folder, error)
    return None
  return folder


@functools.cache  # Once per process.
def _options_of_cpus() -> dict[str, str] | None:
  """Returns the options of short sums on CPUs, but for those that XLA_FLAGS sets.

  None if all are set there, or this jaxlib does not have them. Warns if an example is
  computed wrongly with the options, or without them.
  """
  flags = os.environ.get('XLA_FLAGS', '')
  options = {name: value for name, value in ((_FUSIONS, _PRODUCTS), (_PASSES, _TREES))
             if name not in flags} or None
  try:
    wrong = tracing.untraced(wrong_rows, functools.partial(jax.jit, compiler_options=options))
  except Exception as error:  # Of XLA, which has more than one.
    if 'No such compile option' not in str(error):
      logging.warning('XLA does not accept %s (%s); compiling with its own choice, which may be '
                      'slower.', options, error)
    options, wrong = None, tracing.untraced(wrong_rows, jax.jit)
  if wrong:
    logging.warning('jax %s computes sums of products wrongly on this CPU (%d of 40001 rows of an '
                    'example), so images and metrics may be wrong; unset %s in XLA_FLAGS, or '
                    'install another version of jax. See docs/reliability.md.', jax.__version__,
                    wrong, _FUSIONS)
  return options


def uses_ynnpack() -> bool:
  """Returns whether programs for a CPU leave their products to YNNPACK, as far as `jit` decides."""
  return (_options_of_cpus() or {}).get(_FUSIONS) == _PRODUCTS


def wrong_rows(jit: Callable[..., Any]) -> int:
  """Counts the rows of 40,001 that an example compiled by `jit`, such as `jax.jit`, has wrong.

  The example sums the squares of a product over its leading axis; see docs/reliability.md.
  """
  rows = np.random.default_rng(0).standard_normal((40_001, 3)).astype(np.float32)
  sums = jit(jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2)))(jax.device_put(rows))
  want = (rows.astype(np.float64) ** 2).sum(axis=1)
  return int(np.sum(~np.isclose(jax.device_get(sums), want, rtol=1e-3)))


def on_cuda() -> bool:
  """Returns whether the default device is an NVIDIA GPU."""
  try:
    return jax.devices()[0] in jax.devices('cuda')
  except RuntimeError:  # JAX has no CUDA backend.
    return False


def get_or_build(kept: dict[Hashable, Any], name: Hashable, build: Callable[[], Built],
                 most: int = MOST) -> Built:
  """Returns what is kept under a name, such as a program, and builds it if it is missing.

  The name is everything that determines it. The least recently used ones are dropped beyond `most`.
  """
  kept[name] = kept.pop(name) if name in kept else build()
  while len(kept) > most:
    del kept[next(iter(kept))]
  return kept[name]
