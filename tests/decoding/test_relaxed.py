"""Relaxed verifiers: how far they leave the target's distribution, and that `tv_bound` says so."""

import functools
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import accept, tree as trees
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.drafters.correctors import from_model
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.grouped import grouped
from cspd_jax.decoding.verifiers.lantern import RESIDUALS, lantern, lantern_pp, neighbour_table
from cspd_jax.decoding.verifiers.rejection import AcceptanceRule, rejection, tree_rejection, typical
from cspd_jax.testing.tabular import prefix_number, tabular, tabular_drafter
from cspd_jax.testing.verdicts import enumerate_stage
from tests.builders.tables import enumerated
from tests.decoding.test_block_kseq import random_probs
from tests.marks import representative

CODEBOOK = np.random.default_rng(0).normal(size=(4, 2))
TABLE = neighbour_table(CODEBOOK, 3)

# name: a verifier, and the same with the value that makes it exact.
VERIFIERS = {
    'uniform': (uniform(1.5), uniform(1)),
    'cool': (cool(1.4), cool(0.9)),
    'cool, printed': (cool(1.4, clamp=False), None),
    'cool_linear': (cool_linear(1.4, 3), None),
    'typical': (typical(0.3, 0.5), None),
    'lantern': (lantern(TABLE, 0.3, k=2), lantern(TABLE, 0)),
    'lantern, jsd': (lantern(TABLE, 0.2, metric='jsd'), lantern(TABLE, 0, metric='jsd')),
    'lantern_pp': (lantern_pp(TABLE, 2), lantern_pp(TABLE, 1)),
    'grouped': (grouped(3, 0.4), grouped(1)),
    'grouped, released': (grouped(3, 0.4, clamp=False), grouped(1, clamp=False)),
    'grouped, close': (grouped(3, 0.4, embeddings=CODEBOOK, d_threshold=2.0), None),
    **{f'lantern, {kind}': (lantern(TABLE, 0.3, k=2, residual=kind), None)
       for kind in RESIDUALS[1:]},
}


def test_bounds_of_other_tests():
  """A bound is NaN if it is unknown, and an offset counts without a gap."""
  p, q = random_probs()
  distance = lambda stage: 0.5 * np.abs(stage.distribution - p).sum(axis=1)
  # Exact acceptance, and the target's distribution in place of the residual.
  worse = AcceptanceRule(
      mass=lambda p, q, token, depth: accept.take(p, token), residual=lambda p, q, *_: p,
      offset=lambda p, q, *_: 0.5 * jnp.sum(jnp.abs(p - accept.residual(p, q)), axis=-1))
  for test, bounded in ((worse, True), (worse._replace(offset=None), False)):
    stage = enumerate_stage(tree_rejection(lambda depth, test=test: test, exact=False), p, q)
    assert distance(stage).max() > 0.05
    if bounded:
      assert np.all(distance(stage) <= stage.tv_bound + 1e-6)
    else:
      assert np.isnan(stage.tv_bound).all()
  assert not enumerate_stage(rejection(), p, q).tv_bound.any()


def total_variation(distribution, other):
  return 0.5 * np.abs(distribution - other).sum(axis=-1)


@functools.cache
def stage_of(name, count=1, draws='distinct', exact_value=False):
  """What a verifier makes of `random_probs`."""
  with jax.enable_x64(True):
    return enumerate_stage(VERIFIERS[name][exact_value], *random_probs(), count, draws)


def check_bound(stage, least):
  """The bound is never below the distance, and on average not too far above."""
  np.testing.assert_allclose(stage.distribution.sum(1), 1, atol=1e-12)
  distance = total_variation(stage.distribution, random_probs()[0])
  assert np.all(distance <= stage.tv_bound + 1e-12)
  assert least < distance.mean() / stage.tv_bound.mean() <= 1


@pytest.mark.slow
@pytest.mark.parametrize('name', [n for n in VERIFIERS if not n.startswith('lantern, released')])
def test_tv_bound_holds_for_siblings(name):
  check_bound(stage_of(name, 2), 0.8)


@pytest.mark.parametrize('name', ['cool', 'typical', 'lantern', 'grouped'])
def test_tv_bound_is_the_distance_of_one_candidate(name):
  stage = stage_of(name)
  np.testing.assert_allclose(
      stage.tv_bound, total_variation(stage.distribution, random_probs()[0]), atol=1e-12)
  assert stage.tv_bound.max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize('name,draws', [
    ('uniform', 'iid'), ('typical', 'fixed'), ('grouped', 'fixed'),
    ('lantern, released_dynamic', 'fixed')])
def test_tv_bound_holds_however_siblings_are_drawn(name, draws):
  check_bound(stage_of(name, 2, draws), 0.5)


