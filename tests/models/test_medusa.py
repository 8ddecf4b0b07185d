"""Medusa heads: the formula, heads that begin as the target's own, sizes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import ends, medusa, transformer
from tests.builders import published

CONFIG = medusa.MedusaConfig(num_heads=3, dim=8, vocab_size=12)
SIZES = transformer.TransformerConfig(
    vocab_size=12, dim=8, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=4, ffn_dim=8)


def _random_params(dtype=jnp.float32):
  return published.random_params(functools.partial(medusa.init, CONFIG), 1, dtype)


def test_logits_follow_the_formula_head_by_head():
  params = _random_params()
  features = np.random.default_rng(1).standard_normal((2, 5, 8)).astype(np.float32)
  with jax.default_matmul_precision('highest'):
    logits = medusa.heads(params, jnp.asarray(features))
  assert logits.shape == (2, 5, 3, 12)
  for h in range(3):
    head = jax.tree.map(lambda x: np.asarray(x, np.float64), params[f'head_{h}'])
    inner = features @ head['residual']['kernel'] + head['residual']['bias']
    expected = (features + inner / (1 + np.exp(-inner))) @ head['output']
    np.testing.assert_allclose(logits[:, :, h], expected, atol=1e-4)


def test_heads_begin_as_the_targets_own_distribution():
  rng = np.random.default_rng(2)
  output = jnp.asarray(rng.standard_normal((8, 12)), jnp.bfloat16)
  params = medusa.from_target(ends.make(SIZES), {'transformer': {'output': output}}, CONFIG)
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
  features = jnp.asarray(rng.standard_normal((4, 8)), jnp.float32)
  with jax.default_matmul_precision('highest'):
    logits, own = medusa.heads(params, features), features @ output.astype(jnp.float32)
  for h in range(3):
    np.testing.assert_allclose(logits[:, h], own, atol=1e-5)
  with_grammar = medusa.from_target(
      ends.make(SIZES, num_forced=2), {'transformer': {'output': output}},
      dataclasses.replace(CONFIG, vocab_size=14))
  assert not with_grammar['head_0']['output'][:, 12:].any()
  with pytest.raises(ValueError, match=r'\(8, 12\); those of the target are \(8, 13\)'):
    medusa.from_target(ends.make(SIZES), {'transformer': {'output': jnp.zeros((8, 13))}}, CONFIG)


def test_new_heads_add_nothing_but_learn():
  params = medusa.init(CONFIG, jax.random.key(0))
  assert not params['head_1']['residual']['kernel'].any()
  grads = jax.grad(lambda p: jnp.sum(medusa.heads(p, jnp.ones((1, 8)))**2))(params)
  assert all(leaf.any() for leaf in jax.tree.leaves(grads))


def test_half_precision_gives_float32_logits():
  logits = medusa.heads(_random_params(jnp.bfloat16), jnp.ones((2, 8), jnp.bfloat16))
  assert logits.dtype == jnp.float32
