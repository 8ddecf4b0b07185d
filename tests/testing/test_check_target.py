"""`check_target` passes what is right and names what is wrong with every broken target."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding.base import Target
from cspd_jax.decoding.tree import Tree, chain
from cspd_jax.files import store
from cspd_jax.models import llamagen
from cspd_jax.testing.report import ProblemsError
from cspd_jax.testing.tabular import prefix_number, tabular
from cspd_jax.testing.target_checks import CHECKS, check_target
from tests.marks import representative
from tests.testing.problems import report_of


def guided(**options):
  """A model whose second stream, that of the null condition, is the same for all classes."""
  model = tabular(jax.random.key(0), 4, 9, guided=True, num_classes=3, **options)
  return model._replace(params=model.params.at[:, 1].set(model.params[0, 1]))


MODEL = guided()
T, LABELS = MODEL.target, jnp.arange(3)


def scoring(change):
  """The target whose logits are `change(logits, tokens, start, tree, cache)`."""
  def score(params, cache, tokens, start, tree):
    logits, features, after = T.score(params, cache, tokens, start, tree)
    return change(logits, tokens, start, tree, after), features, after
  return T._replace(score=score)


def calling(change):
  """The target whose `score` is called with other arguments, `change(tokens, start, tree)`."""
  return T._replace(score=lambda params, cache, *args: T.score(params, cache, *change(*args)))


def prefilling(change):
  """The target whose prefill's logits, features and cache go through `change`."""
  return T._replace(prefill=lambda *args: change(*T.prefill(*args)))


def node_as_depth(tree):
  """The tree with the number of a node for its depth."""
  depth = jnp.broadcast_to(jnp.arange(tree.num_nodes + 1), np.shape(tree.depth))
  return types.SimpleNamespace(
      depth=depth, paths=tree.paths, max_depth=tree.max_depth, num_nodes=tree.num_nodes)


def concrete_depth(tree):
  """The tree with its depths as a NumPy array, which those of a run-time tree cannot become."""
  return dataclasses.replace(tree) if isinstance(tree, Tree) else dataclasses.replace(
      tree, depth=np.asarray(tree.depth))


def chain_only(tree):
  """The tree, if it is a chain."""
  if not tree.is_chain:
    raise NotImplementedError('no trees.\nMore lines.')
  return tree


def of_first_row(tree):
  """The run-time tree with the first row's topology in all rows."""
  if isinstance(tree, Tree):
    return tree
  return jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), tree)


def see(logits, tokens, seen):
  """Node `i` also reads the tokens of nodes `j` with `seen[..., i, j]`."""
  return logits + 2 * jnp.einsum('...ij,...jv->...iv', jnp.asarray(
      seen, logits.dtype), jax.nn.one_hot(tokens, 4, dtype=logits.dtype))


def siblings(tree):
  parents = jnp.asarray(tree.parents)
  same = parents[..., :, None] == parents[..., None, :]
  return same & ~np.eye(tree.num_nodes + 1, dtype=bool)


def leftovers(logits, tokens, start, tree, cache):
  del tree
  after = jnp.take_along_axis(cache[1], (start + tokens.shape[1])[:, None], axis=1)
  return logits + 2 * jax.nn.one_hot(after, 4)


def past_the_end(logits, tokens, start, tree, cache):
  del tokens, cache
  return jnp.where((start[:, None] + tree.depth < 9)[..., None], logits, jnp.nan)


def interleaved(logits, features, cache):
  """With the rows of both streams by turns: row `b` of stream `s` at `2 b + s`."""
  return logits, features, (cache[0], jnp.repeat(cache[1], 2, axis=0))


