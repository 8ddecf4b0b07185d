"""SimpleAR and Liquid: agreement with transformers, windows and trees, conversion.

`tests/data/language_models.npz` was recorded in float32 from the models of transformers 5.24 with
the weights of `published.py`, whose tied output matrix has no weights of its own, at the sizes
below: `simplear` from `Qwen2ForCausalLM` with `rope_theta` 1e6 and tied embeddings (weight seed
83), `liquid` from `GemmaForCausalLM` with a `head_dim` of 16 (81). Inputs come from
`default_rng(weight seed + 1)`: prompts of published ids `integers(0, 48, (3, 12))`, of which the
first 0, 5 and 9 are padding, then codes `integers(0, 48, (3, 64))` plus 48. Positions count what
is not padding. The arrays hold the logits of the codes, `[3, 64, 48]`, from the prompt's last token
on.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import published
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import convert, rules
from cspd_jax.models import causal, early_fusion

pytestmark = pytest.mark.usefixtures('precise')

_SIZES = dict(
    height=8, width=8, vocab_size=96, num_codes=48, first_code=48, named_codes=False, num_layers=2,
    num_heads=4, ffn_dim=96, qk_norm=False, norm_eps=1e-6)
# Config, seed of the weights.
CASES = {
    'simplear': (early_fusion.EarlyFusionConfig(
        dim=64, num_kv_heads=2, qkv_bias=True, rope_base=1e6, **_SIZES), 83),
    'liquid': (early_fusion.EarlyFusionConfig(
        dim=48, attention_dim=64, activation='gelu_tanh', **_SIZES), 81),
}
PADDING = np.array([0, 5, 9])


@pytest.fixture(params=CASES)
def name(request):
  """Every family after the other."""
  return request.param


def _inputs(config, seed):
  """Published ids of prompts, what is seen of them, and codes."""
  rng = np.random.default_rng(seed + 1)
  prompts, codes = rng.integers(0, 48, (3, 12)), rng.integers(0, 48, (3, 64))
  return prompts, np.arange(12) >= PADDING[:, None], codes


def _condition(config, prompts, visible):
  """A prompt of two equal streams in this library's tokens."""
  tokens = np.argsort(early_fusion.order(config))[prompts]
  return causal.Prompt(*(jnp.asarray(np.stack([part] * 2, axis=1)) for part in (tokens, visible)))


def _logits(config, params, seed):
  prompts, visible, codes = _inputs(config, seed)
  logits, _ = jax.jit(early_fusion.logits_and_features, static_argnums=1)(
      params, config, _condition(config, prompts, visible), jnp.asarray(codes),
      np.array([False, True, False]))
  return logits


@pytest.mark.verifies('parity', 'simplear', 'liquid')
def test_logits_agree_with_transformers(name):
  config, seed = CASES[name]
  want = published.recorded('language_models')[name]
  assert want.shape == (3, 64, 48)
  logits = _logits(config, published.params(name, config, seed), seed)
  np.testing.assert_allclose(logits, want, atol=1e-4)


@pytest.mark.slow
def test_windows_trees_and_commit(name):
  config, seed = CASES[name]
  params = published.params(name, config, seed)
  config = dataclasses.replace(config, height=3, width=3)
  prompts, visible, _ = _inputs(config, seed)
  published.check(early_fusion, config, params, _condition(config, prompts, visible))


def _network(name):
  """The network of the installed transformers with the weights of a case."""
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers', '5')
  config, seed = CASES[name]
  sizes = dict(
      vocab_size=96, hidden_size=config.dim, intermediate_size=96, num_hidden_layers=2,
      num_attention_heads=4, num_key_value_heads=config.num_kv_heads, rms_norm_eps=1e-6)
  if name == 'liquid':
    network = transformers.GemmaForCausalLM(transformers.GemmaConfig(head_dim=16, **sizes))
  else:
    network = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        tie_word_embeddings=True,
        rope_parameters={'rope_type': 'default', 'rope_theta': 1e6}, **sizes))
  shapes = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()
            if key != 'lm_head.weight'}
  network.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in published.weights(
      shapes, seed).items()}, strict=False)
  network.tie_weights()
  return network.eval()


@pytest.fixture
def few_codes(name, monkeypatch):
  """The family, with as few codes as the tiny networks have."""
  file = rules.FAMILIES[name]
  like = {preset: dataclasses.replace(one, height=8, width=8, num_codes=48, vocab_size=96,
                                      first_code=48) for preset, one in file.presets.items()}
  infer = file.infer.func
  monkeypatch.setitem(rules.FAMILIES, name, file._replace(
      infer=lambda shapes, options: infer(like, shapes, options)))
  return name


