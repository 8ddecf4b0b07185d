"""Corrected windows: enumerated rounds, whole sequences, equality with vanilla, mistakes."""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.drafters import Network, from_model, from_network, jacobi
from cspd_jax.decoding.drafters.corrected import corrected
from cspd_jax.decoding.drafters.correctors import correct, corrected_features, corrected_probs
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.models import local, neighbours
from cspd_jax.models.ends import Ends
from cspd_jax.testing import exactness
from cspd_jax.testing.tabular import network, tabular
from tests.builders.tables import enumerated
from tests.marks import representative

WARP = SamplingParams(guidance_scale=1.5, temperature=0.9, top_p=0.9)


def _learned(target):
  """A network that has learned to return the stale features where its own do not change."""
  return from_network(network(target)._replace(
      correct=lambda params, new, old, stale: jnp.where(new == old, stale, new)))


def _local_sizes(target):
  return local.LocalConfig(
      target.vocab_size, target.num_tokens, target.row_width, dim=3, hidden_dim=4, feature_dim=1,
      correction_dim=2)


def _local(target):
  """A network that reads what is near; the feature of a tabular model is the number of a prefix."""
  ends = Ends(None, network(target).logits, target.vocab_size, None)
  return local.corrector(_local_sizes(target), ends)


CORRECTORS = {'model': from_model, 'network': lambda target: from_network(network(target)),
              'learned': _learned, 'local': _local}


