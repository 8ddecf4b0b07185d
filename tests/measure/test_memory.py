"""Bytes of parameters and caches against arrays that are really allocated."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.generation import engines
from cspd_jax.measure import memory


@pytest.fixture(scope='module')
def model():
  return cspd_jax.load('demo', dtype='float32')


def test_size_counts_arrays_and_shapes():
  tree = {'a': jnp.zeros((2, 3), jnp.bfloat16), 'b': [np.zeros(5, np.int8)],
          'c': jax.ShapeDtypeStruct((4,), jnp.float32)}
  assert memory.size(tree) == 2 * 2 * 3 + 5 + 4 * 4
  assert memory.size({}) == 0


def test_size_of_parameters_is_what_they_occupy(model):
  assert memory.size(model.params) == sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))


@pytest.mark.parametrize('guided', [False, True])
def test_cache_size_is_that_of_a_real_cache(model, guided):
  target, condition = model.target(guided=guided), model.condition(model.prompts[:2])
  cache = target.prefill(model.params, condition, 7)[2]
  expected = sum(leaf.nbytes for leaf in jax.tree.leaves(cache))
  assert memory.cache_size(target, model.params, condition, 7) == expected
  shapes = jax.eval_shape(lambda: (model.params, condition))
  assert memory.cache_size(target, *shapes, 7) == expected


def test_live_cache_grows_with_streams_and_images(model):
  one, two = (model.condition(model.prompts[:count]) for count in (1, 2))
  size = memory.live_cache(model, False, one)
  # One slot per head for the class, and half of the image's tokens; keys and values.
  config, slots = model.config.transformer, 1 + model.num_tokens // 2
  assert size == pytest.approx(
      2 * 4 * config.num_layers * config.num_kv_heads * config.head_dim * slots, rel=0.02)
  assert memory.live_cache(model, True, one) == pytest.approx(2 * size, rel=0.01)
  assert memory.live_cache(model, False, two) == pytest.approx(2 * size, rel=0.01)


def test_continuous_tokens_need_no_cache():
  assert memory.live_cache(types.SimpleNamespace(engine=engines.CONTINUOUS), True, None) == 0
