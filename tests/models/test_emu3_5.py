"""Emu3.5: agreement of transformer and image tokenizer with the official modules.

`tests/data/emu3_5.npz` was recorded in float32 from the program of baaivision/Emu3.5 (commit
8fcf1da, transformers 4.48.2), with the weights of `published.py`:

- `logits` `[2, 3, 72, 48]` from `Emu3ForCausalLM` at the sizes of `CONFIG`, weight seed 71. Inputs
  come from `default_rng(72)`: prompts of both streams, published ids `integers(0, 96, (2, 3, 12))`,
  of which the first `PADDING` are padding, then codes `integers(0, 48, (3, 8, 8))` plus the first
  id, with the tokens of the grammar. Positions count what is not padding. The arrays hold the
  logits of the codes from the prompt's last token on.
- `latents`, `indices` and `pixels` from `IBQ` with width 128, level multiples (1, 2), attention at
  the second, two residual blocks, 6 latent channels and 96 codes of 5 numbers, weight seed 73:
  vectors and codes of two images `default_rng(74).uniform(-1, 1, (2, 12, 16, 3))` as float32 (the
  two best codes differ by 1.5e-3 in their inner product), and the pixels of the codes
  `default_rng(75).integers(0, 96, (2, 6, 8))`, not clipped.

`manifests/emu3_5.json.gz` and `emu3_5_vq.json.gz` contain names and shapes of these modules at the
published sizes, without weights.
"""

import dataclasses
import gzip
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax.models import causal, early_fusion, vq
from cspd_jax.testing import check_target

CONFIG = early_fusion.EarlyFusionConfig(
    height=8, width=8, vocab_size=96, num_codes=48, first_code=40, row_end=30, ends_last_row=False,
    image_ends=(33,), dim=64, num_layers=2, num_heads=4, num_kv_heads=2, attention_dim=96,
    ffn_dim=96, qk_norm=False, qk_rms_norm=True, rope_base=1e6)
CONFIG_VQ = vq.VQConfig(ch_mult=(1, 2), z_channels=6, codebook_size=96, codebook_dim=5,
                        normalized=False, by_product=True)
PADDING = np.array([[0, 5, 9], [7, 0, 3]])
FILE, FILE_VQ = rules.FAMILIES['emu3_5'], rules.FAMILIES['emu3_5_vq']
MANIFESTS = pathlib.Path(__file__).parent.parent / 'data' / 'manifests'


@pytest.fixture(autouse=True)
def _precise():
  with jax.default_matmul_precision('highest'):
    yield


def _case():
  """Parameters, prompts of two streams and images, in this library's tokens."""
  rng = np.random.default_rng(72)
  prompts = np.argsort(early_fusion.order(CONFIG))[rng.integers(0, 96, (2, 3, 12))]
  codes = rng.integers(0, 48, (3, 64))
  visible = np.arange(12) >= PADDING[:, :, None]
  condition = causal.Prompt(*(jnp.asarray(part.swapaxes(0, 1)) for part in (prompts, visible)))
  return published.params('emu3_5', CONFIG, 71), condition, early_fusion.with_grammar(CONFIG, codes)


@pytest.mark.verifies('parity', 'emu3_5')
@pytest.mark.parametrize('stream', [0, 1])
def test_logits_agree_with_the_official_module(stream):
  params, condition, tokens = _case()
  want = published.recorded('emu3_5')['logits'][stream]
  logits, _ = jax.jit(early_fusion.logits_and_features, static_argnums=1)(
      params, CONFIG, condition, tokens, np.full(3, bool(stream)))
  assert want.shape[1] == CONFIG.num_tokens == 72
  np.testing.assert_allclose(logits[..., :48], want, atol=3e-5)
  assert logits.shape[-1] == 50 and np.all(logits[..., 48:] < -1e29)


@pytest.mark.slow
def test_windows_trees_and_commit():
  params, condition, _ = _case()
  small = dataclasses.replace(CONFIG, height=3, width=3)
  check_target(
      early_fusion.target(small, guided=True), params, condition,
      logits=lambda params, condition, tokens: early_fusion.logits_and_features(
          params, small, condition, tokens, jnp.zeros(len(tokens), bool))[0])


