"""`vanilla(window=N)`: the numbers of window decoders, bit for bit, in any dtype."""

import dataclasses
import functools
import itertools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.random import exponential, row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import accept, specification
from cspd_jax.decoding.row_random import RowRandom
from cspd_jax.decoding.tree import chain
from cspd_jax.models import llamagen
from cspd_jax.testing.tabular import drafts
from tests.builders import published
from tests.marks import representative

CONFIG = llamagen.LlamaGenConfig(
    height=4, width=5, vocab_size=64, num_classes=3, dim=64, num_layers=2, num_heads=4, ffn_dim=96)
TARGET = llamagen.target(CONFIG, guided=True)
SAMPLED = SamplingParams(np.float32(1.5), np.float32(0.9), None, None)
CUT = SamplingParams(np.float32(1.5), np.float32(0.9), np.int32(20), np.float32(0.9))
# Decoders, with the tokens of their forward passes.
CHAINS = {
    'seed_exact(window=4)': 4, 'seed_exact(window=8)': 8, 'jacobi(window=7)+match': 7,
    'seed_exact(window=20)': 20,
    'corrected_seed_exact(window=5, corrector=model)': 5, 'model(length=3)+match': 4}
TREES = {
    'seed_exact(window=7, tree=caterpillar(3, 1))': 7, 'seed_exact(window=9, tree=kary(2, 3))': 9}


@functools.cache
def params(dtype):
  return published.random_params(functools.partial(llamagen.init, CONFIG), dtype=dtype)


def recorded(drafter):
  """The drafter, with the distribution of every committed token `[B, T', V]` in its state."""

  def init(env, condition, rng, outcome):
    rng, own = drafter.init(env, condition, rng, outcome)
    batch, extent = outcome.tokens.shape
    empty = jnp.zeros((batch, extent, CONFIG.vocab_size))
    return rng, (own, empty.at[:, 0].set(outcome.probs[:, 0]))

  def propose(env, state, rng, root, start):
    rng, own, draft = drafter.propose(env, state[0], rng, root, start)
    return rng, (own, state[1]), draft

  def update(env, state, rng, outcome):
    rng, own = drafter.update(env, state[0], rng, outcome)
    depth = jnp.arange(outcome.path.shape[1])
    place = jnp.where(depth <= outcome.accepted[:, None], outcome.root[:, None] + 1 + depth,
                      state[1].shape[1])
    put = lambda table, place, probs, path: table.at[place].set(probs[path], mode='drop')
    return rng, (own, jax.vmap(put)(state[1], place, outcome.probs, outcome.path))

  return drafter._replace(init=init, propose=propose, update=update)


def build(spec, target=TARGET):
  return specification.build(
      spec, target, drafts(target, target) if specification.needs(spec) else {})


@functools.cache
def decoded(spec, dtype, batch=3, cut=False):
  """Tokens `[B, T]`, the distributions that they were drawn from, and rounds."""
  decoder = build(spec)
  decoder = dataclasses.replace(decoder, drafter=recorded(decoder.drafter))
  sampling = CUT if cut else SAMPLED

  @jax.jit
  def run(params, labels):
    arguments = sampling, params
    state = decoder.start(params, labels, row_keys(jax.random.key(1), batch), *arguments)
    state = jax.lax.while_loop(
        lambda state: jnp.any(state.count < TARGET.num_tokens),
        lambda state: decoder.round(params, state, *arguments), state)
    out = decoder.finish(state)
    return out.tokens, state.drafter[1][:, :TARGET.num_tokens], out.rounds

  return jax.device_get(run(params(dtype), np.arange(batch) % CONFIG.num_classes))


CASES = [(spec, dtype, batch, cut) for spec in CHAINS
         for dtype in ('bfloat16', 'float16', 'float32') for batch in (1, 3, 8)
         for cut in (False, True)]


@pytest.mark.parametrize('spec,dtype,batch,cut', representative(
    CASES, ('seed_exact(window=20)', 'bfloat16', 3, False),
    ('corrected_seed_exact(window=5, corrector=model)', 'float32', 3, False)))
