"""The text encoder: agreement with transformers, padding, the published sizes.

`tests/data/t5.npz` was recorded in float32 from the `T5EncoderModel` that transformers 5.23 has
(gated-gelu) at the sizes below, with the weights of `published.py`, seed 31, where the token
embedding counts once, as `shared.weight`. From `default_rng(32)`: tokens
`integers(0, 96, (4, 120))`, of which the first 120, 83, 1 and 17 are texts and the others padding.
`features` `[221, 40]` holds the last hidden states of the texts, one behind the other.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints_conversion import convert, rules
from cspd_jax.models import t5
from tests.builders import published

pytestmark = pytest.mark.usefixtures('precise')

CONFIG = t5.T5Config(
    vocab_size=96, dim=40, num_layers=2, num_heads=4, head_dim=12, ffn_dim=56)
FILE = rules.FAMILIES['t5']
LENGTHS = np.array([120, 83, 1, 17])

_encode = jax.jit(t5.encode, static_argnums=1)


def _texts():
  tokens = np.random.default_rng(32).integers(0, 96, (4, 120))
  return tokens, np.arange(120) < LENGTHS[:, None]


def test_features_agree_with_transformers():
  tokens, visible = _texts()
  features = _encode(published.params('t5', CONFIG, 31), CONFIG, tokens, visible)
  np.testing.assert_allclose(
      np.asarray(features)[visible], published.recorded('t5')['features'], atol=1e-4, rtol=0)


@pytest.mark.parametrize('sizes', [{}, {'num_distances': 8, 'head_dim': 7, 'num_layers': 3}])
def test_features_agree_with_transformers_live(sizes):
  torch, transformers = map(pytest.importorskip, ('torch', 'transformers'))
  config = t5.T5Config(**{**CONFIG.__dict__, **sizes})
  tensors = published.weights(convert.published_shapes(FILE, config), 5)
  model = transformers.T5EncoderModel(transformers.T5Config(
      vocab_size=96, d_model=40, d_kv=config.head_dim, d_ff=56, num_layers=config.num_layers,
      num_heads=4, relative_attention_num_buckets=config.num_distances,
      feed_forward_proj='gated-gelu')).eval()
  tensors['encoder.embed_tokens.weight'] = tensors['shared.weight']
  model.load_state_dict({name: torch.tensor(tensor) for name, tensor in tensors.items()})
  # Longer than the farthest distance that is told apart.
  tokens = np.random.default_rng(6).integers(0, 96, (2, 300))
  visible = np.arange(300) < np.array([[300], [191]])
  with torch.no_grad():
    want = model(torch.tensor(tokens), torch.tensor(visible)).last_hidden_state.numpy()
  del tensors['encoder.embed_tokens.weight']
  params = convert.convert(FILE, config, tensors)
  result = np.asarray(_encode(params, config, tokens, visible))
  np.testing.assert_allclose(result[visible], want[visible], atol=1e-4, rtol=0)


def _formula(tensors, config, numbers):
  """The encoder in NumPy; `numbers` `[L, L]` are those of distances."""
  def norm(x, name):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + config.norm_eps) * tensors[name]

  x = tensors['shared.weight'][np.arange(len(numbers))]
  bias = tensors['encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight'][numbers]
  for i in range(config.num_layers):
    block = f'encoder.block.{i}.layer.'
    matrix = lambda name: tensors[f'{block}{name}.weight'].T
    read = norm(x, f'{block}0.layer_norm.weight')
    query, key, value = ((read @ matrix(f'0.SelfAttention.{name}')).reshape(
        len(x), config.num_heads, -1) for name in 'qkv')
    weights = np.exp(np.einsum('qhe,khe->qkh', query, key) + bias)
    weights /= weights.sum(1, keepdims=True)
    mixed = np.einsum('qkh,khe->qhe', weights, value).reshape(len(x), -1)
    x = x + mixed @ matrix('0.SelfAttention.o')
    read = norm(x, f'{block}1.layer_norm.weight')
    first, second = (read @ matrix(f'1.DenseReluDense.wi_{number}') for number in (0, 1))
    # GELU, approximated by tanh.
    gate = first / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (first + 0.044715 * first**3)))
    x = x + (gate * second) @ matrix('1.DenseReluDense.wo')
  return norm(x, 'encoder.final_layer_norm.weight')


@pytest.mark.parametrize('changes', [
    dict(norm_eps=0.1), dict(max_distance=20), dict(num_layers=1)])
def test_features_of_other_settings(changes):
  config = dataclasses.replace(CONFIG, num_distances=8, **changes)
  tensors = published.weights(convert.published_shapes(FILE, config), 7)
  tokens = np.arange(30)[None]
  features = t5.encode(
      convert.convert(FILE, config, tensors), config, tokens, np.ones((1, 30), bool))
  # The first distance of every number of a side: 2 and 3 are for ever longer spans.
  starts = [0, 1, 2, 16 if config.max_distance == 128 else 7]
  distance = tokens - tokens.T
  numbers = np.searchsorted(starts, np.abs(distance), side='right') - 1 + 4 * (distance > 0)
  want = _formula(tensors, config, numbers)
  np.testing.assert_allclose(features[0], want, atol=2e-5)


def test_padding_is_never_read():
  params, (tokens, visible) = published.params('t5', CONFIG, 31), _texts()
  want = np.asarray(_encode(params, CONFIG, tokens, visible))[visible]
  other = np.where(visible, tokens, 95 - tokens)
  np.testing.assert_array_equal(
      np.asarray(_encode(params, CONFIG, other, visible))[visible], want)
  alone = _encode(params, CONFIG, tokens[3:, :17], visible[3:, :17])
  np.testing.assert_allclose(alone[0], want[-17:], atol=1e-5)


def test_bfloat16_parameters_give_bfloat16_features():
  params, (tokens, visible) = published.params('t5', CONFIG, 31), _texts()
  half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), params)
  features = _encode(half, CONFIG, tokens, visible)
  assert features.dtype == jnp.bfloat16
  difference = np.abs(np.asarray(features, np.float32)[visible] - published.recorded('t5')[
      'features'])
  assert 1e-4 < difference.mean() < 0.02


def test_whole_models_are_read_and_other_ones_refused():
  tensors = published.weights(convert.published_shapes(FILE, CONFIG), 31)
  decoder = {'decoder.block.0.layer.0.SelfAttention.q.weight': np.zeros((48, 40), np.float32),
             'decoder.embed_tokens.weight': tensors['shared.weight'],
             'lm_head.weight': tensors['shared.weight']}
  jax.tree.map(np.testing.assert_array_equal, convert.convert(FILE, CONFIG, {**tensors, **decoder}),
               published.params('t5', CONFIG, 31))
  # As in transformers 5, an embedding of the encoder's own is used also if it differs.
  own = {**tensors, 'encoder.embed_tokens.weight': 2 * tensors['shared.weight']}
  variant = FILE._replace(**FILE.variant({name: x.shape for name, x in own.items()}))
  for whole in (own, {name: x for name, x in own.items() if name != 'shared.weight'}):
    np.testing.assert_array_equal(
        convert.convert(variant, CONFIG, whole)['token_embedding'], 2 * tensors['shared.weight'])
  shapes = {name.replace('wi_0', 'wi_2'): tensor.shape for name, tensor in tensors.items()}
  with pytest.raises(rules.ConversionError, match='not a T5 encoder: .*wi_0.weight is missing'):
    FILE.infer(shapes, {})
