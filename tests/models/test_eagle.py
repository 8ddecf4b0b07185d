"""EAGLE drafters: agreement with the official modules, cached windows and trees, attachment.

`tests/data/eagle_*.npz` were recorded in float32 from the drafter modules that LANTERN publishes
(LlamaGen's, Anole's and Lumina-mGPT's), at the sizes below, with every tensor, norms and biases
included, redrawn as in `published.py` (weight seeds in `CASES`). Inputs come from
`default_rng(weight seed + 1)`: for 'llamagen', in this order, tokens `integers(0, 48, (1, 80))`,
drafts `integers(0, 48, (1, 7))` and features `standard_normal((2, C + 79, 64))` as float32 (two
guidance streams); for 'chameleon', prompts `integers(0, 48, (3, 12))`, tokens `(3, 80)`, drafts
`(3, 7)` and features `(3, 91, 64)`, where 0, 5 and 9 tokens of the prompts are padding.

The official module read the condition's entries (token 0 for LlamaGen, the prompt shifted by one
for the others) and 80 image tokens in one pass; the array named like the case holds its outputs
for the image tokens, `[R, 80, 64]`. Then it read everything up to token 63 into its cache, in
three parts, and after that a tree of two levels, as its own drafting loop does: three drafts with
the feature predicted last, and four more with those predicted for their parents. `*_tree` holds
the outputs, `[R, 7, 64]`.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding.drafters.correctors import corrected_features
from cspd_jax.models import causal, eagle, ends, transformer
from tests.builders import published
from tests.marks import representative

pytestmark = pytest.mark.usefixtures('precise')

FILLED, WIDTH, VOCAB = 64, 64, 48
# What every draft of the tree sees of the drafts, and the parents of the second level.
SEEN = np.eye(7, dtype=bool)
PARENTS = np.array([0, 0, 1, 2])
SEEN[np.arange(3, 7), PARENTS] = True
PADDING = np.array([0, 5, 9])

_sizes = dict(dim=WIDTH, num_heads=4, ffn_dim=96, vocab_size=VOCAB, own_embedding=True)


class Case(NamedTuple):
  config: eagle.EagleConfig
  family: str
  seed: int
  recorded: str
  condition: int  # C
  shape: tuple[int, int]  # Streams and images.


CASES = {
    't2i': Case(eagle.EagleConfig(num_tokens=256, row_width=16, num_kv_heads=2, **_sizes),
                'eagle_llamagen', 11, 'eagle_llamagen', 120, (2, 1)),
    'c2i': Case(eagle.EagleConfig(num_tokens=576, row_width=24, num_kv_heads=2, **_sizes),
                'eagle_llamagen', 13, 'eagle_llamagen', 1, (2, 1)),
    'anole': Case(eagle.EagleConfig('chameleon', 256, norm_eps=1e-5, **_sizes),
                  'eagle_anole', 15, 'eagle_chameleon', 12, (1, 3)),
    'lumina': Case(eagle.EagleConfig('chameleon', 256, norm_eps=1e-5, **_sizes),
                   'eagle_lumina_mgpt', 17, 'eagle_chameleon', 12, (1, 3)),
}


class Inputs(NamedTuple):
  params: dict
  prompt: causal.Prompt | None
  tokens: jax.Array  # [B, 80]
  drafts: jax.Array  # [B, 7]
  features: jax.Array  # [S, B, C + 79, F]


@pytest.fixture(scope='module', params=list(CASES))
def name(request):
  return request.param


def _inputs(case):
  rng, prompt = np.random.default_rng(case.seed + 1), None
  batch, rows = case.shape[1], case.shape[0] * case.shape[1]
  if case.config.family == 'chameleon':
    tokens = rng.integers(0, VOCAB, (batch, case.condition))
    prompt = causal.Prompt(
        jnp.asarray(tokens)[:, None], (np.arange(case.condition) >= PADDING[:, None])[:, None])
  tokens, drafts = (rng.integers(0, VOCAB, (batch, length)) for length in (80, 7))
  features = rng.standard_normal((rows, case.condition + 79, WIDTH)).astype(np.float32)
  return Inputs(
      eagle.attach(_target(), published.params(case.family, case.config, case.seed)), prompt,
      jnp.asarray(tokens), jnp.asarray(drafts),
      jnp.asarray(features).reshape(*case.shape, *features.shape[1:]))


# What the tests of drafters alone have as target: its two tables.
ENDS = ends.make(transformer.TransformerConfig(
    vocab_size=VOCAB, dim=WIDTH, num_layers=1, num_heads=4, num_kv_heads=4, head_dim=16, ffn_dim=8))


def _target(width=WIDTH):
  rng = np.random.default_rng(0)
  return {'transformer': {'token_embedding': rng.standard_normal((VOCAB, width), np.float32),
                          'output': rng.standard_normal((width, VOCAB), np.float32),
                          'norm': {'scale': np.ones(width, np.float32)}}}


def _predict(case, inputs, length=80):
  """Logits and features of whole images, one row per stream and image."""
  rows = case.shape[0] * case.shape[1]
  tokens = jnp.tile(inputs.tokens, (case.shape[0], 1))[:, :length]
  features = inputs.features.reshape(rows, -1, WIDTH)[:, :case.condition - 1 + length]
  return jax.jit(eagle.predict, static_argnums=(1, 2))(
      inputs.params, case.config, ENDS, tokens, features, inputs.prompt)


def _filled(case, inputs):
  """Cache with the tokens before `FILLED`, and the features predicted on the way."""
  network = eagle.network(case.config, ENDS)
  cache = network.prefill(
      inputs.params, inputs.prompt, inputs.features[:, :, :case.condition],
      case.config.num_tokens + 8)
  step, result = jax.jit(network.step), []
  for first, last in ((0, 1), (1, FILLED - 5), (FILLED - 5, FILLED)):
    entries = slice(case.condition - 1 + first, case.condition - 1 + last)
    predicted, cache = step(
        inputs.params, cache, inputs.tokens[:, first:last], inputs.features[:, :, entries],
        jnp.full(case.shape[1], first), np.arange(last - first), np.tri(last - first, dtype=bool))
    result.append(predicted)
  return step, cache, jnp.concatenate(result, axis=2)


def test_features_agree_with_the_official_module(name):
  case = CASES[name]
  inputs = _inputs(case)
  logits, predicted = _predict(case, inputs)
  np.testing.assert_allclose(predicted, published.recorded(case.recorded)[name], atol=1e-4, rtol=0)
  assert logits.dtype == jnp.float32
  np.testing.assert_allclose(
      logits, predicted @ inputs.params['target']['transformer']['output'], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize('per_row', [False, True])
@pytest.mark.slow
def test_cached_windows_and_trees_agree_with_the_official_module(name, per_row):
  case = CASES[name]
  inputs = _inputs(case)
  step, cache, result = _filled(case, inputs)
  expected = published.recorded(case.recorded)
  shaped = lambda x: x.reshape(*case.shape, *x.shape[1:])
  np.testing.assert_allclose(
      result, shaped(expected[name])[:, :, :FILLED], atol=1e-4, rtol=0)

  spread = lambda x: np.broadcast_to(x, (case.shape[1], *x.shape)) if per_row else x
  start, levels = jnp.full(case.shape[1], FILLED), []
  feature = jnp.repeat(result[:, :, -1:], 3, axis=2)
  for depth, nodes in enumerate((slice(0, 3), slice(3, 7))):
    length = nodes.stop - nodes.start
    predicted, cache = step(
        inputs.params, cache, inputs.drafts[:, nodes], feature, start,
        spread(np.full(length, depth)), spread(SEEN[nodes, :nodes.stop]))
    levels.append(predicted)
    feature = predicted[:, :, PARENTS]
  logits = eagle.network(case.config, ENDS).logits(inputs.params, predicted)
  assert logits.shape == (*case.shape, 4, VOCAB)
  np.testing.assert_allclose(
      np.concatenate(levels, axis=2), shaped(expected[f'{name}_tree']), atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(CASES, 't2i', 'anole'), indirect=True)
def test_rows_advance_on_their_own_and_leftovers_are_ignored(name):
  case = CASES[name]
  inputs = _inputs(case)
  step, cache, _ = _filled(case, inputs)
  start = np.array([40, 55, 20])[:case.shape[1]]
  at = start[:, None] + np.arange(6)
  entries = jnp.take_along_axis(
      inputs.features, at[None, :, :, None] + case.condition - 1, axis=2)
  predicted, _ = step(
      inputs.params, cache, jnp.take_along_axis(inputs.tokens, at, axis=1), entries,
      jnp.asarray(start), np.arange(6), np.tri(6, dtype=bool))
  full = _predict(case, inputs)[1].reshape(*case.shape, 80, WIDTH)
  np.testing.assert_allclose(
      predicted, np.take_along_axis(full, at[None, :, :, None], axis=2), atol=1e-4)


@pytest.mark.slow
def test_tokens_past_the_end_stay_finite_and_share_the_last_cell():
  case = CASES['t2i']
  inputs = _inputs(case)
  step, cache, _ = _filled(case, inputs)
  start = jnp.full(1, case.config.num_tokens - 1)
  token, feature = inputs.tokens[:, :1], inputs.features[:, :, :1]
  last, past = (
      step(inputs.params, cache, token, feature, start, np.array([depth]), np.ones((1, 1), bool))[0]
      for depth in (0, 5))
  assert np.isfinite(past).all()
  np.testing.assert_array_equal(last, past)


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(CASES, 't2i', 'anole'), indirect=True)
def test_bfloat16_parameters_give_bfloat16_caches_and_float32_logits(name):
  case = CASES[name]
  inputs = _inputs(case)
  half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), inputs.params)
  inputs = inputs._replace(params=half, features=inputs.features.astype(jnp.bfloat16))
  _, cache, predicted = _filled(case, inputs)
  assert {part.dtype for part in cache.layers[0]} == {jnp.dtype(jnp.bfloat16)}
  assert predicted.dtype == jnp.bfloat16
  assert _predict(case, inputs)[0].dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize('family', ['llamagen', 'chameleon'])
def test_a_new_drafter_holds_no_table_unless_it_is_its_own(family):
  config = eagle.EagleConfig(family, 16, 4, dim=32, num_heads=2, ffn_dim=48, vocab_size=VOCAB)
  params = eagle.init(config, jax.random.key(0))
  assert params.keys() == {'fc', 'layer'}
  assert abs(float(jnp.std(params['fc']['kernel'])) * np.sqrt(64) - 1) < 0.1
  own = eagle.init(
      eagle.EagleConfig(family, 16, 4, dim=32, num_heads=2, ffn_dim=48, vocab_size=VOCAB,
                        own_embedding=True), jax.random.key(0))
  assert own.keys() == {'fc', 'layer', 'token_embedding'}


def test_attached_ends_are_those_of_the_target_without_copies():
  target = _target()
  target['transformer']['layers_0'], target['labels'] = {}, jnp.ones(3)
  tables = target['transformer']
  drafter = {'fc': {'kernel': jnp.zeros((128, 64)), 'bias': jnp.zeros(64)}, 'layer': {}}
  attached = eagle.attach(target, drafter)
  assert attached['target'].keys() == {'transformer', 'labels'} and attached['fc'] is drafter['fc']
  assert attached['target']['transformer'].keys() == {'token_embedding', 'output', 'norm'}
  for name in ('token_embedding', 'output'):
    assert attached['target']['transformer'][name] is tables[name]
  config = eagle.EagleConfig(**{**_sizes, 'own_embedding': False})
  tokens = jnp.arange(3)
  np.testing.assert_array_equal(
      eagle.embed(attached, config, ENDS, tokens), tables['token_embedding'][:3])
  own = dataclasses.replace(config, own_embedding=True)
  attached['token_embedding'] = jnp.ones((VOCAB, 64))
  assert (eagle.embed(attached, own, ENDS, tokens) == 1).all()
  with pytest.raises(ValueError, match='features of width 64, .* width 32'):
    eagle.attach(_target(32), drafter)
  with pytest.raises(ValueError, match='no transformer/norm .it holds: fc, layer'):
    eagle.attach(drafter, drafter)


@pytest.mark.slow
def test_a_correction_begins_as_the_rule_and_looks_at_single_places():
  config = eagle.EagleConfig(**_sizes, num_tokens=16, row_width=4, correction_dim=8)
  plain = eagle.network(dataclasses.replace(config, correction_dim=0), ENDS)
  params, network = eagle.init(config, jax.random.key(0)), eagle.network(config, ENDS)
  answers = jax.random.normal(jax.random.key(1), (3, 5, 2, WIDTH))
  assert plain.correct is None
  np.testing.assert_allclose(
      network.correct(params, *answers), corrected_features(*answers, 2.0), rtol=1e-5, atol=1e-5)

  perturbed = jax.tree.map(
      lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(2), leaf.shape), params)
  result = network.correct(perturbed, *answers)
  assert np.abs(result - corrected_features(*answers, 2.0)).max() > 0.1
  for place in range(5):
    np.testing.assert_allclose(
        network.correct(perturbed, *answers[:, place]), result[place], rtol=1e-4, atol=1e-5)
