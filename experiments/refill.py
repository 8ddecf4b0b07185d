"""What is gained where a row that is complete takes the next image, beside batch after batch.

  python -m experiments.refill
  python -m experiments.refill --decoder='mc_sjd,corrected' --window=32 --num_images=64

Every decoder makes the same images twice: in batches, each of which ends with its last row, and in
rows that take the next image. Rounds are forward passes over all rows, without the prefills; times
are of all that is done, in turns, in the median. The images must be the same.
"""

import dataclasses
import functools
import sys
from typing import Any

import jax
import numpy as np

from configs import refill as default
from cspd_jax import cli
from cspd_jax.cli import inputs
from cspd_jax.generation.report import Report
from cspd_jax.measure import tables, timing
from cspd_jax.measure.bench import Bench

_COLUMNS = {
    'decoder': '{decoder}', 'rounds of an image': '{rounds:.1f}', 'the most': '{most_rounds}',
    'batches: rounds': '{rounds_in_batches}', 'queue: rounds': '{rounds_in_queue}',
    'batches: s/image': '{seconds_in_batches:.4f}', 'queue: s/image': '{seconds_in_queue:.4f}',
    'speed-up': '{speedup:.2f}x', 'same images': '{same_images:.0%}'}


def prepare(config: Any) -> Bench:
  """Loads the model and checks all options.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  if not config.decoder:
    raise ValueError('decoder is empty; give at least one.')
  model = inputs.model(config)
  if model.engine.name != 'discrete':
    raise ValueError(f'model is {config.model!r}, which has continuous tokens; give one whose '
                     'tokens are discrete.')
  prompts, seed = inputs.images(config.images, model)
  if len(prompts) % config.batch_size or len(prompts) == config.batch_size:
    raise ValueError(
        f'batch_size is {config.batch_size} and there are {len(prompts)} images; give a multiple, '
        'at least two batches, so that batches are full and some images wait.')
  bench = Bench(model, prompts, seed=seed, batch_size=config.batch_size,
                sampling=model.sampling(**inputs.overrides(config.sampling)))
  for text in _texts(config, bench):
    bench.check(text)
  return bench


def _texts(config: Any, bench: Bench) -> list[str]:
  """The decoders, with sizes where they leave them open."""
  return [str(bench.model.engine.complete(text, window=config.window)) for text in config.decoder]


def compare(bench: Bench, text: str, repeats: int) -> dict[str, Any]:
  """Rounds and seconds of the images of a bench with a decoder, in batches and as a queue."""
  size, count, found = bench.batch_size, len(bench.prompts), {}
  runs = {'batches': bench.run(text, size, count // size), 'queue': bench.queue(text, size)}

  def kept(name):
    found[name] = runs[name]()
    return found[name]

  timed = timing.measure({name: functools.partial(kept, name) for name in runs}, repeats, warmup=0)
  seconds = {name: one.median / count for name, one in timed.items()}
  want = jax.tree.map(
      lambda *parts: np.concatenate(parts), *map(jax.device_get, found['batches']))
  order = np.argsort(np.concatenate([some.image for some in found['queue']]))
  tokens = np.concatenate([some.decoded.tokens for some in found['queue']])[order]
  return dict(
      decoder=text, rounds=float(want.rounds.mean()), most_rounds=int(want.rounds.max()),
      rounds_in_batches=int((want.rounds.reshape(-1, size).max(axis=1) - 1).sum()),
      rounds_in_queue=sum(int(some.rounds) for some in found['queue']),
      seconds_in_batches=seconds['batches'], seconds_in_queue=seconds['queue'],
      speedup=seconds['batches'] / seconds['queue'],
      same_images=float((tokens == want.tokens).all(axis=1).mean()))


def run(config: Any) -> None:
  """Measures, shows and writes all that a configuration asks for.

  Raises:
    ValueError: for anything that cannot work, before anything is compiled.
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
          dict(title=f'{config.model}, {len(bench.prompts)} images, {bench.batch_size} at once',
               columns=_COLUMNS, rows=list(range(len(rows))))])


@cli.command(default.Config, config='configs/refill.py')
def main(config: Any) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
