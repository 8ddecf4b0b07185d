"""What a round of a decoder costs on an accelerator, from compilation on a machine without one.

  python -m experiments.compile_report
  python -m experiments.compile_report --model=c2i_xl_256 --decoder='mc_sjd,eagle(tree=LANTERN)'
  python -m experiments.compile_report --device=v5e --layers=4 --window=16
  python -m experiments.compile_report --model=mar_b --decoder=exact_head

Compiles every decoder for a few of the model's layers and for one more, reads what XLA made of a
round and extrapolates to all layers: bytes over ideal (the weights once and the live half of the
cache), in all, without the partial sums of split products that a cache of the device holds, and
over an ideal that has the drafter's weights once too; kernels, branches on the host, copies of a
MiB or more, the time by bandwidth, peak rate and launches, and the speed-up over `vanilla` that
follows from the tokens that a decoder commits per round. Nothing is run. Into --workdir goes
report.json with all of it.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Mapping
from typing import Any

from configs import compile_report as default
from cspd_jax import families
from cspd_jax.generation.report import Report
from cspd_jax.measure import memory, tables
from experiments import cli
from experiments.cli import inputs
from experiments.costs import accepted, devices, predicted

_COLUMNS = {
    'decoder': '{decoder}', 'MiB': '{mib:.0f}', 'over ideal': '{over_ideal:.2f}',
    'without sums': '{over_ideal_without_sums:.2f}',
    'with drafter': '{over_ideal_with_drafter:.2f}',
    'kernels': '{kernels:.0f}', 'branches': '{conditionals:.0f}', 'ms': '{ms:.2f}',
    'launches': '{launches:.0%}', 'tokens': '{tokens_per_round:.2f}',
    'speed-up': '{speedup:.2f}x'}
# Parts of a round that are shown.
_MOST = 12


def prepare(config: Any, accelerator: devices.Accelerator) -> tuple[list[str], list[Any]]:
  """The specifications, the baseline first, and the model in few layers, in one more and whole.

  Raises:
    ValueError: for anything that cannot work.
  """
  inputs.check_dtype(config)
  describe = lambda layers: families.describe(config.model, dtype=config.dtype, layers=layers)
  whole = describe(None)
  total, few = whole.config.num_layers, config.layers
  if few is None:
    size = memory.size(describe(2).params) - memory.size(describe(1).params)
    few = min(max(2, math.ceil(2 * accelerator.fast_memory / size)), total - 1)
  if few >= total:
    raise ValueError(f'layers is {few}; with one more it must be at most {total}, the layers of '
                     f'{config.model!r}.')
  texts = [str(whole.engine.complete(text, window=config.window))
           for text in (whole.engine.baseline, *config.decoder)]
  for text in texts:
    whole.decoder(text, guided=config.guided)
  return list(dict.fromkeys(texts)), [describe(few), describe(few + 1), whole]


def row(text: str, found: predicted.Figures, ideal: float, tokens: float | None,
        vanilla: predicted.Figures | None) -> dict[str, Any]:
  """The figures of a decoder."""
  seconds = found.total_seconds
  first = found if vanilla is None else vanilla
  listed = lambda counts: [dict(zip(('what', 'source'), key), count=count)
                           for key, count in counts.items() if round(count)]
  return dict(
      decoder=text, mib=found.total_bytes / 2**20, over_ideal=found.total_bytes / ideal,
      over_ideal_without_sums=(found.total_bytes - found.cached_sums) / ideal,
      over_ideal_with_drafter=(found.total_bytes - found.cached_sums) / (
          ideal + found.drafter_weights),
      drafter_mib=found.drafter_weights / 2**20, partial_sums_mib=found.cached_sums / 2**20,
      kernels=found.total_kernels, conditionals=found.conditionals, loops=found.loops,
      ms=1e3 * seconds, gflops=found.flops / 1e9, tokens_per_round=tokens,
      speedup=None if tokens is None else tokens * first.total_seconds / seconds,
      **{name: found.seconds.get(name, 0) / seconds for name in ('launches', 'bytes', 'products')},
      temporaries_mib=found.temporaries / 2**20, cache_copied_mib=found.copied / 2**20,
      copies=listed(found.copies), kernels_of_parts=dict(found.kernels),
      mib_of_parts={f'{part}: {cause}': size / 2**20 for (part, cause), size in sorted(
          found.bytes.items(), key=lambda item: -item[1]) if size})


def show(one: Mapping[str, Any]) -> None:
  """Prints where a decoder's bytes and kernels go."""
  print(f'\n{one["decoder"]}')
  for name, size in list(one['mib_of_parts'].items())[:_MOST]:
    print(f'  {size:9.1f} MiB  {name}')
  for name, count in one['kernels_of_parts'].items():
    print(f'  {count:9.0f} kernels of the {name}')
  for copy in one['copies']:
    print(f'  {copy["count"]:9.0f} copies of {copy["what"]} ({copy["source"] or "no line"})')
  print(f'  {one["temporaries_mib"]:9.1f} MiB of temporaries; {one["cache_copied_mib"]:.1f} MiB of '
        'the cache not in place', flush=True)


@cli.program(config='configs/compile_report.py', expected=default.Config)
def main(config: Any) -> None:
  known = functools.partial(
      accepted.tokens_per_round, config.accepted, given=config.tokens_per_round)
  for text in config.decoder:
    known(text)  # Says what is wrong with the report.
  accelerator = devices.check(config.device)
  texts, (few, more, whole) = prepare(config, accelerator)
  tokens = {text: known(text) for text in texts}
  report, device = Report(config.workdir), devices.describe(config.device)
  condition = families.FAMILIES[whole.family].published.condition(whole.config, config.batch)
  steps = whole.config.num_layers - few.config.num_layers
  live, rows, vanilla, ideal = memory.live_cache(whole, config.guided, condition), [], None, 0.0
  for text in texts:
    one, other = (predicted.decode(
        model, text, config.batch, config.guided, condition, accelerator, device)
                  for model in (few, more))
    found = predicted.extrapolated(one, other, steps)
    vanilla, ideal = vanilla or found, ideal or found.weights + live
    rows.append(row(text, found, ideal, tokens[text], vanilla))
    show(rows[-1])
  print('\n' + tables.text(_COLUMNS, rows, left=1))
  report.write(
      settings=dataclasses.asdict(config), compiled_for=config.device,
      compiled_layers=few.config.num_layers, layers=whole.config.num_layers,
      ideal_mib=ideal / 2**20, live_cache_mib=live / 2**20, rates=accelerator._asdict(), rows=rows,
      tables=[dict(title=f'{config.model}, {config.device}', columns=_COLUMNS,
                   rows=list(range(len(rows))))])


if __name__ == '__main__':
  sys.exit(main())
