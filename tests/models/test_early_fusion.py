"""Early fusion: agreement with the official modules, windows, trees, grammar and vocabulary.

`tests/data/early_fusion.npz` was recorded in float32 from the models that transformers 5.23 has,
with the weights of `published.py`, at the sizes below: `chameleon` from
`ChameleonForConditionalGeneration` (weight seed 21), `chameleon_swin` from the same with
`swin_norm` (23), `emu3` from `Emu3ForCausalLM` with `rope_theta` 1e6 (25). Inputs come from
`default_rng(weight seed + 1)`: prompts of published ids `integers(0, 96, (3, 12))`, of which the
first 0, 5 and 9 are padding, then codes `integers(0, 48, (3, 8, 8))` plus the first id, with the
tokens of the grammar where they belong. Positions count what is not padding. The arrays hold the
logits of the codes, `[3, T, 48]`, from the prompt's last token on; Chameleon's own mask of image
tokens was left out.

`logits` `[2, 3, 72, 48]` in `emu3_5.npz` was recorded like these from `Emu3ForCausalLM` of
baaivision/Emu3.5 (commit 8fcf1da, transformers 4.48.2), weight seed 71, but that both streams have
prompts of their own, `integers(0, 96, (2, 3, 12))`, of which the first `PADDING_OF_STREAMS` are
padding.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from checkpoints_conversion import convert, rules
from cspd_jax.decoding.tree import chain
from cspd_jax.files import store
from cspd_jax.models import causal, early_fusion
from tests.marks import representative
from tests.models import published

pytestmark = pytest.mark.usefixtures('precise')

_sizes = dict(height=8, width=8, vocab_size=96, num_codes=48, dim=64, num_layers=2, num_heads=4,
              ffn_dim=96)
# Config, family of files, seed of the weights.
CASES = {
    'chameleon': (early_fusion.EarlyFusionConfig(
        first_code=4, row_end=60, image_ends=(52,), **_sizes), 'anole', 21),
    'chameleon_swin': (
        early_fusion.EarlyFusionConfig(first_code=4, swin_norm=True, **_sizes), 'anole', 23),
    'emu3': (early_fusion.EarlyFusionConfig(
        first_code=40, row_end=30, image_ends=(31, 33, 32), num_kv_heads=2, qk_norm=False,
        rope_base=1e6, **_sizes), 'emu3', 25),
    'emu3_5': (early_fusion.EarlyFusionConfig(
        first_code=40, row_end=30, ends_last_row=False, image_ends=(33,), num_kv_heads=2,
        attention_dim=96, qk_norm=False, qk_rms_norm=True, rope_base=1e6, **_sizes), 'emu3_5', 71),
}
PADDING = np.array([0, 5, 9])
PADDING_OF_STREAMS = np.array([PADDING, [7, 0, 3]])


def _case(name):
  """Config, parameters, prompts of both streams, tokens of this library, and recorded logits."""
  config, family, seed = CASES[name]
  rng, both = np.random.default_rng(seed + 1), name == 'emu3_5'
  prompts = np.argsort(early_fusion.order(config))[rng.integers(0, 96, (2, 3, 12)[not both:])]
  padding = PADDING_OF_STREAMS if both else PADDING
  condition = causal.Prompt(*(
      jnp.asarray(np.broadcast_to(part, (2, 3, 12)).swapaxes(0, 1))
      for part in (prompts, np.arange(12) >= padding[..., None])))
  tokens = early_fusion.with_grammar(config, rng.integers(0, 48, (3, 64)))
  want = published.recorded('emu3_5')['logits'] if both else np.stack(
      [published.recorded('early_fusion')[name]] * 2)
  return config, published.params(family, config, seed), condition, jnp.asarray(tokens), want


@pytest.mark.verifies('parity', 'lumina_mgpt', 'anole', 'emu3', 'emu3_5')
@pytest.mark.parametrize('name', CASES)
def test_logits_agree_with_the_official_modules(name):
  config, params, condition, tokens, want = _case(name)
  run = jax.jit(early_fusion.logits_and_features, static_argnums=1)
  assert want.shape[2] == config.num_tokens >= 64
  for stream in range(2):
    logits, _ = run(params, config, condition, tokens, np.full(3, bool(stream)))
    np.testing.assert_allclose(
        logits[..., :48], want[stream], atol=3e-5 if name == 'emu3_5' else 3e-4)
  assert logits.shape[-1] == 48 + len(config.ends) and np.all(logits[..., 48:] < -1e29)


@pytest.mark.parametrize('name', representative(CASES, 'emu3_5'))
def test_windows_on_the_cache_agree(name):
  """With a batch that is padded further, whose slots are seen by none."""
  config, params, condition, tokens, want = _case(name)
  padded = causal.Prompt(*(np.pad(x, ((0, 0), (0, 0), (3, 0))) for x in condition))
  target = early_fusion.target(config, guided=True)
  logits, _, cache = jax.jit(target.prefill, static_argnums=2)(params, padded, 90)
  np.testing.assert_allclose(logits[..., :48], want[:, :, 0], atol=3e-4)
  score = jax.jit(target.score, static_argnums=4)
  for start in range(0, config.num_tokens - 1, 12):
    window = np.pad(tokens, ((0, 0), (0, 12)))[:, start:start + 12]
    logits, _, cache = score(params, cache, jnp.asarray(window), jnp.full(3, start), chain(11))
    part = want[:, :, start + 1:start + 13]
    np.testing.assert_allclose(logits[:, :, :part.shape[2], :48], part, atol=3e-4)


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(CASES, 'emu3'))
def test_windows_trees_and_commit(name):
  config, params, condition, *_ = _case(name)
  published.check(
      early_fusion, dataclasses.replace(config, height=3, width=3), params, condition)


def test_logits_agree_with_qwen3_of_transformers():
  """Its layers are those of Emu3.5, and the names of its tensors too."""
  transformers, torch = pytest.importorskip('transformers'), pytest.importorskip('torch')
  network = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
      vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
      num_attention_heads=4, num_key_value_heads=2, head_dim=24, rms_norm_eps=1e-5,
      rope_parameters={'rope_type': 'default', 'rope_theta': 1e6}, tie_word_embeddings=False))
  config, params, condition, tokens, _ = _case('emu3_5')
  weights = published.weights(convert.published_shapes(rules.get('emu3_5'), config), 71)
  network.load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()})
  row = slice(0, 1)  # Without padding.
  order = early_fusion.order(config)
  ids = order[np.concatenate([condition.tokens[row, 0], tokens[row, :-1]], axis=1)]
  with torch.no_grad():
    want = network.eval()(torch.from_numpy(ids)).logits[:, 11:, 40:88].numpy()
  logits, _ = early_fusion.logits_and_features(
      params, config, jax.tree.map(lambda x: x[row], condition), tokens[row], np.zeros(1, bool))
  np.testing.assert_allclose(logits[..., :48], want, atol=3e-5)


@pytest.mark.slow
def test_where_the_grammar_forces_what():
  lumina, anole, emu3 = (
      dataclasses.replace(early_fusion.PRESETS[name], height=2, width=3)
      for name in ('lumina_mgpt_7b_768', 'anole_7b', 'emu3_gen_8b'))
  at = lambda config, count: np.asarray(early_fusion.forced(config, jnp.arange(count))).tolist()
  assert lumina.num_tokens == 9
  assert at(lumina, 11) == [-1, -1, -1, 8192, -1, -1, -1, 8192, 8193, 8193, 8193]
  assert emu3.num_tokens == 11
  assert at(emu3, 12) == [-1, -1, -1, 32768, -1, -1, -1, 32768, 32769, 32770, 32771, 32771]
  assert anole.num_tokens == 6 and early_fusion.target(anole, guided=True).forced is None
  tokens = jnp.array([[5, 6, 7, 8192, 1, 2, 3, 8192, 8193]])
  assert early_fusion.codes(lumina, tokens).tolist() == [[5, 6, 7, 1, 2, 3]]
  emu3_5 = dataclasses.replace(early_fusion.PRESETS['emu3_5_34b'], height=2, width=3)
  assert at(emu3_5, 9) == [-1, -1, -1, 131072, -1, -1, -1, 131073, 131073]


def test_published_images_and_ids():
  count = {name: config.num_tokens for name, config in early_fusion.PRESETS.items()}
  assert count == {'lumina_mgpt_7b_512': 1057, 'lumina_mgpt_7b_768': 2353,
                   'lumina_mgpt_7b_1024': 4161, 'lumina_mgpt_2_7b': 9313, 'anole_7b': 1024,
                   'emu3_gen_8b': 8193, 'emu3_5_34b': 4160, 'simplear_0_5b': 4096,
                   'simplear_1_5b': 4096, 'liquid_7b': 1024}
  order = early_fusion.order(early_fusion.PRESETS['lumina_mgpt_7b_768'])
  assert order[:2].tolist() == [4, 5] and order[8191:8195].tolist() == [8195, 8803, 8196, 0]
  order = early_fusion.order(early_fusion.PRESETS['lumina_mgpt_2_7b'])
  assert order[16383:16387].tolist() == [171383, 151670, 151666, 0]
  order = early_fusion.order(early_fusion.PRESETS['emu3_gen_8b'])
  assert order[32767:32773].tolist() == [184621, 151846, 151847, 151853, 151850, 0]
  order = early_fusion.order(early_fusion.PRESETS['emu3_5_34b'])
  assert order[131070:131075].tolist() == [282924, 282925, 151846, 151853, 0]
  for config in early_fusion.PRESETS.values():
    np.testing.assert_array_equal(np.sort(early_fusion.order(config)), np.arange(config.vocab_size))


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """A saved and loaded model of images of three rows."""
  folder = tmp_path_factory.mktemp('early_fusion') / 'target'
  config = dataclasses.replace(CASES['chameleon'][0], height=3, width=4)
  params = published.params('anole', config, 21)
  store.save(folder, 'early_fusion', config, params)
  return cspd_jax.load(folder)


@pytest.mark.slow
@pytest.mark.parametrize('decoder', representative(
    ('seed_exact(window=6)', 'corrected_seed_exact(corrector=layers, window=6, iterations=2)',
     'corrected_seed_exact(corrector=layers, window=8, tree=caterpillar(2, 2))'),
    'seed_exact(window=6)'))
def test_decoders_keep_the_grammar_and_the_images(model, decoder):
  rng = np.random.default_rng(0)
  prompts = causal.Prompt(rng.integers(0, 96, (3, 2, 7)), np.arange(7) >= np.array(
      [[[0], [6]], [[3], [5]], [[6], [2]]]))

  def tokens(decoder, scale=3.0):
    decode, sampling = model.decoder(decoder, guided=scale != 1), model.sampling(
        guidance_scale=scale, top_k=20)
    condition = model.condition(prompts)
    decode.check(condition, sampling)
    return np.asarray(jax.jit(decode)(
        model.params, condition, jax.random.key(4), sampling, model.draft_params(decoder)).tokens)

  vanilla = tokens('vanilla')
  np.testing.assert_array_equal(tokens(decoder), vanilla)
  forced = np.asarray(early_fusion.forced(model.config, jnp.arange(model.num_tokens)))
  np.testing.assert_array_equal(vanilla[:, forced >= 0], np.tile(forced[forced >= 0], (3, 1)))
  assert vanilla[:, forced < 0].max() < 48
  assert np.any(tokens('vanilla', 1.0) != vanilla)


@pytest.mark.parametrize('prompts, message', [
    ([3], r"prompts is '\[3\]'; this model accepts no words because it lacks the part text"),
    (causal.Prompt(np.full((1, 2, 3), 96), np.ones((1, 2, 3), bool)), 'tokens from 96 to 96'),
    (causal.Prompt(np.ones((1, 1, 3), int), np.ones((1, 1, 3), bool)), 'this target requires'),
    (causal.Prompt(np.ones((1, 2, 3), int), np.zeros((1, 2, 3), bool)), 'visible must be')])
def test_prompts_that_cannot_be(model, prompts, message):
  with pytest.raises(ValueError, match=message):
    model.generate(prompts, guidance_scale=2.0, decoder='vanilla')
