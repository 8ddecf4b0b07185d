"""A new family is one file: registered, converted, decoded, drafted for; nothing else refers to it.

`janus_like.py` is the file; its target has an embedding of image tokens and a head of its own.
"""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from checkpoints_conversion import rules
from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.models import eagle, medusa, vq
from cspd_jax.testing import check_target
from cspd_jax.training import drafter
from cspd_jax.training.optimizer import OptimizerConfig
from tests.families import janus_like
from tests.families.published_files import convert, tensors

pytest.importorskip('tokenizers')

CONFIG = janus_like.JanusConfig()
VQ = vq.VQConfig(ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=12, codebook_dim=4)
PROMPTS = ['a cat', 'a dog']
WORDS = ('<unk>', janus_like.BEGIN, janus_like.PAD, janus_like.IMAGE, 'user', 'assistant', ':', 'a',
         'cat', 'dog')


def _text():
  return json.dumps(dict(
      version='1.0', truncation=None, padding=None, added_tokens=[], normalizer=None,
      pre_tokenizer={'type': 'WhitespaceSplit'}, post_processor=None, decoder=None,
      model=dict(type='WordLevel', vocab={word: i for i, word in enumerate(WORDS)},
                 unk_token='<unk>'))).encode()


@pytest.fixture(scope='module')
def weights():
  """Published tensors, under the names that the rules of the family give them."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(rules, 'FAMILIES', dict(rules.FAMILIES))
    families.register(janus_like.FAMILY)
    for file in janus_like.FILES:
      rules.register(file)
    drawn = tensors('janus_like', CONFIG, 1)
    # Distributions that are far from uniform, and a head of text that nothing reads.
    drawn['gen_head.vision_head.weight'] *= 4
    yield drawn | {'language_model.lm_head.weight': np.ones((20, 16), np.float32)}


@pytest.fixture(scope='module')
def folder(weights, tmp_path_factory):
  """The model, converted by the command, with drafters that were never trained."""
  files, folder = (tmp_path_factory.mktemp(name) for name in ('published', 'janus'))
  safetensors.numpy.save_file(weights, files / 'model.safetensors')
  safetensors.numpy.save_file(tensors('janus_like_vq', VQ, 2), files / 'vq.safetensors')
  (files / 'tokenizer.json').write_bytes(_text())
  assert not convert(files, 'janus_like', 'model.safetensors', folder, '--num_heads=2')
  assert not convert(files, 'janus_like_vq', 'vq.safetensors', folder)
  assert not convert(files, 'janus_like_text', 'tokenizer.json', folder)
  sizes = janus_like.eagle_config(CONFIG)
  store.save(folder / 'eagle', 'eagle', sizes, eagle.init(sizes, jax.random.key(3)))
  families.save(folder, 'janus_like', {'eagle': 'eagle'})
  return folder


@pytest.fixture(scope='module')
def model(folder):
  return cspd_jax.load(folder)


def _gelu(x):
  return x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


@pytest.mark.slow
def test_its_embedding_and_its_head_are_those_of_the_file(model, weights):
  linear = lambda name, x: x @ weights[f'{name}.weight'].T + weights[f'{name}.bias']
  tokens, features = np.array([0, 5, 11, 12, 31]), np.random.default_rng(4).normal(size=(3, 16))
  image = linear('gen_aligner.layers.2', _gelu(
      linear('gen_aligner.layers.0', weights['gen_embed.weight'])))
  table = np.concatenate([image, weights['language_model.model.embed_tokens.weight']])
  with jax.default_matmul_precision('highest'):
    embeddings = model.teacher.ends.embed(model.params, jnp.asarray(tokens))
    logits = model.teacher.ends.logits(model.params, jnp.asarray(features, jnp.float32))
  np.testing.assert_allclose(embeddings, table[tokens], atol=1e-5)
  np.testing.assert_allclose(logits, linear('gen_head.vision_head', _gelu(
      linear('gen_head.output_mlp_projector', features))), atol=1e-4)
  assert model.config == CONFIG and 'output' not in model.params['transformer']


@pytest.mark.slow
def test_its_prompts_are_its_own(model):
  condition = model.condition(PROMPTS)
  ids = np.asarray(condition.tokens)[0][np.asarray(condition.visible)[0]].reshape(2, -1) - 12
  assert [WORDS[i] for i in ids[0]] == [
      '<begin>', 'user', ':', 'a', 'cat', 'assistant', ':', '<image>']
  assert [WORDS[i] for i in ids[1]] == ['<begin>', *['<pad>'] * 6, '<image>']
  with pytest.raises(ValueError, match='knows 0 to 19'):
    model.condition(condition)  # Not published ids.


@pytest.mark.slow
def test_it_is_a_target(model):
  assert check_target(
      model.target(guided=True), model.params, model.condition(PROMPTS),
      logits=lambda params, condition, tokens: model.teacher.forward(
          params, condition, tokens, jnp.zeros(len(tokens), bool))[0]).problems == {}


@pytest.fixture(scope='module')
def vanilla(model):
  return model.generate(PROMPTS, seed=5, decoder='vanilla')


@pytest.mark.slow
@pytest.mark.parametrize('decoder', [
    'seed_exact(window=4)', 'eagle(tree=chain(3))+match',
    'corrected_seed_exact(corrector=eagle, window=4)',
    'corrected_seed_exact(corrector=layers, window=4)'])
def test_seed_exact_decoders_repeat_vanilla(model, vanilla, decoder):
  tokens = model.generate(PROMPTS, seed=5, decoder=decoder).decoded.tokens
  np.testing.assert_array_equal(tokens, vanilla.decoded.tokens)
  assert len(np.unique(tokens)) > 3


@pytest.mark.slow
def test_it_makes_images(model, vanilla):
  assert vanilla.images.shape == (2, 3, 4, 3) and vanilla.sampling['guidance_scale'] == 5.0
  made = model.generate(PROMPTS, seed=5, decoder='mc_sjd(window=4)')
  assert made.images.shape == (2, 3, 4, 3) and 0 <= made.tokens.min() <= made.tokens.max() < 12


@pytest.mark.slow
def test_drafters_have_its_embedding_and_its_head(model):
  drafts = model.drafts['eagle']
  network = drafts.build(True)
  tokens = jnp.asarray(np.random.default_rng(6).integers(0, 12, (2, 12)))
  logits, features = model.teacher.forward(
      model.params, model.condition(PROMPTS), tokens, jnp.zeros(2, bool))
  drafted = network.logits(drafts.params, features[None, :, -12:])[0]
  np.testing.assert_allclose(drafted, logits, atol=1e-5)
  assert np.ptp(drafted, axis=-1).min() > 0.1
  changed = jax.tree.map(lambda leaf: leaf, drafts.params)
  changed['target']['codebook'] += 1
  prompt = model.condition(PROMPTS).dropped(jnp.zeros(2, bool))
  ends = model.teacher.ends
  result = [eagle.predict(params, janus_like.eagle_config(CONFIG), ends, tokens[:, :-1],
                         features[:, :-1], prompt)[0] for params in (drafts.params, changed)]
  assert np.abs(result[0] - result[1]).max() > 1e-3


@pytest.mark.slow
def test_a_drafter_is_trained_for_it(model, folder):
  sizes = janus_like.eagle_config(CONFIG)
  train = drafter.DrafterTrainConfig(
      OptimizerConfig(num_steps=2, batch_size=2, warmup_steps=1))
  recipe = drafter.DrafterRecipe(
      sizes, train, target=str(folder), num_train_images=2, num_held_out_images=2)
  drafter.check(recipe, model)
  teacher = drafter.teacher(model)
  state = drafter.init(sizes, train, teacher.ends, model.params)
  tokens = jnp.asarray(np.random.default_rng(6).integers(0, 12, (2, 12)))
  logits, features = model.teacher.forward(
      model.params, model.condition(PROMPTS), tokens, jnp.zeros(2, bool))
  prompt = eagle.prompt(sizes, model.condition(PROMPTS), jnp.zeros(2, bool))
  value, grads = jax.value_and_grad(lambda params: drafter.eagle_loss(
      params, sizes, train, teacher.ends, model.params, tokens, features, jax.nn.softmax(logits),
      jax.random.key(0), prompt)[0])(state.params)
  assert value > 0 and all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))
  with pytest.raises(ValueError, match='head of the target is not one matrix'):
    drafter.init(medusa.MedusaConfig(2, 16, 12), train, teacher.ends, model.params)


def test_its_sizes_are_described(weights):
  del weights  # The family is registered.
  whole = families.describe('janus_like_small')
  assert set(whole.drafts) == {'eagle', 'corrector', 'neighbours', 'layers'}
  assert whole.params['head_in']['kernel'].shape == (16, 20)


@pytest.mark.slow
def test_its_files_of_words_are_its_own(folder):
  for name, text in (('emoji', folder / 'text'), (folder, store.ASSETS / 'emoji' / 'text')):
    with pytest.raises(ValueError, match='text is a tokenizer file for .*, but model .* needs one'):
      cspd_jax.load(name, text=text)
