"""Measures how many tokens windows over continuous tokens commit per round.

  python -m experiments.continuous_windows
  python -m experiments.continuous_windows --model=mar_demo --window=8,16 --num_images=32

Decodes the same images at every setting and reports tokens per round with the standard error over
images, passes of the transformer, head calls, and the share of old tokens and kernels that are
kept. Measures counts only. Writes report.json to --workdir.
"""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.continuous import noise
from cspd_jax.core import fields
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import decode
from cspd_jax.generation.images import Images
from cspd_jax.generation.model import Model
from cspd_jax.measure.tables import Table
from cspd_jax.metrics import acceptance, base
from experiments.measured import listed, write


@dataclasses.dataclass(frozen=True)
class Config:
  """The measurements; every setting is varied on its own, at the first window.

  Attributes:
    model: models of continuous tokens, shipped or folders.
    window: tokens per round; the first is that of all other measurements.
    guidance_scale: guidance scales; the first is that of all other measurements.
    num_images: images of every measurement.
    batch_size: images decoded together.
    seed: of the images.
    workdir: folder of the results.
  """

  model: tuple[str, ...] = ('emoji_continuous', 'mar_demo')
  window: tuple[int, ...] = (8, 2, 4, 16, 32)
  guidance_scale: tuple[float, ...] = (3.0, 1.0, 6.0)
  num_images: int = 16
  batch_size: int = 8
  seed: int = 29
  workdir: str = 'runs/continuous_windows'

  def __post_init__(self):
    fields.check(
        self, window=(1, fields.MOST), guidance_scale=fields.FINITE, num_images=(2, 10**4),
        batch_size=(1, 10**4), seed=fields.SEEDS)


# What is varied besides windows and guidance; masked models also have fewer steps than tokens.
_TEMPERATURE, _SCHEDULES, _STEPS = 0.9, (25, 50, 100), 16
_DECODERS = ('exact_head', 'exact_head(kernels_per_call=32)')
_COLUMNS = {
    'setting': '{setting}', 'tokens per round': '{tokens_per_pass:.2f}',
    '+-': '{tokens_per_pass_error:.2f}', 'passes per token': '{passes_per_token:.2f}',
    'tokens kept': '{tokens_kept:.0%}', 'kernels kept': '{kernels_kept:.0%}',
    'head calls per round': '{calls_per_round:.1f}',
    'per token': '{calls_per_token:.1f}', 'head states per token': '{states_per_token:.0f}'}


class Setting(NamedTuple):
  """A measurement: its difference from the first one in words, decoder, options, order."""

  words: str
  decoder: str
  options: dict[str, float]
  raster: bool = False


def settings(config: Config, model: Model) -> Iterator[Setting]:
  """Yields the measurements of a model."""
  window, *windows = config.window
  scale, *scales = config.guidance_scale
  target = model.target(guided=True)
  options, causal = dict(guidance_scale=scale), target.cached is not None
  first = f'windows(window={window})'
  yield Setting(f'window {window}, guidance {scale:g}', first, options)
  for other in windows:
    yield Setting(f'window {other}', f'windows(window={other})', options)
  for other in scales:
    yield Setting(f'guidance {other:g}', first, dict(guidance_scale=other))
  yield Setting(f'temperature {_TEMPERATURE:g}', first, options | dict(temperature=_TEMPERATURE))
  for levels in _SCHEDULES:
    if levels != target.num_levels:
      yield Setting(f'{levels} kernels', f'windows(window={window}, schedule={levels})', options)
  if not causal:
    yield Setting(f'{_STEPS} steps', f'windows(window={window}, num_iter={_STEPS})', options)
    yield Setting('raster order', first, options, raster=True)
  for decoder in _DECODERS:
    yield Setting(f'`{decoder}`', decoder, options)


def prepare(config: Config) -> list[tuple[Setting, Images]]:
  """Loads the models and prepares the images."""
  prepared = []
  fields.check_lists(config, 'model', 'window', 'guidance_scale')
  for name in config.model:
    model = inputs.model(groups.LoadFlags(name), tokens='continuous')
    for setting in settings(config, model):
      prompts = [model.prompts[i % len(model.prompts)] for i in range(config.num_images)]
      images = model.images(
          prompts, setting.options, seed=config.seed, decoder=setting.decoder,
          batch_size=config.batch_size, pixels=False)
      if setting.raster:
        decoder: Any = dataclasses.replace(images.sampler.decoder, orders=noise.raster_orders)
        images = dataclasses.replace(images, sampler=dataclasses.replace(
            images.sampler, decoder=decoder, function=decoder,
            names=(f'{setting.decoder}, raster',)))
      prepared.append((setting, images))
  return prepared


def measured(setting: Setting, images: Images) -> dict[str, Any]:
  """Returns the row of a setting."""
  decoded, count = decode.decoded(images), len(images)
  size = decoded.tokens.shape[1]
  calls, rounds = decoded.costs.head_calls.sum(), decoded.rounds.sum()
  share = lambda tests: float(tests.accepted.sum() / tests.tested.sum()) if (
      tests.tested.any()) else None
  return dict(
      model=images.sampler.model.name, setting=setting.words, decoder=setting.decoder,
      options=setting.options,
      **base.entries(dict(tokens_per_pass=acceptance.tokens_per_pass(decoded))),
      passes_per_token=float(decoded.costs.target_passes.sum() / (count * size)),
      tokens_kept=share(decoded.tests), kernels_kept=share(decoded.kernels),
      calls_per_round=float(calls / rounds), calls_per_token=float(calls / count / size),
      states_per_token=float(decoded.costs.head_rows.sum() / count / size))


@cli.command(Config)
def main(config: Config) -> None:
  prepared = prepare(config)
  report = Report(config.workdir)
  rows = listed(dict(model='{model}', **_COLUMNS), (measured(*each) for each in prepared))
  write(report, config, [
      Table(name, _COLUMNS, [row for row in rows if row['model'] == name])
      for name in dict.fromkeys(row['model'] for row in rows)], num_images=config.num_images)


if __name__ == '__main__':
  sys.exit(main())
