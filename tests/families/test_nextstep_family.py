"""NextStep-1: schedules and prompts of its releases, pixels, decoders of continuous tokens."""

import dataclasses

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.models import kl_vae, nextstep
from cspd_jax.text import bpe, templates
from tests.builders import folders, sizes, texts

pytest.importorskip('tokenizers')  # It reads words.

VAE = sizes.NEXTSTEP_VAE


@pytest.fixture
def folder():
  return folders.model('nextstep')


@pytest.mark.slow
@pytest.mark.parametrize('name, write', [
    ('nextstep', templates.nextstep), ('nextstep 1.1', templates.nextstep_1_1)])
def test_a_release_has_its_schedule_and_its_prompts(name, write):
  model = folders.loaded(name)
  built = model.decoder(model.defaults['decoder'])
  assert built.schedule.num_levels == model.config.num_levels
  assert ('with noise' in built.distribution) == (name == 'nextstep 1.1')
  prompt = model.condition(['a cat'])
  for stream, ids in enumerate(write(bpe.Vocabulary(texts.nextstep()), 'a cat', 3, 4)):
    assert np.asarray(prompt.tokens)[0, stream][-len(ids):].tolist() == ids
    assert np.asarray(prompt.visible)[0, stream].sum() == len(ids)


@pytest.mark.slow
def test_pixels_are_those_of_normalised_tokens():
  model = folders.loaded('nextstep')
  tokens = np.random.default_rng(0).standard_normal((2, 12, 16)).astype(np.float32)
  latents = tokens - tokens.mean(-1, keepdims=True)
  latents /= latents.std(-1, keepdims=True)
  grid = latents.reshape(2, 3, 4, 4, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(2, 6, 8, 4)
  expected = kl_vae.decode(model.tokenizer.params, VAE, grid)
  np.testing.assert_allclose(model.pixels(tokens), expected, atol=1e-4)
  np.testing.assert_allclose(model.pixels(3 * tokens + 1), expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('decoder', ['exact_head', 'windows(window=4)'])
def test_decoders_of_continuous_tokens(decoder):
  model = folders.loaded('nextstep')
  out = model.generate(['a cat', 'a dog'], seed=1, decoder=decoder).decoded
  assert np.isfinite(out.tokens).all() and not np.asarray(out.tests.missed).any()
  assert (np.asarray(out.rounds) <= 12).all() and out.costs.head_calls.sum() < 2 * 50 * 12
  assert np.asarray(out.order).tolist() == [list(range(12))] * 2


def test_prompts_are_those_of_the_official_examples():
  text = bpe.Vocabulary(texts.nextstep())
  request, negative = templates.nextstep(text, 'a cat', 16, 32)
  image = [151666, *text.encode('16*32'), 151667]
  assert len(image) == 2 + len('16*32'), 'digits are tokens of their own'
  assert request == [*text.encode('a cat masterpiece, film grained, best quality.'), *image]
  words = ('lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer '
           'digits, cropped, worst quality, low quality, normal quality, jpeg artifacts, '
           'signature, watermark, username, blurry.')
  assert negative == [*text.encode(words), *image]
  request, negative = templates.nextstep_1_1(text, 'a cat', 16, 32)
  assert request == [*text.encode('a cat'), *image]
  words = words.replace('text, error', 'bad texts, bad layout, error')
  assert negative == [*text.encode(words), *image]
  # The names of special tokens are plain text in prompts.
  assert 151667 not in text.encode('<|begin_of_image|>')


@pytest.mark.slow
def test_prompts_of_published_ids(folder):
  model = cspd_jax.load(folder, text=None)
  with pytest.raises(ValueError, match='no words because it lacks the part text'):
    model.condition(['a cat'])
  prompt = nextstep.Prompt(np.full((1, 2, 3), 7), np.ones((1, 2, 3), bool))
  assert model.generate(prompt, seed=0).decoded.tokens.shape == (1, 12, 16)
  with pytest.raises(ValueError, match='tokens from 152064 to 152064; this model supports 0 to'):
    model.condition(nextstep.Prompt(np.full((1, 2, 3), 152064), np.ones((1, 2, 3), bool)))


@pytest.mark.slow
def test_networks_that_do_not_belong_together_are_refused(folder):
  other = dataclasses.replace(VAE, z_channels=8)
  params = jax.eval_shape(lambda: kl_vae.init(other, jax.random.key(0)))
  with pytest.raises(ValueError, match='tokenizer has z_channels 8, but the target .* has '
                                       'latent_channels 4'):
    cspd_jax.load(folder, tokenizer=cspd_jax.files.store.Loaded(
        'kl_vae', other, params, {}))