def test_chains_have_the_distributions_of_their_window_bit_for_bit(spec, dtype, batch, cut):
  result, want = decoded(spec, dtype, batch, cut), _vanilla(CHAINS[spec], dtype, batch, cut)
  assert result[2].max() < TARGET.num_tokens
  np.testing.assert_array_equal(result[0], want[0])
  np.testing.assert_array_equal(result[1], want[1])


def test_what_is_called_seed_exact_is_a_chain_whatever_its_window():
  assert all(build(spec).guarantee == 'seed-exact' for spec in CHAINS)
  assert all(build(spec).guarantee == 'seed-exact up to rounding' for spec in TREES)
  target, named = TARGET._replace(num_tokens=100), set()
  for name, window in itertools.product(specification.DECODERS, (2, 16, 24, 48, 64)):
    decoder = build(specification.complete(name, window=window, length=window - 1), target)
    if decoder.guarantee == 'seed-exact':
      named.add(name)
      assert decoder.drafter.tree == chain(window - 1 if name != 'vanilla' else 0)
  assert named == {'vanilla', 'seed_exact', 'corrected_seed_exact'}


@pytest.mark.slow
@pytest.mark.parametrize('spec', TREES)
@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
def test_trees_have_them_up_to_rounding(spec, dtype):
  """The key of an accepted side node lies elsewhere in its round: sums have another order."""
  result, want = decoded(spec, dtype, 8), _vanilla(TREES[spec], dtype, 8)
  np.testing.assert_allclose(result[1], want[1], atol=1e-6 if dtype == 'float32' else 1e-2)
  np.testing.assert_array_equal(result[0], want[0])


def test_a_value_in_a_later_slot_is_a_sum_in_another_order():
  """Why: CPUs add slot by slot, and nothing for hidden slots; GPUs add sums of groups of slots."""
  terms = np.random.default_rng(0).normal(size=(70, 256)).astype(np.float32)

  def total(slot, group):
    slots = np.zeros((96, 256), np.float32)
    slots[:69], slots[slot] = terms[:69], terms[69]
    return functools.reduce(np.add, slots.reshape(-1, group, 256).sum(axis=1))

  assert (total(69, 1) == total(82, 1)).all()
  assert 0.1 < (total(69, 16) != total(82, 16)).mean() < 0.9


def _vanilla(window, *case):
  result = decoded(f'vanilla(window={window})', *case)
  assert (result[2] == TARGET.num_tokens).all()
  return result


@pytest.mark.slow
def test_another_window_would_be_seen():
  apart = decoded('vanilla', 'bfloat16', 8)[1] != decoded('vanilla(window=20)', 'bfloat16', 8)[1]
  assert apart.mean() > 0.01


def _noise_of_the_round(self, positions, vocab_size):
  return exponential(self._next(), (len(positions), vocab_size))


# What is patched in a seed-exact decoder, and with what.
MUTANTS = {
    'noise of the round': lambda: mock.patch.object(
        RowRandom, '_position_noise', _noise_of_the_round),
    'noise of the next position': lambda: mock.patch.object(
        RowRandom, '_position_noise', lambda self, positions, vocab_size: NOISE(
            self, positions + 1, vocab_size)),
    'a draft too many': lambda: mock.patch.object(
        accept, 'last_accepted', lambda accepted, tree: jnp.minimum(
            LAST_ACCEPTED(accepted, tree) + 1, tree.num_nodes))}
NOISE, LAST_ACCEPTED = RowRandom._position_noise, accept.last_accepted


@pytest.mark.slow
@pytest.mark.parametrize('mutant', MUTANTS)
def test_mistakes_would_be_seen(mutant):
  want = _vanilla(4, 'bfloat16', 3, False)
  with MUTANTS[mutant]():
    result = decoded.__wrapped__('seed_exact(window=4)', 'bfloat16', 3, False)
  assert np.any(result[0] != want[0])
