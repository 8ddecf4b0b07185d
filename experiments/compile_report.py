"""Predicts the cost of rounds on an accelerator, by compilation on a machine without one.

  python -m experiments.compile_report
  python -m experiments.compile_report --model=c2i_xl_256 --decoder='mc_sjd,eagle(tree=LANTERN)'
  python -m experiments.compile_report --device=v5e --layers=4 --window=16
  python -m experiments.compile_report --model=mar_b --decoder=exact_head

Compiles every decoder with a few of the model's layers and with one layer more, reads the compiled
rounds and extrapolates to all layers. Nothing is run. Shows and writes to --workdir:

  MiB            that the kernels of a round read and write, and relative to the ideal: the weights
                 once and the live half of the cache
  kernels        of which a loop that ends by run-time values has those of as many turns as the head
                 was called in --accepted, or of one; report.json also has branches and large copies
  ms             from bandwidth or peak rate, and launches (`costs.predicted`)
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
    'kernels': '{kernels:.0f}', 'ms': '{ms:.2f}', 'tokens per pass': '{tokens_per_round:.2f}',
    'speed-up': '{speedup:.2f}x', 'head calls': '{head_calls:.1f}'}


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
  ideal = predicted.least_bytes(whole, config.guided, condition)
  rows: list[dict[str, Any]] = []
  for text, of_report in of_reports.items():
    # How often the loop over calls of a diffusion head runs, 1 if not measured.
    iterations = 1.0 if of_report.head_calls is None else predicted.iterations(
        whole.decoder(text, guided=True), of_report.head_calls)
    cost = predicted.extrapolated(*(predicted.decode(
        model, text, config.batch, config.guided, condition, accelerator, device, iterations)
                                    for model in (few, more)), steps)
    ms, tokens = 1e3 * predicted.seconds(cost, accelerator), of_report.tokens
    rows.append(dict(
        decoder=text, mib=cost.bytes / 2**20, over_ideal=cost.bytes / ideal, kernels=cost.kernels,
        copies=cost.copies, conditionals=cost.conditionals, loops=cost.loops, ms=ms,
        gflops=cost.flops / 1e9, tokens_per_round=tokens, head_calls=of_report.head_calls,
        speedup=None if tokens is None else tokens * (rows[0]['ms'] if rows else ms) / ms))
    show(_COLUMNS, rows[-1])
  columns = dict(_COLUMNS)
  if all(row['head_calls'] is None for row in rows):
    del columns['head calls']
  write(report, config, [Table(f'{config.model}, {config.device}', columns, rows)],
        compiled_for=config.device, compiled_layers=few.config.num_layers,
        layers=whole.config.num_layers, ideal_mib=ideal / 2**20,
        rates=accelerator._asdict())


if __name__ == '__main__':
  sys.exit(main())
