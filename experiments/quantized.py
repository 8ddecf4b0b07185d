"""Measures the distance of int8 targets from the original: of matrices, of the cache, and of both.

  python -m experiments.quantized
  python -m experiments.quantized --model=checkpoints/lumina --dtype=bfloat16 --guidance_scale=4

The original target generates images. Along them, the distributions of every token under both
targets are compared: their negative log-likelihoods (NLL in nats per token), their relative entropy
(in nats per token), and their total variation, which bounds the probability that the two draw
different tokens. Writes report.json to --workdir.
"""

import dataclasses
import sys

import numpy as np

import cspd_jax
from cspd_jax import cli
from cspd_jax.cli import groups, inputs
from cspd_jax.core import fields, programs
from cspd_jax.core.sampling import is_guided
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import memory
from cspd_jax.measure.bench import Bench
from cspd_jax.measure.tables import Table
from cspd_jax.metrics import base, likelihood
from experiments.measured import ModelImages, listed, write


@dataclasses.dataclass(frozen=True)
class Config(ModelImages):
  """The measurements.

  Attributes:
    guidance_scale: guidance scales.
  """

  loading: groups.LoadFlags = groups.LoadFlags('demo', dtype='float32')
  guidance_scale: tuple[float, ...] = (1.0, 3.0)
  images: groups.Images = groups.Images(num_images=32, seed=12)
  workdir: str = 'runs/quantized'

  def __post_init__(self):
    fields.check(self, guidance_scale=fields.FINITE)


_COLUMNS = {
    'int8': '{int8}', 'guidance': '{guidance_scale}', 'NLL': '{nll:.4f}',
    'NLL of int8': '{other_nll:.4f}',
    'relative entropy': '{relative_entropy:.6f}', '+-': '{relative_entropy_error:.6f}',
    'total variation': '{total_variation:.4f}', 'largest': '{largest:.3f}',
    'MiB': '{mib:.1f}', 'MiB of int8': '{other_mib:.1f}',
    'cache MiB': '{cache_mib:.1f}', 'of int8': '{other_cache_mib:.1f}'}
# The options of `load`, in words.
_OPTIONS = {'matrices': dict(quantize='int8'), 'cache': dict(cache_dtype='int8'),
            'both': dict(quantize='int8', cache_dtype='int8')}


@cli.command(Config)
def main(config: Config) -> None:
  fields.check_lists(config, 'guidance_scale')
  for name in _OPTIONS['both']:
    if (value := getattr(config.loading, name)) is not None:
      raise ValueError(f'{name} is {value!r}; the model is compared with its own int8 forms, so '
                       f'leave {name} out.')
  load = lambda **options: inputs.model(
      dataclasses.replace(config.loading, **options), one_group=inputs.MEASURED)
  model, quantized = load(), {name: load(**options) for name, options in _OPTIONS.items()}
  benches = [config.bench(model, guidance_scale=scale) for scale in config.guidance_scale]
  if len(benches[0].prompts) < 2:
    raise ValueError('num_images is 1; it must be at least 2, for a standard error.')
  for bench in benches:
    bench.check(bench.baseline)
  report = Report(config.workdir)
  rows = listed(_COLUMNS, (
      dict(int8=name, guidance_scale=scale, mib=memory.size(model.params) / 2**20,
           other_mib=memory.size(other.params) / 2**20, cache_mib=_cache(model, bench),
           other_cache_mib=_cache(other, bench), **measured(bench, other))
      for name, other in quantized.items() for scale, bench in zip(config.guidance_scale, benches)))
  write(report, config, [Table(f'{config.loading.model}, int8', _COLUMNS, rows)],
        prompts=benches[0].prompts)


def _cache(model: cspd_jax.Model, bench: Bench) -> float:
  target = model.target(guided=is_guided(bench.sampling))
  condition = model.condition([bench.prompts[0]])
  return memory.cache_size(target, model.params, condition, target.num_tokens) / 2**20


def measured(bench: Bench, other: cspd_jax.Model) -> dict[str, float | None]:
  """Measures the distance of another target from a bench's, along the images of the latter."""
  model, sample = bench.model, bench.sample(bench.baseline)
  target, other_target = (part.target(guided=is_guided(bench.sampling))
                          for part in (model, other))
  distance = programs.jit(
      lambda *arguments: likelihood.distance(*arguments, other=other_target), static_argnums=0)
  result = sample.batched(lambda condition, tokens, sampling: distance(
      target, model.params, other.params, condition, tokens, sampling))
  return base.finite(dict(
      nll=np.mean(result.nll), other_nll=np.mean(result.other_nll),
      total_variation=np.mean(result.total_variation), largest=np.max(result.largest))
  ) | base.entries(dict(relative_entropy=base.mean(result.relative_entropy)))


if __name__ == '__main__':
  sys.exit(main())
