"""The cells of CSpD's tables: decoders with settings, their costs and their speeds."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import cspd_jax
from cspd_jax.cli import groups
from cspd_jax.continuous.context import BLOCK
from cspd_jax.core import fields, programs
from cspd_jax.measure import measurements, timing
from cspd_jax.metrics.base import Sample
from experiments.measured import ModelImages, check_lists


@dataclasses.dataclass(frozen=True)
class Config(ModelImages):
  """The measurements.

  Attributes:
    suite: parts of the paper: table1, table3, table4, figures; and head.
    decoder: decoders with a draft model.
    guidance: 'linear', growing to the guidance scale as the image fills up, or 'constant'.
    lengths: draft lengths, gamma.
    most_contexts: the longest draft length of cspd_paper and exact_path, which run the target once
      per draft: at a length of 32, an image takes 20 times the passes of the target alone.
    prefix_share: share of tokens that the target alone generates in Tables 1 and 3 and the figures.
    prefix_shares: these shares in Table 4 and Figure 11.
    batch_sizes: batch sizes of the speeds in Table 1; the paper has 1, 8, 128 and 256.
    scales: guidance scales of Figure 13.
    temperatures: temperatures of Figure 14.
    kernels_per_call: parameters of exact_head.
    batch_size: images of a cell decoded together, and the batch size of the speeds in Table 4. If
      Table 1 has the same batch size, its programs are reused.
    repeats: timed runs, whose median is reported; only one if a run takes more than ten seconds.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading('mar_demo')
  suite: tuple[str, ...] = ('table1', 'table3', 'table4', 'figures', 'head')
  decoder: tuple[str, ...] = ('cspd_released', 'cspd_relaxed', 'cspd_paper', 'exact_path')
  images: groups.Images = groups.Images(num_images=8)
  guidance: str = 'linear'
  lengths: tuple[int, ...] = (4, 8, 16, 32)
  most_contexts: int = 4
  prefix_share: float = 0.05
  prefix_shares: tuple[float, ...] = (0.0, 0.05, 0.15)
  batch_sizes: tuple[int, ...] = (1, 8)
  scales: tuple[float, ...] = (1.0, 2.0, 4.0)
  temperatures: tuple[float, ...] = (0.9, 1.0, 1.05)
  kernels_per_call: tuple[int, ...] = (4, 8, 16, 32)
  batch_size: int = 8
  repeats: int = 3
  workdir: str = 'runs/papers/cspd'

  def __post_init__(self):
    fields.check(self, prefix_share=fields.SHARES, prefix_shares=fields.SHARES,
                 scales=fields.FINITE, temperatures=fields.FINITE)


# Decoders with a draft model, and the name of their parameter for the number of drafts.
MODES = {'cspd_released': 'block_length', 'cspd_relaxed': 'block_length',
         'cspd_paper': 'draft_length', 'exact_path': 'draft_length'}
# Decoders whose number of passes does not depend on what is accepted.
BLOCK_MODES = ('cspd_released', 'cspd_relaxed')
# The meaning of each acceptance rate; the rates of different decoders are not comparable.
_ACCEPTED = {
    'cspd_released': "drafts of a block that the released code's softened test accepts",
    'cspd_relaxed': 'drafts of a block that the bounded test accepts',
    'cspd_paper': 'drafts up to the first rejection that the test of the last kernel in the paper '
                  'accepts',
    'exact_path': 'drafts up to the first rejection that the path test accepts',
    'exact_head': 'denoising kernels up to the first rejection that the test of one kernel '
                  'accepts'}
_COSTS = ('rounds', 'target_passes', 'draft_passes', 'head_calls', 'head_rows')

# A run of more seconds than this is timed only once.
_SLOW = 10.0


class Cell(NamedTuple):
  """One setting of a decoder with a draft model; `length` is gamma, `mode` a key of `MODES`."""

  mode: str
  length: int
  prefix_share: float
  guidance_scale: float
  temperature: float
  aligned: bool = True


