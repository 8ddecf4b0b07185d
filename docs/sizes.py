"""Tables of the pages on families: official options, and bytes by shape evaluation."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from checkpoints_conversion import rules
from cspd_jax import families
from cspd_jax.checkpoints import store
from cspd_jax.generation import memory as memory_lib
from cspd_jax.measure import tables

# By the name of a page: the family of files with its target, and those with what belongs to it.
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    'llamagen': ('llamagen', ('llamagen_vq', 't5')),
    'lumina_mgpt': ('lumina_mgpt', ('chameleon_vqgan', 'eagle_lumina_mgpt')),
    'lumina_mgpt_2': ('lumina_mgpt_2', ('movqgan',)),
    'anole': ('anole', ('chameleon_vqgan', 'eagle_anole')),
    'emu3': ('emu3', ('emu3_vq',)),
    'emu3_5': ('emu3_5', ('emu3_5_vq',)),
    'mar': ('mar', ('kl_vae',)),
    'nextstep': ('nextstep', ('nextstep_vae',)),
    'janus': ('janus_pro', ('janus_pro_vq',)),
    'simplear': ('simplear', ('cosmos_dv',)),
    'liquid': ('liquid', ('chameleon_vqgan',)),
}


def markdown(rows: Iterable[Mapping[str, Any]], left: int = 1) -> str:
  """Rows as Markdown; the first one has all columns, of which some are aligned left."""
  rows = list(rows)
  return tables.markdown({name: f'{{{name}}}' for name in rows[0]}, rows, left=left)


def official(page: str) -> str:
  """The sampling options that a conversion stores, per published model and use."""
  file = rules.FAMILIES[FILES[page][0]]
  found: dict[Any, list[str]] = {}
  for preset, config in file.presets.items():
    for use, options in file.sampling(config).items():
      said = ', '.join(f'`{name}` {value}' if name != 'decoder' else f'`{value}`'
                       for name, value in options.items())
      found.setdefault((use, said), []).append(f'`{preset}`')
  return markdown((
      {'model': ', '.join(presets), 'for': use, 'options': said}
      for (use, said), presets in found.items()), left=3)


def memory(page: str) -> str:
  """Numbers of parameters, and gigabytes in bfloat16."""
  target, others = FILES[page]
  rows = [of_target(rules.FAMILIES[target].kind, preset, config)
          for preset, config in rules.FAMILIES[target].presets.items()]
  for name in others:
    file = rules.FAMILIES[name]
    rows += [{**dict.fromkeys(rows[0]), 'network': f'`{name}`: `{preset}`',
              **_parameters(_count(file.kind, config))}
             for preset, config in file.presets.items()]
  return markdown(rows)


def _count(kind: str, config: Any) -> int:
  """Parameters of a network."""
  return sum(leaf.size for leaf in jax.tree.leaves(store.sketch(kind, config).params))


def _layers(config: Any, of: Callable[[Any], float]) -> float:
  """A number that grows with every layer by the same: one of few layers is soon traced."""
  one, two = (of(dataclasses.replace(config, num_layers=count)) for count in (1, 2))
  return one + (config.num_layers - 1) * (two - one)


def of_target(kind: str, preset: str, config: Any) -> dict[str, Any]:
  """A row of a target, with its cache unless it has none."""
  if kind == 'mar':  # It reads all tokens anew in every step.
    return {'network': f'`{preset}`', 'tokens of an image': str(config.height * config.width),
            **_parameters(_count(kind, config))}
  family = families.family.of_target(kind)

  def cache(config):
    sketch = store.sketch(kind, config)
    target = family.build(families.Parts(preset, {'target': sketch}, {})).target(guided=True)
    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), sketch.params)
    condition = family.published.condition(config, 1)
    return memory_lib.cache_size(target, params, condition, target.num_tokens)

  return {'network': f'`{preset}`', 'tokens of an image': str(config.num_tokens),
          **_parameters(_layers(config, functools.partial(_count, kind))),
          'cache of a guided image': f'{_layers(config, cache) / 1e9:.2f} GB'}


def _parameters(count: float) -> dict[str, str]:
  return {'parameters': f'{count / 1e9:.2f} B', 'in bfloat16': f'{2 * count / 1e9:.2f} GB'}


LISTS: dict[str, Callable[[], str]] = {
    f'{kind}_{page}': functools.partial(make, page)
    for page in FILES for kind, make in (('official', official), ('memory', memory))}
