"""The order of guarantees, and their words in reports."""

import json

from cspd_jax.core.guarantees import Guarantee


def test_the_order():
  words = ['seed-exact', 'exact', 'bounded', 'biased']
  assert json.dumps(list(Guarantee)) == json.dumps(words) and f'{Guarantee.EXACT}' == 'exact'
  for i, word in enumerate(words):
    guarantee = Guarantee(word)
    assert guarantee.is_exact == (i < 2)
    assert [guarantee.satisfies(least) for least in Guarantee] == [i <= j for j in range(4)]
