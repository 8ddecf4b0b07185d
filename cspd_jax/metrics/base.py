"""The contract of metrics: `metric(sample, model) -> Value`.

A new metric is a file with a `Metric` in it and a line in `metrics.METRICS`; programs show it in
their tables and keep it in their reports without knowing it.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import jax
import numpy as np


class Value(NamedTuple):
  """What a metric says of some images.

  Attributes:
    mean: the figure; nan if it is not known.
    standard_error: of that figure over the images; nan if it is not known.
  """

  mean: float
  standard_error: float = math.nan


# Of a metric that cannot be told from what there is.
UNKNOWN = Value(math.nan)


def mean(values: np.ndarray) -> Value:
  """The mean of `[N]` values, one per image."""
  return ratio(values, np.ones(len(values)))


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> Value:
  """The quotient of two sums over images, with its standard error to first order.

  Args:
    numerators: `[N]`, one per image.
    denominators: `[N]`, as many.
  """
  a, b = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
  if not b.sum():
    return UNKNOWN
  found, count = a.sum() / b.sum(), len(a)
  if count < 2 or not np.isfinite(found):
    return Value(float(found))
  error = np.std(a - found * b, ddof=1) / (b.mean() * np.sqrt(count))
  return Value(float(found), float(error))


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
  """Images of one decoder.

  Attributes:
    decoded: what the decoder returned, `N` rows of NumPy arrays; see `generation.batches`.
    condition: what the images show, as the model's target takes it, with leading axis `N`.
    sampling: the sampling options, each a number or one per image.
    reference: images of the same distribution as the target's, drawn by an exact decoder with
      other seeds: a multiple `K N` of the images, `K` times the same conditions in their order.
      None if there are none.
    batch_size: images that networks look at together.
  """

  decoded: Any
  condition: Any
  sampling: Any
  reference: Optional['Sample'] = None
  batch_size: int = 16
  _cache: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

  @property
  def tokens(self) -> np.ndarray:
    """The tokens of the images, `[N, T, ...]`."""
    return self.decoded.tokens

  def images(self, model: Any) -> np.ndarray:
    """The pixels of the images, `[N, H, W, 3]` in [-1, 1]."""
    return self.once('images', lambda: self.batched(
        lambda condition, tokens, sampling: model.pixels(tokens)))

  def once(self, name: str, compute: Callable[[], Any]) -> Any:
    """What `compute` returns, computed when it is first asked for; metrics share it by name."""
    if name not in self._cache:
      self._cache[name] = compute()
    return self._cache[name]

  def batched(self, function: Callable[[Any, np.ndarray, Any], Any]) -> Any:
    """Calls `function(condition, tokens, sampling)` for all images, some at a time.

    The last batch is filled up with other images, so that a jitted function is compiled once.

    Returns:
      The results of all images, joined, as NumPy arrays.
    """
    count = len(self.tokens)
    size, parts = min(self.batch_size, count), []
    for first in range(0, count, size):
      rows = np.arange(first, first + size) % count
      condition, tokens, sampling = jax.tree.map(
          functools.partial(_rows, rows=rows), (self.condition, self.tokens, self.sampling))
      parts.append(jax.device_get(function(condition, tokens, sampling)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts)


def _rows(leaf: Any, rows: np.ndarray) -> Any:
  """The rows of what belongs to images; what all of them share stays as it is."""
  return np.asarray(leaf)[rows] if np.ndim(leaf) else leaf


class Metric(NamedTuple):
  """A metric and how it is shown.

  Attributes:
    name: its key in reports; `<name>_error` is the standard error.
    heading: of its column in tables, short.
    form: how the mean is written, such as '{:.2f}x'.
    measure: `(sample, model) -> Value`.
    engines: names of the engines whose decoders it can be asked about.
    group: 'work' for what a decode took; 'bound' for what it may do to the distribution;
      'fidelity' for what it did, which takes networks or other images to tell.
    meaning: what it says, in a line.
    phrase: how it is said in the title of images, such as '{:.0f} rounds'; '' if it is not.
    better: 'higher' or 'lower' values, or '' if neither is.
    tabled: whether it has a column in tables; reports hold it anyway.
  """

  name: str
  heading: str
  form: str
  measure: Callable[[Sample, Any], Value]
  engines: tuple[str, ...] = ('discrete',)
  group: str = 'work'
  meaning: str = ''
  phrase: str = ''
  better: str = ''
  tabled: bool = True

  def __call__(self, sample: Sample, model: Any) -> Value:
    return self.measure(sample, model)


def measure(metrics: Sequence[Metric], sample: Sample, model: Any) -> dict[str, Value]:
  """The values of metrics by name."""
  return {metric.name: metric(sample, model) for metric in metrics}


def entries(values: Mapping[str, Value]) -> dict[str, float | None]:
  """Values as a row of a report: mean and standard error, None where they are not known."""
  known = lambda number: float(number) if math.isfinite(number) else None
  result = {}
  for name, value in values.items():
    result |= {name: known(value.mean), f'{name}_error': known(value.standard_error)}
  return result


def columns(metrics: Sequence[Metric], errors: bool = False) -> dict[str, str]:
  """Columns of `measure.tables` for rows of `entries`, of the metrics that have one.

  Args:
    metrics: the metrics.
    errors: whether standard errors stand beside the means.
  """
  result = {}
  for metric in metrics:
    if not metric.tabled:
      continue
    form = metric.form.replace('{:', f'{{{metric.name}:')
    if errors:
      form += ' +- ' + metric.form.replace('{:+', '{:').replace('{:', f'{{{metric.name}_error:')
    result[metric.heading] = form
  return result
