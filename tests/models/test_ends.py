"""The two ends of a model: those of the transformer, or its own, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import ends, transformer

SIZES = transformer.TransformerConfig(
    vocab_size=9, num_outputs=7, dim=8, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=4,
    ffn_dim=8)
NO_HEAD = dataclasses.replace(SIZES, num_outputs=0)
FEATURES = jnp.ones((2, 3, 8))


def _init(sizes):
  shape = jnp.ones((1, 1, 2))
  return {'transformer': transformer.Transformer(sizes).init(
      jax.random.key(0), jnp.zeros((1, 1, 8)), transformer.Rope(shape, shape),
      transformer.causal_mask(1))['params']}


@pytest.mark.slow
def test_the_transformers_own_ends_are_its_tables():
  params = _init(SIZES)
  params['transformer']['output'] = jax.random.normal(jax.random.key(1), (8, 7))
  result = ends.make(SIZES, num_forced=2)
  tokens = jnp.array([[0, 8], [3, 3]])
  np.testing.assert_array_equal(
      result.embed(params, tokens), params['transformer']['token_embedding'][tokens])
  logits = result.logits(params, FEATURES)
  assert result.vocab_size == 9 and logits.shape == (2, 3, 9) and logits.dtype == jnp.float32
  np.testing.assert_allclose(
      logits[..., :7], FEATURES @ params['transformer']['output'], rtol=1e-5)
  assert (logits[..., 7:] < -1e29).all() and result.matrix(params).shape == (8, 7)


def test_a_transformer_without_tables_has_no_parameters_for_them():
  sizes = dataclasses.replace(NO_HEAD, vocab_size=0)
  params = jax.eval_shape(lambda: _init(sizes))
  assert params['transformer'].keys() == {'layers_0', 'layers_1', 'norm'}
  assert ends.first_layers(params, 0)['transformer'].keys() == {'norm'}
