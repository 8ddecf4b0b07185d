"""Differences between two decoders from images of the same seeds.

If two decoders generate similar images from the same seed, the difference of each pair varies much
less than the images do, so that few pairs resolve a small change: for a decoder that preserves
every image it is exactly 0, with a standard error of 0. Images of decoders that use a seed
differently have only the prompt in common, which still reduces the variation between prompts.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cspd_jax.generation.model import Model
from cspd_jax.metrics import base, likelihood, scenes

_LUMA = np.array([.299, .587, .114])  # Rec. 601 luma of red, green and blue.


class Statistic(NamedTuple):
  """A number of every image, `(sample, model) -> [N]`, with title, kinds of tokens and meaning."""

  title: str
  measure: Callable[[base.Sample, Model], np.ndarray]
  tokens: tuple[str, ...]
  meaning: str
  of_captions: bool = False


class Difference(NamedTuple):
  """A mean minus the baseline's, and its errors, for pairs and as if unrelated; NaN if unknown."""

  mean: float
  paired_error: float
  unpaired_error: float


def difference(values: np.ndarray, baseline: np.ndarray, captions: Sequence[str] | None = None
               ) -> Difference:
  """Compares numbers `[N]` of two decoders' images of equal seeds.

  With `captions`, `N` texts, images of one caption are related, and the errors are over captions.
  """
  values, baseline = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
  assert values.ndim == 1 and values.shape == baseline.shape and len(values), 'pairs'
  if not (np.isfinite(values).all() and np.isfinite(baseline).all()):
    return Difference(math.nan, math.nan, math.nan)
  of = np.unique(np.arange(len(values)) if captions is None else np.asarray(captions),
                 return_inverse=True)[1].reshape(-1)
  paired, *alone = (base.ratio(np.bincount(of, part), np.bincount(of))
                    for part in (values - baseline, values, baseline))
  return Difference(paired.mean, paired.standard_error,
                    math.hypot(*(part.standard_error for part in alone)))


def differences(sample: base.Sample, baseline: base.Sample, model: Model,
                names: Collection[str] | None = None) -> dict[str, Difference]:
  """Returns the difference of every statistic of the model's kind of tokens, by name.

  Both have the same conditions and seeds; `names` are keys of `STATISTICS`, None for all.
  """
  return {name: difference(statistic.measure(sample, model), statistic.measure(baseline, model),
                           sample.captions if statistic.of_captions else None)
          for name, statistic in STATISTICS.items() if model.table.tokens in statistic.tokens
          and (names is None or name in names)
          and (sample.captions is not None or not statistic.of_captions)}


def entries(values: Mapping[str, Difference]) -> dict[str, float | None]:
  """Converts differences to a row of a report, None for NaN; such as `nll_change`."""
  return base.finite({f'{name}_change{ending}': number for name, value in values.items()
                      for ending, number in zip(('', '_error', '_error_unpaired'), value)})


def _luma(sample: base.Sample, model: Model) -> np.ndarray:
  """The luma of the pixels, `[N, H, W]`, from 0 to 255."""
  return sample.once('luma', lambda: 127.5 * (
      np.clip(np.asarray(sample.images(model), np.float64), -1, 1) + 1) @ _LUMA)


def _detail(sample: base.Sample, model: Model) -> np.ndarray:
  luma = _luma(sample, model)
  return sum(np.abs(np.diff(luma, axis=axis)).mean(axis=(1, 2)) for axis in (1, 2)) / 2


_EVERY = ('discrete', 'continuous')
STATISTICS = {
    'nll': Statistic('NLL', lambda *args: likelihood.measured(*args).nll, ('discrete',),
                     likelihood.NLL.meaning),
    'brightness': Statistic('brightness', lambda *args: _luma(*args).mean(axis=(1, 2)), _EVERY,
                            'mean luma of the pixels, from 0 to 255'),
    'contrast': Statistic('contrast', lambda *args: _luma(*args).std(axis=(1, 2)), _EVERY,
                          'standard deviation of that luma'),
    'detail': Statistic('detail', _detail, _EVERY,
                        'mean difference of the luma of adjacent pixels'),
    'asked': Statistic('asked', scenes.image_shares, _EVERY,
                       'share of what its caption asks for that an image shows', of_captions=True)}
