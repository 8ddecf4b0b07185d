"""Whole rounds enumerated over their discrete randomness: total variation below 1e-12."""

import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.drafters.draft_model import model
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.drafters.jacobi import KINDS, SMALL_KINDS, ancestral, jacobi, reuse
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing.proofs import mutants
from cspd_jax.testing.tabular import network
from tests.builders.tables import PLAIN, enumerated
from tests.marks import representative

pytestmark = pytest.mark.usefixtures('float64')

JACOBI = lambda *args, **kwargs: lambda _: (jacobi(*args, **kwargs), rejection())
EAGLE = lambda built: (eagle(network(built.target), trees.chain(1)), rejection())
REUSE = lambda *args: lambda _: (reuse(*args), rejection())

# name: vocabulary, rounds, parts. Two rounds also check the distributions that are recorded.
CASES = {
    'ancestral': (3, 3, lambda _: (ancestral(), rejection())),
    'ancestral in a window': (3, 2, lambda _: (ancestral(3), rejection())),
    'draft model': (3, 1, lambda built: (model(built.target, 2), rejection())),
    'draft model, two rounds': (2, 2, lambda built: (model(built.target, 2), rejection())),
    'deterministic jacobi': (2, 2, lambda _: (jacobi(3), match(seed_exact=False))),
    'sjd': (2, 2, JACOBI(3, 'independent')),
    'sjd, three words': (3, 2, JACOBI(2, 'independent')),
    'sjd, long window': (3, 1, JACOBI(4, 'independent')),
    'maximal': (2, 2, JACOBI(3, 'maximal')),
    'maximal, three words': (3, 2, JACOBI(2, 'maximal')),
    'reuse': (2, 2, REUSE(3)),
    'reuse, three words': (3, 2, REUSE(2, 0.8)),
    'reuse at 1': (2, 2, REUSE(3, 1.0)),
    'caterpillar': (3, 2, JACOBI(3, 'maximal', tree=trees.caterpillar(2, 1, 2))),
    'three candidates': (3, 1, JACOBI(7, 'maximal', tree=trees.caterpillar(3, 2, 6))),
    'paths': (3, 1, JACOBI(7, 'independent', tree=trees.paths(3, 2, 6))),
    'kary': (3, 1, JACOBI(7, 'maximal', tree=trees.kary(2, 3, 6))),
    'kary, three candidates': (3, 1, JACOBI(5, 'maximal', tree=trees.kary(3, 2, 4))),
    **{f'initialization {kind}': (2, 2, JACOBI(3, 'maximal',
        initialization=kind)) for kind in KINDS + SMALL_KINDS},
    'small tokens of three words': (3, 2, JACOBI(2, 'maximal', initialization='repeat-small')),
}
HALF_GUIDED = SamplingParams(guidance_scale=1.5, guidance_interval=0)
CUTS = {'top_p': PLAIN._replace(top_p=0.7), 'min_p': PLAIN._replace(min_p=0.6)}


@pytest.mark.parametrize('name', representative(
    CASES, 'draft model, two rounds', 'sjd', 'reuse', 'caterpillar',
    'initialization repeat-above'))
def test_rounds_are_exact(name):
  vocab_size, rounds, parts = CASES[name]
  assert enumerated(parts, vocab_size, rounds)[0] < 1e-12


@pytest.mark.parametrize('name', representative(
    ['maximal, three words', 'caterpillar', 'kary', 'draft model'], 'draft model'))
@pytest.mark.parametrize('cut', representative(CUTS, 'top_p'))
def test_supports_that_differ(name, cut):
  vocab_size, rounds, parts = CASES[name]
  assert enumerated(parts, vocab_size, rounds, CUTS[cut])[0] < 1e-12


@pytest.mark.parametrize('name', representative(
    ['sjd, three words', 'maximal, three words', 'caterpillar', 'kary', 'draft model'],
    'kary'))
def test_forced_tokens(name):
  vocab_size, rounds, parts = CASES[name]
  assert enumerated(parts, vocab_size, rounds, forced={1: 2, 3: 0})[0] < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(
    ['sjd, three words', 'maximal, three words', 'caterpillar', 'kary', 'draft model'],
    'caterpillar', 'draft model'))
def test_guidance_that_ends_within_the_window(name):
  vocab_size, rounds, parts = CASES[name]
  assert enumerated(parts, vocab_size, rounds, HALF_GUIDED)[0] < 1e-12


@pytest.mark.parametrize('name,vocab_size,rounds', representative([
    ('residual replaced by the target distribution', 2, 1),
    ('stored distribution not updated after a kept token', 2, 2),
    ('token reused by its probability, recorded as drawn again', 2, 2),
    ('plain draft distribution for the second candidate', 3, 1),
    ('temperature applied twice', 3, 1),
    ('longest of several accepted paths', 3, 1),
    ('token of the small image recorded as uniform', 2, 2),
    ('drafts drawn without the temperature, recorded with it', 3, 1),
    ('drafts drawn from bfloat16 logits, recorded from float32', 3, 1),
], ('stored distribution not updated after a kept token', 2, 2),
    ('token of the small image recorded as uniform', 2, 2)))
def test_mutants_are_seen(name, vocab_size, rounds):
  parts = {
      'plain draft distribution for the second candidate': CASES['kary'][2],
      'longest of several accepted paths': CASES['kary'][2],
      'token reused by its probability, recorded as drawn again': CASES['reuse'][2],
      'token of the small image recorded as uniform': CASES['initialization repeat-small'][2],
      'drafts drawn without the temperature, recorded with it': EAGLE,
      'drafts drawn from bfloat16 logits, recorded from float32': EAGLE,
  }.get(name, JACOBI(3, 'maximal'))
  with mutants.MUTANTS[name].patch():
    assert enumerated(parts, vocab_size, rounds)[0] > 1e-6
