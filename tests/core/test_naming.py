"""Suggestions for names that do not exist."""

import pytest

from cspd_jax.core import naming


@pytest.mark.parametrize('name, supported, near', [
    ('cfg', ['window', 'scale'], 'scale'), ('windw', ['window'], 'window'),
    ('dtpye', ['grid', 'dtype'], 'dtype'), ('cfg', ['guidance', 'scale'], 'guidance'),
    ('window', ['window', 'windows'], 'windows'), ('window', ['window'], None),
    ('cfg', ['window'], None), ('x', ['window'], None)])
def test_near_names(name, supported, near):
  aliases = {'cfg': ('guidance', 'scale')}
  assert naming.nearest(name, supported, aliases) == near
  assert naming.suggestion(name, supported, aliases) == (f'; did you mean {near}?' if near else '.')


def test_advice_in_place_of_a_name():
  aliases = {'windw': 'call it'}
  assert naming.nearest('windw', ['window'], aliases) is None
  assert naming.suggestion('windw', ['window'], aliases) == '; call it.'
  assert naming.question('windw', ['window'], 'use a window.', aliases) == (
      'call it. Otherwise use a window.')
