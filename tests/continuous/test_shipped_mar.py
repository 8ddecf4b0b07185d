"""The shipped MAR pair with its tokenizer: it loads, is small, generates images."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.continuous import decoders, head_drafter, schedule as schedule_lib, speculative_head
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.files import store
from cspd_jax.models import kl_vae, mar

_KINDS = {'mar_demo/target': 'mar', 'mar_demo/draft': 'mar', 'mar_demo/tokenizer': 'kl_vae'}
_ASSETS = pathlib.Path(cspd_jax.__file__).parent / 'assets'


@pytest.fixture(scope='module')
def models():
  return {name: store.load(name, dtype='float32') for name in _KINDS}


@pytest.mark.slow
def test_the_models_belong_together(models):
  target, draft, tokenizer = models.values()
  assert {name: loaded.kind for name, loaded in models.items()} == _KINDS
  assert draft.config.latent_channels == tokenizer.config.z_channels
  for size in ('height', 'width', 'token_dim', 'patch_size', 'num_classes'):
    assert getattr(draft.config, size) == getattr(target.config, size)
  assert len(target.metadata['labels']) == target.config.num_classes


def test_they_are_small():
  files = [path for name in _KINDS for path in (_ASSETS / name).rglob('*') if path.is_file()]
  assert sum(path.stat().st_size for path in files) <= 9.5e6


@pytest.mark.slow
@pytest.mark.parametrize('scale', [1.0, 2.0])
def test_the_fitted_drafter_is_used(models, monkeypatch, scale):
  used, speculative = [], speculative_head.speculative

  def recording(target, schedule, length, rho, *more):
    used.append(rho)
    return speculative(target, schedule, length, rho, *more)

  monkeypatch.setattr(speculative_head, 'speculative', recording)
  cspd_jax.load('mar_demo').decoder('exact_head', guided=scale != 1)
  entry = models['mar_demo/target'].metadata['head_drafter']['plain' if scale == 1 else 'guided']
  np.testing.assert_allclose(used, [entry['rho']])
  assert np.max(np.abs(used[0] - head_drafter.default_rho(schedule_lib.make()))) > 0.02


@pytest.mark.slow
def test_tokens_and_pictures_have_a_sensible_scale(models):
  model, tokenizer = models['mar_demo/target'], models['mar_demo/tokenizer']
  decoder = decoders.parallel(mar.target(model.config, guided=True), 16, prefix_share=None)
  labels = jnp.arange(4) % model.config.num_classes

  @jax.jit
  def generate(params, tokenizer_params, key):
    tokens = decoder(params, labels, key, SamplingParams(2.0)).tokens
    latents = mar.unpatchify(model.config, tokens)
    return tokens, kl_vae.decode(tokenizer_params, tokenizer.config, latents)

  tokens, pictures = jax.device_get(
      generate(model.params, tokenizer.params, jax.random.key(0)))
  assert tokens.shape == (4, model.config.num_tokens, model.config.token_dim)
  assert np.isfinite(tokens).all() and 0.5 < tokens.std() < 2 and np.abs(tokens).max() < 10
  assert pictures.shape == (4, *[model.metadata['image_size']] * 2, 3)
  assert np.isfinite(pictures).all() and pictures.std() > 0.1


@pytest.mark.slow
def test_decoders_that_draft_take_one_token_per_step():
  model = cspd_jax.load('mar_demo')
  assert len(model.engine.decoders) == 8
  for name in model.engine.decoders:
    if name in ('mar', 'exact_head', 'windows'):
      assert 'in 16 steps' in model.decoder(f'{name}(num_iter=16)').distribution
      continue
    with pytest.raises(ValueError, match=f"{name} has no parameter 'num_iter'"):
      model.decoder(f'{name}(num_iter=16)')
