"""The cells of CSpD's tables: decoders with a setting, what they cost, how fast they are."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import cspd_jax
from cspd_jax.cli import inputs
from cspd_jax.continuous.context import BLOCK
from cspd_jax.core import programs
from cspd_jax.measure import rows as rows_lib, timing
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics.base import Sample

SUITES = ('table1', 'table3', 'table4', 'figures', 'head')
# Decoders with a draft model, and what they call the number of drafts.
MODES = {'cspd_released': 'block_length', 'cspd_relaxed': 'block_length',
         'cspd_paper': 'draft_length', 'exact_path': 'draft_length'}
# Those that keep to a schedule of passes, whatever is accepted.
BLOCK_MODES = ('cspd_released', 'cspd_relaxed')
# What an acceptance rate is a share of; no two of them can be compared.
_ACCEPTED = {
    'cspd_released': "drafts of a block that the released code's softened test keeps",
    'cspd_relaxed': 'drafts of a block that the bounded test keeps',
    'cspd_paper': "drafts up to the first rejection that the paper's test of the last kernel keeps",
    'exact_path': 'drafts up to the first rejection that the path test keeps',
    'exact_head': 'denoising kernels up to the first rejection that the test of one kernel keeps'}
_COSTS = ('rounds', 'target_passes', 'draft_passes', 'head_calls', 'head_rows')

# Seconds beyond which one timed run is enough.
_SLOW = 10.0


class Cell(NamedTuple):
  """One setting of a decoder with a draft model.

  Attributes:
    mode: a key of `MODES`.
    length: gamma.
    prefix_share: share of tokens that the target fixes alone.
    guidance_scale: of classifier-free guidance.
    temperature: of the kernels.
    aligned: whether the models share their noise.
  """

  mode: str
  length: int
  prefix_share: float
  guidance_scale: float
  temperature: float
  aligned: bool = True


class Lab:
  """Decodes cells, and neither decodes nor times anything twice.

  Attributes:
    config: has the fields of `configs/papers/cspd.py`.
    bench: the target and the images.
  """

  def __init__(self, config: Any):
    """Loads the model and checks all options.

    Raises:
      ValueError: for anything that cannot work, naming the option.
    """
    for name, known in (('suite', SUITES), ('decoder', tuple(MODES))):
      chosen = getattr(config, name)
      if not chosen or not set(chosen) <= set(known):
        raise ValueError(f'{name} is {",".join(chosen)!r}; it must be, with commas between, any of '
                         f'{", ".join(known)}.')
    for name in ('lengths', 'prefix_shares', 'batch_sizes', 'scales', 'temperatures',
                 'kernels_per_call'):
      if not getattr(config, name):
        raise ValueError(f'{name} is empty; give at least one value.')
    model = inputs.model(config)
    if model.engine.name != 'continuous' or 'model' not in model.drafts:
      raise ValueError(f'model is {config.model!r}; give one of continuous tokens with a draft '
                       'model.')
    prompts, seed = inputs.images(config.images, model)
    bench = lambda of: Bench(
        of, prompts, seed=seed, batch_size=config.batch_size,
        sampling=model.sampling(**inputs.overrides(config.sampling)))
    self.config, self.bench, self._draft = config, bench(model), bench(_draft_alone(model))
    self._speeds: dict[tuple, float] = {}
    self._check()

  def _check(self) -> None:
    """Builds every decoder once; that checks its options."""
    config = self.config
    for share in {config.prefix_share, *config.prefix_shares}:
      for length in config.lengths:
        for mode in config.decoder:
          self.bench.check(self.text(self.cell(mode, length, prefix_share=share)))
    for kernels in config.kernels_per_call:
      self.bench.check(self.exact_head(kernels))
    for scale in config.scales:
      for temperature in config.temperatures:
        self.bench.check(self.mar, self.sampling(scale, temperature))

  @property
  def model(self) -> cspd_jax.Model:
    """The model."""
    return self.bench.model

  @property
  def mar(self) -> str:
    """The baseline."""
    return f'mar(guidance={self.config.guidance})'

  def exact_head(self, kernels: int) -> str:
    """The decoder that speculates inside the head."""
    return f'exact_head(guidance={self.config.guidance}, kernels_per_call={kernels})'

  def parallel(self, length: int) -> str:
    """The target alone with as many passes as a decoder of `BLOCK_MODES`."""
    return (f'parallel(block_length={length}, guidance={self.config.guidance}, '
            f'prefix_share={self.config.prefix_share})')

  def text(self, cell: Cell) -> str:
    """The specification of a cell's decoder."""
    return (f'{cell.mode}(aligned={cell.aligned}, {MODES[cell.mode]}={cell.length}, '
            f'guidance={self.config.guidance}, prefix_share={cell.prefix_share})')

  def sampling(self, scale: float | None = None, temperature: float | None = None) -> Any:
    """Sampling options; those of the configuration where they are None."""
    own = self.bench.sampling
    return self.model.sampling(
        guidance_scale=own.guidance_scale if scale is None else scale,
        temperature=own.temperature if temperature is None else temperature)

  def cell(self, mode: str, length: int, **changes: Any) -> Cell:
    """The cell of a decoder and a draft length, with the settings of the configuration."""
    own = self.bench.sampling
    return Cell(mode, length, self.config.prefix_share, float(own.guidance_scale),
                float(own.temperature))._replace(**changes)

  def cells(self, mode: str, **changes: Any) -> list[Cell]:
    """One cell per draft length."""
    return [self.cell(mode, length, **changes) for length in self.config.lengths]

  def images(self, cell: Cell) -> Sample:
    """The images of a cell."""
    return self.bench.sample(
        self.text(cell), self.sampling(cell.guidance_scale, cell.temperature))

  def speeds(self, texts: Sequence[str], batch_size: int, sampling: Any = None) -> list[float]:
    """Seconds of `mar` per second of each decoder, compilation apart.

    They take turns with `mar`; 'draft' is the draft model alone.
    """
    sampling = self.bench.sampling if sampling is None else sampling
    name = lambda text: (text, batch_size, programs.is_guided(sampling))
    new = [text for text in dict.fromkeys(texts) if name(text) not in self._speeds]
    if new:
      runs = {text: (self._draft.run(self.mar, batch_size, sampling=sampling) if text == 'draft'
                     else self.bench.run(text, batch_size, sampling=sampling))
              for text in [self.mar, *new]}
      found = timing.measure(runs, self.config.repeats, warmup=0, enough=_SLOW)
      self._speeds |= {name(text): found[self.mar].median / found[text].median for text in new}
    return [self._speeds[name(text)] for text in texts]

  def row(self, cell: Cell, batch_size: int | None = None, **more: Any) -> dict[str, Any]:
    """A line of the tables; `acceptance_<mode>` is a column of its own for every mode."""
    sample = self.images(cell)
    return cell._asdict() | self.statement(
        cell.mode, self.text(cell), sample, batch_size) | more

  def statement(self, mode: str, text: str, sample: Sample,
                batch_size: int | None = None) -> dict[str, Any]:
    """What a row says about how it came about, and what it cost.

    Args:
      mode: the decoder's name.
      text: its specification.
      sample: its images.
      batch_size: images that are decoded together when times are taken. Counts are those of every
        image by itself and the same at any batch size.
    """
    guided = programs.is_guided(sample.sampling)
    decoder = self.bench.programs.decoder(text, guided)
    block = decoder.drafter is not None and decoder.stages[-1].context is BLOCK
    found = {metric.name: metric(sample, self.model).mean
             for metric in rows_lib.choose('continuous', (*_COSTS, 'acceptance'))}
    return dict(
        decoder=text, guided=guided, distribution=decoder.distribution,
        guarantee=decoder.guarantee, acceptance_is_share_of=_ACCEPTED[mode],
        contexts='block: drafts are verified without sight of the block they are in' if block else
        'true: every token is verified given all tokens before it',
        num_iter=self.model.num_tokens, num_levels=decoder.schedule.num_levels,
        guidance=decoder.guidance if guided else 'none',
        dtype=jax.tree.leaves(self.model.params)[0].dtype.name, compiled='yes',
        num_images=len(sample.tokens),
        batch=self.bench.batch_size if batch_size is None else batch_size,
        draws_per_replaced_token=draws_per_replaced_token(sample.decoded),
        **{f'acceptance_{mode}': None if np.isnan(found['acceptance']) else found['acceptance']},
        **{name: found[name] for name in _COSTS})


