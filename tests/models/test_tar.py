"""Tar: agreement with the official classes, windows on the cache, guidance.

`tests/data/tar.npz` was recorded in float32 from the classes of csuhan/Tar at commit 47da8e1 under
transformers 5.24, with the weights of `published.py` and the sizes, seeds and inputs of
`tar_reference.py`: `features` `[2, 81, 24]` of `TextAlignedTokenizer.decode_from_bottleneck`,
`features_13` and `features_27` the last 40 of larger grids, `logits` `[2, 2, 16, 40]` of `ARModel`
with these features, and with zeros. `TAR_CLONE=FOLDER python -m tests.models.tar_reference` writes
them anew. The language model is a Qwen2, with the recorded logits of `test_language_models.py`.
"""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding.tree import chain
from cspd_jax.models import early_fusion, tar
from cspd_jax.models.conditions import Prompt
from cspd_jax.testing import check_target
from tests.models import published

BRIDGE = tar.BridgeConfig(num_codes=50, code_dim=12, normalized=True, dim=24, num_layers=2)
CONFIG = tar.TarConfig(
    height=4, width=4, dim=32, num_layers=3, num_heads=4, ffn_dim=48, vocab_size=40,
    condition_dim=24, num_positions=96, bridge=BRIDGE)
SEEDS = {'ta_tok': 91, 'ar_dtok': 92}


@pytest.fixture(autouse=True)
def _precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def params():
  return published.params('ar_dtok', CONFIG, SEEDS['ar_dtok']) | {
      'bridge': published.params('ta_tok', BRIDGE, SEEDS['ta_tok'])}


@pytest.fixture(scope='module')
def inputs():
  rng = np.random.default_rng(93)
  return rng.integers(0, 50, (2, 81)), rng.integers(0, 40, (2, 16))


@pytest.fixture(scope='module')
def recorded():
  return published.recorded('tar')


@pytest.mark.verifies('parity', 'ta_tok')
def test_features_of_codes_agree(params, inputs, recorded):
  """At every scale: the table of positions is enlarged, and made smaller with antialiasing."""
  bridge = jax.jit(tar.Bridge(BRIDGE).apply)
  features = bridge({'params': params['bridge']}, inputs[0])
  np.testing.assert_allclose(features, recorded['features'], atol=2e-5)
  assert recorded['features'].std() > 0.5
  for side in tar.SIDES[:2]:
    of_grid = bridge({'params': params['bridge']}, np.arange(side**2)[None] % 50)
    np.testing.assert_allclose(of_grid[:, -40:], recorded[f'features_{side}'], atol=2e-5)


@pytest.mark.verifies('parity', 'ar_dtok')
def test_logits_of_an_image_agree(params, inputs, recorded):
  codes, tokens = map(jnp.asarray, inputs)
  assert np.ptp(recorded['logits'], axis=-1).min() > 2
  # The two streams are two conditions.
  assert np.abs(np.diff(recorded['logits'], axis=0)).max() > 1
  for stream in range(2):
    logits, features = tar.logits_and_features(
        params, CONFIG, codes, tokens, jnp.full(2, bool(stream)))
    np.testing.assert_allclose(logits, recorded['logits'][stream], atol=3e-5)
    assert features.shape == (2, 81 + 15, CONFIG.dim)


def test_windows_on_the_cache_agree(params, inputs, recorded):
  codes, tokens = map(jnp.asarray, inputs)
  target = tar.target(CONFIG, guided=True)
  logits, _, cache = jax.jit(target.prefill, static_argnums=2)(params, codes, 20)
  np.testing.assert_allclose(logits, recorded['logits'][:, :, 0], atol=3e-5)
  score, tree = jax.jit(target.score, static_argnums=4), chain(4)
  for start in (0, 5, 10, 14):  # Two windows overlap, and one reaches past the end of the image.
    window = jnp.pad(tokens, ((0, 0), (0, 4)))[:, start:start + 5]
    logits, _, cache = score(params, cache, window, jnp.full(2, start), tree)
    expected = recorded['logits'][:, :, start + 1:start + 6]
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits[:, :, :expected.shape[2]], expected, atol=3e-5)


