"""Decoders of one model in rows: what each of them costs and gains, by the metrics there are."""

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cspd_jax import metrics as metrics_lib
from cspd_jax.core import spec as spec_lib
from cspd_jax.measure import timing
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics.base import Metric, Sample


class Row(NamedTuple):
  """A decoder.

  Attributes:
    decoder: its specification.
    figures: what is known of it, as JSON holds it; `<name>_error` is a standard error over
      images, and None is what there is not.
    sample: its images.
  """

  decoder: str
  figures: dict[str, Any]
  sample: Sample


class Reference(NamedTuple):
  """Images of the baseline that all others are compared with.

  Attributes:
    sample: many of them, with seeds of their own.
    noise: by metric, mean and standard deviation of what it says of as many images of the
      baseline as a row has, again with other seeds; for metrics without a standard error.
  """

  sample: Sample | None = None
  noise: Mapping[str, tuple[float, float]] = types.MappingProxyType({})


def choose(engine: str, names: Sequence[str] | None = None) -> tuple[Metric, ...]:
  """Metrics by name; all that can be asked about an engine's decoders if None.

  Raises:
    ValueError: for a name that is none of them.
  """
  known = {metric.name: metric for metric in metrics_lib.select(engine)}
  if names is None:
    return tuple(known.values())
  if unknown := [name for name in names if name not in known]:
    raise ValueError(
        f'metrics holds {unknown[0]!r}; it must be of {", ".join(known)}.')
  return tuple(known[name] for name in dict.fromkeys(names))


def able(bench: Bench, specifications: Sequence[Any]) -> tuple[list[str], dict[str, str]]:
  """Specifications of decoders that can run, and by specification, why others cannot."""
  chosen, left_out = [], {}
  for one in specifications:
    try:
      bench.check(one)
    except ValueError as error:
      left_out[str(one)] = str(error)
    else:
      chosen.append(bench.programs.text(one))
  return list(dict.fromkeys(chosen)), left_out


def reference(bench: Bench, metrics: Sequence[Metric], sets: int | None) -> Reference:
  """Decodes `sets` times the images with the baseline, for each of two seeds.

  There is none if `sets` is None, or no metric tells how good images are.
  """
  fidelity = [metric for metric in metrics if metric.group == 'fidelity']
  if sets is None or not fidelity:
    return Reference()
  sample, others = bench.reference(sets)
  found = [metrics_lib.measure(fidelity, other, bench.model) for other in others]
  noise = {}
  for name, value in found[0].items():
    if np.isfinite(value.mean) and np.isnan(value.standard_error):
      values = [one[name].mean for one in found]
      noise[name] = float(np.mean(values)), float(np.std(values, ddof=1))
  return Reference(sample, noise)


def rows(bench: Bench, specifications: Sequence[str], metrics: Sequence[Metric],
         reference: Reference = Reference(), timed_images: int | None = None) -> Iterator[Row]:
  """Decodes and measures, row by row.

  Args:
    bench: the model and the images.
    specifications: of decoders that can run.
    metrics: to measure.
    reference: for metrics that need it.
    timed_images: images that are decoded one by one, in turns with the baseline, for the times;
      None leaves them out.
  """
  for text in specifications:
    sample, decoder = bench.sample(text), bench.check(text)
    seen = Sample(
        sample.decoded, sample.condition, sample.sampling, reference.sample, sample.batch_size)
    drafter, *verifier = spec_lib.parse(text).parts
    figures = dict(
        decoder=text, drafter=str(drafter), verifier=str(verifier[0]) if verifier else None,
        guarantee=bench.model.engine.guarantee(decoder),
        **metrics_lib.entries(metrics_lib.measure(metrics, seen, bench.model)),
        equal_to_baseline=None, equal_in_window=None)
    if figures['guarantee'] == 'seed-exact':
      figures |= _equal(bench, sample, decoder.drafter.tree.num_nodes + 1)
    if timed_images is not None:
      figures |= _times(bench, text, sample, timed_images)
    yield Row(text, figures, seen)


def _equal(bench: Bench, sample: Sample, window: int) -> dict[str, float]:
  """Shares of images that are those of the baseline, and of the baseline in windows as long.

  The second is measured only where the first leaves something open: rounding alone makes images
  differ from the baseline's, and none from those of the same shapes.
  """
  share = lambda name: float(np.mean(np.all(sample.tokens == bench.sample(name).tokens, axis=1)))
  equal = dict(equal_to_baseline=share(bench.baseline))
  if equal['equal_to_baseline'] < 1:
    fitting, _ = able(bench, [f'{bench.baseline}(window={window})'])
    if fitting:
      equal['equal_in_window'] = share(fitting[0])
  return equal


def _times(bench: Bench, text: str, sample: Sample, images: int) -> dict[str, float]:
  """Figures of wall-clock at batch 1."""
  found = timing.measure({'baseline': bench.run(bench.baseline, batches=images),
                          'own': bench.run(text, batches=images)}, 1, warmup=0)
  seconds = found['own'].median
  return dict(speedup=found['baseline'].median / seconds,
              ms_per_round=1e3 * seconds / float(sample.decoded.rounds[:images].sum()),
              seconds_per_image=seconds / images)
