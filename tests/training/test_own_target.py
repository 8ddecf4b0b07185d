"""A corrector for any target: fitted to its images, and refused for what cannot be fitted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import SamplingParams, Target
from cspd_jax.models import llamagen
from cspd_jax.training import fit_corrector
from tests.training import test_corrector_training, test_drafter_training

CONFIG = test_corrector_training.TARGET
GUIDED = llamagen.target(CONFIG, guided=True)
SAMPLING = SamplingParams(guidance_scale=1.5)
LABELS = np.arange(6) % 2
HEAD = llamagen.ends(CONFIG).logits


def _above(side=6, vocab_size=8):
  """A target whose tokens are mostly the one above, else any; the first row is random."""
  def logits(above):
    return jnp.where(jnp.arange(vocab_size) == above[..., None], 4.0, 0.0)

  def prefill(params, labels, num_slots):
    stored = jnp.full((len(labels), side + num_slots), -1)
    return logits(stored[:, 0])[None], None, stored

  def score(params, stored, tokens, start, tree):
    slots = start[:, None] + jnp.arange(tokens.shape[1])  # Token k is in slot side + k.
    rows = jnp.arange(len(start))[:, None]
    stored = stored.at[rows, side + slots].set(tokens)
    return logits(stored[rows, slots + 1])[None], None, stored

  return Target(prefill, score, lambda stored, start, path: stored, vocab_size, side**2, side,
                supports_trees=False)


@pytest.mark.slow
def test_it_gains_where_tokens_depend_on_neighbours():
  target = _above()
  corrector, draft_params = fit_corrector(
      target, (), LABELS, jax.random.key(0), num_images=256, num_steps=300)
  labels = jnp.zeros(64, int)
  plain, fitted = (
      jax.jit(decoder)((), labels, jax.random.key(1), SamplingParams(), *extra)
      for decoder, *extra in (
          (cspd_jax.mc_sjd(target, window=8),),
          (cspd_jax.corrected(target, corrector, window=8), draft_params)))
  # A draft is accepted as soon as the token above it is known, and that is a row earlier.
  assert fitted.rounds.mean() < 0.85 * plain.rounds.mean()
  # The same distribution: seven of eight tokens are the one above.
  same = lambda out: np.mean(out.tokens.reshape(64, 6, 6)[:, 1:] == out.tokens.reshape(
      64, 6, 6)[:, :-1])
  assert abs(same(plain) - same(fitted)) < 0.04


@pytest.mark.slow
@pytest.mark.parametrize('head', [None, HEAD])
def test_it_drafts_for_a_target_with_features(head):
  params = test_drafter_training.target_params(CONFIG)
  corrector, draft_params = fit_corrector(
      GUIDED, params, LABELS, jax.random.key(0), sampling=SAMPLING, head=head, num_images=40,
      num_steps=6, batch_size=16)
  decode = lambda decoder, *extra: jax.jit(decoder)(
      params, LABELS, jax.random.key(1), SAMPLING, *extra)
  out = decode(cspd_jax.corrected_seed_exact(GUIDED, corrector, window=5), draft_params)
  np.testing.assert_array_equal(out.tokens, decode(cspd_jax.vanilla(GUIDED, window=5)).tokens)
  assert out.rounds.mean() < CONFIG.num_tokens
  assert ('target' in draft_params) == (head is not None)