@pytest.mark.slow
@pytest.mark.parametrize('name', [n for n, (_, limit) in VERIFIERS.items() if limit is not None])
def test_some_value_is_exact(name):
  stage = stage_of(name, 2, exact_value=True)
  np.testing.assert_allclose(stage.distribution, random_probs()[0], atol=1e-12)
  np.testing.assert_allclose(stage.tv_bound, 0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize('kind', RESIDUALS[1:])
def test_best_residual_has_the_least_tv_bound(kind):
  best, other = stage_of('lantern'), stage_of(f'lantern, {kind}')
  check_bound(other, 0.8)
  np.testing.assert_allclose(other.accepted, best.accepted, atol=1e-12)
  assert np.all(best.tv_bound <= other.tv_bound + 1e-12)
  assert best.tv_bound.mean() < other.tv_bound.mean() - 1e-3
  assert np.all(best.tv_bound <= total_variation(other.distribution, random_probs()[0]) + 1e-12)


def test_clamped_groups_accept_more_for_no_larger_tv_bound():
  clamped, released = stage_of('grouped'), stage_of('grouped, released')
  distance = total_variation(released.distribution, random_probs()[0])
  assert np.all(clamped.tv_bound <= distance + 1e-12)
  assert np.all(clamped.accepted >= released.accepted - 1e-12)
  assert clamped.accepted.mean() > released.accepted.mean() + 0.01
  assert clamped.tv_bound.mean() < released.tv_bound.mean() - 0.01


TREE = trees.Tree((-1, 0, 1, 0, 1))
SWAP = np.array([[1], [0]])
# name: vocabulary, rounds, drafter, verifier. Windows keep drafts.
_corrected = lambda model: corrected(from_model(model.target), 3, 1)
ROUNDS = {
    'tree, lantern': (3, 1, lambda model: tabular_drafter(model, TREE), lambda: lantern(
        neighbour_table(CODEBOOK[:3], 2), 0.4, residual='paper')),
    'tree, grouped': (3, 1, lambda model: tabular_drafter(model, TREE, 'fixed'),
                      lambda: grouped(3, 0.5, clamp=False)),
    'jacobi, typical': (2, 2, lambda _: jacobi(3, 'independent'), lambda: typical(0.2, 0.7)),
    'jacobi, lantern_pp': (2, 2, lambda _: jacobi(3, 'maximal'), lambda: lantern_pp(SWAP, 4)),
    'corrected, cool': (2, 2, _corrected, lambda: cool(1.5)),
    'corrected, lantern_pp': (2, 2, _corrected, lambda: lantern_pp(SWAP, 4)),
    'corrected, grouped': (2, 2, _corrected, lambda: grouped(2)),
    'jacobi with paths, uniform': (
        3, 1, lambda _: jacobi(4, 'maximal', tree=trees.paths(2, 1, 3)), lambda: uniform(2)),
}


@pytest.mark.parametrize('name', representative(ROUNDS, 'tree, lantern'))
def test_tv_bound_holds_for_rounds(name):
  vocab_size, rounds, drafter, verifier = ROUNDS[name]
  distance, result = enumerated(
      lambda model: (drafter(model), verifier()), vocab_size, rounds, SamplingParams())
  assert 0.3 * result.tv_bound < distance <= result.tv_bound + 1e-12
  assert distance > 1e-3


FOUR = np.array([[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 1, 0]])
SPREAD, MOVED = np.array([0.3, 0.5, 0.1, 0.1]), np.array([0.9, 0.0, 0.0, 0.1])
_relative = lambda p: np.sum(p[p > 0] * np.log((p / ((SPREAD + MOVED) / 2))[p > 0]))
DIVERGENCE = (_relative(SPREAD) + _relative(MOVED)) / 2
MODEL = tabular(jax.random.key(0), 4, 6)
DRAFT = tabular(jax.random.key(1), 4, 6)
LABELS = jnp.zeros((8,), jnp.int32)


@pytest.mark.parametrize('build,token,expected', [
    # Half the mass is at the nearest neighbour of token 0, a tenth at the next.
    *((lambda delta=delta: lantern(FOUR, delta), 0, mass)
      for delta, mass in ((0.0, 0.3), (0.49, 0.3), (0.5, 0.8), (0.59, 0.8), (0.61, 0.9))),
    # Token 2: its neighbours add 0.1, 0.5, 0.3 to its own 0.1.
    *((lambda lam=lam: lantern_pp(FOUR, lam), 2, mass)
      for lam, mass in ((1, 0.1), (1.99, 0.1), (2.01, 0.2), (6.9, 0.2), (7.1, 0.7), (10.1, 1.0))),
    # Bounds just below and above the divergence by its definition.
    *((lambda delta=delta: lantern(FOUR, DIVERGENCE + delta, k=2, metric='jsd'), 0, mass)
      for delta, mass in ((-1e-5, 0.8), (1e-5, 0.9)))])
def test_mass_of_neighbours(build, token, expected):
  """The mass that speaks for `token`."""
  with mock.patch.object(
      sys.modules[lantern.__module__], 'tree_rejection', lambda test_for, **kwargs: test_for(1)):
    rule = build()
  mass = rule.mass(jnp.asarray(SPREAD), jnp.asarray(SPREAD), jnp.int32(token), jnp.int32(1))
  np.testing.assert_allclose(mass, expected, rtol=1e-6)


@pytest.mark.parametrize('lam', representative([1, 8], 8))
def test_greedy(lam):
  drafter = tabular_drafter(DRAFT, trees.kary(2, 3, 6), 'fixed') if lam > 1 else jacobi(4)
  decoder = make_decoder(MODEL.target, drafter, lantern_pp(TABLE, lam, greedy=True))
  decoded = jax.jit(decoder)(
      MODEL.params, LABELS, jax.random.key(0), SamplingParams(temperature=0.0), DRAFT.params)
  # The bound counts the tokens that are not the most probable after their prefix.
  best = MODEL.probs(SamplingParams()).argmax(axis=-1)
  tokens = np.asarray(decoded.tokens)
  others = sum(tokens[:, k] != best[prefix_number(tokens[:, :k], 4)] for k in range(6))
  np.testing.assert_array_equal(decoded.tv_bound, others)
  assert (others.sum() > 0) == (lam > 1)


def test_only_exact_verifiers_say_so():
  assert rejection().exact
  assert all(verifier.bounded and not verifier.exact for verifier, _ in VERIFIERS.values())
