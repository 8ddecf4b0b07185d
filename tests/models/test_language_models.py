"""SimpleAR and Liquid: networks of transformers, saved and in memory, and their conversion."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import convert, rules
from cspd_jax.models import early_fusion
from tests.builders import published
from tests.models import cases

pytestmark = pytest.mark.usefixtures('precise')


@pytest.fixture(params=['simplear', 'liquid'])
def name(request):
  """Every family after the other."""
  return request.param


def _network(name):
  """The network of the installed transformers with the weights of a case."""
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers', '5')
  config, _, seed = cases.EARLY_FUSION[name]
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
  case, (prompts, visible, codes) = cases.case(name), cases.inputs(name)
  seen = np.concatenate([visible, np.ones_like(codes, bool)], axis=1)
  with torch.no_grad():
    want = network(
        torch.tensor(np.concatenate([prompts, codes + 48], axis=1)),
        attention_mask=torch.tensor(seen),
        position_ids=torch.tensor((seen.cumsum(axis=1) - 1).clip(0))).logits.numpy()
  logits, _ = jax.jit(early_fusion.logits_and_features, static_argnums=1)(
      params, case.config, case.condition, case.tokens, np.array([False, True, False]))
  np.testing.assert_allclose(logits, want[:, 11:-1, 48:], atol=1e-4)


def test_networks_that_transformers_saved(few_codes, tmp_path):
  """Names, settings and numbers as `save_pretrained` writes them."""
  network = _network(few_codes)
  config = cases.EARLY_FUSION[few_codes][0]
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
  case = cases.case('liquid')
  config = case.config
  drawn = {key: x.astype(ml_dtypes.bfloat16)
           for key, x in published.tensors('liquid', config, 81).items()}
  params = convert.convert(rules.get('liquid'), config, drawn)['transformer']
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
      {'transformer': params}, config, case.condition, case.tokens, np.zeros(3, bool))[1])
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
