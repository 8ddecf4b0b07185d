"""Invalid rows: `Decoded.valid` marks them under `jit`, and concrete values raise an error."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.continuous import decoders, schedule as schedule_lib
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.testing.proofs import analytic
from tests.marks import representative

INF, NAN = float('inf'), float('nan')
LEVELS, FLOW = schedule_lib.make(5), schedule_lib.flow(5)
MASKED = analytic.gaussian_chain(4, 0.8, schedule=LEVELS, means=(0.0, 1.0))
CAUSAL = analytic.causal_chain(4, 2, schedule=FLOW, means=(0.0, 1.0), null=0.5)
LABELS = np.array([0, 1, 0, 1], np.int32)


@functools.cache
def program(name):
  model = MASKED if name == 'masked' else CAUSAL
  return jax.jit(decoders.windows(model.target, 2, None, model.schedule, kernels_per_call=2))


def decoded(name, labels=LABELS, scale=1.0, temperature=1.0, params=None):
  """The result with traced options, one per row."""
  rows = lambda value: jnp.broadcast_to(jnp.float32(value), (4,))
  model = MASKED if name == 'masked' else CAUSAL
  return jax.device_get(program(name)(
      model.params if params is None else params, jnp.asarray(labels), jax.random.key(0),
      SamplingParams(rows(scale), rows(temperature))))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['masked', 'causal'])
def test_healthy_rows(name):
  assert decoded(name).valid.tolist() == [True] * 4


def test_labels():
  result = decoded('masked', [0, 2, 1, -1])
  assert result.valid.tolist() == [True, False, True, False]
  np.testing.assert_array_equal(result.tokens[0], decoded('masked').tokens[0])


@pytest.mark.parametrize('value', [-1.0, NAN, INF])
def test_temperature(value):
  result = decoded('masked', temperature=np.array([1, value, 1, 1], np.float32))
  assert result.valid.tolist() == [True, False, True, True]


DECADES = np.asarray([0] + [float(f'1e{power}') for power in range(-45, 38)], np.float32)
WITHOUT_NOISE = {
    'masked': MASKED, 'causal': CAUSAL, 'mixtures': analytic.mixtures(
        jax.random.key(1), 4, 2, schedule=LEVELS, guided=True, num_classes=2, components=2)}
BUILD = {
    'exact_head': lambda model: decoders.exact_head(model.target, 2, None, model.schedule),
    'windows': lambda model: decoders.windows(
        model.target, 2, None, model.schedule, kernels_per_call=2),
    'exact_path': lambda model: decoders.exact_path(model.target, model.target, 2, model.schedule)}


@functools.cache
def at_all_decades(name, decoder=None, alone=False):
  """Rows of one key and class at all temperatures: tokens and validity."""
  model = WITHOUT_NOISE[name]
  build = BUILD.get(decoder, lambda model: decoders.mar(model.target, None, model.schedule))
  run, scale = jax.jit(build(model)), 1.0 if model.target.num_streams == 1 else 2.0
  draft = jax.tree.map(lambda leaf: 0.9 * leaf, model.params)

  def decoded(temperature):
    count = len(temperature)
    keys = jnp.repeat(jax.random.key(5)[None], count)
    return jax.device_get(run(model.params, np.ones(count, np.int32), keys, SamplingParams(
        np.full(count, scale, np.float32), temperature), draft))

  parts = [decoded(rows) for rows in (DECADES[:, None] if alone else [DECADES])]
  return tuple(np.concatenate(leaves) for leaves in zip(*((p.tokens, p.valid) for p in parts)))


@pytest.mark.parametrize('name,decoder,alone', representative(
    [(name, decoder, alone) for name in WITHOUT_NOISE for decoder in BUILD
     for alone in (False, True) if (name, decoder) != ('causal', 'exact_path')],
    ('causal', 'windows', False)))
def test_all_temperatures(name, decoder, alone):
  """Without noise all exact decoders have the tokens of `mar`, and with little noise close ones."""
  tokens, valid = at_all_decades(name, decoder, alone)
  limit, valid_in_mar = at_all_decades(name)
  # Squares of larger states exceed float32, and the row is marked. Guidance multiplies those of the
  # mixtures.
  largest = 1e10 if name == 'mixtures' else 1e18
  moderate = largest > DECADES
  np.testing.assert_array_equal(valid[moderate], True)
  np.testing.assert_array_equal(valid_in_mar[moderate], True)
  few = DECADES <= 0.01
  apart = np.abs(tokens - limit[0]).max(axis=(1, 2))
  assert np.all(apart[few] < 1e-3 + 50 * DECADES[few])
  assert np.isfinite(tokens[valid]).all()


@pytest.mark.parametrize('value', [2.0, NAN])
def test_guidance_without_a_null_condition(value):
  assert MASKED.target.num_streams == 1
  result = decoded('masked', scale=np.array([1, 1, value, 1], np.float32))
  assert result.valid.tolist() == [True, True, False, True]


def test_tokens_of_damaged_parameters():
  """A model whose second class has NaN: the decode ends, and its rows are marked."""
  params = jax.tree.map(jnp.asarray, MASKED.params)
  damaged = params._replace(means=params.means.at[1].set(NAN))
  result = decoded('masked', params=damaged)
  assert result.valid.tolist() == [True, False, True, False]
  np.testing.assert_array_equal(result.tokens[::2], decoded('masked').tokens[::2])


def test_the_pieces_check_too():
  decoder = decoders.mar(MASKED.target, None, LEVELS)
  state = jax.jit(decoder.start)(
      MASKED.params, jnp.array([0, 7]), row_keys(jax.random.key(0), 2), SamplingParams())
  assert decoder.finish(state).valid.tolist() == [True, False]


@pytest.mark.slow
def test_images_with_invalid_tokens_are_named():
  model = cspd_jax.load('mar_demo')
  model = model.with_params(jax.tree.map(lambda leaf: leaf * NAN, model.params))
  with pytest.raises(ValueError, match='returned tokens with NaN or infinity for 1 of 1 images'):
    model.generate(['cat'], decoder='mar(schedule=2, num_iter=2)')


class TestParts:
  """Combinations that would sample something else."""

  @pytest.mark.slow
  def test_steps_of_one_token_of_a_causal_model(self):
    steps = decoders.windows(CAUSAL.target, 2, 4, FLOW, kernels_per_call=2)
    result = jax.jit(steps)(CAUSAL.params, LABELS, jax.random.key(0), SamplingParams(np.ones(4)))
    np.testing.assert_allclose(result.tokens, decoded('causal').tokens, atol=1e-4)

  def test_guidance_is_the_models_own(self):
    of = lambda target: decoders.windows(target, 2).guidance
    assert of(MASKED.target) == 'linear'
    assert of(MASKED.target._replace(guidance='constant')) == 'constant'
    assert decoders.mar(MASKED.target, guidance='constant').guidance == 'constant'
