"""What `experiments.generate` tells: a table, pictures and report.json."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import cspd_jax
from cspd_jax.metrics import acceptance
from cspd_jax.plots import acceptance as acceptance_plot
from cspd_jax.plots import bars
from cspd_jax.plots import canvas
from cspd_jax.plots import grid
from experiments import text_table
from experiments.generation import Job, token_grid
from experiments.turns import Measured

# More images than these would make the acceptance map too wide to read.
_MAPPED_IMAGES = 4


def figures(config: Any, job: Job, measured: Mapping[str, Measured]) -> dict[str, Any]:
  """The content of report.json.

  Speed-ups and equality with vanilla are None unless vanilla ran as well.
  """
  vanilla = measured.get('vanilla')
  decoders = {}
  for name, one in measured.items():
    summary = acceptance.summarise(one.decoded)
    decoders[name] = dict(
        guarantee=cspd_jax.DECODERS[name].guarantee,
        **{key: None if math.isnan(value) else value for key, value in summary._asdict().items()},
        ms_per_round=1e3 * float(one.seconds.sum() / one.decoded.rounds.sum()),
        seconds_per_image=float(one.seconds.mean()),
        speedup=vanilla and float(vanilla.seconds.mean() / one.seconds.mean()),
        tokens_equal_vanilla=vanilla and bool(
            np.array_equal(one.decoded.tokens, vanilla.decoded.tokens)),
        compile_seconds=one.compile_seconds,
        images=f'images_{name}.png')
  device = jax.devices()[0]
  return dict(
      model=config.model, num_images=len(job.labels), decoders=decoders, left_out=job.left_out,
      labels=job.labels.tolist(), captions=job.captions,
      tokens_per_image=job.model.config.num_tokens, settings=dataclasses.asdict(config),
      device=device.device_kind, jax_version=jax.__version__)


def table(report: Mapping[str, Any]) -> str:
  """The figures as text, a row per decoder."""
  columns = {
      'decoder': '{name}', 'guarantee': '{guarantee}', 'rounds': '{rounds_mean:.1f}',
      'step compr.': '{step_compression:.2f}x', 'acc. length': '{accepted_length_mean:.2f}',
      'one-token': '{one_token_rounds:.0%}', 'ms/round': '{ms_per_round:.2f}',
      's/image': '{seconds_per_image:.3f}', 'speed-up': '{speedup:.2f}x',
      '= vanilla': '{equal}', 'compile s': '{compile_seconds:.1f}'}
  equal = {True: 'yes', False: 'no', None: None}
  return text_table.render(columns, [
      dict(one, name=name, equal=equal[one['tokens_equal_vanilla']])
      for name, one in report['decoders'].items()])


def write(workdir: pathlib.Path, job: Job, report: Mapping[str, Any],
          measured: Mapping[str, Measured], images: Mapping[str, np.ndarray]) -> None:
  """Writes the pictures, and report.json last."""
  decoders = report['decoders']
  for name, one in decoders.items():
    grid.save_grid(
        workdir / one['images'], images[name], captions=job.captions,
        title=f'{name}: {one["rounds_mean"]:.0f} forward passes per image, '
              f'{one["seconds_per_image"]:.2f} s')
  acceptance_plot.save_acceptance_map(
      workdir / 'acceptance.png',
      {name: token_grid(job, one.decoded.round_of_token)[:_MAPPED_IMAGES]
       for name, one in measured.items()},
      images={name: value[:_MAPPED_IMAGES] for name, value in images.items()},
      captions=job.captions[:_MAPPED_IMAGES], title='In which round each token was fixed')
  values = lambda key: {name: one[key] for name, one in decoders.items()}
  bars.save_bars(
      workdir / 'speed.png',
      [bars.Panel('Step compression', values('step_compression'), '{:.2f}x',
                  'tokens per forward pass of the target; longer is better'),
       bars.Panel('Seconds per image', values('seconds_per_image'), '{:.3f} s',
                  'wall-clock at batch 1 without compilation; shorter is better')],
      title=f'{report["model"]} on {report["device"]}')
  text = json.dumps(report, indent=2, allow_nan=False) + '\n'
  canvas.write(workdir / 'report.json', text.encode())
