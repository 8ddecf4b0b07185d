"""Contracts of the loop: shapes, counts, batches, traces, the end of an image."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import decoders, specification, tree as trees
from cspd_jax.decoding.drafters.draft_model import model
from cspd_jax.decoding.drafters.jacobi import KINDS, jacobi
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.specification import DECODERS
from cspd_jax.decoding.verifiers.match import match
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing.tabular import drafts, tabular

WARP = SamplingParams(guidance_scale=1.5, temperature=0.9, top_k=3)
MODEL = tabular(jax.random.key(0), 4, 6, guided=True, num_classes=3, row_width=3)
DRAFT = tabular(jax.random.key(1), 4, 6, guided=True, num_classes=3, row_width=3)
RESOURCES = specification.Resources(drafts(MODEL.target, DRAFT.target))
LABELS = jnp.asarray([0, 1, 2, 0, 1])
# One decoder of each kind; the thorough run takes the others too.
FIRST = ('vanilla', 'sjd_pac', 'eagle')
OTHERS = tuple(name for name in DECODERS if name not in FIRST)


def build(name, target=MODEL.target, window=5):
  # The default trees of so short a window are chains.
  if name in DECODERS and 'tree=auto' in DECODERS[name].parts:
    name, window = f'{name}(tree=caterpillar(2, 2))', window + 2
  spec = specification.complete(name, window=window, length=3)
  return specification.build(spec, target, RESOURCES)


def draft_params(name):
  """Parameters of what drafts for a decoder of the specification."""
  is_stacked = specification.needs(name) == 'medusa'
  return jnp.stack([DRAFT.params] * 2) if is_stacked else DRAFT.params


@functools.cache
def jitted(name):
  return jax.jit(build(name))


def decode(decoder, labels=LABELS, key=jax.random.key(7), sampling=WARP):
  """Decodes with a decoder, or with a named one."""
  if isinstance(decoder, str):
    return jitted(decoder)(MODEL.params, labels, key, sampling, draft_params(decoder))
  return jax.jit(decoder)(MODEL.params, labels, key, sampling, DRAFT.params)


def assert_same(decoded, expected):
  """Requires equality, up to rounding in the log-probabilities: other programs, other fusions."""
  np.testing.assert_allclose(decoded.log_probs, expected.log_probs, rtol=1e-5, atol=1e-6)
  chex.assert_trees_all_equal(decoded._replace(log_probs=expected.log_probs), expected)


class LoopTest(chex.TestCase):

  @parameterized.parameters(*FIRST)
  def test_result(self, name):
    self._check_result(name)

  @parameterized.parameters(*OTHERS)
  @pytest.mark.slow
  def test_result_of_the_others(self, name):
    self._check_result(name)

  def _check_result(self, name):
    decoded = decode(name)
    batch, length, depth = 5, 6, build(name).drafter.tree.max_depth
    chex.assert_shape(decoded.tokens, (batch, length))
    chex.assert_shape(decoded.accepted, (batch, depth + 2))
    chex.assert_type(jax.tree.leaves(decoded), [int, int, int, int, float, bool, float])
    self.assertTrue(decoded.valid.all())
    np.testing.assert_array_equal(decoded.tv_bound, 0)
    self.assertTrue(((decoded.tokens >= 0) & (decoded.tokens < 4)).all())
    # The histogram accounts for every round and every token after the prefill.
    np.testing.assert_array_equal(decoded.accepted.sum(axis=1), decoded.rounds - 1)
    np.testing.assert_array_equal(decoded.accepted @ np.arange(depth + 2), length - 1)
    np.testing.assert_array_equal(decoded.accepted[:, 0], 0)
    # Tokens are fixed in order, every round fixes some.
    steps = np.diff(decoded.round_of_token, axis=1)
    self.assertTrue(((steps == 0) | (steps == 1)).all())
    np.testing.assert_array_equal(decoded.round_of_token[:, 0], 0)
    np.testing.assert_array_equal(decoded.round_of_token[:, -1], decoded.rounds - 1)

  @chex.variants(with_jit=True, without_jit=True)
  @pytest.mark.slow
  def test_with_and_without_jit(self):
    decoded = self.variant(build('sjd_pac'))(MODEL.params, LABELS, jax.random.key(7), WARP)
    jitted = decode('sjd_pac')
    np.testing.assert_allclose(decoded.log_probs, jitted.log_probs, rtol=1e-5)
    chex.assert_trees_all_equal(decoded._replace(log_probs=jitted.log_probs), jitted)

  @parameterized.parameters(*FIRST)
  @pytest.mark.slow
  def test_target_calls_equal_rounds_in_one_compilation(self, name):
    self._check_calls(name)

  @parameterized.parameters(*OTHERS)
  @pytest.mark.slow
  def test_target_calls_of_the_others(self, name):
    self._check_calls(name)

  def _check_calls(self, name):
    calls = []

    def counted(*args):
      jax.debug.callback(lambda: calls.append(1))
      return MODEL.target.score(*args)

    chex.clear_trace_counter()
    decoder = build(name, MODEL.target._replace(score=counted))
    run = jax.jit(chex.assert_max_traces(decoder.__call__, n=1))
    for seed, sampling in enumerate([WARP, SamplingParams(2.0, 0.0, 0, 1.0), SamplingParams(1.0,
        1.3, 2, 0.5)]):
      calls.clear()
      decoded = run(MODEL.params, LABELS[seed:seed + 1], jax.random.key(seed),
                    jax.tree.map(jnp.float32, sampling), draft_params(name))
      jax.effects_barrier()
      self.assertEqual(len(calls) + 1, int(decoded.rounds[0]))  # The prefill is the other one.

  @parameterized.parameters(['eagle'])
  def test_rows_do_not_know_each_other(self, name):
    self._check_rows(name)

  @parameterized.parameters('speculative', 'sjd', 'sjd_pac', 'seed_exact', 'eagle2', 'medusa')
  @pytest.mark.slow
  def test_rows_of_the_others_do_not_know_each_other(self, name):
    self._check_rows(name)

  def _check_rows(self, name):
    keys = jax.random.split(jax.random.key(3), 5)
    together = decode(name, LABELS, keys)
    for row in range(5):
      alone = decode(name, LABELS[row:row + 1], keys[row:row + 1])
      assert_same(alone, jax.tree.map(lambda x: x[row:row + 1], together))
    order = jnp.asarray([4, 2, 0, 1, 3])
    chex.assert_trees_all_equal(
        decode(name, LABELS[order], keys[order]), jax.tree.map(lambda x: x[order], together))

  def test_one_key_serves_every_batch_size(self):
    few = decode('vanilla', LABELS[:1], jax.random.key(9))
    many = decode('vanilla', LABELS, jax.random.key(9))
    assert_same(few, jax.tree.map(lambda x: x[:1], many))

  @parameterized.named_parameters(
      ('tree', jacobi(13, 'gumbel', tree=trees.kary(3, 3, 12))),
      ('draft_model', model(DRAFT.target, 3)),
  )
  def test_any_drafter_gives_the_tokens_of_vanilla(self, drafter):
    self._check_tokens_of_vanilla(drafter)

  @parameterized.named_parameters(
      ('window_of_one', jacobi(1, 'gumbel')),
      ('chain', jacobi(4, 'gumbel')),
      ('whole_image', jacobi(6, 'gumbel')),
      ('maximal_coupling', jacobi(4, 'maximal')),
  )
  @pytest.mark.slow
  def test_any_window_gives_the_tokens_of_vanilla(self, drafter):
    self._check_tokens_of_vanilla(drafter)

  def _check_tokens_of_vanilla(self, drafter):
    vanilla = decode('vanilla')
    decoded = decode(make_decoder(MODEL.target, drafter, match()))
    np.testing.assert_array_equal(decoded.tokens, vanilla.tokens)
    self.assertLessEqual(int(decoded.rounds.sum()), int(vanilla.rounds.sum()))

  @parameterized.parameters(*KINDS)
  @pytest.mark.slow
  def test_greedy_is_the_same_for_every_window(self, fresh):
    # At temperature 0 all distributions are one-hot: every decoder gives the most probable path.
    greedy = SamplingParams(guidance_scale=1.5, temperature=0.0)
    vanilla = decode('vanilla', sampling=greedy)
    decoder = make_decoder(MODEL.target, jacobi(4, 'maximal', initialization=fresh), rejection())
    np.testing.assert_array_equal(decode(decoder, sampling=greedy).tokens, vanilla.tokens)

  def test_forced_tokens(self):
    self._check_forced('sjd_pac')

  @parameterized.parameters(*(name for name in DECODERS if name != 'sjd_pac'))
  @pytest.mark.slow
  def test_forced_tokens_of_the_others(self, name):
    self._check_forced(name)

  def _check_forced(self, name):
    forced = {2: 3, 5: 1}
    built = tabular(jax.random.key(0), 4, 6, guided=True, row_width=3, forced=forced)
    decoder = build(name, built.target)
    decoded = jax.jit(decoder)(
        built.params, jnp.zeros(64, int), jax.random.key(0), WARP, draft_params(name))
    for position, token in forced.items():
      np.testing.assert_array_equal(decoded.tokens[:, position], token)

  def test_forced_tokens_are_drafted(self):
    # Every second token is forced: a window commits it with its predecessor.
    built = tabular(jax.random.key(0), 4, 6, forced={1: 0, 3: 0, 5: 0})
    decoder = decoders.sjd(built.target, window=2)
    decoded = jax.jit(decoder)(built.params, jnp.zeros(64, int), jax.random.key(0))
    self.assertLessEqual(int(decoded.rounds.max()), 4)

  def test_window_over_the_end(self):
    # A draft equal to the target is always accepted, far past the last token.
    parts = model(MODEL.target, 5)
    decoder = make_decoder(MODEL.target, parts, rejection())
    decoded = jax.jit(decoder)(MODEL.params, LABELS, jax.random.key(0), WARP, MODEL.params)
    np.testing.assert_array_equal(decoded.rounds, 2)
    np.testing.assert_array_equal(decoded.accepted[:, 5], 1)

  def test_draft_model_without_null_condition(self):
    plain = tabular(jax.random.key(1), 4, 6, num_classes=3, row_width=3)
    decoder = decoders.speculative(MODEL.target, plain.target, 2)
    decoded = jax.eval_shape(decoder, MODEL.params, LABELS, jax.random.key(0), WARP, plain.params)
    chex.assert_shape(decoded.tokens, (5, 6))

  @pytest.mark.slow
  def test_steps_by_hand(self):
    decoder = build('sjd')
    state = decoder.start(MODEL.params, LABELS, row_keys(jax.random.key(7), 5), WARP)
    step = jax.jit(lambda state: decoder.round(MODEL.params, state, WARP))
    while (state.count < 6).any():
      state = step(state)
    assert_same(decoder.finish(state), decode('sjd'))


class ErrorsTest(parameterized.TestCase):

  @parameterized.parameters(
      (lambda: build('falcon'), "decoder is 'falcon'"),
      (lambda: specification.build('eagle', MODEL.target),
       'with an EAGLE network, which is missing'),
      (lambda: specification.build('speculative', MODEL.target),
       'a draft model, which is missing'),
      (lambda: build('sjd', window=0), 'window is 0'),
      (lambda: build('sjd', window=7), 'at most 5'),
      (lambda: jacobi(4, 'minimal'), "coupling is 'minimal'"),
      (lambda: jacobi(4, initialization='zero'), "initialization is 'zero'"),
      (lambda: jacobi(4, tree=trees.chain(2)), 'it must have 3 nodes'),
      (lambda: jacobi(4, tree=trees.Tree((-1, 0, 0, 2))), 'beyond the main chain'),
      (lambda: model(DRAFT.target, 0), 'length is 0'),
      (lambda: decoders.speculative(MODEL.target, tabular(jax.random.key(0), 3, 6).target),
       'vocab_size of the draft model is 3, of the target 4'),
      (lambda: decoders.speculative(MODEL.target, tabular(jax.random.key(0), 4, 5).target),
       'num_tokens of the draft model is 5'),
      (lambda: decode_eagerly(labels=jnp.asarray([0, 5])), 'supports 0 to 2'),
      (lambda: decode_eagerly(sampling=SamplingParams(top_p=0.0)), 'top_p is 0'),
      (lambda: decode_eagerly(key=jax.random.split(jax.random.key(0), 3)), r'key has shape \(3,\)'),
      (lambda: decoders.vanilla(tabular(jax.random.key(0), 4, 6).target).check(
          jnp.zeros(1, int), SamplingParams(guidance_scale=3.0)), 'no null condition'),
  )
  def test_message(self, run, message):
    with self.assertRaisesRegex(ValueError, message):
      run()


def decode_eagerly(labels=jnp.asarray([0, 1]), key=jax.random.key(0), sampling=WARP):
  return decoders.sjd(MODEL.target, 2)(MODEL.params, labels, key, sampling)
