"""Measures how often images of seed-exact decoders differ from those of vanilla due to rounding.

  python -m experiments.rounding
  python -m experiments.rounding --model=text_demo --dtype=bfloat16 --window=16 --num_images=256

The images of every decoder are compared with those of `vanilla` and of `vanilla(window=N)`, where
`N` is the number of tokens in the decoder's forward passes: its arrays have the same shapes and
therefore the same rounding. A different token changes the context of all later tokens, so more
tokens differ than are affected by rounding directly. Writes report.json to --workdir.
"""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import cspd_jax
from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields
from cspd_jax.files.run_folder import Report
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements.

  Attributes:
    model: a shipped model of discrete tokens, or a folder.
    parts: networks that replace those of the model.
    decoder: specifications of seed-exact decoders.
    window: tokens per forward pass of decoders whose specification does not set it.
    images: the images, the same for every decoder and dtype.
    batch_size: images decoded together.
    sampling: sampling options.
    dtype: dtypes of the parameters: float32, bfloat16, float16.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  decoder: tuple[str, ...] = (
      'seed_exact', 'corrected_seed_exact', 'seed_exact(tree=caterpillar(3, 1))')
  window: int = 4
  images: groups.Images = groups.Images(num_images=2000, seed=15)
  batch_size: int = 32
  sampling: groups.Sampling = groups.Sampling()
  dtype: tuple[str, ...] = ('float32',)
  workdir: str = 'runs/rounding'

  def __post_init__(self):
    fields.check(self)


_DTYPES = ('float32', 'bfloat16', 'float16')
_COLUMNS = {
    'dtype': '{dtype}', 'decoder': '{decoder}', "images not vanilla's": '{images:.2%}',
    "tokens not vanilla's": '{tokens:.3%}', 'in its shapes': '{same_shapes}',
    'images not its': '{images_in_window:.2%}', 'tokens not its': '{tokens_in_window:.3%}'}


def prepare(config: Config) -> dict[str, Bench]:
  """Loads the model in every dtype and checks all options.

  Raises:
    ValueError: for invalid options, naming the option.
  """
  for name in ('decoder', 'dtype'):
    if not getattr(config, name):
      raise ValueError(f'{name} is empty; give at least one.')
  if unknown := [name for name in config.dtype if name not in _DTYPES]:
    raise ValueError(f'dtype holds {unknown[0]!r}; every entry must be one of '
                     f'{", ".join(_DTYPES)}.')
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
        raise ValueError(f'decoder {text!r} is {guarantee}, so its images differ from those of '
                         'vanilla by chance; give seed-exact decoders.')
      bench.check(_same_shapes(bench, text))
  return benches


def _texts(config: Config, bench: Bench) -> list[str]:
  """Returns the complete specifications of the decoders."""
  return [str(bench.model.engine.complete(text, window=config.window)) for text in config.decoder]


def _same_shapes(bench: Bench, text: str) -> str:
  """Returns the baseline decoder whose forward passes have as many tokens as those of `text`."""
  return f'{bench.baseline}(window={bench.check(text).drafter.tree.num_nodes + 1})'


def compared(bench: Bench, text: str) -> dict[str, Any]:
  """Measures the fractions of images and tokens of a decoder that differ from those of vanilla."""
  tokens, same_shapes = bench.sample(text).tokens, _same_shapes(bench, text)
  differ, differ_in_window = (
      tokens != bench.sample(name).tokens for name in (bench.baseline, same_shapes))
  return dict(
      decoder=text, same_shapes=same_shapes, num_tokens=tokens.size,
      images=float(np.mean(differ.any(axis=1))), tokens=float(np.mean(differ)),
      images_in_window=float(np.mean(differ_in_window.any(axis=1))),
      tokens_in_window=float(np.mean(differ_in_window)))


def measured(config: Config, benches: dict[str, Bench]) -> Iterator[dict[str, Any]]:
  """Yields the rows, dtype by dtype."""
  for dtype, bench in benches.items():
    for text in _texts(config, bench):
      yield dict(dtype=dtype, **compared(bench, text))


def run(config: Config) -> None:
  """Measures, prints the table and writes the report.

  Raises:
    ValueError: for invalid options, before anything is compiled.
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


@cli.command(Config)
def main(config: Config) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
