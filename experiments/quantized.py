"""How far a target of 8 bits is from the one that it was made of.

  python -m experiments.quantized
  python -m experiments.quantized --model=checkpoints/lumina --dtype=bfloat16 --guidance_scale=4

The target makes images; along them, every token's distribution is compared with that of the rounded
target: how much less likely it finds the images (NLL in nats per token, of which the difference is
the relative entropy), and total variation, which bounds how often a token can be another one. Into
--workdir goes report.json with all of it.
"""

import dataclasses
import sys
from typing import Any

import jax
import numpy as np

import cspd_jax
from configs import quantized as default
from cspd_jax.core import programs
from cspd_jax.generation.report import Report
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import base, distance as distance_lib
from experiments import cli
from experiments.cli import inputs

_COLUMNS = {
    'guidance': '{guidance_scale}', 'NLL': '{nll:.4f}', 'NLL of 8 bits': '{other_nll:.4f}',
    'difference': '{difference:.4f}', '+-': '{difference_error:.4f}',
    'total variation': '{total_variation:.4f}', 'largest': '{largest:.3f}',
    'MiB': '{mib:.1f}', 'MiB of 8 bits': '{other_mib:.1f}'}


def run(config: Any) -> None:
  """Measures all that a configuration asks for, shows it and writes the report.

  Raises:
    ValueError: for anything that cannot work, before anything is compiled.
  """
  inputs.at_least(config.images, 2, 'num_images')
  if not config.guidance_scale:
    raise ValueError('guidance_scale is empty; give at least one.')
  model = inputs.model(config)
  rounded = cspd_jax.load(config.model, dtype=config.dtype, quantize=config.quantize,
                          **inputs.given(config.parts))
  prompts, seed = inputs.images(config.images, model)
  benches = [Bench(model, prompts, seed=seed, batch_size=config.batch_size,
                   sampling=model.sampling(guidance_scale=scale))
             for scale in config.guidance_scale]
  for bench in benches:
    bench.check(bench.baseline)
  report, rows = Report(config.workdir), []
  for scale, bench in zip(config.guidance_scale, benches):
    rows.append(dict(guidance_scale=scale, mib=_mib(model), other_mib=_mib(rounded),
                     **measured(bench, rounded.params)))
    print(', '.join(f'{name} {text.format_map(rows[-1])}' for name, text in _COLUMNS.items()),
          flush=True)
  report.write(settings=dataclasses.asdict(config), rows=rows, prompts=prompts, tables=[
      dict(title=f'{config.model}, {config.quantize}', columns=_COLUMNS,
           rows=list(range(len(rows))))])
  print('\n' + tables.text(_COLUMNS, rows, left=1))


def measured(bench: Bench, other_params: Any) -> dict[str, float]:
  """The distance of other parameters from the target's, along the images of a bench."""
  model, sample = bench.model, bench.sample(bench.baseline)
  target = model.target(guided=programs.is_guided(bench.sampling))
  distance = jax.jit(lambda *arguments: distance_lib.distance(target, *arguments))
  found = sample.batched(lambda condition, tokens, sampling: distance(
      model.params, other_params, condition, tokens, sampling))
  difference = base.mean(found.other_nll - found.nll)
  return dict(
      nll=float(np.mean(found.nll)), other_nll=float(np.mean(found.other_nll)),
      difference=difference.mean, difference_error=difference.standard_error,
      total_variation=float(np.mean(found.total_variation)), largest=float(np.max(found.largest)))


def _mib(model: cspd_jax.Model) -> float:
  """The size of the target's parameters."""
  return sum(leaf.nbytes for leaf in jax.tree.leaves(model.params)) / 2**20


@cli.program(config='configs/quantized.py', expected=default.Config)
def main(config: Any) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
