"""Runs of decoders of continuous tokens, and what is counted in them."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax.core import checkpoint
from cspd_jax.continuous import cspd
from cspd_jax.continuous import decoders as decoders_lib
from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.blend import stored_rho
from cspd_jax.continuous.context import BLOCK
from cspd_jax.continuous.decoders import exact_head, exact_path
from cspd_jax.continuous.result import Decoded
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.models import mar
from experiments import inputs

# Decoders with a draft model.
MODES: dict[str, Callable] = {
    'cspd_released': cspd.cspd_released, 'cspd_relaxed': cspd.cspd_relaxed,
    'cspd_paper': cspd.cspd_paper, 'exact_path': exact_path}
# Those that keep to a schedule of passes, whatever is accepted.
BLOCK_MODES = ('cspd_released', 'cspd_relaxed')
# What an acceptance rate is a share of; no two of them can be compared.
ACCEPTED = {
    'cspd_released': "drafts of a block that the released code's softened test keeps",
    'cspd_relaxed': 'drafts of a block that the bounded test keeps',
    'cspd_paper': "drafts up to the first rejection that the paper's test of the last kernel keeps",
    'exact_path': 'drafts up to the first rejection that the path test keeps',
    'exact_head': 'denoising kernels up to the first rejection that the test of one kernel keeps'}
SUITES = ('table1', 'table3', 'table4', 'figures', 'head')

# Seconds beyond which one timed run is enough.
_SLOW = 10.0
# Compiled programs that are kept; those timed in turns should fit. On a CPU each takes up to two
# thousand memory maps, of which Linux grants a process 65530.
_PROGRAMS = 20


class Bench(NamedTuple):
  """What all runs share.

  Attributes:
    config: the configuration.
    suites: parts to be done.
    modes: keys of `MODES` to run.
    model: the target's checkpoint.
    tokenizer: the image tokenizer's checkpoint.
    draft_params: parameters of the draft model.
    target: the target with guidance.
    plain: the target without.
    draft: the draft model with guidance.
    plain_draft: the draft model without.
    labels: `[N]` int32 the class of every image.
  """

  config: Any
  suites: list[str]
  modes: list[str]
  model: checkpoint.Loaded
  tokenizer: checkpoint.Loaded
  draft_params: Any
  target: Target
  plain: Target
  draft: Target
  plain_draft: Target
  labels: np.ndarray


class Cell(NamedTuple):
  """One setting of a decoder with a draft model.

  Attributes:
    mode: a key of `MODES`.
    length: gamma.
    prefix_share: share of tokens that the target fixes alone.
    aligned: whether the models share their noise.
    guidance_scale: of classifier-free guidance.
    temperature: of the kernels.
    guided: whether the null class runs at all.
  """

  mode: str
  length: int
  prefix_share: float
  guidance_scale: float
  temperature: float
  aligned: bool = True
  guided: bool = True

  @property
  def what(self) -> tuple:
    """The decoder's name, its options, and last whether there is guidance."""
    return self.mode, self.length, self.prefix_share, self.aligned, self.guided


