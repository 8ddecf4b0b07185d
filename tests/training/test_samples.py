"""Images to train on: the model's exact default decoder, interrupted and continued, on a mesh."""

import dataclasses

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax import sharding
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.generation import memory
from cspd_jax.generation.sampler import Sampler
from cspd_jax.training import samples
from tests.generation import test_memory

SAMPLING, KEY = SamplingParams(guidance_scale=2.0), jax.random.key(3)


@pytest.fixture(scope='module')
def model(llamagens):
  model = cspd_jax.load(llamagens / 'model')
  model.defaults['decoder'] = 'mc_sjd(window=4)'
  return model


@pytest.fixture(scope='module')
def tokens(model):
  return samples.sampled(model, None, 5, KEY, SAMPLING)[0]


def _request(model, **options):
  return samples.images(model, [0, 1, 2], 120, SAMPLING, seed=KEY, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(samples.Sampled):
  images: str | None = None


def test_a_training_is_identified_by_contents(model, tmp_path):
  def identity(name, lines='cat', tokens=b'1', used=model):
    (tmp_path / f'{name}.txt').write_text(lines)
    (tmp_path / f'{name}.npz').write_bytes(tokens)
    recipe = Recipe(prompts=f'{tmp_path}/{name}.txt', images=f'{tmp_path}/{name}.npz')
    return samples.identity(recipe, used)

  first = identity('a')
  assert identity('b') == first  # Files that were moved.
  halved = model.with_params(jax.tree.map(lambda leaf: leaf / 2, model.params))
  for change in (dict(lines='dog'), dict(tokens=b'2'), dict(used=halved)):
    assert identity('a', **change) != first
  assert samples.identity(Recipe(), model)['prompts'] != first['prompts']
  with pytest.raises(ValueError, match='images is .*no.npz'):
    samples.identity(Recipe(images=f'{tmp_path}/no.npz'), model)


@pytest.mark.slow
def test_images_are_those_of_the_exact_default_decoder(model, tokens):
  request = _request(model)
  assert request.batch_size == 64
  assert request.sampler.specification == model.specification(batch_size=64)
  alone = request.sampler.bound(request, np.array([4]))()
  np.testing.assert_array_equal(alone.tokens[0], tokens[4])
  relaxed = cspd_jax.load('demo')
  relaxed.defaults['decoder'] = 'jacobi(coupling=maximal, window=8)+cool'
  assert str(_request(relaxed).sampler.specification) == 'vanilla'
  assert str(_request(relaxed, batch_size=1).sampler.specification) == 'mc_sjd(window=4)'


@pytest.mark.slow
def test_an_interrupted_call_is_continued_whatever_the_memory(
    model, tokens, tmp_path, monkeypatch, capsys):
  per_image = test_memory.estimate(_request(model, batch_size=1)).needed(1)
  def free(count):  # What fits is looked at once.
    monkeypatch.setattr(memory, 'free', lambda devices: count * per_image)
    model._samplers.clear()

  bound, calls = Sampler.bound, []

  def stop_at_the_second(self, images, index):
    calls.append(len(index))
    if len(calls) == 2:
      raise KeyboardInterrupt
    return bound(self, images, index)

  monkeypatch.setattr(Sampler, 'bound', stop_at_the_second)
  arguments = (model, None, 5, KEY, SAMPLING, tmp_path / 'tokens')
  free(3)
  with pytest.raises(KeyboardInterrupt):
    samples.sampled(*arguments)
  assert sorted(file.name for file in (tmp_path / 'tokens').iterdir()) == [
      'batch_0000000.npz', 'run.json']
  free(50)
  model.defaults['decoder'] = 'vanilla'  # The run's own decoder samples the rest.
  result, indices = samples.sampled(*arguments)
  np.testing.assert_array_equal(result, tokens)
  assert calls == [2, 2, 2, 2] and indices.tolist() == [0, 1, 2, 0, 1]
  assert 'sampling' in capsys.readouterr().err
  np.testing.assert_array_equal(samples.sampled(*arguments)[0], tokens)
  assert len(calls) == 4
  model.defaults['decoder'] = 'mc_sjd(window=4)'


@pytest.mark.slow
def test_images_of_another_target_or_run_are_refused(llamagens, model, tokens, tmp_path):
  sampled = lambda *arguments: samples.sampled(*arguments, tmp_path / 'tokens')
  np.testing.assert_array_equal(sampled(model, None, 5, KEY, SAMPLING)[0], tokens)
  params = jax.tree.map(lambda leaf: leaf * 2, model.params)
  other = dataclasses.replace(model, params=params)
  (tmp_path / 'prompts.txt').write_text('1\n')
  for arguments, name in (
      ((other, None, 5, KEY, SAMPLING), 'parameters'),
      ((model, None, 4, KEY, SAMPLING), 'prompts'),
      ((model, str(tmp_path / 'prompts.txt'), 5, KEY, SAMPLING), 'prompts'),
      ((model, None, 5, jax.random.key(4), SAMPLING), 'seed'),
      ((model, None, 5, KEY, SAMPLING._replace(top_k=3)), 'sampling')):
    with pytest.raises(ValueError, match=rf'another run \(.*{name}.*\); use'):
      sampled(*arguments)


@pytest.mark.slow
def test_images_that_do_not_fit_are_refused(model, monkeypatch):
  monkeypatch.setattr(memory, 'free', lambda devices: 1.0)
  model._samplers.clear()
  with pytest.raises(ValueError, match='batch_size is 1, but decoding 1 image at once with'):
    samples.sampled(model, None, 5, KEY, SAMPLING)
  with pytest.raises(ValueError, match='batch_size is 9, but decoding 9 images at once with'):
    _request(model, batch_size=9)


@pytest.mark.slow
def test_images_of_a_mesh_are_the_same(llamagens, tokens, tmp_path):
  model = cspd_jax.load(llamagens / 'model', sharding=sharding.make_mesh(1, 1, jax.devices()[:1]))
  model.defaults['decoder'] = 'mc_sjd(window=4)'
  result, _ = samples.sampled(model, None, 5, KEY, SAMPLING, tmp_path / 'run')
  np.testing.assert_array_equal(result, tokens)


def test_stored_images_have_the_prompts_in_turn(model, tmp_path):
  tokens = np.arange(48).reshape(3, 16) % 16
  np.savez(tmp_path / 'tokens.npz', tokens=tokens.astype(np.int16))
  (tmp_path / 'prompts.txt').write_text('cat\ndog\n')
  images, indices = samples.stored(
      str(tmp_path / 'tokens.npz'), model, str(tmp_path / 'prompts.txt'), 3)
  np.testing.assert_array_equal(images, tokens)
  assert images.dtype == np.int32 and indices.tolist() == [0, 1, 0]