# name: the target, the check that finds it, and what the sentence says.
BROKEN = {
    'commit does nothing': (
        T._replace(commit=lambda cache, start, path: cache), 'commit',
        'commit: after paths to nodes'),
    'commit one slot too early': (
        T._replace(commit=lambda cache, start, path: T.commit(cache, start - 1, path + 1)),
        'commit', r'returns distributions 0\.\d+ apart in total variation'),
    'score one token later than commit': (
        calling(lambda tokens, start, tree: (tokens, start + 1, tree)), 'commit',
        'where start is the number of the root as in score'),
    'commit one token later than score': (
        T._replace(commit=lambda cache, start, path: T.commit(cache, start + 1, path)), 'commit',
        'where start is the number of the root as in score'),
    'commit with the path of the first row': (
        T._replace(commit=lambda cache, start, path: T.commit(
            cache, start, jnp.broadcast_to(path[:1], path.shape))),
        'commit', 'of the same stream and row'),
    'tree parents ignored': (
        calling(lambda tokens, start, tree: (tokens, start, chain(tree.num_nodes))), 'tree',
        r'with a Tree node 4 has a distribution 0\.\d+ apart in total variation'),
    'siblings see each other': (
        scoring(lambda logits, tokens, start, tree, cache: see(logits, tokens, siblings(tree))),
        'tree', 'with a Tree node 1 has .* and no other node'),
    'a node sees another branch': (
        scoring(lambda logits, tokens, start, tree, cache: see(
            logits, tokens, np.eye(tree.num_nodes + 1, k=-3) * (tree.num_nodes == 6))),
        'tree', 'with a Tree node [346] has .* and no other node'),
    'node numbers for depths': (
        calling(lambda tokens, start, tree: (tokens, start, node_as_depth(tree))), 'tree',
        'with a Tree node 4 has .* whatever its index'),
    'one topology for all rows': (
        calling(lambda tokens, start, tree: (tokens, start, of_first_row(tree))),
        'run-time tree', 'with a RuntimeTree, a topology per row, node . has'),
    'trees refused': (
        calling(lambda tokens, start, tree: (tokens, start, chain_only(tree))), 'tree',
        r'score: with a Tree it raises NotImplementedError at test_check_target.py:\d+: no trees; '
        r'a target that scores chains only sets supports_trees=False\.$'),
    'trees scored as chains': (
        calling(lambda tokens, start, tree: (tokens, start, chain(tree.num_nodes))), 'tree',
        'a target that scores chains only sets supports_trees=False'),
    'a run-time tree as a NumPy array': (
        calling(lambda tokens, start, tree: (tokens, start, concrete_depth(tree))),
        'run-time tree', 'score: with a RuntimeTree, a topology per row, it raises '
        r'TracerArrayConversionError at test_check_target.py:\d+: .*; its depth \[B, N . 1\]'),
    'a branch on a run-time tree': (
        calling(lambda tokens, start, tree: (
            tokens, start, tree if isinstance(tree, Tree) or tree.depth.max() else None)),
        'run-time tree', 'it raises TracerBoolConversionError at .*use jax.numpy on them'),
    'a commit that fails': (
        T._replace(commit=lambda cache, start, path: T.commit(cache, start, path.reshape(3))),
        'tree', r'commit: with a Tree it raises \w+ at \w+.py:\d+: '),
    'start ignored': (
        calling(lambda tokens, start, tree: (tokens, jnp.zeros_like(start), tree)), 'windows',
        'score: 2 tokens in one pass have other distributions than one by one'),
    'windows in another precision': (
        scoring(lambda logits, tokens, start, tree, cache: (logits + 96).astype(
            jnp.bfloat16).astype(jnp.float32) if tokens.shape[1] > 1 else logits), 'windows',
        'score: . tokens in one pass have other distributions than one by one'),
    'one start for all rows': (
        calling(lambda tokens, start, tree: (
            tokens, jnp.broadcast_to(start[:1], start.shape), tree)), 'starts',
        'score: rows that start at different tokens'),
    'later tokens are seen': (
        scoring(lambda logits, tokens, start, tree, cache: see(
            logits, tokens, np.eye(tree.num_nodes + 1, k=1))), 'later tokens',
        'a token of a window sees a later one'),
    'leftovers are seen': (scoring(leftovers), 'leftovers', 'leftovers of rejected drafts'),
    'NaN past the end': (
        scoring(past_the_end), 'end of the image', 'logits contain NaN or .inf where'),
    'no room past the end': (
        T._replace(prefill=lambda params, condition, num_slots: T.prefill(params, condition, 10)),
        'end of the image', 'must allocate num_slots'),
    'infinite logits': (
        scoring(lambda logits, *_: jnp.where(jnp.arange(4) == 2, jnp.inf, logits)),
        'finite logits', 'score: logits contain NaN or .inf, or are -inf for all tokens'),
    'no possible token': (
        prefilling(lambda logits, *rest: (jnp.full_like(logits, -jnp.inf), *rest)),
        'finite logits', 'prefill: logits contain NaN'),
    'num_streams wrong': (T._replace(num_streams=1), 'shapes', r'must return .* shape \(1, 3, 4\)'),
    'rows leak': (
        scoring(lambda logits, *_: logits + logits.mean(axis=1, keepdims=True)), 'rows of score',
        'with the tokens of another row'),
    'rows leak in the prefill': (
        prefilling(lambda logits, features, cache: (
            logits + logits.mean(axis=1, keepdims=True), features, cache)),
        'rows of prefill', 'with the other rows of the batch'),
    'rows of the cache in another order': (
        T._replace(
            prefill=lambda *args: interleaved(*T.prefill(*args)),
            score=lambda params, cache, *args: interleaved(*T.score(
                params, (cache[0], cache[1][::2]), *args)),
            commit=lambda cache, *args: (cache[0], jnp.repeat(
                T.commit((cache[0], cache[1][::2]), *args)[1], 2, axis=0))),
        'rows of the cache', 'row b of stream s at s B . b'),
    'a cache without rows': (
        T._replace(
            prefill=lambda *args: (*T.prefill(*args)[:2], (T.prefill(*args)[2], jnp.zeros(3))),
            score=lambda params, cache, *args: (
                *T.score(params, cache[0], *args)[:2],
                (T.score(params, cache[0], *args)[2], cache[1])),
            commit=lambda cache, *args: (T.commit(cache[0], *args), cache[1])),
        'rows of the cache', r'leaf state.1. of shape .3. for 2 images and .3. for 4'),
    'random numbers of its own': (
        scoring(lambda logits, *_: logits + np.random.normal(size=logits.shape)), 'determinism',
        'score: two calls with the same arguments'),
    'features of the prefill only': (
        T._replace(score=lambda *args: (T.score(*args)[0], None, T.score(*args)[2])), 'features',
        'score: it returns no features, but prefill does'),
    'features of the wrong token': (
        T._replace(score=lambda *args: (
            T.score(*args)[0], jnp.roll(T.score(*args)[1], 1, axis=2), T.score(*args)[2])),
        'features', 'score: features of 5 tokens in one pass differ'),
    'tokens that do not matter': (
        scoring(lambda logits, *_: logits * 1e-5), 'tokens matter', 'use trained parameters'),
    'forced tokens out of range': (
        T._replace(forced=lambda positions: positions), 'shapes', 'forced: tokens go from 0 to 8'),
    'no vocabulary': (
        T._replace(vocab_size=0), 'shapes', 'vocab_size is 0; it must be'),
}