def _draft_alone(model: cspd_jax.Model) -> cspd_jax.Model:
  """The draft model as a model of its own."""
  draft = model.drafts['model']
  return dataclasses.replace(
      model, target=lambda *, guided: draft.build(guided), params=draft.params, drafts={},
      programs={})


def draws_per_replaced_token(decoded: Any) -> float | None:
  """Proposals that were looked at until one replaced a draft."""
  tests = decoded.tests
  replaced = int(tests.tested.sum() - tests.accepted.sum())
  return float(tests.trials.sum() / replaced) if replaced else None


def expected_speed(decoded: Any, draft_speed: float) -> float:
  """Speed over the target alone, if only passes cost anything.

  All passes count, so the prefix and a last block that is not full do too.

  Args:
    decoded: the images.
    draft_speed: speed of the draft model alone over the target alone.
  """
  passes = decoded.costs.target_passes + decoded.costs.draft_passes / draft_speed
  return float(decoded.order.shape[1] / np.mean(passes))


def by_place(decoded: Any) -> np.ndarray:
  """Measures the share of accepted drafts, `[T]`, by place in the order; NaN if none was tested."""
  tested, accepted = (np.take_along_axis(leaf, decoded.order, axis=1).sum(axis=0)
                      for leaf in (decoded.tests.tested, decoded.tests.accepted))
  return np.where(tested > 0, accepted / np.maximum(tested, 1), np.nan)
