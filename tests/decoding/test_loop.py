"""Contracts of the loop: shapes, counts, batches, traces, the end of an image."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import decoders
from cspd_jax.decoding.drafters.draft_model import model
from cspd_jax.decoding.drafters.jacobi import KINDS, jacobi
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.specification import DECODERS
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing.tabular import tabular
from tests.builders import tables
from tests.marks import representative

WARP = SamplingParams(guidance_scale=1.5, temperature=0.9, top_k=3)
PAIR = tables.pair(num_classes=3, row_width=3)
MODEL, DRAFT = PAIR.model, PAIR.draft
LABELS = jnp.asarray([0, 1, 2, 0, 1])
MANY = jnp.arange(64) % 3


def build(name, target=MODEL.target, window=5):
  # The default trees of so short a window are chains.
  if name in ('sjd_pac', 'seed_exact', 'corrected', 'corrected_seed_exact'):
    name, window = f'{name}(tree=caterpillar(2, 2))', window + 2
  return PAIR.build(name, target, window=window, length=3)


@functools.cache
def jitted(name):
  return jax.jit(build(name))


def decode(decoder, labels=LABELS, key=jax.random.key(7), sampling=WARP):
  """Decodes with a decoder, or with a named one."""
  if isinstance(decoder, str):
    return jitted(decoder)(MODEL.params, labels, key, sampling, PAIR.draft_params(decoder))
  return jax.jit(decoder)(MODEL.params, labels, key, sampling, DRAFT.params)


def assert_same(decoded, expected):
  """Requires equality, up to rounding in the log-probabilities: other programs, other fusions."""
  np.testing.assert_allclose(decoded.log_probs, expected.log_probs, rtol=1e-5, atol=1e-6)
  chex.assert_trees_all_equal(decoded._replace(log_probs=expected.log_probs), expected)


@pytest.mark.parametrize('name', representative(DECODERS, 'vanilla', 'sjd_pac', 'eagle'))
def test_result(name):
  decoded = decode(name)
  batch, length, depth = 5, 6, build(name).drafter.tree.max_depth
  chex.assert_shape(decoded.tokens, (batch, length))
  chex.assert_shape(decoded.accepted, (batch, depth + 2))
  chex.assert_type(jax.tree.leaves(decoded), [int, int, int, int, float, bool, float])
  assert decoded.valid.all()
  np.testing.assert_array_equal(decoded.tv_bound, 0)
  assert ((decoded.tokens >= 0) & (decoded.tokens < 4)).all()
  # The histogram accounts for every round and every token after the prefill.
  np.testing.assert_array_equal(decoded.accepted.sum(axis=1), decoded.rounds - 1)
  np.testing.assert_array_equal(decoded.accepted @ np.arange(depth + 2), length - 1)
  np.testing.assert_array_equal(decoded.accepted[:, 0], 0)
  # Tokens are fixed in order, every round fixes some.
  steps = np.diff(decoded.round_of_token, axis=1)
  assert ((steps == 0) | (steps == 1)).all()
  np.testing.assert_array_equal(decoded.round_of_token[:, 0], 0)
  np.testing.assert_array_equal(decoded.round_of_token[:, -1], decoded.rounds - 1)


@pytest.mark.slow
@pytest.mark.parametrize('name', DECODERS)
def test_target_calls_equal_rounds_in_one_compilation(name):
  calls = []

  def counted(*args):
    jax.debug.callback(lambda: calls.append(1))
    return MODEL.target.score(*args)

  chex.clear_trace_counter()
  decoder = build(name, MODEL.target._replace(score=counted))
  run = jax.jit(chex.assert_max_traces(decoder.__call__, n=1))
  options = WARP, SamplingParams(2.0, 0.0, 0, 1.0), SamplingParams(1.0, 1.3, 2, 0.5)
  for seed, sampling in enumerate(options):
    calls.clear()
    decoded = run(MODEL.params, LABELS[seed:seed + 1], jax.random.key(seed),
                  jax.tree.map(jnp.float32, sampling), PAIR.draft_params(name))
    jax.effects_barrier()
    assert len(calls) + 1 == int(decoded.rounds[0])  # The prefill is the other one.


@pytest.mark.parametrize('name', representative(
    ['speculative', 'sjd', 'sjd_pac', 'seed_exact', 'eagle', 'eagle2', 'medusa'], 'eagle'))
def test_rows_do_not_know_each_other(name):
  keys = jax.random.split(jax.random.key(3), 5)
  together = decode(name, LABELS, keys)
  for row in range(5):
    alone = decode(name, LABELS[row:row + 1], keys[row:row + 1])
    assert_same(alone, jax.tree.map(lambda x: x[row:row + 1], together))
  order = jnp.asarray([4, 2, 0, 1, 3])
  chex.assert_trees_all_equal(
      decode(name, LABELS[order], keys[order]), jax.tree.map(lambda x: x[order], together))


def test_one_key_serves_every_batch_size():
  few = decode('vanilla', LABELS[:1], jax.random.key(9))
  many = decode('vanilla', LABELS, jax.random.key(9))
  assert_same(few, jax.tree.map(lambda x: x[:1], many))


WITH_MATCH = (
    'jacobi(window=13, coupling=gumbel, tree=kary(3, 3))', 'model(length=3)',
    'jacobi(window=1, coupling=gumbel)', 'jacobi(window=4, coupling=gumbel)',
    'jacobi(window=6, coupling=gumbel)', 'jacobi(window=4, coupling=maximal)',
    'eagle(tree=branching("2 0:2 1:1 00:2"))', 'eagle(tree=kary(2, 3), draws=fixed)',
    'eagle2(num_nodes=5, width=2, depth=3)', 'medusa(tree=branching("2 0:1"))',
    'corrected(window=5, iterations=2, corrector=model, tree=chain())',
    *(f'corrected(window=7, iterations=2, corrector={name}, tree=caterpillar(3, 2))'
      for name in ('model', 'eagle', 'layers')))


@pytest.mark.parametrize('drafter,temperature', representative(
    [(drafter, temperature) for drafter in WITH_MATCH for temperature in (0.9, 0.0)],
    (WITH_MATCH[0], 0.9), (WITH_MATCH[1], 0.9), (WITH_MATCH[6], 0.9)))
def test_any_drafter_gives_the_tokens_of_vanilla(drafter, temperature):
  sampling, labels = WARP._replace(temperature=temperature, top_p=0.9, min_p=0.1), MANY
  vanilla = decode('vanilla', labels, sampling=sampling)
  decoded = decode(f'{drafter}+match', labels, sampling=sampling)
  np.testing.assert_array_equal(decoded.tokens, vanilla.tokens)
  assert decoded.rounds.mean() < vanilla.rounds.mean() or 'window=1,' in drafter


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_greedy_is_the_same_for_every_window(kind):
  # At temperature 0 all distributions are one-hot: every decoder gives the most probable path.
  greedy = SamplingParams(guidance_scale=1.5, temperature=0.0)
  vanilla = decode('vanilla', sampling=greedy)
  decoder = make_decoder(MODEL.target, jacobi(4, 'maximal', initialization=kind), rejection())
  np.testing.assert_array_equal(decode(decoder, sampling=greedy).tokens, vanilla.tokens)


@pytest.mark.parametrize('name', representative(DECODERS, 'sjd_pac'))
def test_forced_tokens(name):
  forced = {2: 3, 5: 1}
  built = tabular(jax.random.key(0), 4, 6, guided=True, row_width=3, forced=forced)
  decoder = build(name, built.target)
  decoded = jax.jit(decoder)(
      built.params, jnp.zeros(64, int), jax.random.key(0), WARP, PAIR.draft_params(name))
  for position, token in forced.items():
    np.testing.assert_array_equal(decoded.tokens[:, position], token)


def test_forced_tokens_are_drafted():
  # Every second token is forced: a window commits it with its predecessor.
  built = tabular(jax.random.key(0), 4, 6, forced={1: 0, 3: 0, 5: 0})
  decoder = decoders.sjd(built.target, window=2)
  decoded = jax.jit(decoder)(built.params, jnp.zeros(64, int), jax.random.key(0))
  assert int(decoded.rounds.max()) <= 4


def test_window_over_the_end():
  # A draft equal to the target is always accepted, far past the last token.
  decoder = make_decoder(MODEL.target, model(MODEL.target, 5), rejection())
  decoded = jax.jit(decoder)(MODEL.params, LABELS, jax.random.key(0), WARP, MODEL.params)
  np.testing.assert_array_equal(decoded.rounds, 2)
  np.testing.assert_array_equal(decoded.accepted[:, 5], 1)


def test_draft_model_without_null_condition():
  plain = tabular(jax.random.key(1), 4, 6, num_classes=3, row_width=3)
  decoder = decoders.speculative(MODEL.target, plain.target, 2)
  decoded = jax.eval_shape(decoder, MODEL.params, LABELS, jax.random.key(0), WARP, plain.params)
  chex.assert_shape(decoded.tokens, (5, 6))


@pytest.mark.slow
def test_steps_by_hand():
  decoder = build('sjd')
  state = decoder.start(MODEL.params, LABELS, row_keys(jax.random.key(7), 5), WARP)
  step = jax.jit(lambda state: decoder.round(MODEL.params, state, WARP))
  while (state.count < 6).any():
    state = step(state)
  assert_same(decoder.finish(state), decode('sjd'))


@pytest.mark.slow
def test_without_jit():
  assert_same(build('sjd_pac')(MODEL.params, LABELS, jax.random.key(7), WARP), decode('sjd_pac'))
