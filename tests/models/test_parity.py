"""Logits of every model of discrete tokens are those of its official modules; see `cases.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.decoding.tree import chain
from cspd_jax.models import llamagen
from cspd_jax.models.conditions import Prompt
from tests.builders import published
from tests.marks import representative
from tests.models import cases

pytestmark = pytest.mark.usefixtures('precise')


def _length(condition):
  """The number of entries of a condition before the tokens."""
  if isinstance(condition, llamagen.Caption):
    return condition.mask.shape[1]
  if isinstance(condition, Prompt):
    return condition.tokens.shape[2]
  return condition.shape[1] if condition.ndim == 2 else 1


@pytest.mark.verifies('parity', 'lumina_mgpt', 'anole', 'emu3', 'emu3_5', 'lumina_mgpt_2',
                      'simplear', 'liquid', 'tar', 'ar_dtok', 'glm_image', 'llamagen', 'janus_pro',
                      'mammothmoda2')
@pytest.mark.parametrize('name', cases.NAMES)
def test_logits_of_images_agree(name):
  case = cases.case(name)
  run = jax.jit(case.module.logits_and_features, static_argnums=1)
  batch, count = case.tokens.shape
  num_codes = case.want.shape[-1]
  assert case.want.shape[1] == batch and case.want.shape[2] <= count
  assert np.ptp(case.want, axis=-1).min() > 1
  for stream, want in enumerate(case.want):
    logits, features = run(
        case.params, case.config, case.condition, case.tokens, jnp.full(batch, bool(stream)))
    np.testing.assert_allclose(
        logits[:, :want.shape[1], :num_codes], want, atol=case.tolerance, rtol=0)
    assert np.all(logits[..., num_codes:] < -1e29)  # Forced tokens have no outputs.
    assert features.shape == (batch, _length(case.condition) + count - 1, case.config.dim)


@pytest.mark.parametrize('name', representative(
    cases.NAMES, 'emu3_5', 'mammothmoda2 preview', 'glm_image', 'ar_dtok', 'classes', 'captions',
    'words', 'janus', 'janus of DeepSeek'))
def test_windows_on_the_cache_agree(name):
  """After prompts that are padded further, whose slots are seen by none; the last window overlaps.
  """
  case = cases.case(name)
  condition, width = case.condition, case.width
  if isinstance(condition, Prompt):
    condition = Prompt(*(np.pad(part, ((0, 0), (0, 0), (3, 0))) for part in condition))
  batch, count = case.tokens.shape
  num_codes, num_wanted = case.want.shape[-1], case.want.shape[2]
  target = case.module.target(case.config, guided=True)
  close = lambda logits, want: np.testing.assert_allclose(
      logits[..., :num_codes], want, atol=max(case.tolerance, 3e-5), rtol=0)
  logits, _, cache = jax.jit(target.prefill, static_argnums=2)(
      case.params, condition, count + width)
  close(logits, case.want[:, :, 0])
  score, tree = jax.jit(target.score, static_argnums=4), chain(width - 1)
  starts = [*range(0, num_wanted - 1, width), num_wanted - 2]
  for start in starts:  # One window overlaps another, and reaches past the end of the image.
    window = np.pad(case.tokens, ((0, 0), (0, width)))[:, start:start + width]
    logits, _, cache = score(
        case.params, cache, jnp.asarray(window), jnp.full(batch, start), tree)
    want = case.want[:, :, start + 1:start + 1 + width]
    assert np.isfinite(logits).all()
    close(logits[:, :, :want.shape[2]], want)


@pytest.mark.slow
@pytest.mark.parametrize('name, guided', [
    *((name, True) for name in cases.NAMES if name not in ('tar', 'words')), ('classes', False),
    ('captions', False)])
def test_windows_trees_and_commit(name, guided):
  case = cases.case(name)
  published.check(case.module, case.small, case.params, case.condition, guided)
