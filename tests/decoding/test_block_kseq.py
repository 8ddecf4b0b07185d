"""Block verification and K-SEQ are exact, and so is `rejection` however siblings are drawn."""

import contextlib
import sys
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import accept, tree as trees
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.loop import Decoder
from cspd_jax.decoding.verifiers.block import block
from cspd_jax.decoding.verifiers.kseq import _factor, kseq
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing.tabular import tabular_drafter
from cspd_jax.testing.verdicts import enumerate_stage
from tests.builders.tables import enumerated
from tests.marks import representative

pytestmark = pytest.mark.usefixtures('float64')

TREE = trees.Tree((-1, 0, 1, 0, 1))
PAIR = trees.Tree((-1, 0, 0))
CHAIN = trees.chain(2)


def parts(tree, draws, verifier):
  return lambda model: (tabular_drafter(model, tree, draws), verifier())


# At the temperature and guidance scale of other tests one of the mistakes makes no difference.
WARP = {'sampling': SamplingParams()}
CASES = {
    'block': (parts(trees.chain(3), 'distinct', block), {}),
    'block, rounds': (parts(CHAIN, 'iid', block), {'vocab_size': 2, 'rounds': 2}),
    'block, cut': (parts(CHAIN, 'iid', block), {'sampling': SamplingParams(top_p=0.7),
                                                'forced': {2: 1}}),
    'kseq, rounds': (parts(PAIR, 'iid', kseq), {'vocab_size': 2, 'rounds': 2}),
    'kseq, cut': (parts(TREE, 'iid', kseq), {'sampling': SamplingParams(top_p=0.7),
                                             'forced': {2: 1}}),
    'rejection, iid': (parts(TREE, 'iid', rejection), {}),
    'rejection, fixed': (parts(TREE, 'fixed', rejection), {})}


@pytest.mark.parametrize('name', representative(CASES, 'block, rounds', 'kseq, cut'))
def test_rounds_are_exact(name):
  build, options = CASES[name]
  distance, result = enumerated(build, **WARP | options)
  assert distance < 1e-12
  if name == 'block':  # More than one by one.
    _, other = enumerated(parts(trees.chain(3), 'distinct', rejection), **WARP)
    assert result.length > other.length + 1e-3


def unnormalised(q, token):
  """What is left of `q` without its new sum."""
  return jnp.where(jnp.arange(q.shape[-1]) == token[..., None], 0, q)


_residual = accept.residual


def mistaken_draws(draws, said):
  """A drafter that draws siblings one way and says another."""
  def build(model):
    drafter = tabular_drafter(model, TREE, draws)
    return drafter._replace(layout=drafter.layout._replace(draws=said)), rejection()
  return build


@pytest.mark.slow
@pytest.mark.parametrize('patch,build,options', [
    pytest.param((accept, 'without', unnormalised), parts(TREE, 'distinct', rejection), {},
                 id='draft distribution not renormalised for the second sibling'),
    pytest.param(None, mistaken_draws('distinct', 'iid'), {},
                 id='distinct siblings verified as independent ones'),
    pytest.param((accept, 'residual', lambda p, q: _residual(p / p.sum(), q)),
                 parts(CHAIN, 'distinct', block), {},
                 id='plain residual after block verification'),
    pytest.param((sys.modules[kseq.__module__], '_factor',
                  lambda p, q, count: jnp.ones(p.shape[:-1], p.dtype)),
                 parts(TREE, 'iid', kseq), {}, id='factor 1 in kseq'),
    pytest.param(None, lambda _: (jacobi(3, 'maximal'), block()),
                 {'vocab_size': 2, 'rounds': 2}, id='block verification of drafts that are kept'),
])
def test_mistakes_are_seen(patch, build, options):
  # Put together by hand, so that combinations that are refused can be tried too.
  with mock.patch.object(*patch) if patch else contextlib.nullcontext():
    assert enumerated(build, **WARP | options, make=Decoder)[0] > 1e-6


def random_probs(count=40, vocab_size=4):
  """Distributions `[n, V]` of a target and a drafter; some tokens are impossible, some certain."""
  rng = np.random.default_rng(1)
  p, q = (rng.dirichlet(np.full(vocab_size, 0.7), count) for _ in range(2))
  p[::5, 0], q[::7, 1] = 0, 0
  p[1], q[2] = np.eye(vocab_size)[1], np.eye(vocab_size)[2]
  p[3] = q[3]
  return p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)


@pytest.mark.parametrize('verifier,count', [(block, 1), (kseq, 1), (kseq, 3)])
def test_one_group_of_siblings(verifier, count):
  p, q = random_probs()
  stage = enumerate_stage(verifier(), p, q, count, 'iid')
  np.testing.assert_allclose(stage.distribution, p, atol=1e-12)
  if count == 1:
    np.testing.assert_allclose(stage.accepted, np.minimum(p, q).sum(1), atol=1e-12)


def test_kseq_factor():
  p, q = random_probs()
  for count in (1, 2, 5):
    factor = _factor(jnp.asarray(p), jnp.asarray(q), jnp.full(40, count))
    assert np.all((factor >= 1) & (factor <= count))
    share = np.minimum(q, p / factor[:, None]).sum(1)
    accepted = 1 - (1 - share) ** count
    assert np.all(accepted <= factor * share + 1e-15)  # What is left is a distribution.
    inside = (factor > 1) & (factor < count)
    np.testing.assert_allclose(accepted[inside], (factor * share)[inside], atol=1e-12)
    # At least 1 - 1/e of the best that any rule can accept with so many drafts.
    best = np.minimum(p, 1 - (1 - q) ** count).sum(1)
    assert np.all(accepted >= (1 - 1 / np.e) * best - 1e-12)


@pytest.mark.parametrize('p,q', [
    ([0.25, 0.75, 0.0], [0.25, 0.75, 0.0]), ([0.25, 0.75, 0.0], [0.3, 0.8, 0.1]),
    ([0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5])])
def test_without_overlap_or_what_remains_the_residual_is_the_target(p, q):
  np.testing.assert_array_equal(accept.residual(jnp.asarray(p), jnp.asarray(q)), p)


def test_nothing_left_to_draw():
  one = jnp.asarray([0., 1., 0.])
  np.testing.assert_array_equal(accept.without(one, jnp.asarray(1)), [0, 0, 0])
  distribution = accept.without(jnp.asarray([.5, .25, .25]), jnp.asarray(0))
  np.testing.assert_allclose(distribution, [0, .5, .5])
