"""Sizes that cannot be: of networks, of trees, of decoders."""

import dataclasses

import numpy as np
import pytest

from cspd_jax.core import fields
from cspd_jax.decoding import tree as trees
from cspd_jax.models import (
  eagle,
  early_fusion,
  kl_vae,
  llamagen,
  local,
  mar,
  medusa,
  neighbours,
  t5,
  transformer,
  vq,
)
from cspd_jax.text import bpe

NAN, INF = float('nan'), float('inf')
MODULES = (eagle, early_fusion, kl_vae, llamagen, local, mar, medusa, neighbours, t5, transformer,
           vq, bpe)
SIZES = {'TransformerConfig': (8, 8, 1, 1, 1, 8, 8)}  # It has no defaults.
CONFIGS = {name: kind(*SIZES.get(name, ())) for module in MODULES
           for name, kind in vars(module).items()
           if name.endswith('Config') and dataclasses.is_dataclass(kind)}
WRONG = {int: (-1, 10**12, True, 2.5, 4.0, '4', NAN, (4,), 10**30),
         float: (0, 0.0, -1e-5, NAN, INF, -INF, True, '1e-5'),
         bool: (1, 0, 'False', None), str: (3, None, b'class'),
         tuple: ('12', 12, (1, '2'), (1, 2.0), (True, 2), (-1,))}
WRONG[type(None)] = WRONG[int]
# Fields for which some of these are right.
ANY_NUMBER, ANY_NAME = {('KLVAEConfig', 'shift')}, {('TextConfig', 'first_token')}
CASES = [(name, field.name, value) for name, config in CONFIGS.items()
         for field in dataclasses.fields(config) for value in WRONG[
             type(getattr(config, field.name))]
         if ((name, field.name) not in ANY_NUMBER or value not in (0, -1e-5) or value is False)
         and ((name, field.name) not in ANY_NAME or not isinstance(value, str))]


@pytest.mark.parametrize('name', CONFIGS)
def test_every_field_of_every_config(name):
  for config, field, value in CASES:
    if config == name:
      try:
        dataclasses.replace(CONFIGS[name], **{field: value})
      except ValueError as error:
        assert str(error).startswith(f'{field} is '), (field, value)
      else:
        pytest.fail(f'{field}={value!r} is not refused')


def test_lists_in_configs_become_tuples():
  config = vq.VQConfig(ch=np.int64(32), ch_mult=[1, 2])
  assert config.ch_mult == (1, 2) and hash(config)


def test_tuples_and_none():
  @dataclasses.dataclass
  class Config:
    """Attributes: some."""

    many: tuple[int, ...] = ()
    few: int | None = None

  fields.check(Config((2, 3), 4))
  with pytest.raises(ValueError, match='few is 0; it must be a whole number from 1 to .* or None'):
    fields.check(Config((), 0))
  with pytest.raises(ValueError, match=r'many is \(5,\); it must be a tuple.* from 1 to 4'):
    fields.check(Config((5,)), many=(1, 4))


@pytest.mark.parametrize('build,message', [
    # Ranks are one digit each: the eleventh child would be the child of a child.
    (lambda: trees.branching('12'), "entry '12'; it must have path:number .* from 1 to 10"),
    (lambda: trees.branching((1, 2)), r'counts is \(1, 2\); it must be a string'),
    (lambda: trees.branching(12), 'counts is 12; it must be a string'),
    (lambda: trees.branching('99999999'), 'from 1 to 10'),
    (lambda: trees.branching('1' * 5000), 'from 1 to 10'),
    (lambda: trees.branching('\u0662'), 'it must be a string, such as'),
    (lambda: trees.Tree('12'), "parents is '12'; it must be a tuple"),
    (lambda: trees.Tree((-1, 0.0)), 'of which each is a whole number'),
    (lambda: trees.Tree((-1, False)), 'of which each is a whole number'),
    (lambda: trees.Tree((-1, *[0] * 2**15)), 'has 32768 nodes; it may have at most'),
    (lambda: trees.chain('3'), "length is '3'; it must be a whole number"),
    (lambda: trees.chain(2.0), 'length is 2.0; it must be a whole number'),
    (lambda: trees.kary(True, 3), 'num_candidates is True'),
    (lambda: trees.paths(2, 2, '9'), "num_nodes is '9'"),
    (lambda: trees.caterpillar(2, 1.5), 'depth is 1.5'),
    (lambda: trees.cut(trees.chain(3), '1'), "depth is '1'"),
])
def test_trees(build, message):
  with pytest.raises(ValueError, match=message):
    build()


def test_trees_of_lists():
  assert trees.Tree([-1, 0]) == trees.Tree((-1, 0)) and hash(trees.Tree([-1, 0]))
