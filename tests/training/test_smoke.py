"""A smoke test of a recipe keeps what the recipe is, with little work."""

import dataclasses
import pathlib

import pytest

from cspd_jax.cli import wrapper
from cspd_jax.training import smoke

CONFIGS = sorted((pathlib.Path(__file__).parents[2] / 'configs' / 'train').glob('*.py'))


def _numbers(recipe, prefix=''):
  for field in dataclasses.fields(recipe):
    value = getattr(recipe, field.name)
    if dataclasses.is_dataclass(value):
      yield from _numbers(value, f'{prefix}{field.name}.')
    else:
      yield prefix + field.name, value


@pytest.mark.slow
@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_has_a_smoke_test(path):
  recipe = wrapper.load(str(path))
  small = smoke.smoke(recipe.small() if hasattr(recipe, 'small') else recipe)
  assert type(small) is type(recipe)
  assert hasattr(recipe, 'small') or small.drafter == recipe.drafter
  values = dict(_numbers(small))
  for name, value in values.items():
    last = name.rpartition('.')[2]
    if last == 'num_steps':
      assert value <= 6 and values[name.removesuffix('num_steps') + 'batch_size'] <= 4
    if last.endswith('_images'):
      assert value <= 16
  assert smoke.smoke(small) == small
