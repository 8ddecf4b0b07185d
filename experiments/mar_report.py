"""What `experiments.generate` tells about decoders of continuous tokens.

What is accepted differs between decoders: kernels of the head, paths, tokens of a softened test.
So acceptance rates are listed one per line, each with what it counts, and not in a column.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from cspd_jax.continuous import registry
from cspd_jax.continuous.result import Decoded
from cspd_jax.plots import replaced
from experiments import report_files
from experiments import text_table
from experiments.turns import Job, Measured

# What `Decoded.tests` counts.
_TESTED = {'exact_head': 'denoising kernels', 'exact_path': 'drafts with the path test',
           'cspd_paper': "drafts with the paper's test",
           'cspd_released': "drafts with the released code's test",
           'cspd_relaxed': 'drafts with the bounded test'}


def figures(config: Any, job: Job, measured: Mapping[str, Measured]) -> dict[str, Any]:
  """The content of report.json.

  Speed-ups are None unless mar ran as well.
  """
  mar = measured.get('mar')
  decoders = {}
  for name, one in measured.items():
    g, decoder = one.decoded, job.decoders[name]
    mean = lambda leaf: float(np.mean(leaf))
    decoders[name] = dict(
        guarantee=registry.guarantee(decoder), distribution=decoder.distribution,
        guarantee_in_words=decoder.guarantee,
        rounds_mean=mean(g.rounds), target_passes=mean(g.costs.target_passes),
        draft_passes=mean(g.costs.draft_passes),
        head_calls=mean(g.costs.head_calls.sum(axis=1)), head_rows=mean(g.costs.head_rows),
        draft_head_calls=mean(g.costs.draft_head_calls),
        tested=_TESTED.get(name), **_acceptance(g, job),
        residual_trials=mean(g.tests.trials), residual_missed=mean(g.tests.missed),
        squared_error=_per_test(g, g.errors and g.errors.squared),
        squared_error_bound=_per_test(g, g.errors and g.errors.bound),
        seconds_per_image=mean(one.seconds),
        speedup=mar and float(mar.seconds.mean() / one.seconds.mean()),
        compile_seconds=one.compile_seconds, images=f'images_{name}.png')
  return dict(
      model=config.model, num_images=len(job.labels), decoders=decoders, left_out=job.left_out,
      labels=job.labels.tolist(), captions=job.captions,
      tokens_per_image=job.model.config.num_tokens, settings=dataclasses.asdict(config),
      device=jax.devices()[0].device_kind, jax_version=jax.__version__)


def _acceptance(decoded: Decoded, job: Job) -> dict[str, Any]:
  """Shares of accepted drafts; None where nothing was tested.

  By position of the grid, by autoregressive step (the place of a token in its order), and by
  level of the denoising kernels.
  """
  tested, accepted, kernels = decoded.tests.tested, decoded.tests.accepted, decoded.kernels
  at = lambda leaf: np.take_along_axis(leaf, decoded.order, axis=1)
  by_position = _shares(accepted.sum(axis=0), tested.sum(axis=0))
  width = job.model.config.width
  return dict(
      acceptance=_shares(accepted.sum(keepdims=True), tested.sum(keepdims=True))[0],
      acceptance_by_position=[by_position[i:i + width] for i in range(0, len(by_position), width)],
      acceptance_by_step=_shares(at(accepted).sum(axis=0), at(tested).sum(axis=0)),
      acceptance_by_level=[] if kernels is None else _shares(
          kernels.accepted.sum(axis=0), kernels.tested.sum(axis=0)))


def _per_test(decoded: Decoded, leaf: np.ndarray | None) -> float | None:
  """Mean over the tokens that were tested; None if there are none, or no such number."""
  tested = decoded.tests.tested.sum()
  return float(leaf.sum() / tested) if leaf is not None and tested else None


def _shares(accepted: np.ndarray, tested: np.ndarray) -> list[float | None]:
  return [float(a / t) if t else None for a, t in zip(accepted.ravel(), tested.ravel())]


def draw_accepted(workdir: pathlib.Path, job: Job, measured: Mapping[str, Measured],
                  images: Mapping[str, np.ndarray]) -> None:
  """Writes accepted.png: the share of drafts that was kept at every token."""
  tests = {name: one.decoded for name, one in measured.items() if one.decoded.tests.tested.any()}
  if not tests:
    return
  shown = report_files.MAPPED_IMAGES
  count = lambda key: {name: job.grid(getattr(g.tests, key))[:shown] for name, g in tests.items()}
  replaced.save_replaced_map(
      workdir / 'accepted.png', {name: images[name][:shown] for name in tests}, count('tested'),
      count('accepted'), captions=job.captions[:shown],
      title='What was accepted: tokens, and kernels of the head in exact_head')


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
    if one['squared_error_bound'] is not None:
      rate += (f'; squared distance {one["squared_error"]:.4f}, bound '
               f'{one["squared_error_bound"]:.4f}')
    if one['residual_missed']:
      rate += f'; {one["residual_missed"]:.2f} residual draws per image failed'
    lines.append(f'{name}: {one["distribution"]}; {one["guarantee_in_words"]}{rate}')
  return '\n'.join(lines)


def title(name: str, one: Mapping[str, Any]) -> str:
  """Of a decoder's images."""
  return (f'{name}: {one["target_passes"]:.0f} passes of the target, '
          f'{one["head_calls"]:.0f} head calls, {one["seconds_per_image"]:.2f} s per image')


BAR = report_files.Bar(
    'head_calls', 'Head calls', '{:.0f}',
    "calls of the target's diffusion head, one after the other; shorter is better")
