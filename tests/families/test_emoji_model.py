"""The shipped text-to-image model: images show their prompts, whose words it reads."""

from unittest import mock

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.commands import generate as command
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.decoding.warp import probabilities
from cspd_jax.files import store
from cspd_jax.generation import decode, gallery
from cspd_jax.metrics import scenes

PROMPTS = ['a fox on white', 'a ghost on purple', 'a frog 3d on blue', 'a castle flat on yellow']
SEEDS = [3, 3, 4, 4]


@pytest.fixture(scope='module')
def model():
  return cspd_jax.load()


@pytest.fixture(scope='module')
def vanilla(model):
  return model.generate(PROMPTS, seed=SEEDS, decoder='vanilla')


def test_it_is_the_default_and_small(model):
  folder = store.ASSETS / 'emoji'
  assert sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()) < 24e6
  assert model.name == 'emoji' and model.family == 'early_fusion'
  assert model.config.qk_norm and model.config.row_end is not None
  assert {'model', 'neighbours', 'layers'} <= set(model.drafts)
  scenes.check(list(model.prompts))


def test_words_are_read_in_a_function_under_jit(model):
  for ours, traced in zip(model.condition(PROMPTS), jax.jit(lambda: model.condition(PROMPTS))()):
    np.testing.assert_array_equal(ours, traced)


@pytest.mark.slow
def test_grounds_are_those_of_the_prompts(vanilla):
  marks = scenes.score(vanilla.images, PROMPTS)
  assert marks['ground'].mean() >= 0.75, marks


@pytest.mark.slow
def test_scenes_show_what_is_asked_for(model):
  """Far from chance, which is 1 of 64 things; docs/embedded.md has the shares of 1000 prompts."""
  prompts = (store.ASSETS / 'scenes' / 'held_out.txt').read_text(encoding='utf-8').splitlines()
  made = model.generate(prompts[:96], seed=0, decoder='corrected_seed_exact(window=32)')
  values = scenes.asked(scenes.score(made.images, prompts[:96]), prompts[:96])
  least = dict(thing=0.65, two=0.7, style=0.7, ground=0.97, colour=0.65)
  assert all(values[kind].mean > share for kind, share in least.items()), values


@pytest.mark.slow
def test_another_prompt_has_another_distribution(model):
  target = model.target(guided=True)
  logits = jax.jit(lambda params, condition: target.prefill(params, condition, 1)[0])(
      model.params, model.condition([*PROMPTS[:2], 'a zebra on white', 'a giraffe on white']))
  probs = np.asarray(probabilities(
      logits[:, :, None], SamplingParams(guidance_scale=2.0), np.zeros((4, 1), int)))[:, 0]
  assert 0.5 * np.abs(probs[0] - probs[1]).sum() > 0.5
  np.testing.assert_allclose(probs[2], probs[3], atol=1e-6)  # Unknown words.
  np.testing.assert_allclose(logits[1, 0], logits[1, 1], atol=1e-4)  # An image without a prompt.


def test_unknown_words_are_reported(model, capsys, tmp_path):
  assert model.images(PROMPTS).unknown_words == [[]] * 4
  task = model.images(['a Zebra on blue', 'a blue cat', 'été-cat on été'])
  assert task.unknown_words == [['Zebra'], [], ['été']]
  assert task.pick([2, 2]).unknown_words == [['été']] * 2
  # Conditions that are not words have none.
  assert model.images(model.condition('a zebra')).unknown_words == [[]]
  with mock.patch.object(gallery.Gallery, 'generate'):
    assert command.main(['generate', '--prompt=a blue zebra',
                         '--prompt=a blue cat', f'--output={tmp_path}']) == 0
  assert capsys.readouterr().err == (
      "warning: prompt 'a blue zebra' has words that the model does not read: zebra\n")


@pytest.mark.parametrize('call', [
    lambda model: model.generate('a blue zebra', decoder='vanilla'),
    lambda model: model.sampler('vanilla')('a blue zebra'),
    lambda model: model.stream('a blue zebra', decoder='vanilla')])
def test_unknown_words_are_warned_about_once_where_the_caller_is(model, call):
  with (mock.patch.object(decode, 'generate'),
        pytest.warns(UserWarning, match="prompt 'a blue zebra' .* does not read: zebra$") as seen):
    call(model)
  assert [warning.filename for warning in seen] == [__file__]
