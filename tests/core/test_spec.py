"""Specifications: what they read as, what they are written as, and every mistake."""

import copy
import pickle

import numpy as np
import pytest

from cspd_jax.core.spec import Call, Spec, parse, value

READ = {
    'vanilla': [Call('vanilla')],
    'vanilla()': [Call('vanilla')],
    ' mc_sjd( window = 32 ) ': [Call('mc_sjd', {'window': 32})],
    'eagle(tree=LANTERN)+lantern_pp(lam=2)': [
        Call('eagle', {'tree': 'LANTERN'}), Call('lantern_pp', {'lam': 2})],
    'jacobi(window=16, coupling=maximal) + exact': [
        Call('jacobi', {'window': 16, 'coupling': 'maximal'}), Call('exact')],
    'a(b=kary(3, 3))': [Call('a', {'b': Call('kary', {}, (3, 3))})],
    'a(b=paths(3, depth=cut(EAGLE, 2)))': [
        Call('a', {'b': Call('paths', {'depth': Call('cut', {}, ('EAGLE', 2))}, (3,))})],
    'a(b=-1.5, c=+2, d=1e-3)': [Call('a', {'b': -1.5, 'c': 2, 'd': 0.001})],
    'a(b=True, c=False, d=None)': [Call('a', {'b': True, 'c': False, 'd': None})],
    'a(b=(1, -2), c=[0.5], d=())': [Call('a', {'b': (1, -2), 'c': (0.5,), 'd': ()})],
    'a(b=repeat-left, c="4 0:3", d="12")': [
        Call('a', {'b': 'repeat-left', 'c': '4 0:3', 'd': '12'})],
}

WRITTEN = {
    'vanilla()': 'vanilla',
    'b(z=1,a=2.0)+rejection()': 'b(a=2.0, z=1)+rejection',
    'a(b=(1,2), c="x y", d="name")': "a(b=[1, 2], c='x y', d=name)",
    'a(b="None", c="for", d="1", e=None)': "a(b='None', c='for', d='1', e=None)",
    'a(b=f(3,z=1,y=x-y))': 'a(b=f(3, y=x-y, z=1))',
}

MISTAKES = {
    '': "decoder is '', which is not of a form",
    'mc_sjd(': 'is not of a form',
    'a b': 'is not of a form',
    'a(b=\0)': 'is not of a form',
    'a(1)': r"'a\(1\)' must be a name, .* each with its name",
    'a(*b)': 'each with its name',
    '3': "'3' must be a name",
    'a.b': "'a.b' must be a name",
    'a(b=1)(c=2)': 'must be a name',
    'a-b': "'a-b' must be a name",
    'a+b+c': 'at most two parts',
    'a(b=1, b=2)': 'once for every parameter',
    'a(**b)': 'once for every parameter',
    'a(b=c.d)': "b is 'c.d'; it must be a number, True",
    'a(b={})': "b is '{}'; it must be",
    'a(b=1+1)': r"b is '1\+1'; it must be",
    'a(b=-c)': "b is '-c'; it must be",
    'a(b=(1, c))': "b is 'c'; it must be",
    'a(b=(1, True))': "b is 'True'; it must be",
    'a(b=x().y())': 'b is .* it must be',
    'a(b=1j)': "b is '1j'; it must be",
    'a(b=1e999)': 'must be finite',
    f'a(b={2**63})': 'below 2',
    '-' * 900 + 'a': 'must be a name',
    'a(b=' + 'c(' * 300 + ')' * 301: 'is not of a form',
    'a' * 1001: 'at most 1000 characters',
}


@pytest.mark.parametrize('text', READ)
def test_reading(text):
  spec = parse(text)
  assert spec == Spec(tuple(READ[text]))
  assert [type(value) for part in spec.parts for value in part.arguments.values()] == [
      type(value) for part in READ[text] for value in part.arguments.values()]
  assert parse(str(spec)) == spec and str(parse(str(spec))) == str(spec)
  assert parse(spec) is spec


@pytest.mark.parametrize('text', WRITTEN)
def test_writing(text):
  assert str(parse(text)) == WRITTEN[text]


def test_a_long_name_with_hyphens():
  assert parse(f'a(b={"c-" * 400}c)').parts[0].arguments['b'] == 'c-' * 400 + 'c'


@pytest.mark.parametrize('text', MISTAKES)
def test_mistakes(text):
  with pytest.raises(ValueError, match=MISTAKES[text]):
    parse(text)


def test_values_of_python():
  for argument, written in ((np.float32(0.5), '0.5'), (np.arange(2), '[0, 1]'), ('kary(3, 3)',) * 2,
                            (True, 'True'), (None, 'None'), ([-1, 0], '[-1, 0]')):
    assert str(parse('a').add({'b': value('b', argument)})) == f'a(b={written})'
  for argument in (object(), {}, [None], 1j, '1 2', float('inf') * np.ones(1)):
    with pytest.raises(ValueError, match=r'^b is .*; it must be '):
      value('b', argument)


def test_values_that_are_no_specification():
  with pytest.raises(ValueError, match='decoder is 3; it must be a string'):
    parse(3)


def test_values_are_frozen():
  """Equal specifications have equal hashes; neither they nor their parameters change."""
  spec = parse('eagle(tree=kary(3, 3), draws=iid)+rejection')
  assert len({spec, parse(str(spec)), parse('a(b=1)'), parse('a(b=1.0)')}) == 2
  with pytest.raises(TypeError):
    spec.parts[0].arguments['draws'] = 'fixed'
  assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
  assert str(spec.add({'draws': 'fixed'})) == 'eagle(draws=fixed, tree=kary(3, 3))+rejection'
  assert parse('eagle').add({'draws': 'iid'}) == parse('eagle(draws=iid)')
