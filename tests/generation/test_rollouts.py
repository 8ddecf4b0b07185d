"""Log-probabilities of generated images, and models whose parameters change between calls."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.metrics.likelihood import distributions
from tests.families import tiny
from tests.marks import representative

# The event of JAX after XLA has compiled a program, or loaded it from the cache on disk.
_COMPILED = '/jax/core/compile/backend_compile_duration'
PROMPTS = ['cat', 'rocket', 'flower']
OPTIONS = dict(seed=3, guidance_scale=2.0, temperature=0.9, top_k=200, raw_log_probs=True)


@pytest.fixture(scope='module')
def model():
  return cspd_jax.load('demo')


@contextlib.contextmanager
def counted():
  """Lists the programs that XLA compiles in this block."""
  events, is_open = [], True
  jax.monitoring.register_event_duration_secs_listener(
      lambda event, *_, **__: events.append(event) if is_open and event == _COMPILED else None)
  yield events
  is_open = False  # JAX has no function that removes one listener.


def taught(model, generated, **sampling):
  """Log-probabilities `[B, T]` of the images by one forward pass over their tokens."""
  tokens = jnp.asarray(generated.tokens)
  probs = jax.jit(lambda params: distributions(
      model.target(guided=True), params, model.condition(PROMPTS), tokens,
      SamplingParams(**sampling)))(
          model.params)
  return np.log(np.take_along_axis(np.asarray(probs), generated.tokens[..., None], -1)[..., 0])


def check(model, generated):
  first = generated.prefix_length
  wanted = taught(model, generated, guidance_scale=2.0, temperature=0.9, top_k=200)
  np.testing.assert_allclose(generated.log_probs[:, first:], wanted[:, first:], atol=2e-3)
  wanted = taught(model, generated, guidance_scale=2.0)
  np.testing.assert_allclose(generated.raw_log_probs[:, first:], wanted[:, first:], atol=2e-3)
  # Rounding apart, there is no bias.
  assert abs(np.mean(generated.raw_log_probs[:, first:] - wanted[:, first:])) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize('decoder,batch_size', representative(
    [('vanilla', None), ('mc_sjd(window=16)', None), ('mc_sjd(window=16)', 2), ('eagle', None),
     ('corrected(window=16)', None), ('medusa', None), ('model+block', None)],
    ('mc_sjd(window=16)', 2)))
def test_equal_a_forward_pass(model, decoder, batch_size):
  generated = model.generate(PROMPTS, decoder=decoder, batch_size=batch_size, **OPTIONS)
  check(model, generated)
  np.testing.assert_array_equal(generated[1].log_probs, generated.log_probs[1:2])


@pytest.mark.slow
def test_a_prefix_has_zeros(model):
  first = model.generate(PROMPTS, seed=1, decoder='mc_sjd(window=16)').tokens
  generated = model.generate(PROMPTS, prefix=first, rows=4, decoder='mc_sjd(window=16)', **OPTIONS)
  assert generated.prefix_length
  np.testing.assert_array_equal(generated.log_probs[:, :generated.prefix_length], 0)
  check(model, generated)


def test_parameters_of_another_step_do_not_compile_again(tmp_path):
  model, prompts = cspd_jax.load(str(tiny.saved(tmp_path / 'beach'))), ['sea', 'sky', 'sand']
  options, counts = dict(seed=3, decoder='mc_sjd(window=4)', batch_size=2), []
  for step in range(3):
    stepped = model.with_params(jax.tree.map(lambda leaf: (0.5 + step) * leaf,
                                             model.params))
    with counted() as compiled:
      images = stepped.generate(prompts, **options)
    counts.append(len(compiled))
  assert counts[0] > 0 and counts[1:] == [0, 0]
  again = model.generate(prompts, **options)
  assert np.any(again.tokens != images.tokens) and again.raw_log_probs is None


@pytest.mark.slow
def test_continuous_tokens_have_none():
  model = cspd_jax.load('mar_demo')
  generated = model.generate('cat', decoder='mar(num_iter=2)')
  assert generated.log_probs is None and generated.raw_log_probs is None
  with pytest.raises(ValueError, match='raw_log_probs is True; it must be'):
    model.generate(raw_log_probs=True)