def test_a_tabular_target():
  report = check_target(T, MODEL.params, LABELS)
  assert not report.problems and not report.left_out
  assert report.passed == ['shapes', *(check.name for check in CHECKS)]
  assert str(report).startswith('Passed: shapes, determinism')


@pytest.mark.slow
def test_impossible_tokens():
  """-inf excludes a token under guidance too, which no large negative number does."""
  never = lambda logits: jnp.where(jnp.arange(4) == 2, -jnp.inf, logits)
  target = T._replace(
      prefill=lambda *args: (never(T.prefill(*args)[0]), *T.prefill(*args)[1:]),
      score=lambda *args: (never(T.score(*args)[0]), *T.score(*args)[1:]))
  assert not check_target(target, MODEL.params, LABELS).problems


@pytest.mark.slow
@pytest.mark.parametrize('length', [1, 2, 4, 6])
def test_short_images(length):
  model = tabular(jax.random.key(0), 3, length, forced={length - 1: 2})
  check_target(model.target, model.params, LABELS[:1], key=jax.random.key(length))


@pytest.mark.slow
@pytest.mark.parametrize('guided', [False, True])
def test_the_shipped_model(guided):
  model = store.load('demo/target', dtype='float32')
  target = llamagen.target(model.config, guided=guided)
  training = lambda params, labels, tokens: llamagen.logits_and_features(
      params, model.config, labels, tokens, np.zeros(len(tokens), bool))[0]
  check_target(target, model.params, jnp.asarray([1, 5]), logits=training)


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(
    BROKEN, 'commit does nothing', 'commit with the path of the first row', 'tree parents ignored',
    'siblings see each other', 'node numbers for depths', 'one topology for all rows',
    'trees refused', 'a branch on a run-time tree',
    'start ignored', 'one start for all rows', 'later tokens are seen', 'leftovers are seen',
    'NaN past the end', 'no room past the end', 'num_streams wrong', 'rows leak',
    'features of the wrong token'))
def test_broken_targets(name):
  target, check, message = BROKEN[name]
  report = report_of(check_target, target, MODEL.params, LABELS)
  assert check in report.problems, str(report)
  with pytest.raises(AssertionError, match=message):
    raise AssertionError(report.problems[check])
  # What went wrong comes first.
  assert next(iter(report.problems)) == check, str(report)


