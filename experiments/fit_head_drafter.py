"""Fits the drafter of the diffusion head to a model of continuous tokens.

  python -m experiments.fit_head_drafter --model=checkpoints/mar_b --guidance_scale=2.9

The drafter of `exact_head` predicts the head's next outputs from its last one, with one coefficient
rho per noise level. The coefficients are fitted by least squares on chains of the model, to outputs
one or several levels away. Of these fits and the default, the one with the fewest head calls on
other images is stored with a copy of the target in --output: `cspd_jax.load(model, target=output)`.
The coefficients affect the speed only, not the distribution of the images.
"""

import dataclasses
import sys
from typing import Any

import jax
import numpy as np

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.cli import groups, inputs
from cspd_jax.continuous import head_drafter, specification
from cspd_jax.continuous.schedule import Schedule
from cspd_jax.core import fields, programs
from cspd_jax.files import paths, store

# Images per recorded batch, and number of images for counting head calls.
_RECORD_BATCH, _NUM_COUNTED = 64, 8
_NUM_ITER = 16  # Autoregressive steps of a masked model's recorded images.


@dataclasses.dataclass(frozen=True)
class Flags:
  """Model, folders and options of the fit.

  Attributes:
    model: a shipped model of continuous tokens, or a folder.
    output: folder for the copy of the target.
    guidance_scale: guidance scale of the fit with guidance; the model's default if none.
    num_chains: chains to fit on, at least 32.
    kernels_per_call: kernels per head call of the decoder to fit for, at least 2.
    num_iter: autoregressive steps of the recorded images; if none, 16, or all of a causal model.
    seed: seed of the chains.
  """

  model: str = 'mar_demo'
  output: str = 'runs/head_drafter'
  guidance_scale: float | None = None
  num_chains: int = 256
  kernels_per_call: int = 8
  num_iter: int | None = None
  seed: int = 0

  def __post_init__(self):
    fields.check(self, guidance_scale=fields.FINITE, num_chains=(32, fields.MOST),
                 kernels_per_call=(2, fields.MOST), seed=fields.SEEDS)


def check(flags: Flags) -> cspd_jax.Model:
  """Checks all flags; returns the model in float32."""
  model = inputs.model(groups.LoadFlags(flags.model, dtype='float32'), tokens='continuous')
  for text in _texts(model, flags):
    model.decoder(text, guided=False)
  if flags.guidance_scale == 1:
    raise ValueError(f'guidance_scale is {flags.guidance_scale}; it must be finite and not 1.')
  if paths.folder('output', flags.output).exists():
    raise ValueError(f'output is {flags.output!r}, which exists; use another folder.')
  return model


def _texts(model: cspd_jax.Model, flags: Flags) -> tuple[str, str]:
  """Returns the decoder that records the chains, and the decoder to fit for."""
  causal, num_iter = model.target(guided=False).cached is not None, flags.num_iter
  if num_iter is None and not causal:
    num_iter = _NUM_ITER
  return ('mar' if num_iter is None else f'mar(num_iter={num_iter})',
          f'exact_head(kernels_per_call={flags.kernels_per_call})')


def fit(model: cspd_jax.Model, flags: Flags, guided: bool
        ) -> tuple[Schedule, dict[str, np.ndarray], dict[str, float]]:
  """Returns the levels, coefficients `[levels]` by name of the fit, and head calls per token."""
  plain, speculative = _texts(model, flags)
  sampling = model.sampling(guidance_scale=flags.guidance_scale if guided else 1.0)
  decoder = model.decoder(plain, guided=guided)
  condition = lambda num: model.condition([
      model.prompts[i % len(model.prompts)] for i in range(num)])
  record = programs.jit(lambda params, condition, key: head_drafter.record(
      decoder, params, condition, key, sampling))
  num = min(flags.num_chains, _RECORD_BATCH)
  parts = [record(model.params, condition(num), jax.random.key(flags.seed + i))
           for i in range(-(-flags.num_chains // num))]
  chains = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
  schedule = decoder.schedule
  blends = {'default': head_drafter.default_rho(schedule)} | {
      f'fitted to {reach} levels': head_drafter.fit_rho(schedule, chains, reach)
      for reach in sorted({1, 2, 4, flags.kernels_per_call})}
  # Other images than those of the fit, and head calls per row, as at batch size 1.
  calls = {}
  for name, rho in blends.items():
    run = programs.jit(specification.build(
        speculative, model.target(guided=guided)._replace(rho=lambda _, rho=rho: rho)))
    decoded = run(model.params, condition(_NUM_COUNTED), jax.random.key(flags.seed + 2**20),
                  sampling)
    calls[name] = float(decoded.costs.head_calls.sum() / decoded.order.size)
  return schedule, blends, calls


@cli.command(flags=Flags())
def main(flags: Any) -> None:
  model, best = check(flags), []
  for guided in (False, True):
    schedule, blends, calls = fit(model, flags, guided)
    best.append(blends[min(calls, key=calls.get)])
    print(f'{"with" if guided else "without"} guidance, head calls per token at batch 1: '
          + ', '.join(f'{name} {value:.1f}' for name, value in calls.items())
          + '; rho at steps '
          + ', '.join(f'{schedule.steps[i]:.3g}: {best[-1][i]:.2f}'
                      for i in range(0, schedule.num_levels, -(-schedule.num_levels // 10))),
          flush=True)
  loaded = store.load(families.part_folder(flags.model, 'target'))
  store.save(flags.output, loaded.kind, loaded.config, loaded.params,
             extra=loaded.metadata | head_drafter.describe_rho(schedule, *best))
  print(f'stored in {flags.output}, a copy of the target: '
        f'cspd_jax.load({flags.model!r}, target={flags.output!r})')


if __name__ == '__main__':
  sys.exit(main())
