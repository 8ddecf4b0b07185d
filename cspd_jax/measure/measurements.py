"""Measures decoders of one model with the registered metrics: the rows of a table."""

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cspd_jax import metrics as metrics_lib
from cspd_jax.core import fields, spec as spec_lib
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.measure import timing
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics.base import Metric, Sample


class Measurement(NamedTuple):
  """The measurements of a decoder."""

  decoder: str  # Its specification.
  # JSON values by name; `<name>_error` is a standard error over images, None was not measured.
  figures: dict[str, Any]
  sample: Sample  # Its images.


class Reference(NamedTuple):
  """Images of the baseline that the images of all decoders are compared with."""

  # The images: several times as many as a decoder's, and with other seeds.
  sample: Sample | None = None
  # For each metric without a standard error, its mean and standard deviation over sets of baseline
  # images. Each set has as many images as a decoder, with seeds of its own.
  noise: Mapping[str, tuple[float, float]] = types.MappingProxyType({})


def choose(tokens: str, names: Sequence[str] | None = None) -> tuple[Metric, ...]:
  """Returns the metrics with these names, None for all of this kind of tokens.

  Another name raises ValueError.
  """
  supported = {metric.name: metric for metric in metrics_lib.select(tokens)}
  if names is None:
    return tuple(supported.values())
  for name in names:
    fields.check_choice('a name in metrics', name, supported)
  return tuple(supported[name] for name in dict.fromkeys(names))


def supported_decoders(bench: Bench, specifications: Sequence[Any]
                       ) -> tuple[list[str], dict[str, str]]:
  """Returns the specifications of decoders that can run, and for the others the reason, by text."""
  runnable, left_out = [], {}
  for specification in specifications:
    try:
      bench.check(specification)
    except ValueError as error:
      left_out[str(specification)] = str(error)
    else:
      runnable.append(bench.text(specification))
  return list(dict.fromkeys(runnable)), left_out


def reference(bench: Bench, metrics: Sequence[Metric], sets: int | None) -> Reference:
  """Decodes `sets` times as many images with the baseline, for each of two seeds.

  The reference is empty if `sets` is None, or if no metric is of the group 'fidelity'.
  """
  fidelity = [metric for metric in metrics if metric.group == 'fidelity']
  if sets is None or not fidelity:
    return Reference()
  sample, others = bench.reference(sets)
  measured = [metrics_lib.measure(fidelity, other, bench.model) for other in others]
  noise = {}
  for name, value in measured[0].items():
    if np.isfinite(value.mean) and np.isnan(value.standard_error):
      means = [values[name].mean for values in measured]
      noise[name] = float(np.mean(means)), float(np.std(means, ddof=1))
  return Reference(sample, noise)


def each(bench: Bench, specifications: Sequence[str], metrics: Sequence[Metric],
         reference: Reference = Reference(), timed_images: int | None = None
         ) -> Iterator[Measurement]:
  """Decodes and measures specifications of decoders that can run; yields a row per decoder.

  `reference` is for metrics that require it. `timed_images` images are decoded one at a time,
  alternating with the baseline, to measure times; None measures none.
  """
  for text in specifications:
    sample, decoder = bench.sample(text), bench.check(text)
    compared = Sample(sample.decoded, sample.condition, sample.sampling, reference.sample,
                      sample.batch_size, sample.captions)
    drafter, *verifier = spec_lib.parse(text).parts
    equal = dict[str, float]()
    if decoder.guarantee.satisfies(Guarantee.UP_TO_ROUNDING):
      equal = _equal(bench, sample, bench.same_shapes(text))
    figures = dict(
        decoder=text, drafter=str(drafter), verifier=str(verifier[0]) if verifier else None,
        # Known once the program of the baseline in windows is compiled, too.
        guarantee=bench.images(text).sampler.guarantee,
        **metrics_lib.entries(metrics_lib.measure(metrics, compared, bench.model)),
        **dict(equal_to_baseline=None, equal_in_window=None) | equal)
    if timed_images is not None:
      figures |= _times(bench, text, timed_images)
    yield Measurement(text, figures, compared)


def _equal(bench: Bench, sample: Sample, in_window: str) -> dict[str, float]:
  """Returns the fractions of images equal to the baseline's, without and with a window."""
  share = lambda name: float(np.mean(np.all(sample.tokens == bench.sample(name).tokens, axis=1)))
  equal = dict(equal_to_baseline=share(bench.baseline))
  # A window of the same length has the same shapes and therefore the same rounding.
  if equal['equal_to_baseline'] < 1:
    same_shapes, _ = supported_decoders(bench, [in_window])
    if same_shapes:
      equal['equal_in_window'] = share(same_shapes[0])
  return equal


def _times(bench: Bench, text: str, images: int) -> dict[str, float]:
  run, decoded = bench.run(text, batches=images), []
  times = timing.measure({'baseline': bench.run(bench.baseline, batches=images),
                          'decoder': lambda: decoded.extend(run())}, 1, warmup=0)
  # There may be more images than in a sample, so these are the rounds of the timed ones.
  seconds, rounds = times['decoder'].median, sum(float(each.rounds.sum()) for each in decoded)
  return dict(speedup=times['baseline'].median / seconds, ms_per_round=1e3 * seconds / rounds,
              seconds_per_image=seconds / images)
