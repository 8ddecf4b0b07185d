"""Runs of decoders of continuous tokens, and what is counted in them."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cspd_jax import checkpoint
from cspd_jax.continuous import cspd
from cspd_jax.continuous import exact_head as exact_head_lib
from cspd_jax.continuous import sample as sample_lib
from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.base import Target
from cspd_jax.continuous.blend import stored_rho
from cspd_jax.continuous.exact_path import exact_path
from cspd_jax.continuous.result import Generated
from cspd_jax.continuous.sampling import Sampling
from cspd_jax.models import mar
from experiments import inputs

# Decoders with a draft model: `(target, draft, gamma, pre-fill share, aligned)` to a decoder.
MODES: dict[str, Callable] = {
    'cspd_released': lambda target, draft, length, prefill, aligned: cspd.cspd_released(
        target, draft, length, prefill=prefill, aligned=aligned),
    'cspd_relaxed': lambda target, draft, length, prefill, aligned: cspd.cspd_relaxed(
        target, draft, length, prefill=prefill, aligned=aligned),
    'cspd_paper': lambda target, draft, length, prefill, aligned: cspd.cspd_paper(
        target, draft, length, prefill=prefill, aligned=aligned),
    'exact_path': lambda target, draft, length, prefill, aligned: exact_path(
        target, draft, length, prefill=prefill, aligned=aligned),
}
SUITES = ('table1', 'table3', 'table4', 'figures', 'head')


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
    prefill: share of tokens that the target fixes alone.
    aligned: whether the models share their noise.
    guidance_scale: of classifier-free guidance.
    temperature: of the kernels.
    guided: whether the null class runs at all.
  """

  mode: str
  length: int
  prefill: float
  guidance_scale: float
  temperature: float
  aligned: bool = True
  guided: bool = True

  @property
  def what(self) -> tuple:
    """The decoder's name, its options, and last whether there is guidance."""
    return self.mode, self.length, self.prefill, self.aligned, self.guided


