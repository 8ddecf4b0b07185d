"""The head's kernels for GPUs: what they compute, and when they are chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.models import fused_head, mar, nextstep

_CONFIG = mar.MARConfig(height=2, width=2, dim=8, num_layers=1, num_heads=2, head_width=256,
                        head_layers=1, num_classes=2, buffer_size=1)


@pytest.mark.slow
def test_the_kernels_compute_the_outputs_of_the_head():
  # With states in two tiles, the second of them not full, and inputs in two chunks; matrices in
  # float32 and bfloat16.
  assert fused_head.difference(jax.devices()[0], interpret=True) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('part', ['norm_0', 'mlp_in_0', 'mlp_out_0', 'state', 'out'])
def test_the_trial_sees_every_layer(part, monkeypatch):
  right = fused_head.apply
  monkeypatch.setattr(fused_head, 'apply', lambda params, *args, **options: right(
      params | {part: {name: 1.01 * leaf for name, leaf in params[part].items()}}, *args,
      **options))
  assert fused_head.difference(jax.devices()[0], interpret=True) > 10 * fused_head._TOLERANCE


def _traced(config, states):
  target = mar.target(config, guided=True)
  params = jax.eval_shape(lambda: mar.init(config, jax.random.key(0)))
  array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
  return str(jax.make_jaxpr(target.modulation.apply)(
      params, array(states, 16), array(5, 3 * config.head_layers + 2, config.head_width),
      jax.ShapeDtypeStruct((states,), np.int32)))


def test_few_states_on_gpus_take_the_kernels(monkeypatch):
  monkeypatch.setattr(fused_head, 'is_available', lambda: True)
  assert 'platform_index' in _traced(_CONFIG, 64)
  assert 'platform_index' not in _traced(_CONFIG, 65)
  monkeypatch.setattr(fused_head, 'is_available', lambda: False)
  assert 'platform_index' not in _traced(_CONFIG, 2)


def test_published_heads_fit_and_others_need_not():
  for config in (*mar.PRESETS.values(), *nextstep.PRESETS.values()):
    assert fused_head.fits(2, config.head_width, config.token_dim)
  assert not fused_head.fits(2, 300, 16) and not fused_head.fits(2, 256, 12)