def _check_logits(name, params, network):
  """Compares the logits of codes with those of a network of transformers."""
  import torch
  config, seed = CASES[name]
  prompts, visible, codes = _inputs(config, seed)
  seen = np.concatenate([visible, np.ones_like(codes, bool)], axis=1)
  with torch.no_grad():
    want = network(
        torch.tensor(np.concatenate([prompts, codes + 48], axis=1)),
        attention_mask=torch.tensor(seen),
        position_ids=torch.tensor((seen.cumsum(axis=1) - 1).clip(0))).logits.numpy()
  np.testing.assert_allclose(_logits(config, params, seed), want[:, 11:-1, 48:], atol=1e-4)


def test_networks_that_transformers_saved(few_codes, tmp_path):
  """Names, settings and numbers as `save_pretrained` writes them."""
  network = _network(few_codes)
  config, _ = CASES[few_codes]
  network.save_pretrained(tmp_path)
  opened = convert.open_source(few_codes, tmp_path)
  assert opened.network.config == config
  _check_logits(few_codes, opened.params(), network)
  # In memory the module has its output matrix as a tensor of its own.
  model = cspd_jax.from_torch(network, few_codes)
  assert model.config == config
  jax.tree.map(np.testing.assert_array_equal, model.params, opened.params())


def test_gemma_in_bfloat16_is_folded_as_it_is_computed():
  """The root of the width is rounded to the file's dtype, and the scales of norms are not."""
  config, seed = CASES['liquid']
  file = rules.FAMILIES['liquid']
  drawn = {key: x.astype(ml_dtypes.bfloat16) for key, x in published.weights(
      convert.published_shapes(file, config), seed).items()}
  params = convert.convert(file, config, drawn)['transformer']
  table = drawn['model.embed_tokens.weight'][early_fusion.order(config)]
  factor = np.asarray(48 ** 0.5, ml_dtypes.bfloat16)
  assert factor == 6.9375 and params['token_embedding'].dtype == ml_dtypes.bfloat16
  np.testing.assert_array_equal(params['token_embedding'], table * factor)
  np.testing.assert_array_equal(params['output'], table[:48].T)
  scale = params['layers_1']['ffn_norm']['scale']
  assert scale.dtype == np.float32
  np.testing.assert_array_equal(
      scale, 1 + drawn['model.layers.1.post_attention_layernorm.weight'].astype(np.float32))
  # Wide scales do not widen activations.
  narrow = jax.eval_shape(lambda: early_fusion.logits_and_features(
      {'transformer': params}, config, _condition(config, *_inputs(config, seed)[:2]),
      jnp.zeros((3, 64), int), np.zeros(3, bool))[1])
  assert narrow.dtype == jnp.bfloat16


def test_an_output_matrix_of_its_own(few_codes, tmp_path):
  """It is used whatever the settings call it, as in transformers 5; an equal copy changes nothing.
  """
  network = _network(few_codes)
  network.save_pretrained(tmp_path)
  tied = convert.open_source(few_codes, tmp_path).params()
  file, settings = tmp_path / 'model.safetensors', tmp_path / 'config.json'
  drawn = safetensors.numpy.load_file(file)
  embedding = drawn['model.embed_tokens.weight']
  other = published.weights({'lm_head.weight': embedding.shape}, 5)['lm_head.weight']
  content = json.loads(settings.read_text())
  for flag in ({}, {'tie_word_embeddings': False}, {'tie_word_embeddings': True}):
    settings.write_text(json.dumps({
        key: value for key, value in content.items() if key != 'tie_word_embeddings'} | flag))
    safetensors.numpy.save_file({**drawn, 'lm_head.weight': other}, file, {'format': 'pt'})
    params = convert.open_source(few_codes, tmp_path).params()
    np.testing.assert_array_equal(params['transformer']['output'], other[48:].T)
    _check_logits(few_codes, params, type(network).from_pretrained(tmp_path).eval())
    safetensors.numpy.save_file({**drawn, 'lm_head.weight': embedding}, file)
    jax.tree.map(np.testing.assert_array_equal,
                 convert.open_source(few_codes, tmp_path).params(), tied)
    # Without it the settings must call the embeddings tied, by the field or by its default.
    safetensors.numpy.save_file(drawn, file)
    if flag.get('tie_word_embeddings', few_codes == 'liquid'):
      convert.open_source(few_codes, tmp_path)
    else:
      with pytest.raises(rules.ConversionError, match='tie_word_embeddings is .*False; it must be '
                         'True: the file has no lm_head.weight, .*; download all of its parts'):
        convert.open_source(few_codes, tmp_path)
