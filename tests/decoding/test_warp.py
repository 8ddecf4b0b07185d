"""Distributions against those in float64, and the order of the operations."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import warp as warp_lib
from tests.builders.tables import warped

_jitted = jax.jit(warp_lib.probabilities)
_FIRST = jnp.zeros((1, 1), jnp.int32)  # The position of everything that is not about positions.


class WarpTest(chex.TestCase):

  @parameterized.product(streams=[1, 2], temperature=[0, 0.7, 1.0, 1.4])
  def test_matches_sorting(self, streams, temperature):
    for top_k, top_p, min_p in itertools.product(
        [0, 1, 5, 64, 100], [0.3, 0.9, 1.0], [0.0, 0.2, 1.0]):
      logits = 2 * np.asarray(jax.random.normal(jax.random.key(top_k), (streams, 2, 3, 64)))
      sampling = SamplingParams(1.5 if streams == 2 else 1.0, temperature, top_k, top_p,
                                min_p=min_p)
      got = np.asarray(_jitted(logits, sampling, _FIRST))
      for row in range(2):
        for node in range(3):
          want = warped(logits[:, row, node], *sampling[:4], min_p)
          np.testing.assert_allclose(got[row, node], want, atol=2e-6, err_msg=str(sampling))
          np.testing.assert_array_equal(got[row, node] > 0, want > 0, err_msg=str(sampling))

  def test_options_per_row(self):
    logits = jax.random.normal(jax.random.key(0), (2, 3, 2, 16))
    options = [SamplingParams(1.0, 1.0, 0, 1.0, min_p=0.3), SamplingParams(3.0, 0.0, 0, 0.5),
               SamplingParams(2.0, 0.5, 4, 1.0)]
    together = _jitted(
        logits, SamplingParams(*(jnp.asarray(x) for x in zip(*options))), _FIRST)
    for row, sampling in enumerate(options):
      alone = _jitted(logits[:, row:row + 1], sampling, _FIRST)
      np.testing.assert_allclose(together[row:row + 1], alone, atol=1e-6)

  @parameterized.parameters(-1, 0, 1, 5, 2**31 - 1)
  def test_guidance_ends_where_it_does_in_llamagen(self, interval):
    logits = jax.random.normal(jax.random.key(0), (2, 1, 9, 6))
    sampling = SamplingParams(guidance_scale=3.0, guidance_interval=interval)
    got = _jitted(logits, sampling, jnp.arange(9)[None])
    # The prefill, which gives token 0, is always guided; step `i` gives token `i + 1`.
    guided = [True] + [not (interval > -1 and i > interval) for i in range(8)]
    for at, scale in enumerate(np.where(guided, 3.0, 1.0)):
      want = warped(logits[:, 0, at], scale, 1.0, 0, 1.0)
      np.testing.assert_allclose(got[0, at], want, atol=2e-6)

  def test_ties_stay_together(self):
    x = jnp.asarray([[0., -0., 1., -1., -2.]])
    np.testing.assert_array_equal(
        warp_lib.is_top_k(x, jnp.asarray(2)), [[True, True, True, False, False]])
    p = jnp.asarray([[0.25, 0.25, 0.25, 0.25]])
    self.assertTrue(warp_lib.is_top_p(p, p, jnp.asarray(0.1)).all())
    self.assertTrue(warp_lib.is_min_p(p, jnp.asarray(1.0), jnp.asarray(1.0)).all())

  def test_extremes_are_ordered(self):
    x = jnp.asarray([[-jnp.inf, -1e30, -1e-30, 0., 1e-30, 3., jnp.inf]])
    for k in range(1, 8):
      np.testing.assert_array_equal(
          warp_lib.is_top_k(x, jnp.asarray(k))[0], np.arange(7) >= 7 - k)

  def test_forced_tokens(self):
    logits = jax.random.normal(jax.random.key(0), (1, 1, 2, 5))
    distribution = _jitted(logits, SamplingParams(), _FIRST, jnp.asarray([[-1, 3]]))
    np.testing.assert_allclose(distribution[0, 0], jax.nn.softmax(logits[0, 0, 0]), atol=1e-6)
    np.testing.assert_array_equal(distribution[0, 1], [0, 0, 0, 1, 0])

  def test_float32_or_better(self):
    logits = jnp.zeros((1, 1, 1, 4), jnp.bfloat16)
    self.assertEqual(_jitted(logits, SamplingParams(), _FIRST).dtype, jnp.float32)
    with jax.enable_x64(True):
      logits = jnp.linspace(0, 1, 4, dtype=jnp.float64)[None, None, None]
      distribution = _jitted(logits, SamplingParams(1., 0.9, 3, 0.8), _FIRST)
      self.assertEqual(distribution.dtype, jnp.float64)
      np.testing.assert_allclose(
          distribution[0, 0], warped(logits[:, 0, 0], 1, 0.9, 3, 0.8), atol=1e-15)

  def test_one_compilation(self):
    probabilities = jax.jit(chex.assert_max_traces(warp_lib.probabilities, n=1))
    logits = jnp.zeros((2, 1, 1, 4))
    for sampling in (SamplingParams(), SamplingParams(2.0, 0.5, 3, 0.9, min_p=0.1),
                     SamplingParams(1.0, 0.0, 0, 1.0)):
      probabilities(logits, jax.tree.map(jnp.float32, sampling), _FIRST)


class SettledTest(parameterized.TestCase):

  @parameterized.parameters(
      (SamplingParams(2.0), (None, None, None)), (SamplingParams(2.0, 0.0), (0, None, None)),
      (SamplingParams(top_k=5), (5, None, None)), (SamplingParams(top_p=0.5), (None, 0.5, None)),
      (SamplingParams(temperature=np.array([0.0, 1.0])), (0, None, None)),
      (SamplingParams(top_k=np.array([0, 3]), top_p=np.ones(2)), ([0, 3], None, None)),
      (SamplingParams(min_p=0.1), (None, None, 0.1)),
      (SamplingParams(min_p=np.array([0.0, 0.1])), (None, None, [0.0, 0.1])),
      (SamplingParams(top_k=None, top_p=None, min_p=None), (None, None, None)))
  def test_cuts_that_are_off_leave_the_program(self, sampling, expected):
    result = warp_lib.drop_inactive(sampling)
    for value, wanted in zip((result.top_k, result.top_p, result.min_p), expected):
      np.testing.assert_array_equal(value, wanted)
    # As a user's program does: the values come at run time, and None before.
    logits = jax.random.normal(jax.random.key(0), (2, 2, 3, 32))
    settled = jax.jit(warp_lib.probabilities).lower(logits, result, _FIRST)
    np.testing.assert_array_equal(settled.compile()(logits, result, _FIRST),
                                  _jitted(logits, sampling, _FIRST))
    branches = sum(value is not None for value in expected)
    assert settled.as_text().count('stablehlo.case') == branches

  @parameterized.parameters(dict(top_p=np.array([0.5, 1.0])), dict(min_p=np.array([0.2, 0.0])))
  def test_rows_without_a_cut_keep_their_bits(self, **cut):
    logits = jax.random.normal(jax.random.key(0), (1, 2, 50, 9))
    positions = jnp.zeros((2, 50), jnp.int32)
    mixed = warp_lib.probabilities(logits, SamplingParams(**cut), positions)
    without = warp_lib.probabilities(logits, SamplingParams(), positions)
    np.testing.assert_array_equal(mixed[1], without[1])
    self.assertFalse(np.array_equal(mixed[0], without[0]))

  def test_no_greedy_decode_without_a_cut(self):
    with self.assertRaisesRegex(ValueError, 'temperature is 0.*set top_k to 0'):
      warp_lib.check(SamplingParams(temperature=0, top_k=None), 1, 2)
    warp_lib.check(SamplingParams(top_k=None, top_p=None, min_p=None), 1, 2)
