"""Drawings of rounds: what is read from a round, and where nodes of a tree are drawn."""

import types

import numpy as np
import pytest

import cspd_jax
from cspd_jax.decoding import tree as tree_lib
from docs import drawings

CHAIN = drawings.Round(
    before=np.array([1, 2, 3, 4]), tree=tree_lib.chain(3), drafts=np.array([5, 6, 7]),
    passes=np.array([1.0, 0.5, 0.2]), path=[1], token=0)
SIDE = CHAIN._replace(tree=tree_lib.Tree((-1, 0, 1, 0, 3)), drafts=np.arange(4), path=[3, 4],
                      passes=np.ones(4))
# What of a model the drawings need.
MODEL = types.SimpleNamespace(
    num_tokens=16, pixels=lambda tokens: np.full((1, 64, 64, 3), tokens[0, 0] / 8 - 1))


@pytest.mark.parametrize('draw, one', [
    (drawings.draw_round, CHAIN), (drawings.draw_tree, SIDE)])
def test_pictures(draw, one):
  first, other = draw(MODEL, one), draw(MODEL, one._replace(path=one.path[:-1] or [1, 2]))
  assert first.startswith(b'\x89PNG') and first != other


@pytest.mark.slow
def test_a_round_of_a_model():
  model = cspd_jax.load('demo')
  one = drawings.observe(model, 'mc_sjd(window=4)', 'cat', lambda one: len(one.path) == 2)
  tokens = model.generate(['cat'], decoder='mc_sjd(window=4)', seed=0).decoded.tokens[0]
  count = len(one.before)
  np.testing.assert_array_equal(one.before, tokens[:count])
  np.testing.assert_array_equal(one.drafts[:2], tokens[count:count + 2])
  assert one.token == tokens[count + 2] and np.all(one.passes[:2] > 0)
  with pytest.raises(ValueError, match='no round'):
    drawings.observe(model, 'mc_sjd(window=4)', 'cat', lambda one: False)
