"""The order of guarantees, and their words in reports."""

import json

from cspd_jax.core import guarantees
from cspd_jax.core.guarantees import Guarantee
from cspd_jax.decoding.verifiers.match import match


def test_the_order():
  words = ['seed-exact', 'seed-exact up to rounding', 'exact', 'bounded', 'biased']
  assert json.dumps(list(Guarantee)) == json.dumps(words) and f'{Guarantee.EXACT}' == 'exact'
  for i, word in enumerate(words):
    guarantee = Guarantee(word)
    assert guarantee.is_exact == (i < 3)
    assert [guarantee.satisfies(least) for least in Guarantee] == [i <= j for j in range(5)]


def test_drafts_that_are_no_chain_have_sums_in_another_order():
  assert guarantees.weakest([match()]) == 'seed-exact'
  assert guarantees.weakest([match()], is_chain=False) == 'seed-exact up to rounding'
  assert guarantees.weakest([match(seed_exact=False)], is_chain=False) == 'exact'