def test_logits_agree_with_qwen3_of_transformers():
  """Its layers are those of Emu3.5, and the names of its tensors too."""
  transformers, torch = pytest.importorskip('transformers'), pytest.importorskip('torch')
  network = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
      vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
      num_attention_heads=4, num_key_value_heads=2, head_dim=24, rms_norm_eps=1e-5,
      rope_parameters={'rope_type': 'default', 'rope_theta': 1e6}, tie_word_embeddings=False))
  weights = published.weights(convert.published_shapes(FILE, CONFIG), 71)
  network.load_state_dict({name: torch.from_numpy(x) for name, x in weights.items()})
  params, condition, tokens = _case()
  row = slice(0, 1)  # Without padding.
  order = early_fusion.order(CONFIG)
  ids = order[np.concatenate([condition.tokens[row, 0], tokens[row, :-1]], axis=1)]
  with torch.no_grad():
    want = network.eval()(torch.from_numpy(ids)).logits[:, 11:, 40:88].numpy()
  logits, _ = early_fusion.logits_and_features(
      params, CONFIG, jax.tree.map(lambda x: x[row], condition), tokens[row], np.zeros(1, bool))
  np.testing.assert_allclose(logits[..., :48], want, atol=3e-5)


def test_rows_have_ends_except_the_last():
  config = dataclasses.replace(early_fusion.PRESETS['emu3_5_34b'], height=2, width=3)
  assert early_fusion.forced(config, jnp.arange(9)).tolist() == [
      -1, -1, -1, 131072, -1, -1, -1, 131073, 131073]
  assert early_fusion.PRESETS['emu3_5_34b'].num_tokens == 64 * 65
  order = early_fusion.order(config)
  assert order[131070:131075].tolist() == [282924, 282925, 151846, 151853, 0]


@pytest.fixture(scope='module')
def tokenizer():
  return published.params('emu3_5_vq', CONFIG_VQ, 73)


@pytest.mark.slow
def test_encoding_agrees_with_the_official_tokenizer(tokenizer):
  want = published.recorded('emu3_5')
  images = np.random.default_rng(74).uniform(-1, 1, (2, 12, 16, 3)).astype(np.float32)
  latents = vq.latents(tokenizer, CONFIG_VQ, images)
  np.testing.assert_allclose(latents, want['latents'], atol=1e-5)
  np.testing.assert_array_equal(vq.encode(tokenizer, CONFIG_VQ, images), want['indices'])
  nearest = vq.quantize(tokenizer, dataclasses.replace(CONFIG_VQ, by_product=False), latents)
  assert np.mean(nearest != want['indices']) > 0.5, 'the smallest distance would agree too'


@pytest.mark.slow
def test_decoding_agrees_with_the_official_tokenizer(tokenizer):
  codes = np.random.default_rng(75).integers(0, 96, (2, 6, 8))
  pixels = vq.decode_vectors(tokenizer, CONFIG_VQ, vq.codebook(tokenizer, CONFIG_VQ)[codes])
  want = published.recorded('emu3_5')['pixels']
  np.testing.assert_allclose(pixels, want, atol=1e-4)
  np.testing.assert_allclose(
      vq.decode(tokenizer, CONFIG_VQ, codes), np.clip(want, -1, 1), atol=1e-4)


@pytest.mark.slow
@pytest.mark.verifies('shapes', 'emu3_5')
@pytest.mark.parametrize('file, name', [(FILE, 'emu3_5'), (FILE_VQ, 'emu3_5_vq')])
def test_published_tensors_are_exactly_those_of_the_model(file, name):
  manifest = json.loads(gzip.decompress((MANIFESTS / f'{name}.json.gz').read_bytes()))
  shapes = {name: tuple(shape) for name, shape in manifest['tensors'].items()}
  config, = file.presets.values()
  assert convert.published_shapes(file, config) == shapes
  assert file.infer(shapes, {}) == config
  assert manifest['parameters'] == sum(map(math.prod, shapes.values()))


@pytest.mark.slow
@pytest.mark.parametrize('file, config, seed', [(FILE, CONFIG, 71), (FILE_VQ, CONFIG_VQ, 73)])
def test_files_come_back(file, config, seed):
  drawn = published.weights(convert.published_shapes(file, config), seed)
  again = convert.publish(file, config, convert.convert(file, config, drawn))
  for name, value in drawn.items():
    kept = slice(40, 88) if name == 'lm_head.weight' else slice(None)
    np.testing.assert_array_equal(again[name][kept], value[kept], err_msg=name)