def recurrent(keeps_states=True):
  """A target that carries one state from token to token, and its parameters.

  Its cache has the states after the condition and after every token, or the last one alone.
  """
  keys = jax.random.split(jax.random.key(0), 4)
  params = [jax.random.normal(key, shape) for key, shape in zip(
      keys, ((3, 8), (4, 8), (8, 8), (8, 4)))]

  def prefill(params, labels, num_slots):
    state = jnp.tanh(params[0][labels])
    slots = jnp.zeros((len(labels), num_slots + 1, 8)).at[:, 0].set(state)
    return (state @ params[3])[None], None, slots if keeps_states else state

  def score(params, cache, tokens, start, tree):
    def step(state, token):
      state = jnp.tanh(state @ params[2] + params[1][token])
      return state, state
    rows = jnp.arange(len(start))
    last, states = jax.lax.scan(step, cache[rows, start] if keeps_states else cache, tokens.T)
    states, slots = states.swapaxes(0, 1), start[:, None] + 1 + jnp.arange(tokens.shape[1])
    after = cache.at[rows[:, None], slots].set(states) if keeps_states else last
    return (states @ params[3])[None], None, after

  return T._replace(prefill=prefill, score=score, commit=None, num_streams=1,
                    supports_trees=False), params


def test_a_recurrent_target():
  target, params = recurrent()
  report = check_target(target, params, LABELS)
  assert not {'tree', 'run-time tree', 'commit'} & {*report.passed}
  assert 'leftovers' in report.passed and not report.left_out
  assert report.notes[0] == (
      'trees and commit are unchecked: supports_trees is False, so make_decoder refuses drafters '
      'of trees.')
  assert f'\nNote: {report.notes[0]}\nNote: ' in str(report)


@pytest.mark.parametrize('keeps_states, trees, check, message', [
    (False, False, 'leftovers', 'must begin from the state after token start - 1'),
    (True, True, 'tree', 'only sets supports_trees=False')])
def test_wrong_recurrent_targets(keeps_states, trees, check, message):
  target, params = recurrent(keeps_states)
  report = report_of(check_target, target._replace(supports_trees=trees), params, LABELS)
  assert next(iter(report.problems)) == check and message in report.problems[check]


@pytest.mark.slow
def test_unchecked_conditions():
  unchecked = T._replace(check_condition=Target._field_defaults['check_condition'])
  report = check_target(unchecked, MODEL.params, LABELS)
  assert not report.problems and 'has no check_condition' in report.notes[0]
  assert len(check_target(T, MODEL.params, LABELS).notes) == 1


def attentive(shift=0, sees_itself=True):
  """A target that sums what it has cached, wrong in the same way in all of its functions."""
  keys = jax.random.split(jax.random.key(0), 4)
  params = [jax.random.normal(key, shape) for key, shape in zip(
      keys, ((3, 8), (4, 8), (10, 8), (8, 4)))]

  def prefill(params, labels, num_slots):
    state = params[0][labels]
    return (jnp.tanh(2 * state) @ params[3])[None], None, jnp.pad(
        state[:, None], ((0, 0), (0, num_slots + 1), (0, 0)))

  def score(params, cache, tokens, start, tree):
    start, rows = start + shift, jnp.arange(len(start))[:, None]
    x = params[1][tokens] * params[2][jnp.minimum(start[:, None] + tree.depth, 9)]
    slot = 1 + start[:, None] + jnp.arange(tokens.shape[1])
    node = jnp.arange(cache.shape[1]) - slot[:, :1]
    ancestors = jnp.broadcast_to(tree.ancestors, (len(start), *tree.ancestors.shape[-2:]))
    if not sees_itself:
      ancestors = ancestors & ~jnp.eye(tree.num_nodes + 1, dtype=bool)
    seen = jnp.take_along_axis(ancestors, jnp.clip(node, 0, tree.num_nodes)[:, None], axis=2)
    visible = (node < 0)[:, None] | seen & (node <= tree.num_nodes)[:, None]
    cache = cache.at[rows, slot].set(x)
    state = x + jnp.einsum('bns,bsd->bnd', visible.astype(x.dtype), cache)
    return (jnp.tanh(state) @ params[3])[None], None, cache

  def commit(cache, start, path):
    start, rows = start[:, None] + shift, jnp.arange(len(start))[:, None]
    depth = 1 + jnp.arange(path.shape[1])
    return cache.at[rows, 1 + start + depth].set(cache[rows, 1 + start + path])

  return T._replace(prefill=prefill, score=score, commit=commit, num_streams=1), params


def attentive_pass(params, labels, tokens):
  """The forward pass of `attentive`, over a whole image at once."""
  x = jnp.concatenate([params[0][labels][:, None],
                       (params[1][tokens] * params[2][:tokens.shape[1]])[:, :-1]], axis=1)
  return jnp.tanh(x + jnp.cumsum(x, axis=1)) @ params[3]


