"""`check_verifier` passes the library's verifiers and names what is wrong with every broken one."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding import accept
from cspd_jax.decoding.base import Verdict, Verifier
from cspd_jax.decoding.verifiers.block import block
from cspd_jax.decoding.verifiers.cool import cool, cool_linear, uniform
from cspd_jax.decoding.verifiers.grouped import grouped
from cspd_jax.decoding.verifiers.kseq import kseq
from cspd_jax.decoding.verifiers.lantern import RESIDUALS, lantern, lantern_pp, neighbour_table
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import AcceptanceRule, rejection, tree_rejection, typical
from cspd_jax.testing import check_verifier
from cspd_jax.testing.proofs.mutants import MUTANTS
from cspd_jax.testing.verifier_checks import CHECKS
from tests.marks import representative
from tests.testing.problems import report_of

TABLE = neighbour_table(np.random.default_rng(0).normal(size=(3, 2)), 2)
OWN = {
    'rejection': rejection, 'block': block, 'kseq': kseq, 'match': match,
    'match with new noise': lambda: match(seed_exact=False), 'uniform': lambda: uniform(1.5),
    'cool': lambda: cool(1.4), 'cool, printed': lambda: cool(1.4, clamp=False),
    'cool_linear': lambda: cool_linear(1.4, 3), 'typical': lambda: typical(0.3, 0.5),
    'lantern': lambda: lantern(TABLE, 0.3), 'lantern_pp': lambda: lantern_pp(TABLE, 2),
    'lantern, greedy': lambda: lantern(TABLE, 0.3, greedy=True),
    'grouped': lambda: grouped(3, 0.4), 'grouped, released': lambda: grouped(3, 0.4, clamp=False),
    **{f'lantern, {kind}': lambda kind=kind: lantern(TABLE, 0.3, k=1, residual=kind)
       for kind in RESIDUALS[1:]},
}


@pytest.mark.parametrize('name', representative(OWN, 'rejection', 'block'))
def test_verifiers_of_the_library(name):
  report = check_verifier(OWN[name]())
  assert report.passed == [check.name for check in CHECKS] and not report.left_out


def of_none(drafter, vocab_size):
  raise ValueError('no drafts')


def of_one(drafter, vocab_size):
  if drafter.tree.num_nodes > 1:
    raise ValueError('one draft only')


def single(test=lambda rng, p, q: rng.accept(p, q), residual=accept.residual, bonus=1,
           change=lambda verdict: verdict, **fields):
  """A verifier of single drafts, with mistakes."""
  def verify(rng, layout, tokens, probs, target_probs, positions):
    token, q = jnp.maximum(tokens[1], 0), probs[0]
    passed = test(rng, target_probs[0, token][None], q[token][None])[0]
    accepted = passed & (tokens[1] >= 0)
    after = jnp.where(tokens[1] < 0, target_probs[0], residual(target_probs[0], q))
    weights = jnp.where(accepted, target_probs[bonus], after)
    return change(Verdict(accepted.astype(jnp.int32), rng.draw(weights[None])[0]))

  return Verifier(verify, exact=True, needs_probs=True, check=of_one)._replace(**fields)


def by_test(mass=lambda p, q, token, depth: accept.take(p, token),
            residual=lambda p, q, token, depth: accept.residual(p, q), **fields):
  """A verifier of trees with a test of its own."""
  gap = fields.pop('gap', None)
  return tree_rejection(lambda depth: AcceptanceRule(mass, residual, gap),
                        exact=True)._replace(**fields)


def doubled_gap(share):
  """`share` of the gap of a test that counts drafts double."""
  return lambda p, q, token, depth: share * jnp.sum(
      jnp.maximum(jnp.minimum(q, 2 * p) - p, 0), axis=-1)


def double(p, q, token, depth):
  return 2 * accept.take(p, token)


def kept(p, q):
  """`q f` of a verifier that counts drafts as more probable."""
  return jnp.minimum(q, p + 0.02)


def relaxed(mass=lambda p, q, token, depth: accept.take(p, token) + 0.02,
            residual=lambda p, q, token, depth: accept.residual(p, kept(p, q)),
            gap=lambda p, q, token, depth: jnp.sum(jnp.maximum(kept(p, q) - p, 0), axis=-1)):
  """That verifier, of one mistake at most."""
  return by_test(mass, residual, gap=gap, exact=False, bounded=True)


# name: the verifier, the check that finds it, and what the sentence says.
BROKEN = {
    'the ratio inverted': (
        single(lambda rng, p, q: rng.accept(q, p)), 'exact',
        r"with one draft the tokens are \S+ in total variation from the target's, but exact is"),
    'accepted too often': (
        single(lambda rng, p, q: rng.accept(p + 0.1, q)), 'exact', 'with one draft'),
    'the target in place of the residual': (
        single(residual=lambda p, q: p), 'exact', 'with one draft'),
    'a residual of one draft twice': (
        single(residual=lambda p, q: jnp.maximum(p - 0.5 * q, 0)), 'exact', 'with one draft'),
    'the bonus token one node early': (
        single(bonus=0), 'exact', 'after the last accepted node draw from its target_probs'),
    'a residual that is not normalised': (
        by_test(residual=lambda p, q, token, depth: jnp.maximum(p - q, 0)), 'results',
        'with two siblings .* returns token -1; .* after a rejection draw from the normalised'),
    'a relaxed residual that is not normalised': (
        relaxed(residual=lambda p, q, token, depth: jnp.maximum(p - kept(p, q), 0)), 'results',
        'with two siblings .* returns token -1; .* after a rejection draw from the normalised'),
    'a residual without its positive part': (
        by_test(residual=lambda p, q, token, depth: p - q), 'results',
        'with one draft it returns token -1; .* drawn from weights that sum to 0'),
    'a mass that is too small': (
        by_test(lambda p, q, token, depth: 0.5 * accept.take(p, token)), 'exact', 'with one draft'),
    'an inverted residual': (
        by_test(residual=lambda p, q, token, depth: accept.residual(q, p)), 'exact',
        'with one draft'),
    'the draft distribution in place of the residual': (
        by_test(residual=lambda p, q, token, depth: q), 'exact', 'with one draft'),
    'a relaxed ratio that is inverted': (
        relaxed(lambda p, q, token, depth: accept.take(q, token)**2 / accept.take(p, token)),
        'bound', r'are \S+ in total variation from .* mean of tv_bound is \S+; every test'),
    'a relaxed mass that is too large': (
        relaxed(lambda p, q, token, depth: accept.take(p, token) + 0.2), 'bound',
        r'with one draft .* tv_bound is \S+; every test on the way must add'),
    'a relaxed residual that is inverted': (
        relaxed(residual=lambda p, q, token, depth: accept.residual(kept(p, q), p)), 'bound',
        r'with one draft .* tv_bound is \S+; .* every rejection the total variation'),
    'a gap of 0': (
        relaxed(gap=lambda p, q, token, depth: 0 * p[..., 0]), 'bound',
        'tv_bound is 0; every test on the way must add'),
    'NaN': (
        single(lambda rng, p, q: rng.accept(p / q - p / q + p, q)), 'results',
        'with one draft it tests or draws with weights that are NaN'),
    'a node out of range': (
        single(change=lambda verdict: verdict._replace(node=verdict.node + 1)), 'results',
        'with one draft it returns node 2; it must be 0 to 1'),
    'a node without a candidate': (
        single(change=lambda verdict: verdict._replace(node=jnp.int32(1))), 'results',
        'with one draft it accepts node 1, whose token or one above it is -1'),
    'a node with an axis': (
        single(change=lambda verdict: verdict._replace(node=verdict.node[None])), 'results',
        r'verify of the verifier returned node int32\[1, 1\]; it must return integers of shape'),
    'distributions that it does not ask for': (
        single(needs_probs=False), 'results',
        r'the verifier raises TypeError at test_check_verifier.py:\d+: .* needs_probs is False'),
    'refused altogether': (
        rejection()._replace(check=of_none), 'results',
        'check: it refuses every layout'),
    'a bound that is too small': (
        by_test(double, gap=doubled_gap(0.5), exact=False, bounded=True, check=of_one), 'bound',
        r'with one draft the tokens are \S+ in total variation .* mean of tv_bound is \S+;'),
    'a bound that is not declared': (
        by_test(double, gap=doubled_gap(1), exact=False, check=of_one), 'guarantee',
        'bounded is False, but verdicts have a tv_bound; set bounded=True'),
    'a bound that is missing': (
        by_test(double, exact=False, bounded=True, check=of_one), 'guarantee',
        'bounded is True, but verdicts have no tv_bound: the gap is missing; return'),
    'seed-exact, not exact': (
        by_test(double, exact=False, seed_exact=True, check=of_one), 'guarantee',
        'seed_exact is True and exact is False'),
    'seed-exact with new noise': (
        match(seed_exact=False)._replace(seed_exact=True, check=of_one), 'seed-exact',
        r'seed_exact is True, but \d+ of 256 images are not those of vanilla'),
    'samples that are not drawn': (
        single(change=lambda verdict: verdict._replace(samples=jnp.stack([verdict.token] * 2))),
        'samples', r'samples\[.\] is \S+ in total variation from target_probs\[.\]'),
}


@pytest.mark.parametrize('name', representative(
    BROKEN, 'the ratio inverted', 'the target in place of the residual', 'NaN',
    'a node without a candidate', 'refused altogether', 'distributions that it does not ask for',
    'a bound that is too small',
    'a bound that is not declared', 'seed-exact with new noise'))
def test_broken_verifiers(name):
  verifier, check, message = BROKEN[name]
  problems = report_of(check_verifier, verifier).problems
  assert list(problems) == [check], problems
  assert re.search(message, problems[check]) and problems[check].endswith('.'), problems


@pytest.mark.slow
@pytest.mark.parametrize('name,message', [
    ('residual replaced by the target distribution', 'with one draft .* but exact is True'),
    ('plain draft distribution for the second candidate', 'with two siblings drawn without repl'),
    ('bonus token one position early', 'with one draft .* but exact is True'),
    ('temperature applied twice', 'with one draft .* but exact is True'),
    ('longest of several accepted paths', 'the second with a child .* but exact is True'),
    ('chosen token not removed from the distribution', 'but exact is True'),
])
def test_mutants_of_verifiers(name, message):
  with MUTANTS[name].patch(), pytest.raises(AssertionError, match=message):
    check_verifier(rejection())


def test_the_error_lists_what_is_wrong():
  with pytest.raises(AssertionError, match='(?s)not what decoders need:\n- verify of the verifier '
                                           'returned node .*\nPassed: nothing.\nNot checked bec'):
    check_verifier(BROKEN['a node with an axis'][0])
  with pytest.raises(ValueError, match='vocab_size is 16384; it must be 2 to 4'):
    check_verifier(rejection(), vocab_size=16384)


def test_a_relaxed_verifier_without_a_gap_is_noted():
  mass = lambda p, q, token, depth: 2 * accept.take(p, token)
  noted = lambda **fields: any('neither exact nor bounded' in note for note in check_verifier(
      by_test(mass, exact=False, check=of_one, **fields)).notes)
  assert noted(bounded=False) and not noted(bounded=True, gap=doubled_gap(1))
