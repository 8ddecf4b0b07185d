"""How often the images of seed-exact decoders differ from those of vanilla, by rounding alone.

  python -m experiments.rounding
  python -m experiments.rounding --model=text_demo --dtype=bfloat16 --window=16 --num_images=256

Every decoder makes the same images as `vanilla` and as `vanilla(window=N)`, `N` the tokens of its
own forward passes, whose sums have the same shapes. A token that differs changes the context of all
behind it, so more tokens differ than are rounded differently. Into --workdir goes report.json with
all of it.
"""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import cspd_jax
from configs import rounding as default
from cspd_jax import cli
from cspd_jax.cli import inputs
from cspd_jax.generation.report import Report
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench

_DTYPES = ('float32', 'bfloat16', 'float16')
_COLUMNS = {
    'dtype': '{dtype}', 'decoder': '{decoder}', "images not vanilla's": '{images:.2%}',
    "tokens not vanilla's": '{tokens:.3%}', 'in its shapes': '{same_shapes}',
    'images not its': '{images_in_window:.2%}', 'tokens not its': '{tokens_in_window:.3%}'}


def prepare(config: Any) -> dict[str, Bench]:
  """Loads the model in every dtype and checks all options.

  Raises:
    ValueError: for anything that cannot work, naming the option.
  """
  for name in ('decoder', 'dtype'):
    if not getattr(config, name):
      raise ValueError(f'{name} is empty; give at least one.')
  if unknown := [name for name in config.dtype if name not in _DTYPES]:
    raise ValueError(f'dtype holds {unknown[0]!r}; it must be of {", ".join(_DTYPES)}.')
  benches = {}
  for dtype in config.dtype:
    model = cspd_jax.load(config.model, dtype=dtype, **inputs.overrides(config.parts))
    prompts, seed = inputs.images(config.images, model)
    inputs.at_least(config, 1, 'batch_size')
    bench = benches[dtype] = Bench(
        model, prompts, seed=seed, batch_size=config.batch_size,
        sampling=model.sampling(**inputs.overrides(config.sampling)))
    for text in _texts(config, bench):
      if (guarantee := model.engine.guarantee(bench.check(text))) != 'seed-exact':
        raise ValueError(f'decoder {text!r} is {guarantee}, so its images are not those of '
                         'vanilla; give seed-exact decoders.')
      bench.check(_same_shapes(bench, text))
  return benches


def _texts(config: Any, bench: Bench) -> list[str]:
  """The decoders, with sizes where they leave them open."""
  return [str(bench.model.engine.complete(text, window=config.window)) for text in config.decoder]


def _same_shapes(bench: Bench, text: str) -> str:
  """The decoder of one token per round whose forward passes are as wide as those of another."""
  return f'{bench.baseline}(window={bench.check(text).drafter.tree.num_nodes + 1})'


def compared(bench: Bench, text: str) -> dict[str, Any]:
  """The shares of images and of tokens of a decoder that differ from those of vanilla."""
  own, other = bench.sample(text).tokens, _same_shapes(bench, text)
  differ, differ_in_window = (
      own != bench.sample(name).tokens for name in (bench.baseline, other))
  return dict(
      decoder=text, same_shapes=other, num_tokens=own.size,
      images=float(np.mean(differ.any(axis=1))), tokens=float(np.mean(differ)),
      images_in_window=float(np.mean(differ_in_window.any(axis=1))),
      tokens_in_window=float(np.mean(differ_in_window)))


def measured(config: Any, benches: dict[str, Bench]) -> Iterator[dict[str, Any]]:
  """The rows, dtype by dtype."""
  for dtype, bench in benches.items():
    for text in _texts(config, bench):
      yield dict(dtype=dtype, **compared(bench, text))


def run(config: Any) -> None:
  """Measures, shows and writes all that a configuration asks for.

  Raises:
    ValueError: for anything that cannot work, before anything is compiled.
  """
  benches = prepare(config)
  report, rows = Report(config.workdir), []
  widest = max(len(text) for bench in benches.values() for text in _texts(config, bench))
  widths = [len('bfloat16'), widest, *(max(len(name), 18) for name in list(_COLUMNS)[2:])]
  print(tables.heading(_COLUMNS, widths, left=2))
  for row in measured(config, benches):
    rows.append(row)
    print(tables.line(_COLUMNS, row, widths, left=2), flush=True)
  prompts = next(iter(benches.values())).prompts
  report.write(
      settings=dataclasses.asdict(config), rows=rows, num_images=len(prompts), prompts=prompts,
      tables=[dict(title=f'{config.model}, {len(prompts)} images, {config.batch_size} at once',
                   columns=_COLUMNS, rows=list(range(len(rows))))])


@cli.command(default.Config, config='configs/rounding.py')
def main(config: Any) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
