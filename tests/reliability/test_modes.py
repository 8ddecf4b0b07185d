"""Decoders under the modes of JAX: the tokens are those without."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import cli, families
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import specification
from cspd_jax.models import conditions, early_fusion
from cspd_jax.testing import tabular as tables
from tests.builders import models
from tests.marks import representative

MODES = {
    'x64': lambda: jax.enable_x64(True),
    'strict': lambda: jax.numpy_dtype_promotion('strict'),
    'rank': lambda: jax.numpy_rank_promotion('raise'),
    'nans': lambda: jax.debug_nans(True),
    'all': lambda: _all(),
}
DECODERS = (
    'vanilla', 'vanilla(window=4)', 'jacobi(window=4)', 'sjd(window=4)', 'sjd_pp(window=4)',
    'sjd_pac(window=7, tree=caterpillar(2, 2))',
    'seed_exact(window=7, tree=caterpillar(2, 2))',
    'jacobi(window=4, initialization=resample-above)',
    'speculative(length=2)', 'eagle(tree=kary(2, 3))', 'eagle(tree=kary(2, 3), draws=iid)+kseq',
    'eagle(tree=chain(2))+block', 'eagle2(num_nodes=5, width=2, depth=3)', 'medusa(length=2)',
    'corrected(window=7, tree=caterpillar(2, 2))', 'corrected(window=4, corrector=neighbours)',
    *(f'jacobi(coupling=maximal, window=4)+{verifier}' for verifier in (
        'cool', 'typical', 'lantern(k=1)', 'grouped(group=2, d_threshold=1.0)')))
QUICK = 'sjd(window=4)'
WARP = SamplingParams(*map(np.asarray, (np.float32(1.5), np.float32([0.9, 0.7, 0.0]), np.int32(3),
                              np.float32(0.9), np.int32(2))))
MODEL = tables.tabular(
    jax.random.key(0), 4, 6, guided=True, num_classes=2, row_width=3, forced={2: 1})
DRAFT = tables.tabular(jax.random.key(1), 4, 6, guided=True, num_classes=2, row_width=3)
CODEBOOK = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


@contextlib.contextmanager
def _all():
  with MODES['x64'](), MODES['strict'](), MODES['rank'](), MODES['nans']():
    yield


def decoded(spec, params=MODEL.params, draft_params=DRAFT.params):
  decoder = specification.build(
      spec, MODEL.target, tables.drafts(MODEL.target, DRAFT.target), CODEBOOK)
  if specification.needs(spec) == 'medusa':
    draft_params = np.stack([draft_params] * 2)
  return jax.device_get(jax.jit(decoder)(
      params, np.asarray([0, 1, 1], np.int32), jax.random.key(3), WARP, draft_params))


USUAL = {}


def usual(spec):
  if spec not in USUAL:
    USUAL[spec] = decoded(spec)
  return USUAL[spec]


@pytest.mark.parametrize('mode,spec', representative(
    [(mode, spec) for mode in MODES for spec in DECODERS], ('all', QUICK)))
def test_tokens_are_those_without(mode, spec):
  expected = usual(spec)
  with MODES[mode]():
    result = decoded(spec)
  np.testing.assert_array_equal(result.tokens, expected.tokens)
  np.testing.assert_array_equal(result.rounds, expected.rounds)
  assert result.valid.all() and result.tokens.dtype == np.int32
  assert result.tv_bound.dtype == np.float32


@pytest.mark.slow
def test_a_model_with_a_cache_and_a_grammar(tmp_path):
  config = early_fusion.EarlyFusionConfig(
      height=2, width=3, vocab_size=13, num_codes=8, row_end=12, dim=8, num_layers=1, num_heads=2,
      ffn_dim=8)
  models.save(tmp_path, 'target', 'early_fusion', config)
  families.save(tmp_path, 'early_fusion', {'target': 'target'})
  prompt = conditions.Prompt(np.int32([[[1, 2], [0, 3]]]), np.array([[[True] * 2, [False, True]]]))

  def tokens():
    model = cspd_jax.load(tmp_path)
    decode = jax.jit(model.decoder('mc_sjd(window=4)'))
    return np.asarray(decode(model.params, prompt, jax.random.key(0), model.sampling()).tokens)

  expected = tokens()
  with MODES['all']():
    np.testing.assert_array_equal(tokens(), expected)


def test_a_command_has_no_code_of_a_caller():
  @cli.command()
  def main():
    assert (jnp.arange(3) * jnp.float32(2) + jnp.ones((1, 3))).sum() == 9

  with MODES['strict'](), MODES['rank']():
    assert not main(['main'])


@pytest.mark.slow
@pytest.mark.parametrize('spec', DECODERS)
def test_float16(spec):
  """Logits of few bits are read in float32, where they are exact."""
  half = [np.asarray(params, np.float16) for params in (MODEL.params, DRAFT.params)]
  result, expected = (decoded(spec, *(params.astype(kind) for params in half))
                     for kind in (np.float16, np.float32))
  np.testing.assert_array_equal(result.tokens, expected.tokens)


@pytest.mark.slow
def test_other_random_bits():
  """Without `jax_threefry_partitionable` the numbers are others, and rows still have their own."""
  with jax.threefry_partitionable(False):
    result, expected = decoded('seed_exact(window=4)'), decoded('vanilla')
    np.testing.assert_array_equal(result.tokens, expected.tokens)
