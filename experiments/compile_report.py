"""Predicts the cost of rounds on an accelerator, by compilation on a machine without one.

  python -m experiments.compile_report
  python -m experiments.compile_report --model=c2i_xl_256 --decoder='mc_sjd,eagle(tree=LANTERN)'
  python -m experiments.compile_report --device=v5e --layers=4 --window=16
  python -m experiments.compile_report --model=mar_b --decoder=exact_head

Compiles every decoder with a few of the model's layers and with one layer more, parses the compiled
round and extrapolates to all layers. Nothing is run. Shows and writes to report.json in --workdir:

  bytes          of a round, and relative to the ideal (the weights once and the live half of the
                 cache); also without the partial sums of split products that fit in a cache of
                 the device, and relative to an ideal that includes the drafter's weights once
  kernels        and branches on the host, and copies of a MiB or more; a loop that ends by
                 run-time values counts as often as the head was called in --accepted, or once
  time           from bandwidth, peak rate and launches
  speed-up       over `vanilla`, from the tokens that a decoder commits per round
"""

import dataclasses
import functools
import math
import sys
from typing import Any, Literal

from cspd_jax import cli, families
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import memory
from cspd_jax.measure.tables import Table
from experiments.costs import devices, predicted
from experiments.measured import show, write


@dataclasses.dataclass(frozen=True)
class Config(predicted.Accepted):
  """The programs to compile.

  Attributes:
    device: device to compile for: h200 or v5e.
    model: a published size such as c2i_xl_256, a shipped model or a folder.
    decoder: specifications of decoders; `vanilla` is always included, for the speed-ups.
    window: tokens per forward pass of decoders whose specification does not set it.
    batch: images decoded together.
    guided: whether the null condition runs as well.
    layers: layers to compile; a second program has one layer more, and the figures of all layers
      are extrapolated. By default 2, or enough to exceed a TPU's fast memory.
    dtype: of the parameters.
    accepted: report.json of measured step compression, and maybe calls of a diffusion head.
    accepted_model: the model whose rows of `accepted` count, if it has rows of several.
    workdir: folder of the results.
  """

  device: str = 'h200'
  model: str = 'lumina_mgpt_7b_768'
  decoder: tuple[str, ...] = (
      'corrected(iterations=4)', 'mc_sjd', 'mc_sjd(window=16)', 'eagle(tree=EAGLE)',
      'eagle(tree=LANTERN)')
  window: int = 64
  batch: int = 1
  guided: bool = True
  layers: int | None = None
  dtype: Literal['float32', 'bfloat16'] = 'bfloat16'
  accepted_model: str | None = None
  workdir: str = 'runs/compile_report'


_COLUMNS = {
    'decoder': '{decoder}', 'MiB': '{mib:.0f}', 'over ideal': '{over_ideal:.2f}',
    'without sums': '{over_ideal_without_sums:.2f}',
    'with drafter': '{over_ideal_with_drafter:.2f}',
    'kernels': '{kernels:.0f}', 'branches': '{conditionals:.0f}', 'ms': '{ms:.2f}',
    'launches': '{launches:.0%}', 'head calls': '{head_calls:.1f}',
    'tokens': '{tokens_per_round:.2f}', 'speed-up': '{speedup:.2f}x'}


def prepare(config: Config, accelerator: devices.Accelerator
            ) -> tuple[list[str], list[families.Model]]:
  """Checks the options; returns the specifications, the baseline first, and shapes of the model.

  The model has few layers, one layer more, and all layers.
  """
  describe = lambda layers: families.describe(config.model, dtype=config.dtype, layers=layers)
  whole = describe(None)
  total, few = whole.config.num_layers, config.layers
  if few is None:
    size = memory.size(describe(2).params) - memory.size(describe(1).params)
    few = min(max(2, math.ceil(2 * accelerator.fast_memory / size)), total - 1)
  if few >= total:
    raise ValueError(f'layers is {few}; it must be below {total}, the number of layers of '
                     f'{config.model!r}.')
  texts = [str(whole.table.complete(text, window=config.window))
           for text in (whole.table.baseline, *config.decoder)]
  for text in texts:
    whole.decoder(text, guided=config.guided)
  return list(dict.fromkeys(texts)), [describe(few), describe(few + 1), whole]


def row(text: str, figures: predicted.Figures, ideal: float, measured: predicted.Measured,
        vanilla: predicted.Figures) -> dict[str, Any]:
  """Returns the row of a decoder; `ideal` are bytes of the weights and the live cache."""
  seconds, tokens = figures.total_seconds, measured.tokens
  listed = lambda counts: [dict(zip(('what', 'source'), key), count=count)
                           for key, count in counts.items() if round(count)]
  without_sums = figures.total_bytes - figures.cached_sums
  return dict(
      decoder=text, mib=figures.total_bytes / 2**20, over_ideal=figures.total_bytes / ideal,
      over_ideal_without_sums=without_sums / ideal,
      over_ideal_with_drafter=without_sums / (ideal + figures.drafter_weights),
      kernels=figures.total_kernels, conditionals=figures.conditionals, loops=figures.loops,
      ms=1e3 * seconds, gflops=figures.flops / 1e9, tokens_per_round=tokens,
      head_calls=measured.head_calls,
      speedup=None if tokens is None else tokens * vanilla.total_seconds / seconds,
      **{name: figures.seconds.get(name, 0) / seconds
         for name in ('launches', 'bytes', 'products')},
      copies=listed(figures.copies), kernels_of_parts=dict(figures.kernels),
      mib_of_parts={f'{part}: {cause}': size / 2**20 for (part, cause), size in sorted(
          figures.bytes.items(), key=lambda item: -item[1]) if size})


@cli.command(Config)
def main(config: Config) -> None:
  measured = functools.partial(predicted.measured, config.accepted, model=config.accepted_model,
                               override=config.tokens_per_round)
  accelerator = devices.check(config.device)
  texts, (few, more, whole) = prepare(config, accelerator)
  of_reports = {text: measured(text) for text in texts}
  report, device = Report(config.workdir), devices.describe(config.device)
  condition = families.FAMILIES[whole.family].published.condition(whole.config, config.batch)
  steps = whole.config.num_layers - few.config.num_layers
  live, rows, vanilla, ideal = memory.live_cache(
      whole.target(config.guided), whole.params, condition), [], None, 0.0
  for text, of_report in of_reports.items():
    # How often the loop over calls of a diffusion head runs, 1 if not measured.
    iterations = 1.0 if of_report.head_calls is None else predicted.iterations(
        whole.decoder(text, guided=True), of_report.head_calls)
    figures_of_few, figures_of_more = (predicted.decode(
        model, text, config.batch, config.guided, condition, accelerator, device, iterations)
                                        for model in (few, more))
    figures = predicted.extrapolated(figures_of_few, figures_of_more, steps)
    vanilla, ideal = vanilla or figures, ideal or figures.weights + live
    rows.append(row(text, figures, ideal, of_report, vanilla))
    show(_COLUMNS, rows[-1])
  columns = dict(_COLUMNS)
  if all(row['head_calls'] is None for row in rows):
    del columns['head calls']
  write(report, config, [Table(f'{config.model}, {config.device}', columns, rows)],
        compiled_for=config.device, compiled_layers=few.config.num_layers,
        layers=whole.config.num_layers, ideal_mib=ideal / 2**20, live_cache_mib=live / 2**20,
        rates=accelerator._asdict())


if __name__ == '__main__':
  sys.exit(main())