class Lab:
  """Decodes and times cells, and caches the results."""

  def __init__(self, config: Config):
    """Loads the model and checks all options."""
    for name, supported in (('suite', Config.suite), ('decoder', tuple(MODES))):
      names = getattr(config, name)
      if not names or not set(names) <= set(supported):
        raise ValueError(f'{name} is {",".join(names)!r}; it must be a comma-separated list of '
                         f'{", ".join(supported)}.')
    check_lists(config, 'lengths', 'prefix_shares', 'batch_sizes', 'scales', 'temperatures',
                'kernels_per_call')
    model = config.model()
    if model.engine.name != 'continuous' or 'model' not in model.drafts:
      raise ValueError(f'model is {config.loading.model!r}; give one of continuous tokens with a '
                       'draft model.')
    self.config, self.bench = config, config.bench(model, config.batch_size)
    self._draft = config.bench(_draft_alone(model), config.batch_size)
    self.model, self.mar = model, f'mar(guidance={config.guidance})'
    self._speeds: dict[tuple, float] = {}
    self._check()

  def _check(self) -> None:
    """Builds every decoder once, which checks its options."""
    config = self.config
    for share, length, mode in itertools.product(
        {config.prefix_share, *config.prefix_shares}, config.lengths, config.decoder):
      self.bench.check(self.text(self.cell(mode, length, prefix_share=share)))
    for kernels in config.kernels_per_call:
      self.bench.check(self.exact_head(kernels))
    for options in itertools.product(config.scales, config.temperatures):
      self.bench.check(self.mar, self.sampling(*options))

  def exact_head(self, kernels: int) -> str:
    """Returns the specification of the decoder that speculates inside the head."""
    return f'exact_head(guidance={self.config.guidance}, kernels_per_call={kernels})'

  def parallel(self, length: int) -> str:
    """Returns the specification of the target alone with as many passes as one of `BLOCK_MODES`."""
    return (f'parallel(block_length={length}, guidance={self.config.guidance}, '
            f'prefix_share={self.config.prefix_share})')

  def text(self, cell: Cell) -> str:
    """Returns the specification of a cell's decoder."""
    return (f'{cell.mode}(aligned={cell.aligned}, {MODES[cell.mode]}={cell.length}, '
            f'guidance={self.config.guidance}, prefix_share={cell.prefix_share})')

  def sampling(self, scale: float | None = None, temperature: float | None = None) -> Any:
    """Returns sampling options; None selects the value of the configuration."""
    options = self.bench.sampling
    return self.model.sampling(
        guidance_scale=options.guidance_scale if scale is None else scale,
        temperature=options.temperature if temperature is None else temperature)

  def cell(self, mode: str, length: int, **changes: Any) -> Cell:
    """Returns the cell of a decoder and a draft length, with the settings of the configuration."""
    sampling = self.bench.sampling
    return Cell(mode, length, self.config.prefix_share, float(sampling.guidance_scale),
                float(sampling.temperature))._replace(**changes)

  def cells(self, mode: str, **changes: Any) -> list[Cell]:
    """Returns one cell per draft length."""
    return [self.cell(mode, length, **changes) for length in self.lengths(mode)]

  def lengths(self, mode: str) -> tuple[int, ...]:
    """Returns the draft lengths of a decoder: at least the shortest."""
    c = self.config
    if mode in BLOCK_MODES:
      return c.lengths
    short = tuple(length for length in c.lengths if length <= c.most_contexts)
    return short or (min(c.lengths),)

  def images(self, cell: Cell) -> Sample:
    """Returns the images of a cell."""
    return self.bench.sample(
        self.text(cell), self.sampling(cell.guidance_scale, cell.temperature))

  def speeds(self, texts: Sequence[str], batch_size: int, sampling: Any = None) -> list[float]:
    """Measures speed-ups over `mar`, without compilation, in alternating runs.

    The text 'draft' is the draft model alone; None are the sampling options of the configuration.
    """
    sampling = self.bench.sampling if sampling is None else sampling
    name = lambda text: (text, batch_size, programs.is_guided(sampling))
    new = [text for text in dict.fromkeys(texts) if name(text) not in self._speeds]
    if new:
      runs = {text: (self._draft.run(self.mar, batch_size, sampling=sampling) if text == 'draft'
                     else self.bench.run(text, batch_size, sampling=sampling))
              for text in [self.mar, *new]}
      times = timing.measure(runs, self.config.repeats, warmup=0, enough=_SLOW)
      self._speeds |= {name(text): times[self.mar].median / times[text].median for text in new}
    return [self._speeds[name(text)] for text in texts]

  def row(self, cell: Cell, batch_size: int | None = None, **figures: Any) -> dict[str, Any]:
    """Returns a row of the tables; every mode has its own column `acceptance_<mode>`."""
    sample = self.images(cell)
    return cell._asdict() | self.statement(
        cell.mode, self.text(cell), sample, batch_size) | figures

  def statement(self, mode: str, text: str, sample: Sample,
                batch_size: int | None = None) -> dict[str, Any]:
    """Returns the settings, guarantees and costs that a row states.

    `batch_size` is that of timed runs; counts do not depend on it.
    """
    guided = programs.is_guided(sample.sampling)
    decoder = self.bench.decoder(text, guided)
    block = decoder.drafter is not None and decoder.stages[-1].context is BLOCK
    means = {metric.name: metric(sample, self.model).mean
             for metric in measurements.choose('continuous', (*_COSTS, 'acceptance'))}
    return dict(
        decoder=text, guided=guided, distribution=decoder.distribution,
        guarantee=decoder.guarantee, acceptance_is_share_of=_ACCEPTED[mode],
        contexts='block: drafts are verified without the other drafts of their block' if block else
        'true: every token is verified given all tokens before it',
        num_iter=self.model.num_tokens, num_levels=decoder.schedule.num_levels,
        guidance=decoder.guidance if guided else 'none',
        dtype=jax.tree.leaves(self.model.params)[0].dtype.name, compiled='yes',
        num_images=len(sample.tokens),
        batch=self.bench.batch_size if batch_size is None else batch_size,
        draws_per_replaced_token=draws_per_replaced_token(sample.decoded),
        **{f'acceptance_{mode}': None if np.isnan(means['acceptance']) else means['acceptance']},
        **{name: means[name] for name in _COSTS})


