"""Every pair of drafter and exact verifier passes, every mutant is rejected, by one test."""

import functools

import jax
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import decoders, tree as trees
from cspd_jax.decoding.drafters.draft_model import model
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.drafters.jacobi import KINDS, ancestral, jacobi, reuse
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing import exactness
from cspd_jax.testing.proofs.mutants import MUTANTS
from cspd_jax.testing.tabular import network, tabular
from tests.marks import representative

WARP = SamplingParams(guidance_scale=1.3, temperature=0.7, top_p=0.95)
make = functools.partial(
    tabular, vocab_size=3, length=5, guided=True, num_classes=2, row_width=3, spread=1.0)
MODEL, DRAFT = make(jax.random.key(0)), make(jax.random.key(1))
GREEDY = SamplingParams(guidance_scale=2.0, temperature=0.0)
TIED = make(jax.random.key(2), spread=0.5, tied=True)

PAIRS = {
    'ancestral, exact': lambda: (ancestral(), rejection()),
    'draft model, exact': lambda: (model(DRAFT.target, 3), rejection()),
    'eagle, tree': lambda: (eagle(network(MODEL.target), trees.kary(2, 3, 6)), rejection()),
    'eagle, iid': lambda: (eagle(network(MODEL.target), trees.kary(2, 3, 6), 'iid'), rejection()),
    'eagle, fixed': lambda: (eagle(network(MODEL.target), trees.kary(2, 3, 6), 'fixed'),
                             rejection()),
    'eagle2': lambda: (eagle2(network(MODEL.target), 5, 2, 3), rejection()),
    'draft model, match': lambda: (model(DRAFT.target, 3), match()),
    'redraw, exact': lambda: (jacobi(4, 'independent'), rejection()),
    'redraw, match': lambda: (jacobi(4, 'independent'), match(seed_exact=False)),
    'reuse, exact': lambda: (reuse(4), rejection()),
    'reuse, tree': lambda: (reuse(7, 0.2, tree=trees.caterpillar(3, 2, 6)), rejection()),
    'noise, exact': lambda: (jacobi(4, 'gumbel'), rejection()),
    'maximal, exact, whole image': lambda: (jacobi(5, 'maximal'), rejection()),
    'noise, match, tree': lambda: (jacobi(7, 'gumbel', tree=trees.kary(2, 3, 6)), match()),
    'two paths': lambda: (jacobi(7, 'independent', tree=trees.paths(2, 3, 6)), rejection()),
    'paths': lambda: (jacobi(7, 'maximal', tree=trees.paths(3, 2, 6)), rejection()),
    'caterpillar': lambda: (jacobi(7, 'maximal', tree=trees.caterpillar(3, 2, 6)), rejection()),
    'kary': lambda: (jacobi(9, 'independent', tree=trees.kary(2, 3, 8)), rejection()),
    **{f'initialization {kind}': lambda kind=kind: (jacobi(4, 'maximal', initialization=kind),
                                                    rejection())
       for kind in KINDS if kind != 'uniform'},
}


@functools.cache
def probs():
  """Distributions of the classes of `MODEL`."""
  return exactness.class_probs(MODEL, WARP)


@pytest.fixture(scope='module', autouse=True)
def _without_mutants():
  probs()


# What the default run checks, with fewer images than the thorough one.
PAIR, MUTANT, FEWER = 'eagle, tree', 'longest of several accepted paths', 2**16


def check(decoder, samples=2**18):
  return exactness.check_decoder(
      decoder, MODEL, probs(), WARP, draft_params=DRAFT.params, samples=samples)


def check_tied(decoder):
  return exactness.check_decoder(
      decoder, TIED, exactness.class_probs(TIED, GREEDY), GREEDY, draft_params=DRAFT.params,
      samples=2**16)


def test_the_problem_is_not_trivial():
  assert (probs() > 0).sum() > 100 and (probs() == 0).sum() > 100
  assert 0.5 * np.abs(probs()[0] - probs()[1]).sum() > 0.3


@pytest.mark.parametrize('pair, samples', [
    (PAIR, FEWER), *(pytest.param(pair, 2**18, marks=pytest.mark.slow) for pair in PAIRS)])
def test_pair_is_exact(pair, samples):
  report = check(make_decoder(MODEL.target, *PAIRS[pair]()), samples)
  assert report.passed, report


@pytest.mark.parametrize('mutant, samples', [
    (MUTANT, FEWER), *(pytest.param(mutant, 2**18, marks=pytest.mark.slow) for mutant in MUTANTS)])
def test_mutant_is_rejected(mutant, samples):
  with MUTANTS[mutant].patch():
    if MUTANTS[mutant].greedy:
      report = check_tied(MUTANTS[mutant].build(TIED.target))
    else:
      report = check(MUTANTS[mutant].build(MODEL.target), samples)
  assert not report.passed, report


@pytest.mark.slow
@pytest.mark.parametrize('pair', representative(PAIRS, 'eagle, tree'))
def test_pair_is_exact_at_temperature_0_with_tied_logits(pair):
  report = check_tied(make_decoder(TIED.target, *PAIRS[pair]()))
  assert report.passed, report


@pytest.mark.slow
def test_rows_with_one_key_are_rejected():
  decode = jax.jit(decoders.sjd(MODEL.target, 4))

  def shared(key, labels):
    keys = jax.numpy.repeat(jax.random.split(key, labels.shape[0] // 2), 2)
    return decode(MODEL.params, labels, keys, WARP).tokens

  assert not exactness.check_sampler(shared, probs(), 3, samples=2**16).passed


def test_any_sampler_can_be_checked():
  cumulative = jax.numpy.cumsum(jax.numpy.asarray(probs()), axis=1)

  def sample(key, labels):
    u = jax.random.uniform(key, labels.shape)
    number = jax.vmap(jax.numpy.searchsorted)(cumulative[labels], u)
    return number[:, None] // 3 ** jax.numpy.arange(4, -1, -1) % 3

  assert exactness.check_sampler(jax.jit(sample), probs(), 3).passed
  assert not exactness.check_sampler(jax.jit(sample), probs()[::-1], 3).passed
