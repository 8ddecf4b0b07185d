"""What a model takes: parameters, cache, and the bytes and FLOPs of a round, by shapes alone.

  python -m experiments.inspect --model=lumina_mgpt_7b_768
  python -m experiments.inspect --model=emu3_gen_8b --window=1,32 --batch=8

Nothing is allocated or compiled. A round reads every weight once and the half of the cache that is
live in the mean; `experiments.compile_report` says what a compiled one reads.
"""

import dataclasses
import math
import sys
from typing import Any

import jax
import jax.numpy as jnp

from configs import inspect as default
from cspd_jax import families
from cspd_jax.decoding.tree import chain
from cspd_jax.generation.report import Report
from cspd_jax.measure import tables
from experiments import cli
from experiments.cli import inputs
from experiments.costs import predicted

_NETWORKS = {'network': '{network}', 'parameters': '{parameters:,}', 'GB': '{gigabytes:.3f}'}
_ROUNDS = {'tokens per round': '{window}', 'GB read': '{gigabytes:.3f}', 'GFLOPs': '{gflops:.1f}',
           'FLOPs per byte': '{intensity:.1f}'}


def networks(model: families.Model) -> list[dict[str, Any]]:
  """The target and what drafts for it; what they share with it is counted with each."""
  parts = {'target': model.params, **{name: one.params for name, one in model.drafts.items()}}
  return [dict(network=name, gigabytes=1e-9 * predicted.size(params),
               parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)))
          for name, params in parts.items()]


def flops(model: families.Model, condition: Any, window: int, guided: bool) -> float:
  """Multiplications and additions of a forward pass over a window in the middle of an image."""
  target, batch = model.target(guided=guided), jax.tree.leaves(condition)[0].shape[0]
  cache = jax.eval_shape(lambda *args: target.prefill(*args, target.num_tokens + window)[2],
                         model.params, condition)
  tokens = jax.ShapeDtypeStruct((batch, window), jnp.int32)
  start = jax.ShapeDtypeStruct((batch,), jnp.int32)
  lowered = jax.jit(lambda *args: target.score(*args, chain(window - 1))[:2]).lower(
      model.params, cache, tokens, start)
  return float(lowered.cost_analysis()['flops'])


def rounds(model: families.Model, config: Any, condition: Any) -> list[dict[str, Any]]:
  """What forward passes read and multiply."""
  read = predicted.size(model.params) + predicted.live_cache(model, config.guided, condition)
  rows = []
  for window in config.window:
    count = flops(model, condition, window, config.guided)
    rows.append(dict(window=window, gigabytes=1e-9 * read, gflops=1e-9 * count,
                     intensity=count / read))
  return rows


@cli.program(config='configs/inspect.py', expected=default.Config)
def main(config: Any) -> None:
  inputs.check_dtype(config)
  if not config.window:
    raise ValueError('window is empty; give at least one.')
  model = families.describe(config.model, dtype=config.dtype)
  if model.engine.name != 'discrete':
    raise ValueError(f'model is {config.model!r}, which has continuous tokens; give one whose '
                     'tokens are discrete.')
  report = Report(config.workdir)
  condition = families.FAMILIES[model.family].published.condition(model.config, config.batch)
  parts, passes = networks(model), rounds(model, config, condition)
  cache = 2e-9 * predicted.live_cache(model, config.guided, condition)
  print(tables.text(_NETWORKS, parts, left=1))
  print(f'\ncache of {config.batch} image{"s"[:config.batch != 1]} of {model.num_tokens} tokens: '
        f'{cache:.3f} GB\n')
  print(tables.text(_ROUNDS, passes, left=0))
  rows = [*parts, *passes]
  report.write(
      settings=dataclasses.asdict(config), rows=rows, cache_gigabytes=cache,
      tables=[dict(title=title, columns=columns, rows=[
          rows.index(row) for row in group]) for title, columns, group in (
              ('networks', _NETWORKS, parts), ('rounds', _ROUNDS, passes))])


if __name__ == '__main__':
  sys.exit(main())