@pytest.mark.slow
def test_the_training_pass_finds_what_is_consistent():
  """A target that is wrong in the same way everywhere agrees with itself."""
  target, params = attentive()
  report = check_target(target, params, LABELS, logits=attentive_pass)
  assert 'training pass' in report.passed and not report.notes
  for wrong in (attentive(shift=1), attentive(sees_itself=False)):
    report = report_of(check_target, *wrong, LABELS, logits=attentive_pass)
    assert list(report.problems) == ['training pass'], str(report)
    assert 'score: the distribution of token 1 is' in report.problems['training pass']
  report = check_target(*attentive(shift=1), LABELS)
  assert 'training was not compared' in report.notes[-1] and 'pass logits' in report.notes[-1]
  assert str(report).endswith(f'\nNote: {report.notes[-1]}')


def test_the_error_lists_what_is_wrong():
  with pytest.raises(ProblemsError, match='(?s)not what decoders need:\n- score: .*\n'
                                          'Passed: shapes.*\nNot checked because of this: '
                                          'starts, commit, end of the image.'):
    check_target(BROKEN['leftovers are seen'][0], MODEL.params, LABELS)


def training(params, labels, tokens, vocab_size=4):
  """The forward pass of a tabular model: from prefixes, as its table has them."""
  numbers = jnp.stack([
      prefix_number(tokens[:, :k], vocab_size) for k in range(tokens.shape[1])], axis=1)
  return params[labels[:, None], 0, numbers]


def test_a_shifted_score_is_not_blamed_on_commit():
  report = report_of(check_target, BROKEN['score one token later than commit'][0], MODEL.params,
                     LABELS, logits=training)
  assert list(report.problems) == ['training pass']
  assert report.problems['training pass'].startswith('score: the distribution of token ')
  assert report.left_out == ['commit']


def test_a_training_pass_of_a_whole_image():
  """It may reshape the tokens to the grid; its last entry, which nothing follows, is too much."""
  model, label = tabular(jax.random.key(1), 2, 14, row_width=7), jnp.zeros(3, int)
  gridded = lambda params, labels, tokens: training(
      params, labels, tokens.reshape(len(labels), 2, 7).reshape(len(labels), -1), vocab_size=2)
  check_target(model.target, model.params, label, logits=gridded)
  longer = lambda *args: jnp.pad(gridded(*args), ((0, 0), (0, 1), (0, 0)))
  report = report_of(check_target, model.target, model.params, label, logits=longer)
  assert report.problems['training pass'] == (
      'logits: they have shape (4, 15, 2); it must be (4, 14, 2): rows, tokens, vocab_size; leave '
      'the last entry out, which predicts a token after the image.')
  square = lambda params, labels, tokens: tokens.reshape(-1, 5, 5)
  report = report_of(check_target, model.target, model.params, label, logits=square)
  assert report.problems['training pass'].startswith(
      'logits: it raises TypeError for 4 rows and tokens (4, 14): cannot reshape')


@pytest.mark.slow
def test_the_training_pass():
  check_target(T, MODEL.params, LABELS, logits=training)
  late = lambda params, labels, tokens: training(params, labels, tokens[:, ::-1])
  report = report_of(check_target, T, MODEL.params, LABELS, logits=late)
  assert 'score: the distribution of token 1 is' in report.problems['training pass']
  rows = tabular(jax.random.key(1), 2, 14, row_width=10)
  second_row = lambda *args: training(*args, vocab_size=2).at[:, 11:].set(0)
  report = report_of(check_target, rows.target, rows.params, LABELS[:1], logits=second_row)
  assert 'score: the distribution of token 11 is' in report.problems['training pass']
  target = scoring(lambda logits, *_: logits[::-1])
  report = report_of(check_target, target, MODEL.params, LABELS, logits=training)
  assert 'that the conditional stream comes first' in report.problems['training pass']
  wrong = lambda *args: training(*args)[None]
  report = report_of(check_target, T, MODEL.params, LABELS, logits=wrong)
  assert 'logits: they have shape (1, 4, 9, 4)' in report.problems['training pass']


@pytest.mark.parametrize('condition,message', [
    (jnp.int32(0), 'its leaves must be arrays with one leading axis'),
    ((), 'its leaves must be arrays'),
    ((jnp.arange(2), jnp.arange(3)), 'its leaves must be arrays'),
])
def test_conditions(condition, message):
  assert message in report_of(check_target, T, MODEL.params, condition).problems['shapes']
