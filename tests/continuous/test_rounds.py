"""Rounds one by one, fields shared with discrete tokens, parts that do not fit, wrong outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.continuous import (
  cspd,
  decoders,
  path,
  schedule as schedule_lib,
)
from cspd_jax.continuous.cspd import released
from cspd_jax.continuous.loop import make_decoder
from cspd_jax.continuous.result import Decoded
from cspd_jax.continuous.specification import DECODERS, build, complete
from cspd_jax.continuous.visibility import TRUE
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import base as discrete
from cspd_jax.testing.proofs import analytic
from tests.marks import representative

LEVELS = schedule_lib.make(5)
CHAIN = analytic.gaussian_chain(7, 0.9, schedule=LEVELS, means=(0.0, 1.0))
DRAFT = analytic.ChainParams(jnp.float32(0.6), jnp.array([0.4, 1.4]))
LABELS = jnp.array([0, 1, 0])
KEY = jax.random.key(1)


def quick(function):
  """Jitted for few rows, where most of the time is compilation."""
  return jax.jit(function, compiler_options={'xla_backend_optimization_level': 0})


def of(name, target=CHAIN.target, **options):
  options = dict(schedule=5, kernels_per_call=3, block_length=3, window=3, **options)
  return build(complete(name, **options), target, {'model': target})


@pytest.mark.parametrize('name', representative(DECODERS, 'mar'))
def test_rounds_one_by_one_equal_the_decode(name):
  """With another compiled program, hence the tolerance; every round adds to the rounds before."""
  decoder = of(name, prefix_share=0.3)
  whole = quick(decoder)(CHAIN.params, LABELS, KEY, draft_params=DRAFT)
  start = lambda rng: decoder.start(CHAIN.params, LABELS, rng, draft_params=DRAFT)
  state = quick(start)(row_keys(KEY, 3))
  one_round = quick(lambda state: decoder.round(CHAIN.params, state, draft_params=DRAFT))
  seen = decoder.finish(state)
  assert not np.any(seen.tokens) and not np.any(state.count)
  while np.any(state.count < 7):
    before, count = decoder.finish(state), state.count
    state = one_round(state)
    seen = decoder.finish(state)
    assert np.all(state.count > count) or np.any(count == 7)
    committed = np.asarray(state.rank_of_position) < np.asarray(count)[:, None]
    np.testing.assert_array_equal(
        np.asarray(seen.tokens)[committed], np.asarray(before.tokens)[committed])
    masked = np.asarray(state.rank_of_position) >= np.asarray(state.count)[:, None]
    assert not np.any(np.asarray(seen.tokens)[masked])
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), seen, whole)
  # One more round does not change complete images.
  jax.tree.map(np.testing.assert_array_equal, decoder.finish(one_round(state)), seen)


@pytest.mark.parametrize('name', representative(DECODERS, 'exact_head'))
def test_fields_shared_with_discrete_tokens(name):
  assert Decoded._fields[:5] == discrete.Decoded._fields[:5]
  decoded = quick(of(name))(CHAIN.params, LABELS, KEY, draft_params=DRAFT)
  assert decoded.accepted.shape == (3, max(stage.width for stage in of(name).stages) + 1)
  tokens = np.arange(decoded.accepted.shape[1])
  np.testing.assert_array_equal(decoded.accepted @ tokens, 7)
  np.testing.assert_array_equal(decoded.accepted.sum(axis=1), decoded.rounds)
  np.testing.assert_array_equal(decoded.round_of_token.max(axis=1), decoded.rounds - 1)
  exact = of(name).guarantee == 'exact'
  np.testing.assert_array_equal(decoded.tv_bound, 0 if exact else np.nan)
  assert (decoded.kernels is None) == (name not in ('exact_head', 'windows'))
  assert (decoded.errors is None) == (name != 'cspd_relaxed')


# One component: a linear head, in which differences of rounding do not grow.
GUIDED = analytic.mixtures(
    jax.random.key(1), 7, 3, schedule=LEVELS, guided=True, components=1)


@pytest.mark.slow
@pytest.mark.parametrize('name', DECODERS)
def test_rows_do_not_depend_on_each_other(name):
  """Rows of other classes, keys and options, and of a batch of another size."""
  decode, rows = quick(of(name, GUIDED.target)), np.arange(6)
  keys, draft = jax.random.split(KEY, 6), GUIDED.params._replace(means=GUIDED.params.means + 0.05)
  scale, temperature = jnp.linspace(1, 3, 6), jnp.linspace(0.7, 1.2, 6)
  run = lambda rows: decode(GUIDED.params, rows % 3, keys[rows], SamplingParams(
      scale[rows], temperature[rows]), draft)
  pick = lambda result, index: jax.tree.map(lambda leaf: np.asarray(leaf)[index], result)
  whole = run(rows)
  for row in (0, 5):
    jax.tree.map(np.testing.assert_array_equal, pick(whole, row), pick(run(np.full(6, row)), row))
    # Compiled for another size, sums are rounded otherwise.
    np.testing.assert_allclose(
        whole.tokens[row], run(np.array([row])).tokens[0], atol=2e-3)


@pytest.mark.slow
def test_missed_residual_draws_bound_the_distance():
  """With equal models drafts are rejected by `eta` only, and then no proposal is ever accepted."""
  decoder = decoders.exact_path(
      CHAIN.target, CHAIN.target, 2, LEVELS, eta=0.5, max_trials=1, split=0)
  decoded = quick(decoder)(CHAIN.params, LABELS, KEY, draft_params=CHAIN.params)
  assert decoded.tests.missed.sum() > 0
  np.testing.assert_array_equal(decoded.tv_bound, decoded.tests.missed)
  assert '1 proposals fail' in decoder.verifier.guarantee


def test_a_share_of_one_needs_no_draft_model():
  for decoder in (decoders.exact_path(CHAIN.target, CHAIN.target, schedule=LEVELS, prefix_share=1),
                  cspd.cspd_released(CHAIN.target, CHAIN.target, 3, LEVELS, prefix_share=1)):
    assert decoder.drafter is None and decoder.guarantee == 'exact'
    assert [stage.stops for stage in decoder.stages] == [tuple(range(1, 8))]


@pytest.mark.slow
def test_a_decoder_of_parts():
  """Speculation inside the head for the prefix, and blocks with true contexts after it."""
  sampler = decoders.speculative_head.speculative(CHAIN.target, LEVELS, 2)
  decoder = make_decoder(
      CHAIN.target, LEVELS, released(42.0, 'off'), (5, 7), drafter=path.model(CHAIN.target),
      visibility=TRUE, prefix=3, prefix_sampler=sampler)
  decoded = quick(decoder)(CHAIN.params, LABELS, KEY, draft_params=DRAFT)
  np.testing.assert_array_equal(decoded.rounds, 3 + 2)
  np.testing.assert_array_equal(decoded.costs.target_passes, 3 + 4)
  assert decoded.kernels.tested.sum() == 3 * 3 * 4
