"""LlamaGen: agreement with the official modules, windows and trees, conditions.

`tests/data/llamagen.npz` was recorded in float32 from the official PyTorch
transformer at the sizes below, with the weights of `published.py`. Class
model, weight seed 1: from `default_rng(2)`, tokens `integers(0, 48, (2, 100))`;
labels 3 and 7; `c2i` `[2, 2, 100, 48]` holds the logits of the full forward with
the labels, then with the null class. Text model, weight seed 3: from
`default_rng(4)`, tokens `integers(0, 48, (3, 64))`, then captions
`standard_normal((3, 120, 40))` as float32; the captions are padded on the left
by 0, 37 and 117 tokens; the logits come from its cached generation, one given
token at a time: `t2i_guided` `[3, 64, 48]` mixed with guidance scale 4,
`t2i_null` those of the null captions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest

from cspd_jax.decoding import tree as tree_lib
from cspd_jax.models import decoder_only, llamagen

pytestmark = pytest.mark.usefixtures('precise')

C2I = llamagen.LlamaGenConfig(
    height=10, width=10, dim=64, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=192,
    vocab_size=48, num_classes=10)
T2I = llamagen.LlamaGenConfig(
    conditioning='text', height=8, width=8, dim=64, num_layers=2, num_heads=4, ffn_dim=192,
    vocab_size=48, caption_dim=40)
GUIDANCE = 4.0

_logits = jax.jit(
    lambda params, config, condition, tokens, drop: llamagen.logits_and_features(
        params, config, condition, tokens, drop)[0], static_argnums=1)
_TARGETS = {(config, guided): llamagen.target(config, guided=guided)
            for config in (C2I, T2I) for guided in (False, True)}
_PREFILL = {key: jax.jit(target.prefill, static_argnums=2) for key, target in _TARGETS.items()}


def _class_case():
  tokens = np.random.default_rng(2).integers(0, 48, (2, 100))
  return C2I, published.params('llamagen', C2I, 1), jnp.array([3, 7]), jnp.asarray(tokens)


def _text_case():
  rng = np.random.default_rng(4)
  tokens = rng.integers(0, 48, (3, 64))
  captions = rng.standard_normal((3, 120, 40)).astype(np.float32)
  mask = np.arange(120) >= np.array([[0], [37], [117]])
  condition = llamagen.Caption(jnp.asarray(captions), jnp.asarray(mask))
  return T2I, published.params('llamagen', T2I, 3), condition, jnp.asarray(tokens)


CASES = {'class': _class_case, 'text': _text_case}


@pytest.fixture(scope='module', params=list(CASES))
def case(request):
  return CASES[request.param]()


def _full(case):
  """Both streams' logits `[2, B, T, V]` from full forwards."""
  config, params, condition, tokens = case
  batch = tokens.shape[0]
  return np.stack([_logits(params, config, condition, tokens, jnp.full((batch,), drop))
                   for drop in (False, True)])


def _cached(case):
  """Both streams' logits `[2, B, T, V]`, one given token at a time."""
  config, params, condition, tokens = case
  target, chain = _TARGETS[config, True], tree_lib.chain(0)
  first, _, cache = _PREFILL[config, True](params, condition, config.num_tokens)

  def step(cache, k):
    start = jnp.full((tokens.shape[0],), k)
    logits, _, cache = target.score(params, cache, tokens[:, k][:, None], start, chain)
    return cache, logits[:, :, 0]

  _, rest = jax.jit(lambda cache: jax.lax.scan(
      step, cache, jnp.arange(config.num_tokens - 1)))(cache)
  return np.concatenate([first[:, :, None], jnp.moveaxis(rest, 0, 2)], axis=2)


@pytest.mark.verifies('parity', 'llamagen')
@pytest.mark.parametrize('run', [_full, _cached])
def test_class_logits_agree_with_the_official_model(run):
  np.testing.assert_allclose(
      run(_class_case()), published.recorded('llamagen')['c2i'], atol=1e-4, rtol=0)


@pytest.mark.parametrize('run', [_full, _cached])
def test_text_logits_agree_with_the_official_model(run):
  conditional, null = run(_text_case())
  expected = published.recorded('llamagen')
  np.testing.assert_allclose(null, expected['t2i_null'], atol=1e-4, rtol=0)
  guided = null + (conditional - null) * GUIDANCE
  np.testing.assert_allclose(guided, expected['t2i_guided'], atol=3e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize('guided', [False, True])
def test_windows_trees_and_commit(case, guided):
  config, params, condition, _ = case
  published.check(llamagen, config, params, condition, guided)


def test_dropped_conditions_are_chosen_per_image(case):
  config, params, condition, tokens = case
  drop = jnp.arange(tokens.shape[0]) == 1
  mixed = _logits(params, config, condition, tokens, drop)
  kept, dropped = _full(case)
  np.testing.assert_allclose(mixed[0], kept[0], atol=1e-5)
  np.testing.assert_allclose(mixed[1], dropped[1], atol=1e-5)


def test_padding_of_a_caption_is_never_read():
  config, params, condition, tokens = _text_case()
  spoiled = llamagen.Caption(
      jnp.where(condition.mask[..., None], condition.embeddings, jnp.nan), condition.mask)
  for drop in (jnp.zeros(3, bool), jnp.ones(3, bool)):
    np.testing.assert_array_equal(
        _logits(params, config, spoiled, tokens, drop),
        _logits(params, config, condition, tokens, drop))


@pytest.mark.slow
def test_a_new_model_predicts_the_uniform_distribution():
  for config in (C2I, T2I):
    params = llamagen.init(config, jax.random.key(0))
    deviation = float(jnp.std(params['transformer']['layers_1']['gate']))
    assert abs(deviation - 0.02) < 2e-3
    assert not params['transformer']['output'].any()


@pytest.mark.slow
def test_first_layers_as_a_network():
  # All layers say what the model says; windows are those of the whole; fewer layers say less.
  config, params, condition, tokens = _class_case()
  tokens, start = tokens[:, :12], jnp.array([3, 7])
  want = jnp.stack([_logits(params, config, condition, tokens, jnp.full(2, drop))
                    for drop in (False, True)])
  for num_layers in (1, 2):
    kept, build = decoder_only.first_layers(params, config, num_layers)
    network = build(True)
    assert sum('layers_' in name for name in kept['transformer']) == num_layers
    cache = network.prefill(kept, condition, None, 20)
    ignored = jnp.zeros((2, 2, 12, 1))
    features, cache = network.step(
        kept, cache, tokens, ignored, jnp.zeros(2, jnp.int32), np.arange(12),
        np.tri(12, dtype=bool))
    logits = network.logits(kept, features)
    again, _ = network.step(
        kept, cache, jnp.stack([tokens[0, 3:6], tokens[1, 7:10]]), ignored[:, :, :3], start,
        np.arange(3), np.tri(3, dtype=bool))
    np.testing.assert_allclose(again[:, 0], features[:, 0, 3:6], atol=1e-5)
    np.testing.assert_allclose(again[:, 1], features[:, 1, 7:10], atol=1e-5)
    distance = float(jnp.abs(logits[:, :, :-1] - want[:, :, 1:]).max())
    assert (distance < 1e-4) == (num_layers == 2), distance
