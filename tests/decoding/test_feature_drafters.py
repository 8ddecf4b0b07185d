"""EAGLE, EAGLE-2 and Medusa drafts on tabular models: exact, and aligned with the features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import decoders, tree as trees
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing import tabular as tables
from cspd_jax.testing.enumerate import enumerate_rounds
from cspd_jax.testing.exactness import check_decoder, class_probs
from tests.marks import representative

WARP = SamplingParams(guidance_scale=1.5, temperature=0.9)
CUT = WARP._replace(top_p=0.7, min_p=0.3)
SAMPLING = {'plain': WARP, 'supports that differ': CUT}
BUSHY = trees.branching('2 0:2 1:1 00:2')
SMALL = trees.branching('2 0:1')


def build(vocab_size=3, length=4, forced=None, dtype=jnp.float64):
  return tables.tabular(jax.random.key(0), vocab_size, length, guided=True, forced=forced,
                        dtype=dtype, num_classes=1)


def other(model, num_heads=None):
  shape = model.params.shape if num_heads is None else (num_heads, *model.params.shape)
  return jax.random.normal(jax.random.key(1), shape, model.params.dtype)


# name: (drafter, verifier, parameters)
def parts(name, model):
  network, heads = tables.network(model.target), tables.heads(model.target, 2)
  return {
      'eagle': lambda: (eagle(network, BUSHY), rejection(), other(model)),
      'eagle small': lambda: (eagle(network, SMALL), rejection(), other(model)),
      'eagle iid': lambda: (eagle(network, SMALL, 'iid'), rejection(), other(model)),
      'eagle fixed': lambda: (eagle(network, BUSHY, 'fixed'), rejection(), other(model)),
      'eagle2': lambda: (eagle2(network, 5, 2, 3), rejection(), other(model)),
      'eagle2 match': lambda: (eagle2(network, 5, 2, 3), match(False), other(model)),
      'medusa': lambda: (medusa(heads, SMALL), rejection(), other(model, 2)),
      'medusa product': lambda: (medusa(heads, trees.branching('2 0:2 1:2')), rejection(),
                                 other(model, 2)),
      'medusa fixed': lambda: (medusa(heads, SMALL, 'fixed'), rejection(), other(model, 2)),
  }[name]()


def total_variation(name, sampling, rounds, vocab_size=3, forced=None):
  with jax.enable_x64(True):
    model = build(vocab_size, forced=forced)
    drafter, verifier, params = parts(name, model)
    decoder = make_decoder(model.target, drafter, verifier)
    distribution = enumerate_rounds(
        decoder, model, sampling, rounds=rounds, draft_params=params).distribution
    np.testing.assert_allclose(distribution.sum(), 1, atol=1e-12)
    return 0.5 * np.abs(distribution - model.distribution(sampling)).sum()


@pytest.mark.parametrize('sampling', representative(SAMPLING, 'plain'))
@pytest.mark.parametrize('name,rounds,vocab_size', representative([
    ('eagle', 1, 2), ('eagle small', 1, 3), ('eagle small', 2, 2), ('eagle iid', 1, 3),
    ('eagle fixed', 1, 3), ('eagle2', 1, 3), ('eagle2 match', 2, 2), ('medusa', 1, 3),
    ('medusa product', 1, 3), ('medusa product', 2, 2), ('medusa fixed', 2, 2)],
    ('eagle small', 2, 2), ('eagle2', 1, 3), ('medusa', 1, 3)))
def test_rounds_are_exact(name, rounds, vocab_size, sampling):
  assert total_variation(name, SAMPLING[sampling], rounds, vocab_size) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize('name', ['eagle small', 'eagle2', 'medusa'])
def test_forced_tokens(name):
  assert total_variation(name, WARP, 1, forced={1: 2, 3: 0}) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize('name', ['eagle', 'eagle fixed', 'eagle2', 'medusa'])
def test_whole_images_in_batches(name):
  model = tables.tabular(jax.random.key(0), 3, 5, guided=True, num_classes=2)
  drafter, verifier, params = parts(name, model)
  decoder = make_decoder(model.target, drafter, verifier)
  report = check_decoder(
      decoder, model, class_probs(model, CUT), CUT, draft_params=params, samples=2**16)
  assert report.passed, report


def decode(model, drafter, draft_params, sampling=WARP, params=None):
  return jax.jit(make_decoder(model.target, drafter, rejection()))(
      model.params if params is None else params, jnp.zeros(9, int), jax.random.key(0), sampling,
      draft_params)


GREEDY = WARP._replace(temperature=0.0)


def most_probable(model):
  return jax.jit(decoders.vanilla(model.target))(
      model.params, jnp.zeros(9, int), jax.random.key(5), GREEDY).tokens


@pytest.mark.slow
def test_perfect_network_is_always_accepted():
  model = build(4, 7, dtype=jnp.float32)
  drafter = eagle(tables.network(model.target), trees.branching('2 0:1 00:2'))
  # 7 tokens: the prefill's, then 4 and 2.
  np.testing.assert_array_equal(decode(model, drafter, model.params).rounds, 3)


@pytest.mark.slow
def test_perfect_beam_holds_the_greedy_path():
  model = build(4, 7, dtype=jnp.float32)
  decoded = decode(model, eagle2(tables.network(model.target), 6, 2, 3), model.params, GREEDY)
  np.testing.assert_array_equal(decoded.tokens, most_probable(model))
  assert (decoded.rounds <= 4).all()


def test_perfect_heads():
  # A model of independent tokens, so that heads can know it.
  model = build(3, 5, dtype=jnp.float32)
  params = jnp.broadcast_to(model.params[:, :, :1], model.params.shape)
  drafter = medusa(tables.heads(model.target, 2), trees.chain(2))
  decoded = decode(model, drafter, jnp.stack([params] * 2), params=params)
  np.testing.assert_array_equal(decoded.rounds, 3)


@pytest.mark.slow
@pytest.mark.parametrize('draws', ['distinct', 'iid', 'fixed'])
def test_greedy(draws):
  model = build(5, 6, dtype=jnp.float32)
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