def prepare(config: Any) -> Bench:
  """Loads the models and checks all options.

  Args:
    config: has the fields of `configs/mar_tables.py`.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  inputs.check_numbers(config, ('num_images', 'images_at_once', 'repeats'), {'seed': 2**32})
  suites = inputs.choices(config, 'suite', SUITES)
  modes = inputs.choices(config, 'decoder', list(MODES))
  for name in ('lengths', 'prefix_shares', 'batch_sizes', 'scales', 'temperatures', 'head_lengths'):
    if not getattr(config, name):
      raise ValueError(f'{name} is empty; give at least one value.')
  if min(config.batch_sizes) < 1:
    raise ValueError(f'batch_sizes is {config.batch_sizes}; they must be at least 1.')
  model = inputs.load(config, 'model', 'mar')
  loaded = inputs.load(config, 'draft_model', 'mar')
  tokenizer = inputs.load(config, 'tokenizer', 'kl_vae')
  inputs.check_pair(config, 'tokenizer', 'z_channels', tokenizer, 'latent_channels', model)
  inputs.check_mar_pair(config, loaded, model)
  make = lambda config, guided: mar.target(config, guided=guided)
  labels = np.arange(config.num_images, dtype=np.int32) % model.config.num_classes
  bench = Bench(
      config, suites, modes, model, tokenizer, loaded.params, make(model.config, True),
      make(model.config, False), make(loaded.config, True), make(loaded.config, False), labels)
  # Building checks the options of the decoders.
  for length in config.lengths:
    for prefix_share in {config.prefix_share, *config.prefix_shares}:
      for mode in modes:
        cell = Cell(mode, length, prefix_share, config.guidance_scale, config.temperature)
        build(bench, cell.what)
  for length in config.head_lengths:
    build(bench, ('exact_head', length, True))
  decoder = build(bench, ('mar', True))
  decoder.check(labels, Sampling(config.guidance_scale, config.temperature))
  for scale in config.scales:
    for temperature in config.temperatures:
      decoder.check(labels, Sampling(scale, temperature))
  return bench


def build(bench: Bench, what: tuple):
  """The decoder that a tuple describes.

  Args:
    bench: the models and the configuration.
    what: as in `Cell.what`; also ('mar', guided), ('draft', guided): the draft model alone,
      ('parallel', length, prefix_share, guided) and ('exact_head', length, guided).
  """
  name, *options, guided = what
  target, draft = ((bench.target, bench.draft) if guided else (bench.plain, bench.plain_draft))
  shared = dict(guidance=bench.config.guidance)
  if name in MODES:
    length, prefix_share, aligned = options
    return MODES[name](target, draft, length, prefix_share=prefix_share, aligned=aligned, **shared)
  if name == 'exact_head':
    schedule = schedule_lib.make()
    return exact_head(target, options[0], None, schedule, rho=stored_rho(
        schedule, bench.model.metadata, guided), **shared)
  if name == 'parallel':
    return decoders_lib.parallel(target, options[0], prefix_share=options[1], **shared)
  return decoders_lib.mar(draft if name == 'draft' else target, **shared)


class Runner:
  """Decodes, and neither decodes nor times anything twice."""

  def __init__(self, bench: Bench):
    self._bench, self._compiled, self._done = bench, {}, {}
    self._first, self._speeds = {}, {}  # By decoder and batch size: seconds of a run; speeds.

  @property
  def batch_size(self) -> int:
    """Images of a cell that are decoded together."""
    return min(self._bench.config.images_at_once, len(self._bench.labels))

  def cell(self, cell: Cell) -> Decoded:
    """All images of a cell."""
    return self._images(cell.what, cell.guidance_scale, cell.temperature)

  def head(self, length: int, guided: bool) -> Decoded:
    """All images by `exact_head`."""
    return self._images(('exact_head', length, guided), *self._sampling(guided))

  def speeds(self, decoders: Sequence[tuple], batch_size: int) -> list[float]:
    """Seconds of `mar` per second of each decoder, compilation apart.

    They take turns with `mar`. For a batch larger than the number of images there are further
    images of the same classes, so that all of the batch are different.

    Args:
      decoders: as for `build`; either all with guidance or all without.
      batch_size: images that are decoded together.
    """
    mar_too = ('mar', decoders[0][-1])
    new = [what for what in decoders if (what, batch_size) not in self._speeds]
    if new:
      seconds = self._seconds([mar_too, *new], batch_size)
      self._speeds |= {
          (what, batch_size): seconds[mar_too] / seconds[what] for what in new}
    return [self._speeds[what, batch_size] for what in decoders]

  def _seconds(self, decoders: Sequence[tuple], batch_size: int) -> dict[tuple, float]:
    """Median seconds of a run of every decoder."""
    for what in decoders:
      if (what, batch_size) not in self._first:
        self._run(what, batch_size, 0, *self._sampling(what[-1]))  # A first run is slower.
    times = {what: [] for what in decoders}
    for turn in range(self._bench.config.repeats):
      for what, found in times.items():
        if turn == 0 or self._first[what, batch_size] < _SLOW:
          found.append(self._run(what, batch_size, 0, *self._sampling(what[-1]))[1])
    return {what: float(np.median(found)) for what, found in times.items()}

  def _sampling(self, guided: bool) -> tuple[float, float]:
    config = self._bench.config
    return config.guidance_scale if guided else 1.0, config.temperature

  def _images(self, what: tuple, scale: float, temperature: float) -> Decoded:
    """All images, some at a time; what does not fill the last batch is cut off."""
    if (what, scale, temperature) not in self._done:
      count = len(self._bench.labels)
      parts = [self._run(what, self.batch_size, first, scale, temperature)[0]
               for first in range(0, count, self.batch_size)]
      self._done[what, scale, temperature] = jax.tree.map(
          lambda *leaves: np.concatenate(leaves)[:count], *parts)
    return self._done[what, scale, temperature]

  def _run(self, what: tuple, batch_size: int, first: int, scale: float,
           temperature: float) -> tuple[Decoded, float]:
    """The images from number `first` on, and the seconds that they took."""
    b = self._bench
    numbers = jnp.arange(first, first + batch_size)
    labels = jnp.asarray(b.labels)[numbers % len(b.labels)]
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(b.config.seed), i))(numbers)
    params = b.draft_params if what[0] == 'draft' else b.model.params
    draft_params = b.draft_params if what[0] in MODES else None
    arguments = (params, labels, keys, Sampling(jnp.float32(scale), jnp.float32(temperature)),
                 draft_params)
    program = self._compiled.pop((what, batch_size), None)
    if program is None:
      program = jax.jit(build(b, what)).lower(*arguments).compile()
    while len(self._compiled) >= _PROGRAMS:
      del self._compiled[next(iter(self._compiled))]
    self._compiled[what, batch_size] = program  # The last one used is the last one.
    start = time.perf_counter()
    generated = jax.device_get(program(*arguments))
    seconds = time.perf_counter() - start
    self._first.setdefault((what, batch_size), seconds)
    return generated, seconds


def statement(bench: Bench, what: tuple, batch_size: int) -> dict[str, Any]:
  """What a row says about how it came about.

  Args:
    bench: the models and the configuration.
    what: as for `build`.
    batch_size: images that are decoded together when times are taken. Counts are those of every
      image by itself and the same at any batch size.
  """
  decoder, guided = build(bench, what), what[-1]
  block = decoder.drafter is not None and decoder.stages[-1].context is BLOCK
  return dict(
      distribution=decoder.distribution, guarantee=decoder.guarantee,
      acceptance_is_share_of=ACCEPTED[what[0]],
      contexts='block: drafts are verified without sight of the block they are in' if block else
      'true: every token is verified given all tokens before it',
      num_iter=bench.model.config.num_tokens, num_levels=decoder.schedule.num_levels,
      guidance=decoder.guidance if guided else 'none', dtype=bench.config.dtype, compiled='yes',
      num_images=len(bench.labels), batch=batch_size)


def acceptance(generated: Decoded) -> float | None:
  """Share of accepted ones among what the decoder tests."""
  tested, accepted = int(generated.tests.tested.sum()), int(generated.tests.accepted.sum())
  return accepted / tested if tested else None


def costs(generated: Decoded) -> dict[str, float | None]:
  """Means over images of what was done."""
  costs, tests = generated.costs, generated.tests
  replaced = int(tests.tested.sum() - tests.accepted.sum())
  mean = lambda leaf: float(np.mean(leaf))
  return dict(
      rounds=mean(generated.rounds), target_passes=mean(costs.target_passes),
      draft_passes=mean(costs.draft_passes),
      head_calls=mean(costs.head_calls.sum(axis=1)), head_rows=mean(costs.head_rows),
      draws_per_replaced_token=float(tests.trials.sum() / replaced) if replaced else None)


def expected_speed(generated: Decoded, draft_speed: float) -> float:
  """Speed over the target alone, if only passes cost anything.

  All passes count, so the prefix and a last block that is not full do too.

  Args:
    generated: the images.
    draft_speed: speed of the draft model alone over the target alone.
  """
  passes = generated.costs.target_passes + generated.costs.draft_passes / draft_speed
  return float(generated.order.shape[1] / np.mean(passes))


def by_place(generated: Decoded) -> np.ndarray:
  """`[T]` share of accepted drafts at every place of the order; NaN where none was tested."""
  tested, accepted = (np.take_along_axis(leaf, generated.order, axis=1).sum(axis=0)
                      for leaf in (generated.tests.tested, generated.tests.accepted))
  return np.where(tested > 0, accepted / np.maximum(tested, 1), np.nan)


def in_grid(bench: Bench, leaf: np.ndarray) -> np.ndarray:
  """`[N, H, W]`: counts by position `[N, T]` in the grid."""
  return leaf.reshape(-1, bench.model.config.height, bench.model.config.width)


def row(bench: Bench, cell: Cell, generated: Decoded, batch_size: int,
        **more: Any) -> dict[str, Any]:
  """A line of the tables; `acceptance_<mode>` is a column of its own for every mode."""
  rate = {f'acceptance_{cell.mode}': acceptance(generated)}
  return (cell._asdict() | statement(bench, cell.what, batch_size) | rate | costs(generated) |
          more)
