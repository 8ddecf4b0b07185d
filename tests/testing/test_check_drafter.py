"""`check_drafter` passes the library's drafters and names what is wrong with every broken one."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.base import Draft, Drafter, Layout
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.drafters.correctors import from_model, from_network
from cspd_jax.decoding.drafters.draft_model import model
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.drafters.jacobi import ancestral, jacobi, reuse
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.tree import Budget, Tree, chain, runtime_tree
from cspd_jax.testing import check_drafter, drafter_checks
from cspd_jax.testing.drafter_checks import CHECKS
from cspd_jax.testing.proofs.mutants import MUTANTS
from cspd_jax.testing.tabular import heads, network, tabular, tabular_drafter
from tests.marks import representative
from tests.testing.problems import report_of

MODEL, OTHER = (tabular(jax.random.key(seed), 3, 6, guided=True, row_width=3) for seed in (0, 1))
NETWORK, HEADS = network(MODEL.target), heads(MODEL.target, 2)
SAMPLES = 2**12
SMALL = trees.branching('2 0:1')
OWN = {
    'window': lambda: jacobi(4),
    'window with a tree': lambda: jacobi(7, 'maximal', tree=trees.kary(2, 3, 6)),
    'reused window': lambda: reuse(4),
    'window of noise': lambda: jacobi(4, 'gumbel', 'resample-above'),
    'corrected window': lambda: corrected(
        from_model(OTHER.target), 5, 2, trees.caterpillar(2, 2, 4)),
    'window corrected by a network': lambda: corrected(from_network(NETWORK), 4, 2),
    'model': lambda: model(OTHER.target, 3),
    'table, distinct': lambda: tabular_drafter(OTHER, trees.kary(2, 2, 6)),
    'table, iid': lambda: tabular_drafter(OTHER, trees.kary(2, 2, 6), 'iid'),
    'table, fixed': lambda: tabular_drafter(OTHER, trees.kary(2, 2, 6), 'fixed'),
    'eagle': lambda: eagle(NETWORK, SMALL),
    'eagle2': lambda: eagle2(NETWORK, 5, 2, 3),
    'medusa': lambda: medusa(HEADS, SMALL),
    'padding': lambda: ancestral(3),
}
# Distributions after each token; node 1 is drawn from the first, node 2 from the second.
P = jnp.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
CHAIN = Layout(chain(2), (0, 0, 1), (-1, -1, -1))


@pytest.mark.parametrize('name', representative(OWN, 'eagle2'))
def test_drafters_of_the_library(name):
  params = OTHER.params
  if name == 'medusa':
    params = jax.random.normal(jax.random.key(2), (2, *params.shape))
  report = check_drafter(OWN[name](), params, model=MODEL, samples=SAMPLES)
  assert report.passed == [check.name for check in CHECKS] and not report.left_out
  assert ('no draft was checked' in ''.join(report.notes)) == (name == 'padding')


def drawing(row=lambda rng, root: (rng.draw(P[:2]), P[:2]), layout=CHAIN, change=lambda *x: x,
            **changes):
  """A drafter whose `row` returns tokens and distributions.

  They go through `change(old random state, new one, tokens, probs)`, which returns the last three.
  """
  def propose(env, state, rng, root, start):
    new, (tokens, probs) = env.rowwise(row)(rng, root)
    new, tokens, probs = change(rng, new, tokens, probs)[-3:]
    return new, state, Draft(tokens, probs if env.needs_probs else None)

  return Drafter(
      layout=layout, init=lambda env, condition, rng, outcome: (rng, outcome.count),
      propose=propose, update=lambda env, state, rng, outcome: (rng, outcome.count),
      reuses_drafts=False)._replace(**changes)


def recording(change):
  """A drafter that records `change(distributions)`."""
  return drawing(change=lambda old, new, tokens, probs: (new, tokens, change(probs)))


def of_different_pair(draws):
  """A drafter of two siblings that differ, which claims `draws`."""
  return drawing(lambda rng, root: (rng.draw_distinct(P[:1], 2)[0], P[:1]),
                 Layout(Tree((-1, 0, 0)), (0, 0, 0), (-1, -1, -1), draws))


def with_later_first(rng, root):
  later = rng.draw(P[:1])[0]
  first = rng.draw(P[later][None])[0]
  return jnp.stack([first, later]), jnp.stack([P[later], P[0]])


def with_marginal(rng, root):
  first = rng.draw(P[:1])[0]
  return jnp.stack([first, rng.draw(P[first][None])[0]]), jnp.stack([P[0], P[0] @ P])


def with_root_ignored(rng, root):
  total = jnp.mean(P, axis=0)  # Of a root that is drawn uniformly, which it is not.
  return rng.draw(jnp.stack([P[root], P[1]])), jnp.stack([total, P[1]])


def repeating():
  """A drafter that proposes refused drafts again, with their old distributions."""
  def propose(env, state, rng, root, start):
    old, keep = state
    rng, tokens = env.rowwise(lambda row: row.draw(P[:2]))(rng)
    tokens = jnp.where(keep[:, None], old, tokens)
    probs = jnp.broadcast_to(P[:2], (len(root), 2, 3))
    return rng, (tokens, keep), Draft(tokens, probs if env.needs_probs else None)

  return drawing(
      propose=propose,
      init=lambda env, condition, rng, outcome: (rng, (
          jnp.zeros((len(outcome.count), 2), jnp.int32), outcome.count < 0)),
      update=lambda env, state, rng, outcome: (rng, (state[0], outcome.accepted == 0)))


def choosing(parents, budget=Budget(2, 2, 2)):
  """A drafter with a topology per row."""
  def propose(env, state, rng, root, start):
    tree = runtime_tree(jnp.broadcast_to(jnp.array(parents), (len(root), 3)), budget)
    return rng, state, Draft(jnp.broadcast_to(jnp.array([0, 1]), (len(root), 2)), None, tree)
  return drawing(layout=Layout(budget, (0,) * 3, (-1,) * 3, 'fixed'), propose=propose)


# name: the drafter, the check that finds it, and what the sentence says.
BROKEN = {
    'a row of another node': (
        drawing(layout=CHAIN._replace(probs_rows=(0, 1, 0))), 'frequencies',
        r'node 1 does not follow row 1 of probs: in round 1, with guidance scale \S+ and '
        r'temperature \S+, token . has frequency \S+ in \d+ drafts and recorded probability \S+;'),
    'one row for two nodes': (
        drawing(lambda rng, root: (rng.draw(P[:2]), P[:1]),
                CHAIN._replace(probs_rows=(0, 0, 0))), 'frequencies',
        'node 2 does not follow row 0 of probs: in round 1, '),
    'not normalised': (
        recording(lambda probs: 0.7 * probs), 'normalised',
        'row 0 of probs, recorded for node 1, sums to 0.7 with minimum 0.14 in round 1'),
    'negative': (
        recording(lambda probs: probs + jnp.array([-0.25, 0.25, 0])), 'normalised',
        'sums to 1 with minimum -0.05'),
    'another distribution': (
        recording(lambda probs: probs**2 / jnp.sum(probs**2, axis=-1, keepdims=True)),
        'frequencies', 'node 1 does not follow row 0 of probs: in round 1, .* has frequency'),
    'a later token first': (
        drawing(with_later_first), 'frequencies',
        'node 2 does not follow row 1 of probs given what is recorded for the nodes before it: '),
    'the mean over the tokens above': (
        drawing(with_marginal), 'frequencies',
        'node 2 does not follow row 1 of probs given the tokens before it: '),
    'the last token ignored': (
        drawing(with_root_ignored), 'frequencies', 'node 1 does not follow row 0 of probs'),
    'candidates dropped by their token': (
        drawing(change=lambda old, new, tokens, probs: (
            new, jnp.where(tokens == 0, -1, tokens), probs)), 'frequencies',
        'node 1 does not follow row 0 of probs: '),
    'chosen, not drawn': (
        drawing(change=lambda old, new, tokens, probs: (
            new, jnp.argmax(probs, -1).astype(jnp.int32), probs)), 'frequencies',
        'node 1 does not follow row 0 of probs: '),
    'siblings that differ, as independent': (
        of_different_pair('iid'), 'frequencies',
        'node 2 does not follow row 0 of probs'),
    'refused drafts again': (
        repeating(), 'frequencies',
        'node 1 does not follow row 0 of probs.*: in round [2-9]'),
    'drafts that return': (
        jacobi(4, 'maximal')._replace(reuses_drafts=False), 'new drafts',
        'reuses_drafts is False, but in round 2 node . depends on the draft of the round before'),
    'random numbers twice': (
        drawing(change=lambda old, new, tokens, probs: (old, tokens, probs)), 'random numbers',
        'propose: it draws random numbers and returns the state from before the draws'),
    'another noise': (
        drawing(change=lambda old, new, tokens, probs: (
            new._replace(noise=new.noise + jnp.uint32(1)), tokens, probs)), 'random numbers',
        'propose: it returns random numbers with another noise of positions'),
    'tokens of another row': (
        drawing(change=lambda old, new, tokens, probs: (
            new, jnp.roll(tokens, 1, axis=0), probs)), 'rows',
        'the token of node 1 changes with the other rows'),
    'tokens out of range': (
        drawing(change=lambda old, new, tokens, probs: (new, tokens + 1, probs)), 'tokens',
        'node 1 has token 3; drafts are tokens, 0 to 2, or -1'),
    'parents out of order': (
        choosing([-1, 2, 0]), 'tree', 'in round 1 the parent of node 1 is 2; the root, node 0'),
    'more children than the budget': (
        choosing([-1, 0, 0], Budget(2, 2, 1)), 'tree',
        'a node has number of children 2; .* allows 1'),
    'a state of another dtype': (
        drawing(update=lambda env, state, rng, outcome: (rng, state + 0.5)), 'shapes',
        r'update: it returns a state whose leaf state is float32\[4096\]; it must be int32'),
    'one distribution too few': (
        recording(lambda probs: probs[:, :1]), 'shapes',
        r'propose of the drafter returned probs float32\[4096, 1, 3\]'),
    'parameters that are missing': (
        drawing(propose=lambda env, *args: env.params.shape), 'shapes',
        r"the drafter raises AttributeError at test_check_drafter.py:\d+: 'NoneType'"),
    'draws unknown': (
        drawing(layout=CHAIN._replace(draws='sorted')), 'layout',
        "layout.draws is 'sorted'; it must be one of distinct, iid, fixed"),
    'a row for every draft, none for the root': (
        drawing(layout=CHAIN._replace(probs_rows=(0, 1))), 'layout',
        r'layout.probs_rows is \(0, 1\); it must be 3 whole numbers, one for the root and one'),
    'rows of siblings': (
        drawing(layout=Layout(Tree((-1, 0, 0)), (0, 0, 1), (-1,) * 3)), 'layout',
        r'layout.probs_rows has rows \[0, 1\] for the siblings \[1, 2\]'),
    'a candidate after an inner node': (
        drawing(layout=CHAIN._replace(leaf_candidate=(-1, 2, -1))), 'layout',
        r'layout.leaf_candidate\[1\] is 2; it must be -1, or, for the leaf of a side branch'),
    'a budget of drawn tokens': (
        drawing(layout=CHAIN._replace(tree=Budget(2, 2, 2))), 'layout', "set draws to 'fixed'"),
}


@pytest.mark.parametrize('name', representative(
    BROKEN, 'not normalised', 'a later token first', 'random numbers twice', 'parents out of order',
    'a state of another dtype', 'one distribution too few', 'parameters that are missing',
    'draws unknown', 'a row for every draft, none for the root', 'rows of siblings',
    'a candidate after an inner node', 'a budget of drawn tokens'))
def test_broken_drafters(name):
  drafter, check, message = BROKEN[name]
  problems = report_of(check_drafter, drafter, samples=SAMPLES).problems
  assert list(problems) == [check]
  assert re.search(message, problems[check]) and problems[check].endswith('.')


def test_the_error_lists_what_is_wrong():
  with pytest.raises(AssertionError, match="(?s)not what decoders need:\n- layout.draws is 'sorted'"
                                           '.*\nPassed: nothing.\nNot checked because of this: s'):
    check_drafter(BROKEN['draws unknown'][0])


@pytest.mark.slow
@pytest.mark.parametrize('name,message', [
    ('corrected token kept without a test', 'node 1 does not follow row 0'),
    ('corrected token with the distribution of the pass before', 'node . does not follow row'),
    ('siblings drawn without replacement, tested as independent', 'node . does not follow row 0'),
    ('most probable tokens tested as if drawn', 'node 1 does not follow row 0'),
    ('softmax recorded for tokens taken without chance', 'row 0 of probs: .* temperature 0.0'),
    ('drafts drawn without the temperature, recorded with it',
     'row 0 of probs: .* temperature 0.8'),
    ('drafts drawn from bfloat16 logits, recorded from float32', 'node . does not follow row'),
])
def test_mutants_of_drafters(name, message):
  # Networks have logits of any size; what is added to all of them cancels, unless it is rounded.
  params = OTHER.params + 200 * ('bfloat16' in name)
  with MUTANTS[name].patch(), pytest.raises(AssertionError, match=message):
    check_drafter(MUTANTS[name].build(MODEL.target).drafter, params, model=MODEL)


@pytest.mark.slow
def test_a_temperature_that_the_record_ignores():
  """The network's own distribution is recorded, and the tokens follow that with the temperature."""
  def propose(env, state, rng, root, start):
    temperature = jnp.where(env.sampling.temperature > 0, env.sampling.temperature, 1)[:, None]
    sharper = P[1:2] ** (1 / temperature)
    probs = (sharper / jnp.sum(sharper, -1, keepdims=True))[:, None]
    rng, tokens = env.rowwise(lambda row, probs: row.draw(probs))(rng, probs)
    same = jnp.broadcast_to(P[1:2], probs.shape)
    return rng, state, Draft(tokens, same if env.needs_probs else None)

  drafter = drawing(propose=propose, layout=Layout(chain(1), (0, 0), (-1, -1)))
  with pytest.raises(AssertionError, match='row 0 of probs: .* temperature 0.8'):
    check_drafter(drafter)


def test_a_drafter_that_refuses_the_model():
  refusing = drawing(check=lambda target: 1 / 0 if target.vocab_size == 3 else None)
  with pytest.raises(ZeroDivisionError):
    check_drafter(refusing)
  with pytest.raises(ValueError, match='vocab_size of the draft model is 4') as error:
    check_drafter(model(tabular(jax.random.key(0), 4, 6).target, 2), OTHER.params)
  assert 'a model of 3 tokens with images of 6 in rows of 3; pass model' in error.value.__notes__[0]
  with pytest.raises(ValueError, match='samples is 8; it must be at least 256'):
    check_drafter(refusing, samples=8)
  with pytest.raises(ValueError, match='39 tokens deep, .* at most 16 deep'):
    check_drafter(jacobi(40))


def test_false_alarms_are_as_rare_as_declared():
  """Of tests at 0.05, about 0.05 or fewer refute tokens that follow their distributions."""
  rng, refuted = np.random.default_rng(0), 0
  for _ in range(300):
    probs = rng.dirichlet(np.ones(3), 400)
    tokens = np.array([rng.choice(3, p=row) for row in probs])
    refuted += drafter_checks.misfit(tokens, probs, np.arange(400) % 4, np.log(0.05)) is not None
  assert refuted <= 15
