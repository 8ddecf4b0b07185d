"""A smoke test of a recipe keeps what the recipe is, with little work."""

import dataclasses
import pathlib

import pytest

from configs.train import drafters, wide
from cspd_jax.cli import wrapper
from cspd_jax.training import loop

FOLDER = pathlib.Path(__file__).parents[2] / 'configs' / 'train'
SEVERAL = {'drafters': drafters.CONFIGS, 'wide': wide.CONFIGS}
CONFIGS = [f'{path.name}:{name}' if name else path.name for path in sorted(FOLDER.glob('*.py'))
           for name in SEVERAL.get(path.stem, ('',))]


def _numbers(recipe, prefix=''):
  for field in dataclasses.fields(recipe):
    value = getattr(recipe, field.name)
    if dataclasses.is_dataclass(value):
      yield from _numbers(value, f'{prefix}{field.name}.')
    else:
      yield prefix + field.name, value


@pytest.mark.slow
@pytest.mark.parametrize('config', CONFIGS)
def test_every_configuration_has_a_smoke_test(config):
  recipe = wrapper.load(f'{FOLDER}/{config}')
  small = loop.smoke(recipe.small() if hasattr(recipe, 'small') else recipe)
  assert type(small) is type(recipe)
  assert hasattr(recipe, 'small') or small.drafter == recipe.drafter
  values = dict(_numbers(small))
  for name, value in values.items():
    last = name.rpartition('.')[2]
    if last == 'num_steps':
      assert value <= 6 and values[name.removesuffix('num_steps') + 'batch_size'] <= 4
    if last.endswith('_images'):
      assert value <= 16
  assert loop.smoke(small) == small
