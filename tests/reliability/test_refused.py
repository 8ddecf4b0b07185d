"""Arguments that cannot be, and the words they are refused with; under `jit` where it matters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding import decoders, tree as trees
from cspd_jax.decoding.base import Verdict, Verifier
from cspd_jax.decoding.drafters.eagle import eagle
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.drafters.medusa import medusa
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.testing.tabular import heads, network, tabular
from tests.serve import tiny

MODEL = tabular(jax.random.key(0), 4, 6, guided=True, num_classes=3)
KEY = jax.random.key(0)
LABELS = np.asarray([0, 1])


def traced(labels=LABELS, key=KEY, sampling=SamplingParams(), make=decoders.vanilla,
           params=MODEL.params):
  """Everything but Python numbers is traced; nothing is compiled."""
  decoder = make(MODEL.target)
  return lambda: jax.eval_shape(decoder, params, labels, key, sampling)


DECODES = [
    # Options.
    (dict(sampling=SamplingParams(temperature=np.ones(3))),
     r'temperature has shape \(3,\).* shape \(2,\)'),
    (dict(sampling=SamplingParams(top_k=np.ones((2, 1), int))), r'top_k has shape \(2, 1\)'),
    (dict(sampling=SamplingParams(top_p=np.asarray([True, False]))),
     'top_p is .* must be a number'),
    (dict(sampling=SamplingParams(guidance_scale=np.ones(2, complex))),
     'guidance_scale is .* must be a number'),
    (dict(sampling={'temperature': 1.0}), 'sampling is .* it must be a cspd_jax.SamplingParams'),
    # Keys.
    (dict(key=np.zeros(2, np.float32)), r'key is float32\[2\]; it must be a random key'),
    (dict(key=jax.random.split(KEY, 3)), r'key has shape \(3,\)'),
    # Conditions.
    (dict(labels=[0, 1]), r'condition has leaves .* convert lists to arrays'),
    (dict(labels=np.zeros(0, int)), 'at least 1 row'),
    (dict(labels=np.zeros((2, 1), int)), r'shape \(2, 1\).* one integer class label per image'),
    (dict(labels=np.zeros(2, np.float32)), 'dtype float32; this model requires one i'),
    (dict(labels=(np.zeros(2, int), np.zeros(3, int))), 'one leading axis'),
    # What drafts has no parameters.
    (dict(make=lambda t: decoders.speculative(t, t, 2)), 'draft_params is None'),
    (dict(make=lambda t: decoders.eagle2(t, network(t), 2, 2, 2)), 'draft_params is None'),
    (dict(make=lambda t: decoders.medusa(t, heads(t, 2))), 'draft_params is None'),
]


@pytest.mark.parametrize('arguments,message', DECODES)
def test_decodes(arguments, message):
  with pytest.raises(ValueError, match=message):
    traced(**arguments)()


@pytest.mark.parametrize('sampling,message', [
    (SamplingParams(temperature='1'), "temperature is '1'"), (SamplingParams(temperature=None),
                                                              'temperature is None'),
    (SamplingParams(top_k=True), 'top_k is True'), (SamplingParams(guidance_scale=[[1.0], 2.0]),
                                                    'guidance_scale is')])
def test_options_that_cannot_be_traced(sampling, message):
  with pytest.raises(ValueError, match=message):
    decoders.vanilla(MODEL.target).check(LABELS, sampling)


def _needy(drafter):
  """A verifier of one's own that reads the drafts' distributions."""
  def verify(rng, layout, tokens, probs, target_probs, positions):
    return Verdict(jnp.int32(0), rng.draw(jnp.maximum(target_probs[:1], probs[:1]))[0])

  return make_decoder(MODEL.target, drafter, Verifier(verify, exact=False, needs_probs=True))


def _careless(target):
  """A verifier that neither asks for distributions nor gives samples."""
  def verify(rng, layout, tokens, probs, target_probs, positions):
    return Verdict(jnp.int32(0), rng.draw(target_probs[:1])[0])

  return make_decoder(
      target, jacobi(3, 'maximal'), Verifier(verify, exact=True, needs_probs=False))


def _generated(**options):
  return tiny.model().generate(['cat'], **{'decoder': 'mc_sjd(window=2)', **options})


@pytest.mark.parametrize('build,message', [
    (lambda: decoders.speculative(MODEL.target, MODEL.target, 999),
     'tree of drafts has depth 999, but an image has 6 tokens; .* of depth at most 5'),
    (lambda: decoders.eagle(MODEL.target, network(MODEL.target), trees.chain(6)), 'has depth 6'),
    (lambda: decoders.speculative(MODEL.target, MODEL.target, '3'), "length is '3'"),
    (lambda: decoders.mc_sjd(MODEL.target, 4.0), 'window is 4.0; it must be a whole number'),
    (lambda: _needy(eagle(network(MODEL.target), trees.chain(2), 'fixed')),
     "draws is 'fixed', so it records none"),
    (lambda: _needy(medusa(heads(MODEL.target, 2), trees.chain(2), 'fixed')), 'records none'),
    (traced(make=_careless), "coupling is 'maximal'.*set needs_probs"),
    (lambda: _generated(guidance_scale=10**400), 'guidance_scale is inf; it must be finite'),
    (lambda: _generated(temperature=[-10**400]), 'temperature is .*inf.*; it must be from 0'),
    (lambda: _generated(top_k=10**400), 'top_k is 1000.*; it must be below 2147483648'),
    (lambda: _generated(top_p=2**64), 'top_p is .*; it must be above 0 and at most 1'),
    (lambda: _generated(batch_size=True), 'batch_size is True; it must be a whole number'),
    (lambda: _generated(decoder=cspd_jax.mc_sjd(MODEL.target, 4)),
     r'decoder is Decoder\(.*; it must be a string .*decoder\(model.params, model.condition'),
    (lambda: _generated(decoder=cspd_jax.Decoder), 'decoder is <class .* call one that you have'),
    (lambda: _generated(decoder=cspd_jax.mc_sjd), 'decoder is <function .*: pass the name of a'),
    (lambda: _generated(key=3), 'key is neither .*; did you mean seed?'),
    (lambda: cspd_jax.load('demo', dtype='int8'), "dtype is 'int8'; it must be a floating"),
    (lambda: cspd_jax.load('demo', dtype='float17'), "dtype is 'float17'"),
])
def test_parts_that_do_not_fit(build, message):
  with pytest.raises(ValueError, match=message):
    build()


def test_fixed_drafts_of_rules():
  make_decoder(MODEL.target, eagle(network(MODEL.target), trees.chain(2), 'fixed'), rejection())
