"""The recipe of the shipped causal model: its loss, its prompts, its stages."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.cli import wrapper
from cspd_jax.files import store
from cspd_jax.models import nextstep
from cspd_jax.models.conditions import Prompt
from cspd_jax.training import loop
from cspd_jax.training.optimizer import OptimizerConfig
from experiments import fit_head_drafter, train
from experiments.demo_models import continuous_recipe, emoji
from tests.demo_models import emoji_files

pytest.importorskip('matplotlib')

CONFIG = str(pathlib.Path(__file__).parents[2] / 'configs' / 'train' / 'emoji_continuous.py')
SMALL = nextstep.NextStepConfig(
    height=2, width=2, vocab_size=5, latent_channels=3, patch_size=1, dim=16, num_layers=1,
    num_heads=2, num_kv_heads=2, ffn_dim=16, head_width=16, head_layers=1, token_norm=False,
    num_levels=8)
TRAIN = continuous_recipe.FlowTrainConfig(OptimizerConfig(), drop_rate=0.25, draws=2)


@pytest.fixture(scope='module')
def sources(tmp_path_factory):
  return emoji_files.write(tmp_path_factory.mktemp('emoji'))


@pytest.fixture(scope='module')
def recipe(sources):
  return dataclasses.replace(loop.smoke(wrapper.load(CONFIG).small()), **sources)


@pytest.fixture(scope='module')
def finished(sources, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('continuous')
  flags = [f'--{name}={path}' for name, path in sources.items()]
  assert train.main(['train', f'--config={CONFIG}', '--smoke', f'--workdir={workdir}',
                     *flags]) == 0
  return workdir


@pytest.fixture(scope='module')
def model(finished):
  return cspd_jax.load(finished / 'export')


def _data(seed=0, count=32):
  """Tokens that are a constant of the prompt's word, give or take a little; the null has none."""
  rng = np.random.default_rng(seed)
  word = rng.integers(2, size=count)
  tokens = np.where(word == 0, -1.0, 1.0)[:, None, None] + 0.1 * rng.standard_normal((count, 4, 3))
  ids = np.stack([np.stack([2 + word, np.ones_like(word)], 1), np.array([[0, 1]] * count)], axis=1)
  visible = np.ones(ids.shape, bool)
  visible[:, 1, 0] = False
  return jnp.asarray(tokens, jnp.float32), Prompt(jnp.asarray(ids), jnp.asarray(visible))


@pytest.mark.slow
def test_the_loss_is_that_of_its_definition():
  """One token at a time on the cache, one state of the head after the other, NumPy for the rest."""
  fresh = nextstep.init(SMALL, jax.random.key(0))
  params = jax.tree.map(
      lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(1), leaf.shape), fresh)
  tokens, prompt = _data(count=6)
  draws = continuous_recipe.draw(jax.random.key(2), tokens.shape, TRAIN)
  assert 0 < draws.drop.sum() < 6 and draws.noise.shape == (2, 6, 4, 3)
  assert draws.time.min() >= 0 and draws.time.max() < 1
  loss = jax.jit(continuous_recipe.loss, static_argnums=1)(params, SMALL, tokens, prompt, draws)

  target = nextstep.target(SMALL, guided=True)
  z, cache = jax.jit(target.cached.prefill, static_argnums=2)(params, prompt, 4)
  score, denoise = jax.jit(target.cached.score), jax.jit(target.denoise)
  stream, images = np.asarray(draws.drop, int), np.arange(6)
  squares = []
  for number in range(4):
    context = z[stream, images] if number == 0 else z[stream, images, 0]
    for draw in range(2):
      time, noise = (np.asarray(part[draw, :, number]) for part in (draws.time, draws.noise))
      x0 = np.asarray(tokens[:, number])
      x = time[:, None] * x0 + (1 - time[:, None]) * noise
      velocity, _ = denoise(params, x, time, context)
      squares.append(np.square(np.asarray(velocity) - (x0 - noise)))
    z, cache = score(params, cache, tokens[:, number:number + 1], jnp.full(6, number))
  np.testing.assert_allclose(loss, np.mean(squares), rtol=1e-4)


@pytest.mark.slow
def test_the_exported_model_reads_words_as_in_training(finished, recipe, model):
  assert model.family == 'nextstep' and model.config == recipe.target
  assert list(model.prompts) == list(emoji.EXAMPLES)
  assert {leaf.dtype.name for leaf in jax.tree.leaves(
      store.load(finished / 'export' / 'target').params)} == {'bfloat16'}
  captions = ['a cat on white', 'a ? astronaut']
  trained = recipe._prompts(captions)
  networks = {role: store.load(finished / 'export' / role)
              for role in ('tokenizer', 'text', 'target')}
  for one in (model, train.built(recipe, networks, 'target')):
    condition = one.condition(captions)
    for part in ('tokens', 'visible'):
      np.testing.assert_array_equal(getattr(condition, part), getattr(trained, part))
    assert one.sampling().guidance_scale == recipe.guidance_scale
  name = dict(enumerate(continuous_recipe.TOKENS))
  words = [[name[number] for number in ids[visible]] for ids, visible in zip(
      np.asarray(trained.tokens[1]), np.asarray(trained.visible[1]))]
  assert words == [['a', '<unk>', '<unk>', '<|begin_of_image|>'], ['<|begin_of_image|>']]


@pytest.mark.slow
def test_report_and_pictures(finished):
  rows = {row['network']: row for row in json.loads(
      (finished / 'report.json').read_text())['rows']}
  assert set(rows) == {'tokenizer', 'target'}
  # Tokens and noise have a variance of one, and an untrained head predicts a velocity of 0.
  assert 1 < rows['target']['loss'] < 3 and 1 < rows['target']['loss_no_prompt'] < 3
  for name in ('held_out', 'reconstructions', 'samples_target', 'samples_target_guided'):
    assert (finished / f'{name}.png').read_bytes().startswith(b'\x89PNG')


def _fit(finished, *words):
  return fit_head_drafter.main([
      'fit', f'--model={finished}/export', '--num_chains=32', '--kernels_per_call=4', *words])


@pytest.mark.slow
def test_the_drafter_of_its_head_is_fitted(finished, model, tmp_path, capsys):
  output = tmp_path / 'fitted'
  assert _fit(finished, f'--output={output}') == 0
  assert 'with guidance, head calls per token at batch 1: default ' in capsys.readouterr().out
  schedule = model.config.schedule()
  fitted = cspd_jax.load(finished / 'export', target=output)
  entry = store.load(output).metadata['head_drafter']
  for guided, name in ((False, 'plain'), (True, 'guided')):
    np.testing.assert_allclose(fitted.target(guided).rho(schedule), entry[name]['rho'])
    np.testing.assert_allclose(entry[name]['steps'], schedule.steps)
  assert model.target(True).rho(schedule) is None


@pytest.mark.slow
def test_a_causal_model_has_one_token_per_step(finished, tmp_path, capsys):
  assert _fit(finished, '--num_iter=2', f'--output={tmp_path}/fitted') == 2
  assert 'a causal model decodes one token per step' in capsys.readouterr().err