def prepare(config: Any) -> Bench:
  """Loads the models and checks all options.

  Args:
    config: has the fields of `configs/mar_tables.py`.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  inputs.check_numbers(config, ('num_images', 'repeats'), {'seed': 2**32})
  suites = inputs.choices(config, 'suite', SUITES)
  modes = inputs.choices(config, 'decoder', list(MODES))
  for name in ('lengths', 'prefills', 'batch_sizes', 'scales', 'temperatures', 'head_lengths'):
    if not getattr(config, name):
      raise ValueError(f'{name} is empty; give at least one value.')
  if min(config.batch_sizes) < 1:
    raise ValueError(f'batch_sizes is {config.batch_sizes}; they must be at least 1.')
  model = inputs.load(config, 'model', 'mar')
  loaded = inputs.load(config, 'draft_model', 'mar')
  tokenizer = inputs.load(config, 'tokenizer', 'kl_vae')
  inputs.check_pair(config, 'tokenizer', 'z_channels', tokenizer, 'latent_channels', model)
  for size in ('height', 'width', 'token_dim', 'patch_size', 'num_classes'):
    inputs.check_pair(config, 'draft_model', size, loaded, size, model)
  make = lambda config, guided: mar.target(config, guided=guided)
  labels = np.arange(config.num_images, dtype=np.int32) % model.config.num_classes
  bench = Bench(
      config, suites, modes, model, tokenizer, loaded.params, make(model.config, True),
      make(model.config, False), make(loaded.config, True), make(loaded.config, False), labels)
  # Building checks the options of the decoders.
  for length in config.lengths:
    for prefill in {config.prefill, *config.prefills}:
      for mode in modes:
        MODES[mode](bench.target, bench.draft, length, prefill, True)
  for length in config.head_lengths:
    exact_head(bench, length, True)
  for scale in config.scales:
    for temperature in config.temperatures:
      decoder = sample_lib.mar(bench.target)
      decoder.check(labels, Sampling(scale, temperature))
      decoder.check(labels, Sampling(config.guidance_scale, config.temperature))
  return bench


def exact_head(bench: Bench, length: int, guided: bool):
  """The decoder of this name with the blend that the checkpoint holds."""
  schedule = schedule_lib.make()
  return exact_head_lib.exact_head(
      bench.target if guided else bench.plain, length, None, schedule,
      rho=stored_rho(schedule, bench.model.metadata, guided))


class Runner:
  """Decodes, and compiles every decoder once per batch size."""

  def __init__(self, bench: Bench):
    self._bench, self._compiled, self._done = bench, {}, {}

  def cell(self, cell: Cell) -> Generated:
    """All images of a cell, as one batch; computed once."""
    if cell not in self._done:
      run = self._run(cell.what, len(self._bench.labels))
      self._done[cell] = jax.device_get(run(cell.guidance_scale, cell.temperature))
    return self._done[cell]

  def head(self, length: int, guided: bool) -> Generated:
    """All images by `exact_head`."""
    scale = self._bench.config.guidance_scale if guided else 1.0
    run = self._run(('exact_head', length, guided), len(self._bench.labels))
    return jax.device_get(run(scale, self._bench.config.temperature))

  def seconds(self, names: Mapping[str, tuple], batch_size: int) -> dict[str, float]:
    """Wall-clock per image of several decoders in turns, compilation apart.

    Args:
      names: by name, a decoder as in `Cell.what`; also ('mar', guided),
        ('draft', guided): the draft model alone, ('parallel', length, prefill, guided) and
        ('exact_head', length, guided).
      batch_size: images that are decoded together.
    """
    config = self._bench.config
    runs = {name: self._run(what, batch_size) for name, what in names.items()}
    arguments = lambda what: (config.guidance_scale if what[-1] else 1.0, config.temperature)
    for name, run in runs.items():
      jax.block_until_ready(run(*arguments(names[name])))
    times = {name: [] for name in runs}
    for _ in range(config.repeats):
      for name, run in runs.items():
        start = time.perf_counter()
        jax.block_until_ready(run(*arguments(names[name])))
        times[name].append((time.perf_counter() - start) / batch_size)
    return {name: float(np.median(values)) for name, values in times.items()}

  def _decoder(self, what: tuple):
    """The decoder that `seconds` describes."""
    b = self._bench
    name, *options, guided = what
    target, draft = (b.target, b.draft) if guided else (b.plain, b.plain_draft)
    if name in MODES:
      return MODES[name](target, draft, *options)
    if name == 'exact_head':
      return exact_head(b, *options, guided)
    if name == 'draft':
      return sample_lib.mar(draft)
    if name == 'parallel':
      return sample_lib.parallel(target, options[0], prefill=options[1])
    return sample_lib.mar(target)

  def _run(self, what: tuple, batch_size: int):
    b = self._bench
    labels = jnp.resize(b.labels, batch_size)
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(b.config.seed), i))(
        jnp.arange(batch_size))
    params = b.draft_params if what[0] == 'draft' else b.model.params
    draft_params = b.draft_params if what[0] in MODES else None
    if (what, batch_size) not in self._compiled:
      self._compiled[what, batch_size] = jax.jit(self._decoder(what)).lower(
          params, labels, keys, Sampling(jnp.float32(1), jnp.float32(1)),
          draft_params).compile()
    run = self._compiled[what, batch_size]
    return lambda scale, temperature: run(
        params, labels, keys, Sampling(jnp.float32(scale), jnp.float32(temperature)),
        draft_params)


def figures(generated: Generated) -> dict[str, float | None]:
  """Means over images: acceptance of what the decoder tests, and its costs."""
  tested, accepted = int(generated.tested.sum()), int(generated.accepted.sum())
  mean = lambda leaf: float(np.mean(leaf))
  return dict(
      acceptance=accepted / tested if tested else None, rounds=mean(generated.rounds),
      target_passes=mean(generated.target_passes), draft_passes=mean(generated.draft_passes),
      head_calls=mean(generated.head_calls.sum(axis=1)), head_rows=mean(generated.head_rows),
      draws_per_replaced_token=float(generated.trials.sum() / (tested - accepted))
      if tested > accepted else None)


def by_place(generated: Generated) -> np.ndarray:
  """`[T]` share of accepted drafts at every place of the order; NaN where none was tested."""
  tested, accepted = (np.take_along_axis(leaf, generated.order, axis=1).sum(axis=0)
                      for leaf in (generated.tested, generated.accepted))
  return np.where(tested > 0, accepted / np.maximum(tested, 1), np.nan)


def in_grid(bench: Bench, leaf: np.ndarray) -> np.ndarray:
  """`[N, H, W]`: counts by position `[N, T]` in the grid."""
  return leaf.reshape(-1, bench.model.config.height, bench.model.config.width)


def row(cell: Cell, generated: Generated, **more: Any) -> dict[str, Any]:
  """A line of the tables."""
  return cell._asdict() | figures(generated) | more
