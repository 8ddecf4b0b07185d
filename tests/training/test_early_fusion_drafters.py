"""Drafters of early-fusion models: they read the prompt, and learn from sampled or given images."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.files import store
from cspd_jax.models import eagle, early_fusion, medusa
from cspd_jax.models.conditions import Prompt
from cspd_jax.training import corrector, corrector_loss, drafter
from cspd_jax.training.corrector import CorrectorRecipe
from cspd_jax.training.corrector_loss import CorrectorTrainConfig
from cspd_jax.training.drafter import DrafterRecipe, DrafterTrainConfig
from cspd_jax.training.optimizer import OptimizerConfig
from experiments.demo_models import emoji_recipe as words

pytest.importorskip('tokenizers')

WORDS = ('a', 'cat', 'dog', 'generate', 'image', 'of')
CONFIG = early_fusion.EarlyFusionConfig(
    height=3, width=3, dim=16, num_layers=1, num_heads=2, ffn_dim=16,
    **words.ids(WORDS, 8))
DRAFTER = eagle.EagleConfig(
    family='chameleon', num_tokens=CONFIG.num_tokens, row_width=CONFIG.row_width, dim=16,
    num_heads=2, ffn_dim=16, vocab_size=CONFIG.vocab_size, num_outputs=CONFIG.num_image_tokens)
TRAIN = DrafterTrainConfig(OptimizerConfig(num_steps=3, batch_size=2, warmup_steps=1))


def _params():
  """Parameters of a target that says something: a fresh one has an output of zeros."""
  params = early_fusion.init(CONFIG, jax.random.key(0))
  params['transformer']['output'] = 0.5 * jax.random.normal(
      jax.random.key(1), params['transformer']['output'].shape)
  return params


@pytest.fixture(scope='module')
def target(tmp_path_factory):
  """A model of words without prompts of its own, and a file of prompts."""
  folder = tmp_path_factory.mktemp('words')
  store.save(folder / 'target', 'early_fusion', CONFIG, _params())
  store.save(folder / 'text', *words.network('anole', words.tokenizer(words.names(WORDS, 8)))[:3])
  families.save(
      folder, 'early_fusion', {'target': 'target', 'text': 'text'}, {'guidance_scale': 2.0})
  (folder / 'prompts.txt').write_text('a cat\na dog\n\n')
  return folder


@pytest.fixture
def recipe(target):
  return DrafterRecipe(
      drafter=DRAFTER, train=TRAIN, target=str(target), prompts=str(target / 'prompts.txt'),
      num_train_images=4, num_held_out_images=2, num_depths=2)


@pytest.mark.slow
@pytest.mark.parametrize('drafter_config', [
    DRAFTER, medusa.MedusaConfig(num_heads=2, dim=16, vocab_size=CONFIG.num_image_tokens)])
def test_a_drafter_learns_from_stored_images(drafter_config, recipe, target, tmp_path):
  model, every = cspd_jax.load(target), jnp.arange(CONFIG.num_tokens)
  np.testing.assert_array_equal(model.teacher.forced(every), early_fusion.forced(CONFIG, every))
  tokens, _ = drafter.images(recipe, model, 'train', tmp_path / 'sampled')
  np.savez(tmp_path / 'tokens.npz', tokens=tokens)
  recipe = dataclasses.replace(recipe, drafter=drafter_config)
  stored = dataclasses.replace(recipe, images=str(tmp_path / 'tokens.npz'))
  drafter.check(stored, model)
  (sampled, figures), (given, _) = (drafter.train(one, model, tmp_path / name)
                                    for name, one in (('sampled', recipe), ('stored', stored)))
  jax.tree.map(np.testing.assert_array_equal, sampled, given)
  assert 0 < figures['overlap_1'] <= 1
  assert not (tmp_path / 'stored' / 'tokens_train').exists()
  with pytest.raises(ValueError, match='at least 5 images'):
    drafter.train(dataclasses.replace(stored, num_train_images=5), model, tmp_path / 'more')


@pytest.mark.slow
def test_a_corrector_is_trained(target, tmp_path):
  recipe = CorrectorRecipe(
      drafter=dataclasses.replace(DRAFTER, correction_dim=4),
      plain=TRAIN.optimizer,
      train=CorrectorTrainConfig(TRAIN.optimizer, passes=1, windows_per_image=2),
      target=str(target), prompts=str(target / 'prompts.txt'),
      decoder='corrected(corrector=layers, window=4, iterations=1, tree=chain())',
      num_plain_images=4, num_train_images=2, num_held_out_images=2)
  model = cspd_jax.load(target)
  corrector.check(recipe, model)
  _, figures = corrector.train(recipe, model, tmp_path / 'run')
  assert figures['length'] > 0


def _losses(*cases):
  """Losses of a drafter on random images, for conditions and dropped rows."""
  rng = np.random.default_rng(3)
  tokens = jnp.asarray(early_fusion.with_grammar(CONFIG, rng.integers(8, size=(2, 9))))
  params, own = _params(), eagle.init(DRAFTER, jax.random.key(4))
  # The target's features are fixed, so that the drafter alone reads the prompt.
  features = jnp.asarray(rng.normal(size=(2, 5 + CONFIG.num_tokens - 1, 16)), jnp.float32)
  # No token of the grammar has a probability of its own.
  probs = jnp.asarray(rng.dirichlet(np.ones(8), (2, CONFIG.num_tokens)), jnp.float32)
  probs = jnp.pad(probs, ((0, 0), (0, 0), (0, 2)))
  ends = early_fusion.ends(CONFIG)
  teacher = drafter.Teacher(
      lambda params, condition, tokens, drop: (jnp.log(probs), features), ends)

  @jax.jit
  def losses(condition, drop):
    result, _ = drafter.eagle_loss(
        own, DRAFTER, TRAIN, ends, params, tokens, features, probs, jax.random.key(5),
        eagle.prompt(DRAFTER, condition, drop))
    both, _ = corrector_loss.plain_loss(
        own, DRAFTER, params, teacher, tokens, condition, SamplingParams(guidance_scale=2.0))
    return result, both

  return [np.asarray(losses(*case)) for case in cases]


def test_the_prompt_of_the_dropped_stream_is_read():
  ids = np.array([[[13, 14, 15, 16, 17]] * 2] * 2)
  visible = np.ones((2, 2, 5), bool)
  visible[:, 1, :3] = False
  condition = Prompt(jnp.asarray(ids), jnp.asarray(visible))
  turned = Prompt(*(part[:, ::-1] for part in condition))
  keep, drop = np.zeros(2, bool), np.ones(2, bool)
  kept, same, dropped, other = _losses(
      (condition, keep), (turned, drop), (condition, drop), (turned, keep))
  np.testing.assert_allclose(kept[0], same[0], rtol=1e-6)
  assert abs(kept[0] - dropped[0]) > 1e-6 and abs(kept[1] - other[1]) > 1e-6


@pytest.mark.parametrize('streams', [1, 2])
def test_the_target_has_as_many_streams_as_prompts(streams):
  """One, if it has no null condition."""
  teacher = drafter.Teacher(
      lambda params, condition, tokens, drop: (jnp.zeros((2, 9, 8)), jnp.zeros((2, 13, 16))), None)
  condition = Prompt(np.zeros((2, streams, 5), int), np.ones((2, streams, 5), bool))
  logits, features = drafter.target_outputs((), teacher, jnp.zeros((2, 9), int), condition)
  assert len(logits) == len(features) == streams


@pytest.mark.parametrize('changes, message', [
    (dict(prompts='nowhere.txt'), "prompts is 'nowhere.txt', which cannot be read"),
    (dict(drafter=dataclasses.replace(DRAFTER, family='llamagen', num_tokens=12, row_width=4)),
     "drafter.family is 'llamagen'; it must be 'chameleon', as for the target"),
    (dict(drafter=dataclasses.replace(DRAFTER, num_outputs=8)),
     'drafter.num_outputs is 8; it must be 10')])
def test_recipes_that_do_not_fit_are_refused(recipe, target, changes, message):
  with pytest.raises(ValueError, match=message):
    drafter.check(dataclasses.replace(recipe, **changes), cspd_jax.load(target))
