"""Measures the distance of an int8 target from the original.

  python -m experiments.quantized
  python -m experiments.quantized --model=checkpoints/lumina --dtype=bfloat16 --guidance_scale=4

The original target generates images. Along them, the distributions of every token under both
targets are compared: their negative log-likelihoods (NLL in nats per token; the mean difference is
the relative entropy), and their total variation, which bounds the probability that the two draw
different tokens. Writes report.json to --workdir.
"""

import dataclasses
import sys
from typing import Any

import jax
import numpy as np

import cspd_jax
from configs import quantized as default
from cspd_jax import cli
from cspd_jax.cli import inputs
from cspd_jax.core import programs
from cspd_jax.generation import memory
from cspd_jax.generation.report import Report
from cspd_jax.measure import tables
from cspd_jax.measure.bench import Bench
from cspd_jax.metrics import base, distance as distance_lib

_COLUMNS = {
    'guidance': '{guidance_scale}', 'NLL': '{nll:.4f}', 'NLL of int8': '{other_nll:.4f}',
    'difference': '{difference:.4f}', '+-': '{difference_error:.4f}',
    'total variation': '{total_variation:.4f}', 'largest': '{largest:.3f}',
    'MiB': '{mib:.1f}', 'MiB of int8': '{other_mib:.1f}'}


def run(config: default.Config) -> None:
  """Measures, prints the table and writes the report.

  Raises:
    ValueError: for invalid options, before anything is compiled.
  """
  inputs.at_least(config.images, 2, 'num_images')
  if not config.guidance_scale:
    raise ValueError('guidance_scale is empty; give at least one.')
  model = inputs.model(config)
  quantized = cspd_jax.load(config.model, dtype=config.dtype, quantize='int8',
                            **inputs.overrides(config.parts))
  prompts, seed = inputs.images(config.images, model)
  benches = [Bench(model, prompts, seed=seed, batch_size=config.batch_size,
                   sampling=model.sampling(guidance_scale=scale))
             for scale in config.guidance_scale]
  for bench in benches:
    bench.check(bench.baseline)
  report, rows = Report(config.workdir), []
  for scale, bench in zip(config.guidance_scale, benches):
    rows.append(dict(guidance_scale=scale, mib=memory.size(model.params) / 2**20,
                     other_mib=memory.size(quantized.params) / 2**20,
                     **measured(bench, quantized.params)))
    print(', '.join(f'{name} {text.format_map(rows[-1])}' for name, text in _COLUMNS.items()),
          flush=True)
  report.write(settings=dataclasses.asdict(config), rows=rows, prompts=prompts, tables=[
      dict(title=f'{config.model}, int8', columns=_COLUMNS, rows=list(range(len(rows))))])
  print('\n' + tables.text(_COLUMNS, rows, left=1))


def measured(bench: Bench, other_params: Any) -> dict[str, float]:
  """Measures the distance of other parameters from the target's, along the images of a bench."""
  model, sample = bench.model, bench.sample(bench.baseline)
  target = model.target(guided=programs.is_guided(bench.sampling))
  distance = jax.jit(lambda *arguments: distance_lib.distance(target, *arguments))
  result = sample.batched(lambda condition, tokens, sampling: distance(
      model.params, other_params, condition, tokens, sampling))
  difference = base.mean(result.other_nll - result.nll)
  return dict(
      nll=float(np.mean(result.nll)), other_nll=float(np.mean(result.other_nll)),
      difference=difference.mean, difference_error=difference.standard_error,
      total_variation=float(np.mean(result.total_variation)),
      largest=float(np.max(result.largest)))


@cli.command(default.Config, config='configs/quantized.py')
def main(config: default.Config) -> None:
  run(config)


if __name__ == '__main__':
  sys.exit(main())
