"""Measures one property of decoders of discrete tokens.

  python -m experiments.decoders --measure=overhead
  python -m experiments.decoders --measure=queue --decoder='mc_sjd,corrected' --num_images=64
  python -m experiments.decoders --measure=rounding --dtype=bfloat16 --num_images=256

overhead  the milliseconds per round of the whole jitted loop at batch 1, those of as many bare
          forward passes, and the share of the rest (drafting, verifying, committing; with a draft
          model its passes too)
queue     the rounds and times of images in rows that start the next image when one is complete, and
          in batches, each of which runs until its slowest row is complete, and the share of equal
          images; the rounds of an image include its prefill, those of batches and of the queue are
          forward passes over all rows without prefills
rounding  how often images of seed-exact decoders differ from images of `vanilla`, and of
          `vanilla(window=N)` with as many tokens per forward pass, which rounds alike; and how many
          log-probabilities differ in a bit from those in its images. A different token changes the
          context of all later tokens, so more differ than rounding affects

Times are medians of alternating runs. Writes report.json to --workdir.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from cspd_jax import cli
from cspd_jax.cli import groups
from cspd_jax.core import programs
from cspd_jax.core.batches import concatenated
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.decoding.tree import Budget
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import timing
from cspd_jax.measure.bench import Bench
from cspd_jax.measure.tables import Table
from experiments.measured import SampledImages, listed, write


@dataclasses.dataclass(frozen=True)
class Config(SampledImages):
  """The measurements.

  Attributes:
    measure: the property.
    decoder: specifications of decoders; None for those that the property is usually measured of.
    window: tokens per forward pass of decoders whose specification does not set it.
    batch_size: images decoded together; None for the usual number of the property.
    repeats: timed runs of each decoder, whose median is reported.
    workdir: folder of the results; by default that of the property in `runs`.
  """

  measure: Literal['overhead', 'queue', 'rounding'] = 'overhead'
  decoder: tuple[str, ...] | None = None
  window: int | None = None
  images: groups.Images = groups.Images()
  batch_size: int | None = None
  repeats: int = 3


class Measure(NamedTuple):
  """A property of decoders."""

  # Format strings by heading; that of the decoder follows only other texts.
  columns: Mapping[str, str]
  # `(bench, specification, repeats) -> ` the row of a decoder.
  row: Callable[[Bench, str, int], dict[str, Any]]
  # `(bench, specification) -> None`; raises ValueError for a decoder without the property.
  check: Callable[[Bench, str], None]
  decoders: tuple[str, ...]  # Specifications of decoders.
  window: int  # Tokens per forward pass.
  num_images: int  # Number of images.
  batch_size: int  # Images decoded together.


def overhead(bench: Bench, text: str, repeats: int) -> dict[str, Any]:
  """Measures the milliseconds per round of a decoder, and of its forward passes alone."""
  decoder, whole = bench.check(text), bench.run(text)
  rounds = np.int32(bench.sample(text).decoded.rounds[0] - 1)
  condition = bench.model.condition(bench.prompts)
  forward = programs.compiled(
      timing.forward_passes(decoder.target, decoder.drafter.tree), bench.model.params, condition,
      rounds).run
  times = timing.measure(
      {'whole': whole, 'forward': lambda: forward(bench.model.params, condition, rounds)}, repeats)
  ms, forward_ms = (1e3 * times[name].median / int(rounds) for name in ('whole', 'forward'))
  return dict(decoder=text, ms_per_round=ms, ms_of_forward_pass=forward_ms,
              rest=1 - forward_ms / ms)


def _check_static(bench: Bench, text: str) -> None:
  if isinstance(bench.check(text).drafter.tree, Budget):
    raise ValueError(f'decoder {text} has a tree that is built at run time, so its forward '
                     'passes cannot be run alone; leave it out.')


def queue(bench: Bench, text: str, repeats: int) -> dict[str, Any]:
  """Measures rounds and seconds of a decoder, in batches and as a queue."""
  size, count, results = bench.batch_size, len(bench.prompts), {}
  runs = {'batches': bench.run(text, size, count // size), 'queue': bench.queue(text, size)}

  def run(name):
    results[name] = runs[name]()
    return results[name]

  timed = timing.measure({name: functools.partial(run, name) for name in runs}, repeats, warmup=0)
  seconds = {name: times.median / count for name, times in timed.items()}
  expected = concatenated(jax.device_get(results['batches']))
  order = np.argsort(np.concatenate([finished.image for finished in results['queue']]))
  tokens = np.concatenate([finished.decoded.tokens for finished in results['queue']])[order]
  return dict(
      decoder=text, rounds=float(expected.rounds.mean()), most_rounds=int(expected.rounds.max()),
      rounds_in_batches=int((expected.rounds.reshape(-1, size).max(axis=1) - 1).sum()),
      rounds_in_queue=sum(int(finished.rounds) for finished in results['queue']),
      seconds_in_batches=seconds['batches'], seconds_in_queue=seconds['queue'],
      speedup=seconds['batches'] / seconds['queue'],
      same_images=float((tokens == expected.tokens).all(axis=1).mean()))


def _check_batches(bench: Bench, text: str) -> None:
  size, count = bench.batch_size, len(bench.prompts)
  if count % size or count == size:
    raise ValueError(f'batch_size is {size} and there are {count} images; the number of images '
                     'must be a multiple of batch_size, and at least two batches.')


def rounding(bench: Bench, text: str, repeats: int) -> dict[str, Any]:
  """Measures the fractions of images and tokens of a decoder that differ from those of vanilla."""
  same_shapes, sample = _same_shapes(bench, text), bench.sample(text)
  tokens, window = sample.tokens, bench.sample(same_shapes)
  differ, differ_in_window = (
      tokens != other.tokens for other in (bench.sample(bench.baseline), window))
  return dict(
      dtype=str(jax.tree.leaves(bench.model.params)[0].dtype), decoder=text,
      window=bench.check(text).drafter.tree.num_nodes + 1, batch_size=bench.batch_size,
      guarantee=bench.images(text).sampler.guarantee,
      log_probs_in_window=float(np.mean(sample.decoded.log_probs != window.decoded.log_probs)),
      same_shapes=same_shapes, num_tokens=tokens.size,
      images=float(np.mean(differ.any(axis=1))), tokens=float(np.mean(differ)),
      images_in_window=float(np.mean(differ_in_window.any(axis=1))),
      tokens_in_window=float(np.mean(differ_in_window)))


def _check_seed_exact(bench: Bench, text: str) -> None:
  guarantee = bench.check(text).guarantee
  if not guarantee.satisfies(Guarantee.UP_TO_ROUNDING):
    raise ValueError(f'decoder {text!r} is {guarantee}, so its images differ from those of '
                     'vanilla by chance; give seed-exact decoders.')
  bench.check(_same_shapes(bench, text))


def _same_shapes(bench: Bench, text: str) -> str:
  """Returns the baseline decoder whose forward passes have as many tokens as those of `text`."""
  return f'{bench.baseline}(window={bench.check(text).drafter.tree.num_nodes + 1})'


MEASURES = {
    'overhead': Measure(
        {'decoder': '{decoder}', 'ms/round': '{ms_per_round:.2f}',
         'forward': '{ms_of_forward_pass:.2f}', 'rest': '{rest:.1%}'},
        overhead, _check_static,
        ('vanilla', 'jacobi', 'sjd', 'mc_sjd', 'sjd_pac', 'seed_exact'), 16, 1, 1),
    'queue': Measure(
        {'decoder': '{decoder}', 'rounds of an image': '{rounds:.1f}', 'the most': '{most_rounds}',
         'batches: rounds': '{rounds_in_batches}', 'queue: rounds': '{rounds_in_queue}',
         'batches: s/image': '{seconds_in_batches:.4f}',
         'queue: s/image': '{seconds_in_queue:.4f}', 'speed-up': '{speedup:.2f}x',
         'same images': '{same_images:.0%}'},
        queue, _check_batches, ('vanilla', 'mc_sjd', 'corrected', 'eagle'), 16, 64, 8),
    'rounding': Measure(
        {'decoder': '{decoder}', 'dtype': '{dtype}', "images not vanilla's": '{images:.2%}',
         "tokens not vanilla's": '{tokens:.3%}', 'in its shapes': '{same_shapes}',
         'images not its': '{images_in_window:.2%}', 'tokens not its': '{tokens_in_window:.3%}',
         'log-probabilities not its': '{log_probs_in_window:.3%}', 'guarantee': '{guarantee}'},
        rounding, _check_seed_exact,
        ('seed_exact', 'corrected_seed_exact', 'seed_exact(tree=caterpillar(3, 1))'), 4, 2000, 32)}


def prepare(config: Config) -> tuple[Bench, list[str]]:
  """Loads the model, checks all options and returns the complete specifications of the decoders."""
  measure = MEASURES[config.measure]
  decoders = measure.decoders if config.decoder is None else config.decoder
  if not decoders:
    raise ValueError('decoder is empty; give at least one.')
  model = config.model('discrete')
  bench = config.bench(model, batch_size=measure.batch_size, num_images=measure.num_images)
  texts = [str(model.table.complete(text, window=config.window or measure.window))
           for text in decoders]
  for text in texts:
    bench.check(text)
    measure.check(bench, text)
  return bench, texts


@cli.command(Config)
def main(config: Config) -> None:
  bench, texts = prepare(config)
  measure, report = MEASURES[config.measure], Report(config.workdir or f'runs/{config.measure}')
  rows = listed(measure.columns, (measure.row(bench, text, config.repeats) for text in texts))
  title = f'{bench.model.name}, {len(bench.prompts)} images, {bench.batch_size} at once'
  write(report, config, [Table(title, measure.columns, rows)], prompts=bench.prompts)


if __name__ == '__main__':
  sys.exit(main())
