"""Decoders under the modes of JAX; `windows` in larger programs, in bfloat16, in other batches.

Tokens are compared within rounding errors. A rounding error may rarely change whether a state is
kept, after which the row has other tokens of the same distribution; so in tests whose computations
are compiled differently, `SAME` of the rows must be equal. If a row depended on anything else,
hardly any would be.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.continuous import cspd, decoders, schedule as schedule_lib
from cspd_jax.core import contracts
from cspd_jax.core.random import row_keys
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.models import mar, nextstep
from cspd_jax.models.conditions import Prompt
from cspd_jax.testing.proofs import analytic
from tests.marks import representative

ROWS, SIZE, SAME = 64, 6, 0.96
MODELS = {
    'masked': analytic.gaussian_chain(SIZE, 0.8, schedule=schedule_lib.make(5), means=(0.0, 1.0)),
    'causal': analytic.causal_chain(SIZE, 2, schedule=schedule_lib.flow(5), means=(0.0, 1.0),
                                    null=0.5)}
LABELS = np.arange(ROWS, dtype=np.int32) % 2
SAMPLING = SamplingParams(np.float32(1.0), np.float32(0.9))
MODES = {
    'x64': lambda: jax.enable_x64(True), 'nans': lambda: jax.debug_nans(True),
    'strict': lambda: jax.numpy_dtype_promotion('strict'),
    'rank': lambda: jax.numpy_rank_promotion('raise')}
# The other continuous decoders, which share the loop.
OTHERS = {
    'mar': lambda model: decoders.mar(model.target, None, model.schedule),
    'exact_head': lambda model: decoders.exact_head(model.target, 2, None, model.schedule)}
DRAFTING = {name: functools.partial(
    lambda make, model: make(model.target, model.target, 2, model.schedule), make)
    for name, make in (('exact_path', decoders.exact_path), ('cspd_released', cspd.cspd_released),
                       ('cspd_relaxed', cspd.cspd_relaxed))}


def build(name, window=3):
  model = MODELS[name]
  return decoders.windows(model.target, window, None, model.schedule, kernels_per_call=2)


def keys(num=ROWS):
  return jax.random.split(jax.random.key(7), num)


@functools.cache
def whole(name):
  decoder = jax.jit(build(name))
  return jax.device_get(decoder(MODELS[name].params, LABELS, keys(), SAMPLING))


def equal_rows(first, second, rows=slice(None)):
  """The share of rows with the same tokens within rounding, and the same rounds."""
  close = np.isclose(first.tokens, second.tokens[rows], atol=1e-3).all(axis=(1, 2))
  return np.mean(close & (np.asarray(first.rounds) == second.rounds[rows]))


@pytest.mark.slow
@pytest.mark.parametrize('mode,name', representative(
    [(mode, name) for mode in MODES for name in MODELS], ('x64', 'causal'), ('x64', 'masked'),
    ('strict', 'causal'), ('rank', 'masked')))
def test_tokens_are_those_without_a_mode(mode, name):
  expected = whole(name)
  with MODES[mode]():
    decoded = jax.device_get(jax.jit(build(name))(
        MODELS[name].params, LABELS, keys(), SAMPLING))
  assert equal_rows(decoded, expected) >= SAME
  assert decoded.tokens.dtype == np.float32 and decoded.rounds.dtype == np.int32


@pytest.mark.slow
@pytest.mark.parametrize('name,decoder,mode', representative(
    [(name, decoder, mode) for mode in MODES for name, table in (
        ('causal', OTHERS), ('masked', OTHERS | DRAFTING)) for decoder in table
     if mode != 'nans' or not decoder.startswith('cspd')],  # Their bound is NaN: there is none.
    ('masked', 'exact_path', 'strict'), ('masked', 'cspd_released', 'rank')))
def test_other_decoders_under_modes(name, decoder, mode):
  model = MODELS[name]
  run = lambda: jax.device_get(jax.jit((OTHERS | DRAFTING)[decoder](model))(
      model.params, LABELS, keys(), SAMPLING, model.params))
  expected = run()
  with MODES[mode]():
    decoded = run()
  assert equal_rows(decoded, expected) >= SAME and decoded.tokens.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(MODELS, 'causal'))
def test_a_decode_within_a_program_of_the_user(name):
  decoder, model = build(name), MODELS[name]

  @jax.jit
  def loop(params, labels, keys):
    return jax.lax.map(lambda keys: decoder(params, labels, keys, SAMPLING), keys.reshape(1, -1))

  decoded = jax.device_get(loop(model.params, LABELS, keys()))
  assert equal_rows(jax.tree.map(lambda leaf: leaf[0], decoded), whole(name)) >= SAME


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(MODELS, 'masked'))
def test_rows_do_not_depend_on_the_batch(name):
  """Batches of another size and order: nearly all rows are the same within rounding."""
  model, decoder, expected = MODELS[name], jax.jit(build(name)), whole(name)
  shuffled = np.random.default_rng(0).permutation(ROWS)
  parts = [decoder(model.params, LABELS[rows], keys()[rows], SAMPLING)
           for rows in np.split(shuffled, 4)]
  together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *jax.device_get(parts))
  assert equal_rows(together, expected, shuffled) >= SAME
  # Other keys for the same rows: no row is the same.
  assert equal_rows(together, expected, np.roll(shuffled, 2)) == 0


@pytest.mark.slow
@pytest.mark.parametrize('window', representative([2, SIZE], SIZE))
def test_no_pass_writes_past_the_last_slot(window, monkeypatch):
  """The causal model of the tests returns NaN then; here also the numbers of all slots."""
  slots, ends, score = [], [], contracts.cached_score

  def recording(target, params, cache, tokens, start):
    slots.append(cache[0].shape[1])
    jax.debug.callback(lambda start: ends.append(start.max() + tokens.shape[1]), start)
    return score(target, params, cache, tokens, start)

  monkeypatch.setattr(contracts, 'cached_score', recording)
  decoded = jax.jit(build('causal', window))(MODELS['causal'].params, LABELS, keys(), SAMPLING)
  assert np.isfinite(decoded.tokens).all()
  jax.effects_barrier()
  # Complete rows wait for the others: their passes begin at the last token.
  assert max(ends) == SIZE - 1 + window <= slots[0] == SIZE + window


SMALL_CAUSAL = nextstep.NextStepConfig(
    height=2, width=3, vocab_size=9, latent_channels=4, patch_size=1, dim=16, num_layers=1,
    num_heads=2, num_kv_heads=1, ffn_dim=24, head_width=16, head_layers=1, num_levels=4,
    last_step=None)
SMALL_MASKED = mar.MARConfig(
    height=2, width=3, dim=16, num_layers=1, num_heads=2, head_width=16, head_layers=1,
    num_classes=2, buffer_size=2)


def network(name, dtype=jnp.float32):
  """A small network with random parameters, and a condition of four rows."""
  module, config = (mar, SMALL_MASKED) if name == 'masked' else (nextstep, SMALL_CAUSAL)
  params = jax.tree.map(
      lambda leaf: (leaf + 0.2 * jax.random.normal(jax.random.key(1), leaf.shape)).astype(dtype),
      module.init(config, jax.random.key(0)))
  ids = np.random.default_rng(0).integers(9, size=(4, 1, 4))
  condition = np.arange(4) % 2 if name == 'masked' else Prompt(ids, np.ones(ids.shape, bool))
  return module.target(config, guided=False), params, condition


@pytest.mark.slow
@pytest.mark.parametrize('name', representative(MODELS, 'causal'))
def test_models_in_bfloat16(name):
  """Chains are float32 whatever the dtype of the model, and tokens close to those of float32."""
  target, params, condition = network(name, jnp.bfloat16)
  decoder = decoders.windows(target, 4, None, 4, kernels_per_call=2)
  state = jax.jit(decoder.start)(params, condition, row_keys(jax.random.key(2), 4))
  dtypes = {leaf.dtype for leaf in jax.tree.leaves(state.memory.chains)}
  assert dtypes == {np.dtype('float32'), np.dtype('bool')}
  decode = jax.jit(decoder)
  half = decode(params, condition, jax.random.key(2))
  assert half.tokens.dtype == jnp.float32 and np.isfinite(half.tokens).all()
  # Parameters of few bits, read in float32.
  wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
  full = decode(wide, condition, jax.random.key(2))
  distance = np.abs(np.asarray(half.tokens) - full.tokens).mean()
  assert distance < 0.5 * np.asarray(full.tokens).std()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['mar_demo', 'emoji_continuous'])
def test_streams_are_whole_images(name):
  if name == 'emoji_continuous':
    pytest.importorskip('tokenizers')
  model = cspd_jax.load(name)
  options = dict(seed=[3, 4, 5], decoder='windows(window=8, schedule=6)')
  expected = model.generate(model.prompts[:3], **options)
  *parts, last = model.stream(model.prompts[:3], every=4, **options)
  assert len(parts) >= 2 and last.complete
  assert np.mean(np.isclose(last.decoded.tokens, expected.decoded.tokens, atol=1e-2)) > 0.6
