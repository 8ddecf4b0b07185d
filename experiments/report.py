"""What `experiments.generate` tells about decoders of discrete tokens."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import cspd_jax
from cspd_jax.metrics import acceptance
from experiments import report_files
from experiments import text_table
from experiments.turns import Job, Measured


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


def title(name: str, one: Mapping[str, Any]) -> str:
  """Of a decoder's images."""
  return (f'{name}: {one["rounds_mean"]:.0f} forward passes per image, '
          f'{one["seconds_per_image"]:.2f} s')


BAR = report_files.Bar(
    'step_compression', 'Step compression', '{:.2f}x',
    'tokens per forward pass of the target; longer is better')
