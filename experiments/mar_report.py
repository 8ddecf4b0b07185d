"""What `experiments.generate` tells about decoders of continuous tokens.

What is accepted differs between decoders: kernels of the head, paths, tokens of a softened test.
So acceptance rates are listed one per line, each with what it counts, and not in a column.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from cspd_jax.continuous.decoders import DECODERS
from experiments import report_files
from experiments import text_table
from experiments.turns import Job, Measured

# What the columns of `Generated.tested` stand for.
_TESTED = {'exact_head': 'denoising kernels', 'exact_path': 'drafts with the path test',
           'cspd_paper': "drafts with the paper's test",
           'cspd_released': "drafts with the released code's test",
           'cspd_relaxed': 'drafts with the bounded test'}


def figures(config: Any, job: Job, measured: Mapping[str, Measured]) -> dict[str, Any]:
  """The content of report.json.

  Speed-ups and equality with mar are None unless mar ran as well.
  """
  mar = measured.get('mar')
  decoders = {}
  for name, one in measured.items():
    g, decoder = one.decoded, job.decoders[name]
    tested, accepted = g.tested.sum(axis=0), g.accepted.sum(axis=0)
    mean = lambda leaf: float(np.mean(leaf))
    decoders[name] = dict(
        guarantee=DECODERS[name].guarantee, law=decoder.law, guarantee_in_words=decoder.guarantee,
        rounds_mean=mean(g.rounds), target_passes=mean(g.target_passes),
        draft_passes=mean(g.draft_passes), head_calls=mean(g.head_calls.sum(axis=1)),
        head_rows=mean(g.head_rows), draft_head_calls=mean(g.draft_head_calls),
        tested=_TESTED.get(name), acceptance=float(accepted.sum() / tested.sum())
        if tested.sum() else None,
        acceptance_by_column=[float(a / t) if t else None for a, t in zip(accepted, tested)],
        acceptance_by_position=_by_position(g, job) if name != 'exact_head' else None,
        residual_trials=mean(g.trials),
        seconds_per_image=mean(one.seconds),
        speedup=mar and float(mar.seconds.mean() / one.seconds.mean()),
        tokens_equal_mar=mar and bool(np.allclose(g.tokens, mar.decoded.tokens, atol=1e-3)),
        compile_seconds=one.compile_seconds, images=f'images_{name}.png')
  return dict(
      model=config.model, num_images=len(job.labels), decoders=decoders, left_out=job.left_out,
      labels=job.labels.tolist(), captions=job.captions,
      tokens_per_image=job.model.config.num_tokens, settings=dataclasses.asdict(config),
      device=jax.devices()[0].device_kind, jax_version=jax.__version__)


def _by_position(generated, job: Job) -> list[list[float | None]] | None:
  """Share of accepted drafts per position of the grid; None where nothing was tested."""
  if not generated.tested.shape[1]:
    return None
  rows = np.arange(len(generated.order))[:, None]
  counts = []
  for leaf in (generated.accepted, generated.tested):
    count = np.zeros_like(leaf)
    count[rows, generated.order] = leaf  # Columns are places in the order.
    counts.append(count.sum(axis=0).reshape(job.model.config.height, job.model.config.width))
  return [[float(a / t) if t else None for a, t in zip(*lines)] for lines in zip(*counts)]


def table(report: Mapping[str, Any]) -> str:
  """The figures as text: a row per decoder, then what each accepts and draws from."""
  columns = {
      'decoder': '{name}', 'guarantee': '{guarantee}', 'rounds': '{rounds_mean:.0f}',
      'target passes': '{target_passes:.0f}', 'draft passes': '{draft_passes:.0f}',
      'head calls': '{head_calls:.0f}', 'head rows': '{head_rows:.0f}',
      's/image': '{seconds_per_image:.3f}', 'speed-up': '{speedup:.2f}x',
      'compile s': '{compile_seconds:.1f}'}
  entries = [dict(one, name=name) for name, one in report['decoders'].items()]
  lines = [text_table.render(columns, entries), '']
  for name, one in report['decoders'].items():
    rate = '' if one['acceptance'] is None else (
        f'; accepts {one["acceptance"]:.1%} of its {one["tested"]}')
    lines.append(f'{name}: {one["law"]}; {one["guarantee_in_words"]}{rate}')
  return '\n'.join(lines)


def title(name: str, one: Mapping[str, Any]) -> str:
  """Of a decoder's images."""
  return (f'{name}: {one["target_passes"]:.0f} passes of the target, '
          f'{one["head_calls"]:.0f} head calls, {one["seconds_per_image"]:.2f} s per image')


BAR = report_files.Bar(
    'head_calls', 'Head calls', '{:.0f}',
    "calls of the target's diffusion head, one after the other; shorter is better")
