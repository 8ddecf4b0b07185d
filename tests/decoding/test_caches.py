"""After rounds along trees, caches hold what a fresh pass over the image would have put there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding.drafters.eagle import eagle, eagle2
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.tree import EAGLE, chain
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.files import store
from cspd_jax.models import eagle as eagle_models, llamagen
from tests.marks import representative

WARP = SamplingParams(guidance_scale=2.0)
LABELS = jnp.asarray([1, 5])


@functools.cache
def load(name):
  return store.load(name, dtype='float32')


@pytest.mark.parametrize('name', representative(['eagle', 'eagle2'], 'eagle'))
@pytest.mark.slow
def test_caches_hold_the_accepted_sequence(name):
  model = load('demo/target')
  target = llamagen.target(model.config, guided=True)
  network = eagle_models.network(load('demo/eagle').config, llamagen.ends(model.config))
  params = eagle_models.attach(model.params, load('demo/eagle').params)
  drafter = (eagle(network, EAGLE) if name == 'eagle'
             else eagle2(network, 30, 6, 4))
  decoder = make_decoder(target, drafter, rejection())
  state = jax.jit(lambda: decoder.start(
      model.params, LABELS, row_keys(jax.random.key(0), 2), WARP, params))()
  step = jax.jit(lambda state: decoder.round(model.params, state, WARP, params))
  for _ in range(12):
    state = step(state)
  assert state.accepted[:, 2:].sum() > 3  # Paths were accepted, not only single tokens.

  length = int(state.count.max())
  tokens = state.tokens[:, :length]
  start = jnp.zeros(2, jnp.int32)
  _, condition, cache = target.prefill(model.params, LABELS, length)
  _, features, cache = target.score(model.params, cache, tokens, start, chain(length - 1))
  fresh = network.prefill(params, LABELS, condition, length)
  # Entry `k` pairs token `k` with the feature that predicted it.
  shifted = jnp.concatenate([condition[:, :, -1:], features[:, :, :-1]], axis=2)
  _, fresh = network.step(
      params, fresh, tokens, shifted, start, np.arange(length), np.tri(length, dtype=bool))

  for row, count in enumerate(np.asarray(state.count)):
    for stream in (row, row + 2):  # Conditional, then unconditional rows.
      # The root is in neither cache, and the drafter has yet to read the last round's tokens.
      for mine, theirs in zip(jax.tree.leaves(state.cache.layers), jax.tree.leaves(cache.layers)):
        np.testing.assert_allclose(
            mine[stream, :, :count], theirs[stream, :, :count], atol=2e-4)
      known = count - int(state.drafter.fresh[row])
      for mine, theirs in zip(state.drafter.cache.layers[0], fresh.layers[0]):
        np.testing.assert_allclose(
            mine[stream, :, :known], theirs[stream, :, :known], atol=2e-4)
