"""Log-probabilities of committed tokens: those of a forward pass over the complete images."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import accept, continuous_batching, tree as trees, warp
from cspd_jax.decoding.drafters.draft_model import model as draft_model
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.specification import DECODERS
from cspd_jax.decoding.verifiers.kseq import kseq
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.metrics import likelihood
from cspd_jax.metrics.likelihood import distributions
from cspd_jax.testing.tabular import tabular, tabular_drafter
from tests.builders import tables
from tests.marks import representative

PAIR = tables.pair(num_classes=3, row_width=3, forced={2: 1})
MODEL, DRAFT = PAIR.model, PAIR.draft
LABELS = jnp.arange(64) % 3
WARP = SamplingParams(guidance_scale=1.5, temperature=0.8, top_k=3, top_p=0.9, guidance_interval=2)
RELAXED = ('model+uniform(delta=1.5)', 'model+cool', 'jacobi(window=4)+cool_linear',
           'eagle+lantern(delta=0.3, k=2)', 'jacobi(window=4)+lantern_pp(lam=2, k=2)',
           'jacobi(window=4)+grouped(group=3)', 'medusa+typical')
TREE = 'caterpillar(2, 2, 5)'
SPECIFICATIONS = (*DECODERS, f'sjd_pac(window=6, tree={TREE})',
                  f'seed_exact(window=6, tree={TREE})',
                  f'corrected(window=6, tree={TREE})', 'model+block', 'eagle+match',
                  'eagle(draws=fixed)+rejection', *RELAXED)


def build(name):
  if name == 'kseq':
    drafter = tabular_drafter(DRAFT, trees.kary(2, 2, 6), 'iid')
    return make_decoder(MODEL.target, drafter, kseq())
  return PAIR.build(name, window=4, length=3)


def draft_params(name):
  return DRAFT.params if name == 'kseq' else PAIR.draft_params(name)


@functools.cache
def program(name):
  return jax.jit(dataclasses.replace(build(name), raw_log_probs=True))


def decode(name, sampling=WARP, params=MODEL.params):
  return program(name)(params, LABELS, jax.random.key(5), sampling, draft_params(name))


@functools.cache
def _forward():
  return jax.jit(functools.partial(distributions, MODEL.target))


def taught(tokens, sampling, params=MODEL.params):
  """Log-probabilities `[B, T]` by one forward pass over the complete images."""
  probs = _forward()(params, LABELS, tokens, sampling)
  with np.errstate(divide='ignore'):  # Tokens that the cuts exclude.
    return np.log(np.take_along_axis(np.asarray(probs), np.asarray(tokens)[..., None], -1)[..., 0])


def raw(sampling):
  return SamplingParams(sampling.guidance_scale, guidance_interval=sampling.guidance_interval)


def check(decoded, sampling=WARP, params=MODEL.params):
  np.testing.assert_allclose(decoded.log_probs, taught(decoded.tokens, sampling, params), atol=1e-5)
  np.testing.assert_allclose(
      decoded.raw_log_probs, taught(decoded.tokens, raw(sampling), params), atol=1e-5)
  np.testing.assert_array_equal(decoded.log_probs[:, 2], 0)  # The grammar forces this token.
  assert decoded.log_probs.dtype == decoded.raw_log_probs.dtype == np.float32


@pytest.mark.parametrize('name', representative(
    ('kseq', *SPECIFICATIONS), f'sjd_pac(window=6, tree={TREE})'))
def test_equal_a_forward_pass(name):
  decoded = decode(name)
  check(decoded)
  if name not in RELAXED:
    assert np.isfinite(decoded.log_probs).all()


@pytest.mark.parametrize('temperature', [0.0, 3.0])
def test_temperatures(temperature):
  sampling = WARP._replace(temperature=temperature)
  decoded = decode('sjd', sampling)
  check(decoded, sampling)
  if not temperature:
    np.testing.assert_array_equal(decoded.log_probs, 0)
    assert decoded.raw_log_probs.min() < -0.5


def test_tokens_that_only_the_temperature_makes_possible_have_finite_raw_values():
  params = 100 * MODEL.params
  sampling = SamplingParams(temperature=200.0)
  decoded = decode('sjd', sampling, params)
  assert np.isfinite(decoded.raw_log_probs).all() and decoded.raw_log_probs.min() < -110
  np.testing.assert_allclose(decoded.log_probs, taught(decoded.tokens, sampling, params), atol=1e-4)


@pytest.mark.slow
def test_tokens_that_cuts_exclude():
  """A relaxed decoder commits them; the target's probability of these tokens is 0."""
  decoded = decode('jacobi(window=4)+lantern(delta=0.9, k=3)', WARP._replace(top_k=2))
  excluded = np.isneginf(decoded.log_probs)
  assert excluded.any() and np.isfinite(decoded.raw_log_probs[excluded]).all()
  check(decoded, WARP._replace(top_k=2))


