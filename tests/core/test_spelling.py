"""Suggestions for names that do not exist."""

import pytest

from cspd_jax.core import naming


@pytest.mark.parametrize('name, supported, near', [
    ('cfg_scale', ['window', 'guidance_scale'], 'guidance_scale'), ('windw', ['window'], 'window'),
    ('dtpye', ['grid', 'dtype'], 'dtype'), ('precision', ['dtype'], 'dtype'),
    ('window', ['window', 'windows'], 'windows'), ('window', ['window'], None),
    ('cfg_scale', ['window'], None), ('x', ['window'], None)])
def test_near_names(name, supported, near):
  assert naming.nearest(name, supported) == near
  assert naming.suggestion(name, supported) == (f'; did you mean {near}?' if near else '.')
