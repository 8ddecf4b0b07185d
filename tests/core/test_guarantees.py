"""The order of guarantees, and their words in reports."""

import json

import jax

from cspd_jax.core.guarantees import Guarantee
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.testing.tabular import tabular

TARGET = tabular(jax.random.key(0), 3, 6).target


def test_the_order():
  words = ['seed-exact', 'seed-exact up to rounding', 'exact', 'bounded', 'biased']
  assert json.dumps(list(Guarantee)) == json.dumps(words) and f'{Guarantee.EXACT}' == 'exact'
  for i, word in enumerate(words):
    guarantee = Guarantee(word)
    assert guarantee.is_exact == (i < 3)
    assert [guarantee.satisfies(least) for least in Guarantee] == [i <= j for j in range(5)]


def test_drafts_that_are_no_chain_have_sums_in_another_order():
  decode = lambda tree, seed_exact: make_decoder(
      TARGET, jacobi(4, tree=tree), match(seed_exact=seed_exact)).guarantee
  assert decode(trees.chain(3), True) == 'seed-exact'
  assert decode(trees.Tree((-1, 0, 0, 0)), True) == 'seed-exact up to rounding'
  assert decode(trees.Tree((-1, 0, 0, 0)), False) == 'exact'