@pytest.mark.slow
def test_greedy_verifier():
  """It decides by distributions at temperature 1; these values are still those of temperature 0."""
  sampling = SamplingParams(guidance_scale=1.5, temperature=0.0)
  decoded = decode('jacobi(window=4)+lantern(delta=0.9, k=3, greedy=True)', sampling)
  assert set(np.unique(decoded.log_probs)) == {-np.inf, 0}
  check(decoded, sampling)


@pytest.mark.slow
def test_are_not_those_of_the_drafts():
  """The test tells the target's probabilities from others: here those of the round's root."""
  pick = warp.log_probs
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(warp, 'log_probs', lambda probs, nodes, tokens: pick(
        probs, jnp.zeros_like(nodes), tokens))
    decoded = program.__wrapped__('sjd')(
        MODEL.params, LABELS, jax.random.key(5), WARP, DRAFT.params)
  with pytest.raises(AssertionError, match='Not equal to tolerance'):
    check(decoded)


def test_raw_values_are_off_by_default():
  decoder = build('sjd')
  assert jax.eval_shape(decoder, MODEL.params, LABELS, jax.random.key(0)).raw_log_probs is None
  text = str(jax.make_jaxpr(decoder)(MODEL.params, LABELS, jax.random.key(0)))
  with_raw = dataclasses.replace(decoder, raw_log_probs=True)
  assert len(text) < len(str(jax.make_jaxpr(with_raw)(MODEL.params, LABELS, jax.random.key(0))))


@pytest.mark.slow
def test_float64():
  with jax.enable_x64(True):
    built = tabular(jax.random.key(0), 3, 4, dtype=jnp.float64)
    decoder = make_decoder(built.target, draft_model(built.target, 2), rejection())
    labels = jnp.zeros(8, jnp.int32)
    decoded = jax.jit(decoder)(built.params, labels, jax.random.key(1), SamplingParams(),
                               built.params)
    probs = distributions(built.target, built.params, labels, decoded.tokens, SamplingParams())
    want = np.log(np.take_along_axis(np.asarray(probs), np.asarray(decoded.tokens)[..., None], -1))
    np.testing.assert_allclose(decoded.log_probs, want[..., 0], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['sjd', 'eagle'])
def test_refilled_rows(name):
  decoder = dataclasses.replace(build(name), raw_log_probs=True)
  keys = jax.random.split(jax.random.key(5), len(LABELS))
  images = lambda numbers: (LABELS[numbers], keys[numbers], jax.tree.map(jnp.float32, WARP))
  groups = list(continuous_batching.run(
      continuous_batching.jitted(decoder, 8), MODEL.params, len(LABELS), images,
      draft_params(name)))
  order = np.argsort(np.concatenate([group.image for group in groups]))
  check(jax.tree.map(lambda *parts: np.concatenate(parts)[order],
                     *(group.decoded for group in groups)))


@pytest.mark.slow
def test_differentiable_pass_over_images():
  """Equals the decoder's values; its gradient is that of `distributions`."""
  decoded = decode('sjd', SamplingParams(1.5, 0.8))
  sampling = SamplingParams(1.5, 0.8, top_k=None, top_p=None)
  total = lambda function: jax.jit(jax.value_and_grad(lambda params: jnp.sum(function(
      MODEL.target, params, LABELS, decoded.tokens, sampling))))
  value, gradient = total(likelihood.log_probs)(MODEL.params)
  np.testing.assert_allclose(value, decoded.log_probs.sum(), rtol=1e-5)
  pick = lambda *arguments: jnp.log(accept.take(distributions(*arguments), decoded.tokens))
  _, other = total(pick)(MODEL.params)
  np.testing.assert_allclose(gradient, other, atol=1e-5)
  assert np.abs(gradient).max() > 0.1
  cut = jax.jit(functools.partial(likelihood.log_probs, MODEL.target))(
      MODEL.params, LABELS, decoded.tokens, WARP)
  np.testing.assert_allclose(cut, taught(decoded.tokens, WARP), atol=1e-5)
