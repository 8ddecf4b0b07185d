"""Times products of a feed-forward layer on a CPU, and whole programs, by how XLA compiles them.

  python -m experiments.products
  python -m experiments.products --sizes=768x2048,1280x3456 --rows=1,2,4,8
  python -m experiments.products --sizes=256x704 --programs='image of demo'

A decoder multiplies every matrix by a few rows in each round: tokens of the window, times guidance
streams, times images. Each column of the first table is one way to compile `x @ w`, in GFLOP/s:

XLA's choice       `w` is `[inputs, outputs]`, as `jax.jit` compiles it
without YNNPACK    the same, computed by Eigen
by outputs         `w` is a `matrices.OutputMajor`, compiled by `programs.jit`, as in models
by outputs, Eigen  the same, computed by Eigen

As many matrices as a processor's cache does not hold are read in turn. The second table has the
milliseconds of whole programs, as `jax.jit` compiles them, without YNNPACK, by `programs.jit`, and
by it with `short_sums`, which only programs that decode use. Networks that are not shipped have
random parameters, of fewer layers than published. Times are medians of alternating runs. Writes
report.json to --workdir.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cspd_jax
from cspd_jax import cli
from cspd_jax.core import fields, matrices, programs
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import timing
from cspd_jax.measure.tables import Table
from cspd_jax.models import clip, inception, t5, vq
from cspd_jax.training import optimizer
from experiments.demo_models import recipe
from experiments.measured import listed, write

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
# How to compile whole programs, and the columns of their milliseconds.
_JITS: dict[str, Callable[..., Any]] = {
    'XLAs_choice': jax.jit, 'without_YNNPACK': _eigen, 'as_here': programs.jit,
    'short_sums': functools.partial(programs.jit, short_sums=True)}
_PROGRAM_COLUMNS = {
    'program': '{program}', "XLA's choice": '{XLAs_choice:.1f}',
    'without YNNPACK': '{without_YNNPACK:.1f}', '`programs.jit`': '{as_here:.1f}',
    'with `short_sums`': '{short_sums:.1f}'}
_IMAGES = 8


def _image_of_demo() -> tuple[Callable[..., Any], tuple[Any, ...]]:
  images = cspd_jax.load('demo').images(['cat'], seed=0, pixels=False)
  return images.sampler.function, images.sampler.arguments(images, np.array([0]))


def _tokenizer(function: Callable[..., Any], inputs: Any
               ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
  part = cspd_jax.load('emoji').tokenizer
  return _network(part.params, part.config, function, inputs)


def _training_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
  config, train = cspd_jax.load('demo').config, recipe.ARTrainConfig()
  batch = jnp.zeros((_IMAGES, config.num_tokens), jnp.int32), jnp.zeros(_IMAGES, jnp.int32)

  def step(state, batch):
    loss = lambda params: recipe.loss(params, batch, jax.random.key(0), config, train)
    return optimizer.step(state, loss, train.optimizer)

  return step, (recipe.start(config, train), batch)


def _random(module: Any, config: Any, function: Callable[..., Any], *inputs: Any
            ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
  return _network(module.init(config, jax.random.key(0)), config, function, *inputs)


def _network(params: Any, config: Any, function: Callable[..., Any], *inputs: Any
             ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
  return lambda params, *inputs: function(params, config, *inputs), (params, *inputs)


_images = lambda side: jnp.zeros((_IMAGES, side, side, 3))
# Every program, and arguments of it.
PROGRAMS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    'image of demo': _image_of_demo,
    'pixels to tokens': lambda: _tokenizer(vq.encode, _images(128)),
    'tokens to pixels': lambda: _tokenizer(vq.decode, jnp.zeros((_IMAGES, 16, 16), jnp.int32)),
    'training step': _training_step,
    'T5': lambda: _random(t5, t5.T5Config(num_layers=2), t5.encode,
                          jnp.zeros((1, 120), jnp.int32), jnp.ones((1, 120), bool)),
    'CLIP': lambda: _random(clip, clip.CLIPConfig(image_layers=4, text_layers=1),
                            clip.image_features, _images(224)),
    'Inception': lambda: _random(
        inception, inception.InceptionConfig(), inception.apply, _images(inception.SIDE))}


@dataclasses.dataclass(frozen=True)
class Flags:
  """Command-line flags.

  Attributes:
    sizes: inputs and outputs of the matrices.
    rows: rows of the products.
    programs: whole programs; by default all.
    repeats: timed runs of each, whose median is reported.
    workdir: folder of report.json.
  """

  sizes: tuple[str, ...] = ('256x704', '768x2048', '1280x3456', '3456x1280')
  rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
  programs: tuple[str, ...] = tuple(PROGRAMS)
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


def timed_program(name: str, flags: Flags) -> dict[str, Any]:
  """Returns the milliseconds of a program by the ways to compile it."""
  function, arguments = PROGRAMS[name]()
  runs = {way: functools.partial(programs.compiled_for(jit(function), *arguments).run, *arguments)
          for way, jit in _JITS.items()}
  times = timing.measure(runs, flags.repeats)
  return dict(program=name, **{way: 1e3 * times[way].median for way in runs})


@cli.command(flags=Flags())
def main(flags: Flags) -> None:
  jax.config.update('jax_platforms', 'cpu')
  fields.check_lists(flags, 'sizes', 'rows')
  for rows in flags.rows:
    fields.check_whole('rows', rows, 'at least 1', 1)
  for size in flags.sizes:
    fields.require(all(side.isdecimal() and int(side) for side in size.split('x'))
                   and size.count('x') == 1, 'sizes', size, 'inputs x outputs, such as 768x2048')
  for name in flags.programs:
    fields.check_choice('programs', name, PROGRAMS)
  report = Report(flags.workdir)
  rows = [row for size in flags.sizes for row in listed(_COLUMNS, measured(size, flags))]
  tables = [Table('GFLOP/s of products', _COLUMNS, rows)]
  if flags.programs:
    tables.append(Table('milliseconds of programs', _PROGRAM_COLUMNS, listed(
        _PROGRAM_COLUMNS, (timed_program(name, flags) for name in flags.programs))))
  write(report, flags, tables)


if __name__ == '__main__':
  sys.exit(main())