def _draft_alone(model: cspd_jax.Model) -> cspd_jax.Model:
  draft = model.drafts['model']
  return dataclasses.replace(
      model, target=lambda *, guided: draft.build(guided), params=draft.params, drafts={},
      programs={})


def draws_per_replaced_token(decoded: Any) -> float | None:
  """Returns the mean number of proposals tested per replaced draft; None if none was replaced."""
  tests = decoded.tests
  replaced = int(tests.tested.sum() - tests.accepted.sum())
  return float(tests.trials.sum() / replaced) if replaced else None


def expected_speed(decoded: Any, draft_speed: float) -> float:
  """Returns the speed-up over the target alone if only passes had a cost.

  Includes the passes of the prefix and of an incomplete last block. `draft_speed` is the speed-up
  of the draft model alone over the target alone.
  """
  passes = decoded.costs.target_passes + decoded.costs.draft_passes / draft_speed
  return float(decoded.order.shape[1] / np.mean(passes))


def acceptance_by_step(decoded: Any) -> np.ndarray:
  """Returns acceptance rates `[T]` by index in the generation order; NaN where none was tested."""
  tested, accepted = (np.take_along_axis(leaf, decoded.order, axis=1).sum(axis=0)
                      for leaf in (decoded.tests.tested, decoded.tests.accepted))
  return np.where(tested > 0, accepted / np.maximum(tested, 1), np.nan)