@pytest.mark.verifies('parity', 'tar')
def test_logits_of_the_language_model_agree_with_transformers():
  """Those of `Qwen2ForCausalLM`, recorded for SimpleAR; at the weights and inputs of that test."""
  config = tar.PriorConfig(
      height=9, width=9, dim=64, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=96,
      vocab_size=96, num_codes=48, first_code=48)
  rng = np.random.default_rng(84)
  prompts, codes = rng.integers(0, 48, (3, 12)), rng.integers(0, 48, (3, 64))
  visible = np.arange(12) >= np.array([0, 5, 9])[:, None]
  condition = early_fusion.renumbered(config, Prompt(prompts[:, None], visible[:, None]))
  logits, _ = early_fusion.logits_and_features(
      published.params('tar', config, 83), config, condition, jnp.asarray(codes),
      jnp.zeros(3, bool))
  expected = published.recorded('language_models')['simplear']
  assert expected.shape == (3, 64, 48)
  np.testing.assert_allclose(logits, expected, atol=3e-5)


@pytest.mark.slow
def test_it_is_a_target(params, inputs):
  assert check_target(
      tar.target(CONFIG, guided=True), params, jnp.asarray(inputs[0]),
      logits=lambda params, codes, tokens: tar.logits_and_features(
          params, CONFIG, codes, tokens, jnp.zeros(len(tokens), bool))[0]).problems == {}


def test_published_sizes():
  """The table of a file with 729 codes before the tokens of its images."""
  assert [(config.num_tokens, config.num_positions, config.most_codes, config.ffn_dim)
          for config in tar.PRESETS.values()] == [
              (256, 984, 729, 3584), (1024, 1752, 729, 3584), (4096, 4824, 729, 3584)]
  assert [config.num_tokens for config in tar.PRIORS.values()] == [729, 729]
  small = dataclasses.replace(tar.PRIORS['tar_7b'], height=9, width=9)
  assert small.num_tokens == 81 and not small.has_null


needs_clone = pytest.mark.skipif('TAR_CLONE' not in os.environ, reason='TAR_CLONE is not set')


@needs_clone
def test_recorded_arrays_are_those_of_the_official_classes(recorded):
  from tests.models import tar_reference
  again = tar_reference.recorded()
  assert again.keys() == recorded.keys()
  for name, array in again.items():
    np.testing.assert_allclose(array, recorded[name], atol=1e-5)


@needs_clone
def test_greedy_tokens_with_guidance_are_those_of_the_official_loop(params, inputs):
  import torch

  from tests.models import tar_reference
  codes = inputs[0]
  network = tar_reference.ar_dtok(published.published_weights('ar_dtok', CONFIG, SEEDS['ar_dtok']))
  tokenizer = tar_reference.bridge(published.published_weights('ta_tok', BRIDGE, SEEDS['ta_tok']))
  with torch.no_grad():
    features = tokenizer.decode_from_bottleneck(torch.from_numpy(codes))
    expected = network.sample(features, cfg_scale=4.0, top_k=1).numpy()
  target = tar.target(CONFIG, guided=True)
  guided = lambda logits: logits[1] + 4 * (logits[0] - logits[1])
  logits, _, cache = target.prefill(params, jnp.asarray(codes), 16)
  tokens = [jnp.argmax(guided(logits), axis=-1)]
  for start in range(15):
    logits, _, cache = target.score(
        params, cache, tokens[-1][:, None], jnp.full(2, start), chain(0))
    tokens.append(jnp.argmax(guided(logits)[:, 0], axis=-1))
  np.testing.assert_array_equal(jnp.stack(tokens, axis=1), expected)
