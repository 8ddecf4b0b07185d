"""The distribution of whole images on a toy MAR, by energy distance with permutations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import decoders, schedule as schedule_lib
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.testing.exactness import energy_test
from cspd_jax.testing.proofs import analytic
from tests.marks import representative

NUM = 1500
LEVELS = schedule_lib.make(8)
MODEL = analytic.mixtures(jax.random.key(3), 4, 4, schedule=LEVELS, guided=True)
LABELS = jnp.arange(NUM) % 3
# With 199 splits and false alarms at 1 %; the power is measured below.
SPLITS, ALARM = 199, 0.01


@functools.cache
def run(name, seed):
  decoder = {
      'mar': lambda: decoders.mar(MODEL.target, schedule=LEVELS),
      'noised': lambda: decoders.mar(MODEL.target, schedule=LEVELS, last_noise=True),
      'exact_head': lambda: decoders.exact_head(MODEL.target, 4, None, LEVELS),
      'exact_path': lambda: decoders.exact_path(MODEL.target, MODEL.target, 2, LEVELS),
      'parallel': lambda: decoders.parallel(MODEL.target, 4, LEVELS, prefix_share=None)}[name]()
  draft = MODEL.params._replace(means=MODEL.params.means + 0.05)
  tokens = jax.jit(decoder)(
      MODEL.params, LABELS, jax.random.key(seed), SamplingParams(1.5),
      draft if name == 'exact_path' else None).tokens
  # The class belongs to what is compared: it is part of the joint distribution.
  return np.concatenate([np.asarray(tokens).reshape(NUM, -1), LABELS[:, None]], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize('name,reference', representative(
    [('exact_head', 'mar'), ('exact_path', 'noised')], ('exact_head', 'mar')))
def test_whole_images_have_the_distribution(name, reference):
  assert energy_test(run(name, 1), run(reference, 2), permutations=SPLITS) > ALARM


@pytest.mark.slow
def test_the_test_has_power():
  """Tokens that do not see each other, and a shift by a tenth of a deviation."""
  reference = run('mar', 2)
  assert energy_test(run('parallel', 1), reference, permutations=SPLITS) <= ALARM
  shifted = run('mar', 1) + 0.1 * reference.std(axis=0)
  assert energy_test(shifted, reference, permutations=SPLITS) <= ALARM


@pytest.mark.slow
def test_power_and_false_alarms():
  """At 300 samples of 8 numbers: a shift by 0.2 deviations is detected in over 90 %."""
  rng = np.random.default_rng(0)
  draw = lambda shift: rng.standard_normal((300, 8)) + shift
  detected = [energy_test(draw(0.2), draw(0), permutations=99) <= 0.05 for _ in range(30)]
  alarms = [energy_test(draw(0), draw(0), permutations=99) <= 0.05 for _ in range(60)]
  assert np.mean(detected) > 0.9 and np.mean(alarms) < 0.17
  with pytest.raises(ValueError, match='all but the first axis must agree'):
    energy_test(draw(0), draw(0)[:, :3])
