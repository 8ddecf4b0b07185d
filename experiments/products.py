"""Times the products of a feed-forward layer on a CPU: how XLA computes them, by number of rows.

  python -m experiments.products
  python -m experiments.products --sizes=768x2048,1280x3456 --rows=1,2,4,8

A decoder multiplies every matrix by a few rows in each round: tokens of the window, times guidance
streams, times images. Each column is one way to compile `x @ w`, in GFLOP/s:

XLA's choice       `w` is `[inputs, outputs]`, as `jax.jit` compiles it
without YNNPACK    the same, computed by Eigen
by outputs         `w` is a `matrices.OutputMajor`, compiled by `programs.jit`, as in models
by outputs, Eigen  the same, computed by Eigen

As many matrices as a processor's cache does not hold are read in turn. Times are medians of
alternating runs. Writes report.json to --workdir.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import cli
from cspd_jax.core import fields, programs
from cspd_jax.files import matrices
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import timing
from cspd_jax.measure.tables import Table
from experiments.measured import check_lists, listed, write

_BYTES = 100e6  # Of the matrices that are read in turn.
_eigen = functools.partial(
    programs.jit, options={'xla_cpu_experimental_ynn_fusion_type': ''})
# Whether the matrices are stored by outputs, and how to compile, by the names in rows.
_WAYS: dict[str, tuple[bool, Callable[..., Any]]] = {
    'XLAs_choice': (False, jax.jit), 'without_YNNPACK': (False, _eigen),
    'by_outputs': (True, programs.jit), 'by_outputs_Eigen': (True, _eigen)}
_COLUMNS = {
    'inputs x outputs': '{size}', 'rows': '{rows}', "XLA's choice": '{XLAs_choice:.0f}',
    'without YNNPACK': '{without_YNNPACK:.0f}', 'by outputs': '{by_outputs:.0f}',
    'by outputs, Eigen': '{by_outputs_Eigen:.0f}'}


@dataclasses.dataclass(frozen=True)
class Flags:
  """Command-line flags.

  Attributes:
    sizes: inputs and outputs of the matrices.
    rows: rows of the products.
    repeats: timed runs of each, whose median is reported.
    workdir: folder of report.json.
  """

  sizes: tuple[str, ...] = ('256x704', '768x2048', '1280x3456', '3456x1280')
  rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
  repeats: int = 7
  workdir: str = 'runs/products'


def measured(size: str, flags: Flags) -> list[dict[str, Any]]:
  """Returns GFLOP/s of products with matrices of one size, a row per number of rows."""
  inputs, outputs = map(int, size.split('x'))
  rng, count = np.random.default_rng(0), max(1, round(_BYTES / (4 * inputs * outputs)))
  plain = [rng.standard_normal((inputs, outputs), np.float32) for _ in range(count)]
  stored = {False: jax.device_put(plain),
            True: jax.device_put([matrices.output_major(kernel, 1) for kernel in plain])}

  def products(x, kernels):
    return [matrices.einsum('rd,df->rf', x, kernel) for kernel in kernels]

  runs: dict[tuple[int, str], Callable[[], Any]] = {}
  for rows in flags.rows:
    x = jnp.asarray(rng.standard_normal((rows, inputs), np.float32))
    for way, (by_outputs, compile_way) in _WAYS.items():
      run = programs.compiled_for(compile_way(products), x, stored[by_outputs]).run
      runs[rows, way] = lambda run=run, x=x, kernels=stored[by_outputs]: run(x, kernels)
  times = timing.measure(runs, flags.repeats)
  gigaflops = lambda rows, way: 2e-9 * rows * inputs * outputs * count / times[rows, way].median
  return [dict(size=size, rows=rows, **{way: gigaflops(rows, way) for way in _WAYS})
          for rows in flags.rows]


@cli.command(flags=Flags())
def main(flags: Flags) -> None:
  jax.config.update('jax_platforms', 'cpu')
  check_lists(flags, 'sizes', 'rows')
  for rows in flags.rows:
    fields.check_whole('rows', rows, 'at least 1', 1)
  for size in flags.sizes:
    fields.require(all(side.isdecimal() and int(side) for side in size.split('x'))
                   and size.count('x') == 1, 'sizes', size, 'inputs x outputs, such as 768x2048')
  report = Report(flags.workdir)
  rows = [row for size in flags.sizes for row in listed(_COLUMNS, measured(size, flags))]
  write(report, flags, [Table('GFLOP/s of products', _COLUMNS, rows)])


if __name__ == '__main__':
  sys.exit(main())
