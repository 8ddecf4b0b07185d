"""Binding the parameters of a part to the signature of its builder."""

import numpy as np
import pytest

from cspd_jax.core.spec import parse
from cspd_jax.core.table import Entry


class Box:
  """A type that text cannot represent."""

  def __init__(self, size):
    self.size = size


def build(count: int, share: float | None = None, name: str = 'x', flag: bool = False,
          sizes: tuple[float, ...] = (), box: Box | None = None,
          array: np.ndarray | None = None):
  """A builder that no test calls."""


def bind(text, build=build):
  return Entry(build, 'a box').bind(parse(text).parts[0], {Box: lambda name, value: Box(value)})


def test_values():
  assert bind('a(count=3)') == {'count': 3}
  arguments = bind('a(count=-1, share=2, name=y, flag=True, sizes=(1, 2.5), box=4)')
  assert arguments.pop('box').size == 4
  assert arguments == {'count': -1, 'share': 2.0, 'name': 'y', 'flag': True, 'sizes': (1, 2.5)}
  assert isinstance(arguments['share'], float)
  assert bind('a(count=1, share=None, box=None)') == {'count': 1, 'share': None, 'box': None}


@pytest.mark.parametrize('text,message', [
    ('a(count=1, size=2)', "a has no parameter 'size'; it has count, .* did you mean sizes?"),
    ('a(count=1, array=2)', "a has no parameter 'array'"),
    ('a', r'a needs count; pass it as a\(count=...\)'),
    ('a(count=1.5)', 'count is 1.5; it must be a whole number'),
    ('a(count=True)', 'count is True; it must be a whole number'),
    ('a(count=None)', 'count is None; it must be a whole number'),
    ('a(count="3")', "count is '3'; it must be a whole number"),
    ('a(count=1, share=half)', "share is 'half'; it must be a number or None"),
    ('a(count=1, share=True)', 'share is True; it must be a number or None'),
    ('a(count=1, name=3)', 'name is 3; it must be a string'),
    ('a(count=1, flag=1)', 'flag is 1; it must be True or False'),
    ('a(count=1, flag=yes)', "flag is 'yes'; it must be True or False"),
    ('a(count=1, sizes="12")', "sizes is '12'; it must be numbers in parentheses"),
    ('a(count=1, sizes=12)', 'sizes is 12; it must be numbers in parentheses'),
    ('a(count=1, name=f(2))', r'name is f\(2\); it must be a string'),
])
def test_mistakes(text, message):
  with pytest.raises(ValueError, match=message):
    bind(text)


def test_a_part_without_parameters():
  with pytest.raises(ValueError, match="a has no parameter 'b'; it has none"):
    bind('a(b=1)', lambda: None)
