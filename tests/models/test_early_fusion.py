"""Early fusion: agreement with transformers, windows and trees, the grammar, the vocabulary.

`tests/data/early_fusion.npz` was recorded in float32 from the models that transformers 5.23 has,
with the weights of `published.py`, at the sizes below: `chameleon` from
`ChameleonForConditionalGeneration` (weight seed 21), `chameleon_swin` from the same with
`swin_norm` (23), `emu3` from `Emu3ForCausalLM` with `rope_theta` 1e6 (25). Inputs come from
`default_rng(weight seed + 1)`: prompts of published ids `integers(0, 96, (3, 12))`, of which the
first 0, 5 and 9 are padding, then codes `integers(0, 48, (3, 8, 8))` plus the first id, with the
tokens of the grammar where they belong. Positions count what is not padding. The arrays hold the
logits of the codes, `[3, T, 48]`, from the prompt's last token on; Chameleon's own mask of image
tokens was left out.
"""

import dataclasses
import gzip
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest

import cspd_jax
from checkpoints_conversion import convert, rules
from cspd_jax.files import store
from cspd_jax.models import causal, early_fusion
from cspd_jax.testing import check_target
from tests.marks import representative

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
}
MANIFESTS = pathlib.Path(__file__).parent.parent / 'data' / 'manifests'
PADDING = np.array([0, 5, 9])


@pytest.fixture(autouse=True)
def _precise():
  with jax.default_matmul_precision('highest'):
    yield


def _case(name):
  """Config, parameters, prompts of two equal streams and images, in this library's tokens."""
  config, family, seed = CASES[name]
  rng = np.random.default_rng(seed + 1)
  place = np.argsort(early_fusion.order(config))
  prompts = place[rng.integers(0, 96, (3, 12))]
  tokens = np.asarray(early_fusion.forced(config, jnp.arange(config.num_tokens)))
  tokens = np.tile(tokens, (3, 1))
  tokens[tokens < 0] = rng.integers(0, 48, (3, 8, 8)).reshape(-1)
  visible = np.arange(12) >= PADDING[:, None]
  condition = causal.Prompt(*(jnp.asarray(np.stack([part] * 2, axis=1))
                              for part in (prompts, visible)))
  return config, published.params(family, config, seed), condition, jnp.asarray(tokens)


@pytest.mark.verifies('parity', 'lumina_mgpt', 'anole', 'emu3')
@pytest.mark.parametrize('name', CASES)
def test_logits_agree_with_transformers(name):
  config, params, condition, tokens = _case(name)
  want = published.recorded('early_fusion')[name]
  logits, _ = jax.jit(early_fusion.logits_and_features, static_argnums=1)(
      params, config, condition, tokens, np.array([False, True, False]))
  assert want.shape[1] == config.num_tokens >= 64
  np.testing.assert_allclose(logits[..., :48], want, atol=3e-4)
  assert logits.shape[-1] == 48 + len(config.ends) and np.all(logits[..., 48:] < -1e29)


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(CASES, 'emu3'))
def test_windows_trees_and_commit(name):
  config, params, condition, _ = _case(name)
  config = dataclasses.replace(config, height=3, width=3)
  check_target(
      early_fusion.target(config, guided=True), params, condition,
      logits=lambda params, condition, tokens: early_fusion.logits_and_features(
          params, config, condition, tokens, jnp.zeros(len(tokens), bool))[0])


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
  for config in early_fusion.PRESETS.values():
    np.testing.assert_array_equal(np.sort(early_fusion.order(config)), np.arange(config.vocab_size))


@pytest.mark.parametrize('changes, message', [
    (dict(dim=65), 'dim is 65 with num_heads 4; it must be a multiple of 2'),
    (dict(first_code=60), 'first_code is 60 with 48 codes; they must lie within the 96'),
    (dict(row_end=10), 'must be different tokens of the vocabulary and not codes'),
    (dict(row_end=60, image_ends=(60,)), 'must be different'), (dict(row_end=96), 'must be diff'),
    (dict(num_codes=0), 'num_codes is 0'), (dict(num_kv_heads=3), 'num_kv_heads is 3')])
def test_impossible_sizes_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    early_fusion.EarlyFusionConfig(**{**_sizes, **changes})


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


def test_conversion_inverts_and_infers():
  for name, (config, family, seed) in CASES.items():
    file = rules.FAMILIES[family]
    shapes = convert.published_shapes(file, config)
    drawn = published.weights(shapes, seed)
    params = convert.convert(file, config, drawn)
    again = convert.publish(file, config, params)
    first, last = config.first_code, config.first_code + config.num_codes
    for key, value in drawn.items():
      kept = slice(first, last) if key == 'lm_head.weight' else slice(None)
      np.testing.assert_array_equal(again[key][kept], value[kept], err_msg=f'{name} {key}')
  config, _, seed = CASES['emu3']
  with pytest.raises(ValueError, match='has 96 tokens; a transformer like emu3_gen_8b has'):
    rules.FAMILIES['emu3'].infer(convert.published_shapes(rules.FAMILIES['emu3'], config), {})


@pytest.mark.slow
@pytest.mark.verifies('shapes', 'lumina_mgpt', 'lumina_mgpt_2', 'anole', 'emu3')
@pytest.mark.parametrize('family', ['lumina_mgpt', 'lumina_mgpt_2', 'anole', 'emu3'])
def test_published_tensors_are_exactly_those_of_the_model(family):
  file, path = rules.FAMILIES[family], MANIFESTS / f'early_fusion_{family}.json.gz'
  shapes = {name: tuple(shape) for name, shape in json.loads(
      gzip.decompress(path.read_bytes()))['tensors'].items()}
  config = next(iter(file.presets.values()))
  expected = {name: shape for name, shape in shapes.items()
              if not re.fullmatch(file.leftovers, name)}
  assert convert.published_shapes(file, config) == expected
  assert file.infer(shapes, {}) == config
  wide = file.infer(shapes, {'height': 30, 'width': 40})
  assert (wide.height, wide.width, wide.dim) == (30, 40, config.dim)
