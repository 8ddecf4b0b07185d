"""The GPU kernel of the loop of drafts: what it computes, and when it is chosen."""

import jax
import jax.numpy as jnp
import pytest

from cspd_jax.continuous.chains import draft_loop


def test_the_kernel_computes_the_drafts_of_the_loop():
  assert draft_loop.difference(jax.devices()[0], interpret=True) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize('part', draft_loop.Steps._fields)
def test_the_trial_sees_every_input(part, monkeypatch):
  right = draft_loop.fused
  # The inputs of another chain: all differ between chains.
  rolled = lambda leaf: jnp.roll(leaf, 1, axis=0)
  monkeypatch.setattr(draft_loop, 'fused', lambda first, steps, **options: right(
      first, steps._replace(**{part: jax.tree.map(rolled, getattr(steps, part))}), **options))
  difference = draft_loop.difference(jax.devices()[0], interpret=True)
  assert difference > 10 * draft_loop._TOLERANCE


def _traced(size):
  array = lambda *shape: jnp.ones((2, 3, *shape))
  logical = array() > 0
  steps = draft_loop.Steps(
      logical, logical, draft_loop.Moved(array(size), logical),
      draft_loop.Predicted(array(size), array(1), array(size)), array(size),
      draft_loop.Gaussian(array(size), array(size)), array(size), None, array())
  return str(jax.make_jaxpr(lambda *inputs: draft_loop.follow(*inputs))(jnp.ones((2, size)), steps))


@pytest.mark.slow
def test_tokens_of_a_power_of_two_take_the_kernel_on_gpus(monkeypatch):
  monkeypatch.setattr(draft_loop, 'is_available', lambda: True)
  assert 'platform_index' in _traced(16) and 'platform_index' in _traced(64)
  assert 'platform_index' not in _traced(1) and 'platform_index' not in _traced(12)
  monkeypatch.setattr(draft_loop, 'is_available', lambda: False)
  assert 'platform_index' not in _traced(16)
