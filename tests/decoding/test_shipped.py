"""The decoders on the model that ships with the package."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import specification
from cspd_jax.files import store
from cspd_jax.models import llamagen
from tests.marks import representative

LABELS = jnp.asarray([1, 5, 3])
KEYS = jax.random.split(jax.random.key(11), 3)
WARP = SamplingParams(guidance_scale=2.0)


@functools.cache
def model():
  return store.load('demo/target', dtype='float32')


@functools.cache
def jitted(name, window=16):
  target = llamagen.target(model().config, guided=True)
  return jax.jit(specification.build(specification.complete(name, window=window), target))


def decode(name, window=16, order=(0, 1, 2)):
  order = jnp.asarray(order)
  return jitted(name, window)(model().params, LABELS[order], KEYS[order], WARP)


@pytest.mark.slow
@pytest.mark.parametrize('window,order', representative(
    [(16, (0, 1, 2)), (16, (2, 0, 1)), (16, (1,)), (40, (2, 1))], (40, (2, 1))))
def test_seed_exact_equals_vanilla(window, order):
  vanilla = np.asarray(decode('vanilla').tokens)
  decoded = decode('seed_exact', window, order)
  np.testing.assert_array_equal(decoded.tokens, vanilla[list(order)])
  assert decoded.rounds.max() < 0.6 * vanilla.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_what_is_called_seed_exact_equals_its_baseline_bit_for_bit(dtype):
  shipped = cspd_jax.load('demo', dtype=dtype)
  generate = lambda text: shipped.generate(['cat', 'rocket'], seed=5, decoder=f'{text}(window=24)')
  vanilla = generate('vanilla')
  for text in ('seed_exact', 'corrected_seed_exact'):
    made = generate(text)
    assert made.guarantee == 'seed-exact'
    assert made.decoded.rounds.max() < 0.6 * vanilla.tokens.shape[1]
    np.testing.assert_array_equal(made.tokens, vanilla.tokens)
  with_tree = shipped.sampler('seed_exact(tree=default_tree, window=24)')
  assert with_tree.guarantee == 'seed-exact up to rounding'
