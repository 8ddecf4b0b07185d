"""EAGLE, EAGLE-2 and Medusa drafts on tabular models: exact, and aligned with the features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding import decoders, tree as trees
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing import tabular as tables
from cspd_jax.testing.exactness import check_decoder, class_probs
from tests.builders.tables import PLAIN, enumerated
from tests.marks import representative

CUT = PLAIN._replace(top_p=0.7, min_p=0.3)
SAMPLING = {'plain': PLAIN, 'supports that differ': CUT}
BUSHY = trees.branching('2 0:2 1:1 00:2')
SMALL = trees.branching('2 0:1')


def build(vocab_size=3, length=4):
  return tables.tabular(jax.random.key(0), vocab_size, length, guided=True)


def _of_heads(table):
  """A table per head."""
  return jax.random.normal(jax.random.key(1), (2, *table.shape), table.dtype)


def _eagle(*args):
  return lambda model: (eagle(tables.network(model.target), *args), rejection())


def _eagle2(verifier):
  return lambda model: (eagle2(tables.network(model.target), 5, 2, 3), verifier)


def _medusa(*args):
  return lambda model: (medusa(tables.heads(model.target, 2), *args), rejection(), _of_heads)


PARTS = {
    'eagle': _eagle(BUSHY), 'eagle small': _eagle(SMALL), 'eagle iid': _eagle(SMALL, 'iid'),
    'eagle fixed': _eagle(BUSHY, 'fixed'), 'eagle2': _eagle2(rejection()),
    'eagle2 match': _eagle2(match(False)), 'medusa': _medusa(SMALL),
    'medusa product': _medusa(trees.branching('2 0:2 1:2')),
    'medusa fixed': _medusa(SMALL, 'fixed')}


@pytest.mark.parametrize('sampling', representative(SAMPLING, 'plain'))
@pytest.mark.parametrize('name,rounds,vocab_size', representative([
    ('eagle', 1, 2), ('eagle small', 1, 3), ('eagle small', 2, 2), ('eagle iid', 1, 3),
    ('eagle fixed', 1, 3), ('eagle2', 1, 3), ('eagle2 match', 2, 2), ('medusa', 1, 3),
    ('medusa product', 1, 3), ('medusa product', 2, 2), ('medusa fixed', 2, 2)],
    ('eagle small', 2, 2), ('eagle2', 1, 3), ('medusa', 1, 3)))
def test_rounds_are_exact(name, rounds, vocab_size, sampling):
  assert enumerated(PARTS[name], vocab_size, rounds, SAMPLING[sampling])[0] < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize('name', ['eagle small', 'eagle2', 'medusa'])
def test_forced_tokens(name):
  assert enumerated(PARTS[name], forced={1: 2, 3: 0})[0] < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize('name', ['eagle', 'eagle fixed', 'eagle2', 'medusa'])
def test_whole_images_in_batches(name):
  model = tables.tabular(jax.random.key(0), 3, 5, guided=True, num_classes=2)
  drafter, verifier, *params_of = PARTS[name](model)
  table = jax.random.normal(jax.random.key(1), model.params.shape)
  report = check_decoder(
      make_decoder(model.target, drafter, verifier), model, class_probs(model, CUT), CUT,
      draft_params=params_of[0](table) if params_of else table, samples=2**16)
  assert report.passed, report


def decode(model, drafter, draft_params, sampling=PLAIN, params=None):
  return jax.jit(make_decoder(model.target, drafter, rejection()))(
      model.params if params is None else params, jnp.zeros(9, int), jax.random.key(0), sampling,
      draft_params)


GREEDY = PLAIN._replace(temperature=0.0)


def most_probable(model):
  return jax.jit(decoders.vanilla(model.target))(
      model.params, jnp.zeros(9, int), jax.random.key(5), GREEDY).tokens


@pytest.mark.slow
def test_perfect_network_is_always_accepted():
  model = build(4, 7)
  drafter = eagle(tables.network(model.target), trees.branching('2 0:1 00:2'))
  # 7 tokens: the prefill's, then 4 and 2.
  np.testing.assert_array_equal(decode(model, drafter, model.params).rounds, 3)


@pytest.mark.slow
def test_perfect_beam_holds_the_greedy_path():
  model = build(4, 7)
  decoded = decode(model, eagle2(tables.network(model.target), 6, 2, 3), model.params, GREEDY)
  np.testing.assert_array_equal(decoded.tokens, most_probable(model))
  assert (decoded.rounds <= 4).all()


def test_perfect_heads():
  # A model of independent tokens, so that heads can know it.
  model = build(3, 5)
  params = jnp.broadcast_to(model.params[:, :, :1], model.params.shape)
  drafter = medusa(tables.heads(model.target, 2), trees.chain(2))
  decoded = decode(model, drafter, jnp.stack([params] * 2), params=params)
  np.testing.assert_array_equal(decoded.rounds, 3)


@pytest.mark.slow
@pytest.mark.parametrize('draws', ['distinct', 'iid', 'fixed'])
def test_greedy(draws):
  model = build(5, 6)
  decoded = decode(model, eagle(tables.network(model.target), BUSHY, draws), model.params, GREEDY)
  np.testing.assert_array_equal(decoded.tokens, most_probable(model))
  np.testing.assert_array_equal(decoded.rounds, 3)  # 1 + 4 + 1 tokens.


def test_published_trees():
  sizes = {'EAGLE': (4, 8, 8, 3, 2), 'LANTERN': (5, 13, 16, 14, 9), 'BALANCED': (3, 8, 9, 3, 2),
           'REVERSE_BALANCED': (3, 4, 6, 5, 7), 'MEDUSA': (10, 23, 23, 7)}
  for name, levels in sizes.items():
    tree = getattr(trees, name)
    assert tuple(np.bincount(tree.depth)[1:]) == levels
    assert tree.main_length == len(levels)
