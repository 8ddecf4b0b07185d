"""Reports the parameters and the cache of a model, and the bytes and FLOPs of a round.

  cspd-inspect --model=lumina_mgpt_7b_768
  cspd-inspect --model=emu3_gen_8b --window=1,32 --batch=8

Computed from shapes alone, with guidance: nothing is allocated or compiled. A round reads every
weight once, and half of the cache on average. Of a folder or a shipped model, the networks that it
has are listed; of a published size, those that are published or trained for it. `layers` are the
target's own. Of a model with a prior both are shown, the prior first.
"""

import dataclasses
import math
import sys
from collections.abc import Collection
from typing import Any, Literal

import jax
import jax.numpy as jnp

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.cli import inputs
from cspd_jax.core import fields
from cspd_jax.decoding.tree import MAX_NODES, chain
from cspd_jax.families import family
from cspd_jax.files import store
from cspd_jax.files.run_folder import Report
from cspd_jax.generation import memory
from cspd_jax.generation.cascade import Cascade
from cspd_jax.generation.parts import role_of
from cspd_jax.measure import tables

# Images that a pass is traced with: the program has an instruction for each.
_MOST_BATCH = 1024
_NETWORKS = {'network': '{network}', 'parameters': '{parameters:,}', 'GB': '{gigabytes:.3g}'}
_ROUNDS = {'tokens per round': '{window}', 'GB read': '{gigabytes:.3g}', 'GFLOPs': '{gflops:.3g}',
           'FLOPs per byte': '{intensity:.1f}'}


@dataclasses.dataclass(frozen=True)
class Config:
  """The model to inspect.

  Attributes:
    model: a published size such as c2i_xl_256, a shipped model or a folder; of discrete tokens.
    window: tokens per forward pass.
    batch: images decoded together.
    dtype: dtype of the parameters.
    output: folder of the results.
  """

  model: str = store.DEFAULT
  window: tuple[int, ...] = (1, 16, 64)
  batch: int = 1
  dtype: Literal['float32', 'bfloat16'] = 'bfloat16'
  output: str = 'runs/inspect'

  def __post_init__(self):
    fields.check(self, batch=(1, _MOST_BATCH))
    for window in self.window:
      fields.check_whole('window', window, f'whole numbers from 1 to {MAX_NODES + 1}', 1,
                         MAX_NODES + 1)


def networks(model: cspd_jax.Model, roles: Collection[str] | None) -> list[dict[str, Any]]:
  """Returns the parameters of the target and of its drafters, with those that they share.

  `roles` are the networks of its folder, the only ones to list; None for a published size.
  """
  parts = {'target': model.params, **{
      name: one.params for name, one in model.drafts.items()
      if roles is None or name == 'layers' or role_of(name) in roles}}
  return [dict(network=name, gigabytes=1e-9 * memory.size(params),
               parameters=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)))
          for name, params in parts.items()]


def flops(model: cspd_jax.Model, condition: Any, window: int) -> float:
  """Returns the FLOPs of a forward pass over a window in the middle of an image."""
  target, batch = model.target(guided=True), jax.tree.leaves(condition)[0].shape[0]
  cache = jax.eval_shape(lambda *args: target.prefill(*args, target.num_tokens + window)[2],
                         model.params, condition)
  tokens = jax.ShapeDtypeStruct((batch, window), jnp.int32)
  start = jax.ShapeDtypeStruct((batch,), jnp.int32)
  lowered = jax.jit(lambda *args: target.score(*args, chain(window - 1))[:2]).lower(
      model.params, cache, tokens, start)
  return float(lowered.cost_analysis()['flops'])


def rounds(model: cspd_jax.Model, config: Config, condition: Any) -> list[dict[str, Any]]:
  """Returns the bytes and FLOPs of forward passes, a row per window."""
  read = memory.size(model.params) + memory.live_cache(
      model.target(), model.params, condition)
  rows = []
  for window in config.window:
    count = flops(model, condition, window)
    rows.append(dict(window=window, gigabytes=1e-9 * read, gflops=1e-9 * count,
                     intensity=count / read))
  return rows


@cli.command(Config)
def main(config: Config) -> None:
  fields.check_lists(config, 'window')
  model = families.describe(config.model, dtype=config.dtype)
  inputs.check_tokens(config.model, model, 'discrete')
  report = Report(config.output, [tables.PAGE], program='cspd-inspect')
  roles = families.roles(config.model)
  stages = {'': (model, roles)}
  if isinstance(model, Cascade):
    of_prior = None if roles is None else list(family.of_prior(dict.fromkeys(roles)))
    stages = {family.PRIOR_PREFIX: (model.prior, of_prior), '': (model.second, roles)}
  conditions = {prefix: _condition(config, stage) for prefix, (stage, _) in stages.items()}
  shown, caches = list[tables.Table](), dict[str, Any]()
  for prefix, (stage, own_roles) in stages.items():
    condition, target = conditions[prefix], stage.target(guided=True)
    parts, passes = networks(stage, own_roles), rounds(stage, config, condition)
    cache = 1e-9 * memory.cache_size(target, stage.params, condition, target.num_tokens)
    if shown:
      print()
    if len(stages) > 1:
      print(f'{"The prior" if prefix else "The model of its tokens"}, {stage.name}\n')
    print(tables.text(_NETWORKS, parts, left=1))
    print(f'\ncache of {config.batch} image{"s"[:config.batch != 1]} of {stage.num_tokens} tokens'
          f'{" of the prior" if prefix else ""}: {cache:.3g} GB\n')
    print(tables.text(_ROUNDS, passes, left=0))
    caches[f'{prefix}cache_gigabytes'] = cache
    shown += [tables.Table(f'{prefix}networks', _NETWORKS, parts),
              tables.Table(f'{prefix}rounds', _ROUNDS, passes)]
  tables.write(report, cli.line(), shown, settings=dataclasses.asdict(config), **caches)


def _condition(config: Config, model: cspd_jax.Model) -> Any:
  """Returns the described condition of a model's images."""
  describe = families.FAMILIES[model.family].published.condition
  if describe is None:
    raise ValueError(f'model is {config.model!r}, whose family {model.family!r} does not describe '
                     'its conditions; register them as Published.condition.')
  return describe(model.config, config.batch)


if __name__ == '__main__':
  sys.exit(main())
