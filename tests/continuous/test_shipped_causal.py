"""The shipped causal model: it loads, is small, follows prompts; its decoders agree."""

import dataclasses

import numpy as np
import pytest

import cspd_jax
from cspd_jax.cli import groups
from cspd_jax.commands import compare as compare_command
from cspd_jax.continuous import base, head_drafter
from cspd_jax.files import store
from cspd_jax.metrics import scenes

pytest.importorskip('tokenizers')

PROMPTS = ['a fox on white', 'a frog on blue', 'a hamburger on pink', 'a ghost on purple']
SEEDS = [3, 3, 4, 4]


@pytest.fixture(scope='module')
def model():
  return cspd_jax.load('emoji_continuous')


@pytest.fixture(scope='module')
def baseline(model):
  return model.generate(PROMPTS, seed=SEEDS, decoder='mar')


@pytest.mark.parametrize('decoder', ['exact_path', 'cspd_relaxed(block_length=4)', 'parallel'])
def test_decoders_of_masked_models_are_refused(model, decoder):
  with pytest.raises(ValueError, match='masked models only, and this one is causal; use one of: '):
    model.generate(PROMPTS[:1], decoder=decoder)


@pytest.mark.slow
def test_it_is_small_and_has_a_tokenizer_like_that_of_mar_demo(model):
  folder = store.ASSETS / 'emoji_continuous'
  assert sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) <= 9e6
  assert model.family == 'nextstep' and model.target(guided=True).cached is not None
  other = cspd_jax.load('mar_demo').tokenizer.config
  # Scenes have latents of another variance than photographs; a scale makes it 1.
  assert dataclasses.replace(model.tokenizer.config, scale=other.scale) == other
  assert model.tokenizer.config.scale != other.scale
  assert PROMPTS[0] in model.prompts and model.sampling().guidance_scale == 3


@pytest.mark.slow
def test_prompts_are_followed(baseline):
  marks = scenes.score(baseline.images, PROMPTS)
  assert marks['ground'].all() and marks['thing'].sum() >= 3, marks
  wrong = scenes.score(baseline.images, PROMPTS[1:] + PROMPTS[:1])
  assert not wrong['ground'].any() and not wrong['thing'].any()


def test_the_fitted_drafter_is_stored(model):
  schedule = base.as_schedule(model.target(guided=True), None)
  for guided in (False, True):
    rho = model.target(guided).rho(schedule)
    assert rho.shape == (schedule.num_levels,) and np.isfinite(rho).all()
  assert np.abs(rho - head_drafter.default_rho(schedule)).max() > 0.01


@pytest.mark.slow
def test_an_image_depends_on_its_own_key(model, baseline):
  alone = model.generate([PROMPTS[2]], seed=[4], decoder='mar')
  other = model.generate([PROMPTS[2], 'an owl on black', PROMPTS[0]], seed=[4, 8, 3], decoder='mar')
  np.testing.assert_allclose(other.tokens[0], alone.tokens[0], atol=1e-2)
  np.testing.assert_allclose(alone.tokens[0], baseline.tokens[2], atol=1e-2)


@pytest.mark.slow
def test_all_decoders_of_causal_models_are_compared():
  job = compare_command.prepare(
      compare_command.Config(groups.LoadFlags('emoji_continuous'), all=True))
  assert list(job.requests) == ['mar', 'exact_head', 'windows']
  assert job.left_out['parallel'] == 'it decodes masked models only, and this one is causal'
  assert {'exact_path', 'cspd_released'} <= set(job.left_out)
  assert job.requests['mar'].decoder.distribution.startswith('causal generation token by token')
