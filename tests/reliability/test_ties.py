"""Temperature 0 with tied logits: what is recorded is what was drawn from; bounds hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import specification, tree as trees
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.lantern import lantern_pp
from cspd_jax.testing import tabular as tables
from cspd_jax.testing.enumerate import enumerate_rounds
from cspd_jax.testing.proofs.mutants import MUTANTS
from tests.marks import representative

pytestmark = pytest.mark.usefixtures('float64')

GREEDY = SamplingParams(guidance_scale=2.0, temperature=0.0)
TREE = 'tree=branching("2 0:1")'
CODEBOOK = np.array([[0.0], [1.0], [1.5]])

# specification: vocabulary, rounds.
EXACT = {
    'vanilla': (3, 3),
    'vanilla(window=3)': (3, 3),
    f'eagle({TREE})': (3, 1),
    f'eagle({TREE}, draws=iid)': (3, 1),
    f'eagle({TREE}, draws=iid)+kseq': (3, 1),
    'eagle(tree=chain(2))': (2, 2),
    'eagle(tree=chain(2))+block': (3, 1),
    f'eagle({TREE}, draws=fixed)': (3, 1),
    'eagle2(num_nodes=5, width=2, depth=3)+rejection': (3, 1),
    f'medusa({TREE})': (3, 1),
    f'medusa({TREE}, draws=iid)+kseq': (3, 1),
    'speculative(length=2)': (3, 1),
    'sjd(window=3)': (2, 2),
    'mc_sjd(window=2)': (3, 2),
    'sjd_pac(window=3, tree=caterpillar(2, 1))': (3, 2),
    'corrected(window=3, iterations=1)': (2, 2),
    'corrected(window=3, iterations=2, corrector=neighbours)': (2, 1),
}
RELAXED = {
    f'eagle({TREE})+uniform(delta=2.0)': (3, 1),
    f'eagle({TREE}, draws=iid)+cool(delta=1.5, clamp=False)': (3, 1),
    f'medusa({TREE})+lantern(delta=0.4, k=2)': (3, 1),
    f'eagle({TREE})+lantern_pp(lam=3, k=2)': (3, 1),
    f'eagle({TREE})+grouped(group=3, p_threshold=0.9)': (3, 1),
    f'eagle({TREE})+typical(delta=1.0, epsilon=0.4)': (3, 1),
    f'eagle({TREE})+lantern_pp(lam=3, k=2, greedy=True)': (3, 1),
}


def outcome(spec, vocab_size, rounds):
  """Total variation after some rounds, and the mean bound on it."""
  model = tables.tabular(
      jax.random.key(6), vocab_size, 4, guided=True, spread=0.5, tied=True, dtype=jnp.float64)
  other = jax.random.normal(jax.random.key(1), model.params.shape, jnp.float64)
  drafts = tables.drafts(model.target, model.target)
  params = jnp.stack([other] * 2) if specification.needs(spec) == 'medusa' else other
  decoder = specification.build(
      spec, model.target, drafts, CODEBOOK[:vocab_size])
  result = enumerate_rounds(decoder, model, GREEDY, rounds=rounds, draft_params=params)
  target = model.distribution(GREEDY)
  np.testing.assert_allclose(result.distribution.sum(), 1, atol=1e-12)
  assert (target > 0).sum() > 1  # There are ties.
  return 0.5 * np.abs(result.distribution - target).sum(), result.tv_bound


@pytest.mark.parametrize('spec', representative(
    EXACT, f'eagle({TREE}, draws=iid)+kseq'))
def test_exact_decoders(spec):
  assert outcome(spec, *EXACT[spec])[0] < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize('spec', representative(
    RELAXED, f'eagle({TREE})+uniform(delta=2.0)'))
def test_bounds_of_relaxed_decoders(spec):
  distance, bound = outcome(spec, *RELAXED[spec])
  assert distance <= bound + 1e-12


@pytest.mark.slow
def test_recording_a_softmax_is_seen():
  with MUTANTS['softmax recorded for tokens taken without chance'].patch():
    assert outcome(f'eagle({TREE})', 3, 1)[0] > 1e-2


@pytest.mark.slow
def test_greedy_relaxation_keeps_ties():
  """Nothing is accepted: the last token is drawn from all of the most probable ones."""
  model = tables.tabular(jax.random.key(0), 3, 4, guided=True, tied=True, dtype=jnp.float64)
  params = jnp.zeros_like(model.params).at[..., 2].set(-9.0)
  drafter = eagle(tables.network(model.target), trees.chain(1))
  # The network's best is always token 2, which the target never takes.
  decoder = make_decoder(
      model.target, drafter, lantern_pp(np.array([[1], [0], [1]]), 1.0, greedy=True))
  decode = jax.jit(decoder)
  out = decode(params, jnp.zeros(2000, int), jax.random.key(0), GREEDY, -params)
  np.testing.assert_allclose(np.asarray(out.tokens).mean(), 0.5, atol=0.03)
  np.testing.assert_array_equal(out.tv_bound, 0)
