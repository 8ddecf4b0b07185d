"""Compares decoding a queue of images, whose rows refill, with decoding batches.

  python -m experiments.refill
  python -m experiments.refill --decoder='mc_sjd,corrected' --window=32 --num_images=64

Every decoder generates the same images twice: in batches, each of which runs until its slowest row
is complete, and in rows that start the next image when one is complete. Rounds are forward passes
over all rows, without prefills; times include everything, and are medians of alternating runs. The
images must be equal.
"""

import dataclasses
import functools
import sys
from typing import Any

import jax
import numpy as np

from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import tables, timing
from cspd_jax.measure.bench import Bench


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    loading: the model, and how it is loaded.
    parts: networks that replace those of the model.
    decoder: specifications of decoders.
    window: tokens per forward pass of decoders whose specification does not set it.
    images: the images, the same for every decoder; their number is a multiple of `batch_size`.
    batch_size: images decoded together.
    sampling: sampling options.
    repeats: timed runs of each decoder, whose median is reported.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading()
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = ('vanilla', 'mc_sjd', 'corrected', 'eagle')
  window: int = 16
  images: groups.Images = groups.Images(num_images=64)
  batch_size: int = 8
  sampling: groups.Sampling = groups.Sampling()
  repeats: int = 3
  workdir: str = 'runs/refill'

  def __post_init__(self):
    fields.check(self)


_COLUMNS = {
    'decoder': '{decoder}', 'rounds of an image': '{rounds:.1f}', 'the most': '{most_rounds}',
    'batches: rounds': '{rounds_in_batches}', 'queue: rounds': '{rounds_in_queue}',
    'batches: s/image': '{seconds_in_batches:.4f}', 'queue: s/image': '{seconds_in_queue:.4f}',
    'speed-up': '{speedup:.2f}x', 'same images': '{same_images:.0%}'}


def prepare(config: Config) -> Bench:
  """Loads the model and checks all options.

  Raises:
    ValueError: for invalid options, naming the option.
  """
  if not config.decoder:
    raise ValueError('decoder is empty; give at least one.')
  model = inputs.model(config.loading, config.parts, engine='discrete',
                       one_group=inputs.MEASURED)
  prompts, seed = inputs.images(config.images, model)
  if len(prompts) % config.batch_size or len(prompts) == config.batch_size:
    raise ValueError(
        f'batch_size is {config.batch_size} and there are {len(prompts)} images; the number of '
        'images must be a multiple of batch_size, and at least two batches.')
  bench = Bench(model, prompts, seed=seed, batch_size=config.batch_size,
                sampling=model.sampling(**inputs.overrides(config.sampling)))
  for text in _texts(config, bench):
    bench.check(text)
  return bench


def _texts(config: Config, bench: Bench) -> list[str]:
  """Returns the complete specifications of the decoders."""
  return [str(bench.model.engine.complete(text, window=config.window)) for text in config.decoder]


def compare(bench: Bench, text: str, repeats: int) -> dict[str, Any]:
  """Measures rounds and seconds of a decoder, in batches and as a queue."""
  size, count, results = bench.batch_size, len(bench.prompts), {}
  runs = {'batches': bench.run(text, size, count // size), 'queue': bench.queue(text, size)}

  def run(name):
    results[name] = runs[name]()
    return results[name]

  timed = timing.measure({name: functools.partial(run, name) for name in runs}, repeats, warmup=0)
  seconds = {name: times.median / count for name, times in timed.items()}
  expected = jax.tree.map(
      lambda *parts: np.concatenate(parts), *map(jax.device_get, results['batches']))
  order = np.argsort(np.concatenate([finished.image for finished in results['queue']]))
  tokens = np.concatenate([finished.decoded.tokens for finished in results['queue']])[order]
  return dict(
      decoder=text, rounds=float(expected.rounds.mean()), most_rounds=int(expected.rounds.max()),
      rounds_in_batches=int((expected.rounds.reshape(-1, size).max(axis=1) - 1).sum()),
      rounds_in_queue=sum(int(finished.rounds) for finished in results['queue']),
      seconds_in_batches=seconds['batches'], seconds_in_queue=seconds['queue'],
      speedup=seconds['batches'] / seconds['queue'],
      same_images=float((tokens == expected.tokens).all(axis=1).mean()))


def run(config: Config) -> None:
  """Measures, prints the table and writes the report.

  Raises:
    ValueError: for invalid options, before anything is compiled.
  """
  bench = prepare(config)
  texts, report, rows = _texts(config, bench), Report(config.workdir), []
  widths = [max(map(len, texts)), *(map(len, list(_COLUMNS)[1:]))]
  print(tables.heading(_COLUMNS, widths, left=1))
  for text in texts:
    rows.append(compare(bench, text, config.repeats))
    print(tables.line(_COLUMNS, rows[-1], widths, left=1), flush=True)
  report.write(
      settings=dataclasses.asdict(config), rows=rows, prompts=bench.prompts, tables=[
          dict(title=f'{bench.model.name}, {len(bench.prompts)} images, {bench.batch_size} at once',
               columns=_COLUMNS, rows=list(range(len(rows))))])


@cli.command(Config)
def main(config: Config) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
