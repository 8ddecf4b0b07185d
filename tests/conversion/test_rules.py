"""Rule tables: exact inverses, and heads whose numbers rotate in another order."""

import pytest

from checkpoints_conversion.rules import base


def test_tables_must_make_every_parameter_once():
  table = [base.Rule('a.{i}', ('x_{i}/a',), base.KEEP), base.Rule('b', ('b',), base.KEEP)]
  expanded = base.expand(table, ['x_0/a', 'x_12/a', 'b'])
  assert [rule.source for rule in expanded] == ['a.0', 'a.12', 'b']
  with pytest.raises(ValueError, match="'c'"):
    base.expand(table, ['x_0/a', 'b', 'c'])
  with pytest.raises(ValueError, match="'b'"):
    base.expand(table + [base.Rule('again', ('b',), base.KEEP)], ['x_0/a', 'b'])
