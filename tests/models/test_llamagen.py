"""LlamaGen: dropped conditions, padding of captions, what is refused, first layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import decoder_only, llamagen
from tests.models import cases
from tests.models.cases import C2I, T2I

pytestmark = pytest.mark.usefixtures('precise')


@pytest.fixture(params=['classes', 'captions'])
def case(request):
  return cases.case(request.param)


def _logits(case, condition, drop):
  return jax.jit(llamagen.logits_and_features, static_argnums=1)(
      case.params, case.config, condition, case.tokens, drop)[0]


def test_dropped_conditions_are_chosen_per_image(case):
  drop = jnp.arange(len(case.tokens)) == 1
  mixed = _logits(case, case.condition, drop)
  np.testing.assert_allclose(mixed[0], case.want[0, 0], atol=1e-4)
  np.testing.assert_allclose(mixed[1], case.want[1, 1], atol=1e-4)


def test_padding_of_a_caption_is_never_read():
  case = cases.case('captions')
  condition = case.condition
  spoiled = llamagen.Caption(
      jnp.where(condition.mask[..., None], condition.embeddings, jnp.nan), condition.mask)
  for drop in (jnp.zeros(3, bool), jnp.ones(3, bool)):
    np.testing.assert_array_equal(_logits(case, spoiled, drop), _logits(case, condition, drop))


@pytest.mark.slow
def test_a_new_model_predicts_the_uniform_distribution():
  for config in (C2I, T2I):
    params = llamagen.init(config, jax.random.key(0))
    deviation = float(jnp.std(params['transformer']['layers_1']['gate']))
    assert abs(deviation - 0.02) < 2e-3
    assert not params['transformer']['output'].any()


@pytest.mark.slow
def test_first_layers_as_a_network():
  # All layers say what the model says; windows are those of the whole; fewer layers say less.
  case = cases.case('classes')
  config, params, condition, tokens = case.config, case.params, case.condition, case.tokens[:, :12]
  start, want = jnp.array([3, 7]), case.want[:, :, :12]
  for num_layers in (1, 2):
    kept, build = decoder_only.first_layers(params, config, num_layers)
    network = build(True)
    assert sum('layers_' in name for name in kept['transformer']) == num_layers
    cache = network.prefill(kept, condition, None, 20)
    ignored = jnp.zeros((2, 2, 12, 1))
    features, cache = network.step(
        kept, cache, tokens, ignored, jnp.zeros(2, jnp.int32), np.arange(12),
        np.tri(12, dtype=bool))
    logits = network.logits(kept, features)
    again, _ = network.step(
        kept, cache, jnp.stack([tokens[0, 3:6], tokens[1, 7:10]]), ignored[:, :, :3], start,
        np.arange(3), np.tri(3, dtype=bool))
    np.testing.assert_allclose(again[:, 0], features[:, 0, 3:6], atol=1e-5)
    np.testing.assert_allclose(again[:, 1], features[:, 1, 7:10], atol=1e-5)
    distance = float(jnp.abs(logits[:, :, :-1] - want[:, :, 1:]).max())
    assert (distance < 1e-4) == (num_layers == 2), distance
