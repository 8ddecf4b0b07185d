"""Measures the share of a round's time that is not the target's forward pass.

  python -m experiments.overhead
  python -m experiments.overhead --window=64 --repeats=9

For every decoder: milliseconds per round of the whole jitted loop at batch 1; of the same number of
bare forward passes of the target in a jitted loop; and the share of the remaining work (drafting,
verifying, committing; with a draft model its passes too). The two alternate; the reported times are
medians.
"""

import dataclasses
import sys
from typing import Any

import numpy as np

from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields, programs
from cspd_jax.decoding.tree import Budget
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
    sampling: sampling options.
    repeats: timed runs of each decoder, whose median is reported.
    workdir: folder of the results.
  """

  loading: groups.Loading = groups.Loading()
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = ('vanilla', 'jacobi', 'sjd', 'mc_sjd', 'sjd_pac', 'seed_exact')
  window: int = 16
  sampling: groups.Sampling = groups.Sampling()
  repeats: int = 5
  workdir: str = 'runs/overhead'

  def __post_init__(self):
    fields.check(self)


_COLUMNS = {'decoder': '{decoder}', 'ms/round': '{ms_per_round:.2f}',
            'forward': '{ms_of_forward_pass:.2f}', 'rest': '{rest:.1%}'}


def compare(bench: Bench, text: str, repeats: int) -> dict[str, Any]:
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


@cli.command(Config)
def main(config: Config) -> None:
  if not config.decoder:
    raise ValueError('decoder is empty; give at least one.')
  model = inputs.model(config.loading, config.parts, engine='discrete',
                       one_group=inputs.MEASURED)
  texts = [str(model.engine.complete(text, window=config.window)) for text in config.decoder]
  bench = Bench(model, model.prompts[:1],
                sampling=model.sampling(**inputs.overrides(config.sampling)))
  for text in texts:
    if isinstance(bench.check(text).drafter.tree, Budget):
      raise ValueError(f'decoder {text} has a tree that is built at run time, so its forward '
                       'passes cannot be run alone; leave it out.')
  report, rows = Report(config.workdir), []
  widths = [max(map(len, texts)), *(map(len, list(_COLUMNS)[1:]))]
  print(tables.heading(_COLUMNS, widths, left=1))
  for text in texts:
    rows.append(compare(bench, text, config.repeats))
    print(tables.line(_COLUMNS, rows[-1], widths, left=1), flush=True)
  report.write(settings=dataclasses.asdict(config), rows=rows, tables=[
      dict(title='overhead', columns=_COLUMNS, rows=list(range(len(rows))))])


if __name__ == '__main__':
  sys.exit(main())