def _random(params, seed=2):
  """Random numbers in place of initial ones, of which some are 0."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 1, leaf.shape)), params)


def _draft_params(kind, built, table):
  """The parameters of a corrector, of the `table` that it predicts from."""
  if kind != 'local':
    return table
  params = _random(local.init(_local_sizes(built.target), jax.random.key(0)))
  # The stale prefix, a large number, counts everywhere and decides about what is predicted.
  gain = jax.tree.map(lambda leaf: 1e-4 * leaf, params['gain'])
  return dict(params, gain=gain, log_decay=jnp.float32(-9), target=table)


def _parts(target, window, iterations, tree=None, num_corrected=None, kind='model'):
  return corrected(CORRECTORS[kind](target), window, iterations, tree, num_corrected), rejection()


# Corrector, vocabulary, length, rounds, window, iterations, tree.
CASES = {
    'one place, two passes': ('model', 2, 4, 2, 2, 2, None),
    'one place, three rounds': ('model', 2, 4, 3, 2, 1, None),
    'one place, three words': ('model', 3, 3, 2, 2, 2, None),
    'two places': ('model', 2, 4, 2, 3, 1, None),
    'two places, features': ('network', 2, 4, 2, 3, 1, None),
    'one place, features': ('network', 2, 4, 2, 2, 2, None),
    'two places, learned': ('learned', 2, 4, 2, 3, 1, None),
    'two places, nearby features': ('local', 2, 4, 2, 3, 1, None),
    'one place, nearby features': ('local', 2, 4, 2, 2, 2, None),
    'a sibling': ('model', 3, 3, 2, 3, 1, trees.Tree((-1, 0, 0))),
}


def _distance(name, sampling=WARP, forced=None):
  kind, vocab, length, rounds, size, iterations, tree = CASES[name]
  parts = lambda built: (*_parts(built.target, size, iterations, tree, kind=kind),
                         lambda table: _draft_params(kind, built, built.params + 0.7 * table))
  return enumerated(parts, vocab, rounds, sampling, length=length, forced=forced)[0]


@pytest.mark.parametrize('name', representative(CASES, 'one place, two passes'))
def test_rounds_are_exact(name):
  assert _distance(name) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize('options', [
    dict(sampling=SamplingParams(guidance_scale=1.5)),
    dict(sampling=SamplingParams(temperature=0.0)),
    dict(forced={1: 1, 2: 0})])
def test_other_options_are_exact(options):
  assert _distance('one place, two passes', **options) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize('kind', representative(CORRECTORS, 'network'))
def test_rows_have_options_of_their_own(model, kind):
  # Tied logits, which cuts keep or drop together.
  built, other = model[0]._replace(params=jnp.round(model[0].params)), jnp.round(model[1])
  options = SamplingParams(*map(np.asarray, (
      [1.5, 1.0], [0.9, 0.6], [0, 2], [0.9, 1.0], [-1, 2], [0.0, 0.1])))
  probs = np.stack([
      built.distribution(SamplingParams(*(value[label] for value in options)),
                         label) for label in range(2)])
  decode = jax.jit(make_decoder(built.target, *_parts(built.target, 7, 2, SIDES, kind=kind)))
  sample = lambda key, labels: decode(
      built.params, labels, key, SamplingParams(*(value[labels] for value in options)),
      _draft_params(kind, built, other)).tokens
  report = exactness.check_sampler(sample, probs, built.vocab_size, samples=2**16)
  assert report.passed, report


def _sees_the_token_it_drafts(parts):
  def begin(*args):
    prediction, *others = parts.begin(*args)
    return jax.tree.map(lambda x: jnp.roll(x, -1, axis=1), prediction), *others
  return parts._replace(begin=begin)


def _errors_from_behind(parts):
  def correct(env, prediction, old, stale, *args):
    return parts.correct(env, prediction, old, jnp.roll(stale, -1, axis=1), *args)
  return parts._replace(correct=correct)


MISTAKES = {
    'kept without a test': ('_redraw', lambda env, rng, tokens, probs, result, positions: tokens),
    'distribution of the pass before': (
        '_redraw', lambda env, rng, tokens, probs, result, positions: rng.draw(probs)),
    'siblings from another distribution': (
        'jacobi_lib', types.SimpleNamespace(**vars(jacobi) | dict(
            side_tokens=lambda rng, tree, coupling, tokens, probs, *more: jacobi.side_tokens(
                rng, tree, coupling, tokens, probs**4, *more)))),
    'a corrector that sees the token it drafts': _sees_the_token_it_drafts,
    'an error from behind the token': _errors_from_behind,
}


@pytest.fixture(scope='module')
def model():
  built = tabular(jax.random.key(0), 3, 7, guided=True, num_classes=2, row_width=3)
  other = built.params + 0.7 * jax.random.normal(jax.random.key(1), built.params.shape)
  return built, other


SIDES = trees.caterpillar(3, 2, 6)


@pytest.mark.slow
@pytest.mark.parametrize('kind, size, iterations, tree, num_corrected', representative(
    [('model', 5, 1, None, None), ('model', 5, 3, None, None), ('model', 5, 8, None, None),
     ('model', 7, 2, SIDES, None), ('model', 7, 5, trees.caterpillar(2, 3, 6), 2),
     ('network', 5, 1, None, None), ('network', 5, 3, None, 3), ('network', 7, 2, SIDES, None),
     ('network', 5, 8, None, None), ('learned', 7, 2, SIDES, None), ('local', 5, 3, None, 3),
     ('local', 7, 2, SIDES, None)],
    ('model', 7, 5, trees.caterpillar(2, 3, 6), 2), ('network', 7, 2, SIDES, None)))
def test_sequences_have_the_distribution(model, kind, size, iterations, tree, num_corrected):
  built, other = model
  decoder = make_decoder(
      built.target, *_parts(built.target, size, iterations, tree, num_corrected, kind))
  report = exactness.check_decoder(
      decoder, built, exactness.class_probs(built, WARP), WARP,
      draft_params=_draft_params(kind, built, other),
      samples=2**16)
  assert report.passed, report


@pytest.mark.slow
@pytest.mark.parametrize('kind, name', representative(
    [*(('model', name) for name in (None, *MISTAKES)), ('local', None),
     ('local', 'a corrector that sees the token it drafts'),
     ('local', 'an error from behind the token')],
    ('model', None), ('model', 'distribution of the pass before')))
def test_mistakes_are_seen(kind, name, monkeypatch):
  # Far from each other, so that there are refusals.
  built = tabular(jax.random.key(0), 4, 5, num_classes=2, row_width=5, spread=2.0)
  other = built.params + jax.random.normal(jax.random.key(1), built.params.shape)
  parts = CORRECTORS[kind](built.target)
  if callable(mistake := MISTAKES.get(name)):
    parts = mistake(parts)
  elif mistake is not None:
    monkeypatch.setattr(sys.modules[corrected.__module__], *mistake)
  decoder = make_decoder(
      built.target, corrected(parts, 5, 1, trees.caterpillar(2, 1, 4)), rejection())
  report = exactness.check_decoder(
      decoder, built, exactness.class_probs(built),
      draft_params=_draft_params(kind, built, other), samples=2**17)
  assert report.passed == (name is None), report


@pytest.mark.slow
@pytest.mark.parametrize('kind', representative(['model', 'network', 'learned'], 'network'))
def test_the_targets_own_corrector_is_always_accepted(model, kind):
  built, _ = model
  decoder = make_decoder(built.target, *_parts(built.target, 7, 7, kind=kind))
  labels = jnp.arange(32) % 2 if kind == 'model' else jnp.zeros(32, jnp.int32)
  result = jax.jit(decoder)(built.params, labels, jax.random.key(0), WARP, built.params)
  np.testing.assert_array_equal(result.rounds, 2)


def test_the_rule():
  new, old, stale = jax.random.dirichlet(jax.random.key(0), jnp.ones(5), (3, 4))
  known = jnp.array([True, True, True, False])
  result = corrected_probs(new, old, stale, known)
  np.testing.assert_allclose(result.sum(-1), 1, atol=1e-6)
  np.testing.assert_array_equal(result[3], new[3])
  np.testing.assert_allclose(corrected_probs(old, old, stale, known)[:3], stale[:3], atol=1e-6)
  gain = np.minimum(new[0], old[0]).sum()
  want = np.asarray(new[0]) * (np.asarray(stale[0]) / np.asarray(old[0])) ** gain
  np.testing.assert_allclose(result[0], want / want.sum(), atol=1e-6)


def test_the_rule_of_features():
  new, old, stale = jax.random.normal(jax.random.key(0), (3, 4, 6))
  np.testing.assert_allclose(corrected_features(old, old, stale, 2.0), stale, atol=1e-6)
  np.testing.assert_allclose(corrected_features(new, old, stale, 0.0), new + stale - old, atol=1e-6)
  gain = np.exp(-2 * np.square(new - old).sum(-1) / np.square(old).sum(-1))
  want = new + gain[:, None] * (stale - old)
  np.testing.assert_allclose(corrected_features(new, old, stale, 2.0), want, rtol=1e-5, atol=1e-6)

  known = jnp.array([True, True, True, False])[:, None]
  plain = Network(None, None, None, 1, 1)
  result = correct(plain, None, new, old, stale, known)
  np.testing.assert_allclose(result[:3], want[:3], rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(result[3], new[3])
  learned = plain._replace(correct=lambda params, new, old, stale: params * stale)
  np.testing.assert_array_equal(
      correct(learned, 3.0, new, old, stale, known), jnp.where(known, 3 * stale, new))
  np.testing.assert_allclose(
      correct(learned, 3.0, new, old, stale, True, 0.0), new + stale - old, atol=1e-6)
  with pytest.raises(ValueError, match='decay is -1'):
    from_network(None, -1)


def _neighbours(seed=0, **sizes):
  """A network of neighbours with random parameters, and random numbers for images."""
  config = neighbours.NeighboursConfig(
      vocab_size=5, row_width=4, dim=4, hidden_dim=6, **dict(num_tokens=12) | sizes)
  rng = np.random.default_rng(seed)
  params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 1, leaf.shape), jnp.float32),
                        neighbours.init(config, jax.random.key(0)))
  return config, params, rng


def _readers(config, params, rng):
  """By token, the tokens whose distributions depend on it."""
  size = config.num_tokens
  image = rng.integers(0, 5, size)
  images = np.concatenate([image[None], (image + np.eye(size, dtype=int)) % 5])
  before, *changed = jax.jit(lambda images: neighbours.logits(
      params, config, images, jnp.broadcast_to(jnp.arange(size), images.shape)))(images)
  return [set(np.flatnonzero(np.abs(logits - before).max(-1) > 1e-6)) for logits in changed]


def _near(row, column):
  return {(row + up, column - right) for up, right in neighbours.OFFSETS}


def test_neighbours_read_what_is_before_them_only():
  for at, seen in enumerate(_readers(*_neighbours())):
    assert seen == {4 * r + c for r, c in _near(*divmod(at, 4)) if r < 3 and 0 <= c < 4}
    assert all(place > at for place in seen)


def test_neighbours_read_the_place_in_a_small_image():
  """A small image of 1 x 2 tokens, one of 3 x 4, and a token that ends both."""
  large = {2 + 4 * row + column: (row, column) for row in range(3) for column in range(4)}
  cells = large | {14: (3, 0)}  # The last token counts as the first of a row of its own.
  readers = _readers(*_neighbours(1, num_tokens=15, small=(1, 2)))
  for at, seen in enumerate(readers[:2]):  # Its place in the large image, and the next small token.
    assert seen == {place for place, (_, column) in large.items() if column // 2 == at} | {1} - {at}
  for at, seen in enumerate(readers[2:14], start=2):
    assert seen == {place for place, cell in cells.items() if cell in _near(*large[at])}


def test_windows_of_nearby_features_are_those_of_the_whole_image():
  """Rounds of 3 and 1 accepted drafts and of a side node, then a window in its two contexts."""
  config = local.LocalConfig(
      5, 12, 4, dim=4, hidden_dim=6, feature_dim=3, correction_dim=2)
  params = _random(local.init(config, jax.random.key(0)))
  rng = np.random.default_rng(1)
  env = types.SimpleNamespace(params=params)
  image, features = rng.integers(0, 5, (1, 20)), rng.normal(size=(1, 20, 2, 3))
  features[0, 0] = 0
  outcome = types.SimpleNamespace(tokens=image[:, :12], features=jnp.zeros((2, 1, 1, 3)))
  parts = local.corrector(config, None)
  state = parts.init(env, None, outcome, 4)
  first = 0
  for accepted, side in ((3, False), (1, True)):
    # The target's features after the root, four drafts and a side node of the last accepted one.
    nodes = np.concatenate([image[:, first:first + 1], rng.integers(0, 5, (1, 5))], axis=1)
    answers = rng.normal(size=(1, 6, 2, 3))
    path = np.arange(5)[None] % 6
    if side:
      path[0, accepted] = 5
    answers[0, path[0, :accepted + 1]] = features[0, first + 1:first + accepted + 2]
    nodes[0, path[0, :accepted + 1]] = image[0, first:first + accepted + 1]
    state = parts.update(env, state, types.SimpleNamespace(
        tokens=image[:, :12], nodes=jnp.asarray(nodes), accepted=jnp.array([accepted]),
        root=jnp.array([first]), path=jnp.asarray(path),
        features=jnp.moveaxis(jnp.asarray(answers), 2, 0)))
    before, first = first, first + accepted + 1
  tokens, estimate = rng.integers(0, 5, (1, 4)), rng.normal(size=(1, 4, 2, 3))

  def whole(start, tokens, estimate, features):
    """Predictions for the four tokens after number `start`, from a call for all positions."""
    image_, features = np.array(image), np.array(features)
    image_[:, start + 1:start + 5], features[:, start + 1:start + 5] = tokens, estimate
    reads = jnp.pad(local.read(params, config, features[:, :-1]),
                    ((0, 0), (config.row_width + 1, 0), (0, 0), (0, 0), (0, 0)))
    every = local.predict(params, config, image_, reads, jnp.array([-1]))
    return jax.tree.map(lambda x: x[:, start + 1:start + 5], every)

  close = lambda got, want: jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), got, want)
  new, old, state = parts.begin(
      env, state, jnp.asarray(tokens), jnp.asarray(estimate), jnp.array([first]))
  close(new, whole(first, tokens, estimate, features))
  image[:, before + 1], features[:, before + 1] = nodes[:, 1], answers[:, 0]
  after = np.concatenate([nodes[:, 2:5], [[0]]], axis=1)
  close(old, whole(before + 1, after, answers[:, 1:5], features))
  image[:, before + 1] = outcome.tokens[:, before + 1]


def test_guidance_before_a_head_that_is_a_matrix_changes_nothing():
  config = local.LocalConfig(5, 12, 4, dim=4, hidden_dim=6, feature_dim=3, correction_dim=2)
  rng = np.random.default_rng(3)
  env = types.SimpleNamespace(
      params=dict(_random(local.init(config, jax.random.key(0))), target=rng.normal(size=(3, 5))),
      sampling=SamplingParams(*map(np.asarray, (
          [2.0, 0.5], [0.7, 1.0], [0, 0], [1.0, 1.0], [-1, 3], [0.0, 0.0]))))
  new, old = (local.Prediction(*(jnp.asarray(rng.normal(size=(2, 4, 2, size))) for size in (3, 2)))
              for _ in range(2))
  ends = Ends(None, lambda matrix, x: x @ matrix, 5, lambda matrix: matrix)
  corrected = [local.corrector(config, head).correct(
      env, new, old, jnp.ones((2, 4, 2, 3)), jnp.arange(4) < jnp.array([[3], [2]]),
      jnp.array([[0, 1, 2, 3], [3, 4, 5, 6]]))[0] for head in (ends, ends._replace(matrix=None))]
  assert corrected[0].shape == (2, 4, 5)
  np.testing.assert_allclose(*corrected, rtol=1e-4)


@pytest.mark.slow
def test_windows_of_neighbours_are_those_of_the_whole_image():
  config, params, rng = _neighbours()
  image = jnp.asarray(rng.integers(0, 5, (2, 12)))
  nodes = jnp.asarray(rng.integers(0, 5, (2, 4)))
  env = types.SimpleNamespace(params=params, sampling=SamplingParams())
  first, start = jnp.array([1, 2]), jnp.array([2, 5])
  take = lambda x, at, count: jnp.stack([row[i:i + count] for row, i in zip(x, at)])
  put = lambda x, at, part: jnp.stack([row.at[i:i + part.shape[1]].set(new)
                                       for row, i, new in zip(x, at, part)])
  whole = lambda image: jax.nn.softmax(neighbours.logits(
      params, config, image, jnp.broadcast_to(jnp.arange(12), (2, 12))))
  parts = neighbours.corrector(config)
  state = neighbours._State(jnp.where(jnp.arange(12) <= start[:, None], image, 0), nodes, first)
  prediction, old, state = parts.begin(env, state, take(image, start + 1, 4), None, start)
  np.testing.assert_allclose(prediction, take(whole(image), start + 1, 4), atol=1e-6)
  np.testing.assert_allclose(
      old, take(whole(put(image, first + 1, nodes)), first + 2, 4), atol=1e-6)
  prediction, _ = parts.score(env, state, take(image, start + 1, 3), None, start)
  np.testing.assert_allclose(prediction, take(whole(image), start + 1, 3), atol=1e-6)
