"""Janus-Pro: from files in the published formats, at tiny sizes, to pictures by two commands."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.models import eagle, janus
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import bpe, templates
from tests.families import enumerated, janus_files
from tests.marks import representative

pytest.importorskip('tokenizers')

CONFIG = janus_files.CONFIG
PROMPTS = ['a cat', 'a dog, 中文']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A model, converted from files of transformers, with an EAGLE network that was not trained."""
  root = tmp_path_factory.mktemp('janus')
  assert not janus_files.converted(janus_files.folder(root / 'files', True), root / 'model')
  config = families.FAMILIES['janus_pro'].published.networks(CONFIG)['eagle'][1]
  store.save(root / 'model' / 'eagle', 'eagle', config, eagle.init(config, jax.random.key(3)))
  families.save(root / 'model', 'janus_pro', {'eagle': 'eagle'})
  return root / 'model'


@pytest.fixture(scope='module')
def model(folder):
  return cspd_jax.load(folder)


@pytest.mark.slow
def test_both_formats_are_one_model(tmp_path):
  loaded = []
  for is_transformers in (True, False):
    source = janus_files.folder(tmp_path / f'files{is_transformers}', is_transformers)
    assert not janus_files.converted(source, tmp_path / f'model{is_transformers}')
    loaded.append(cspd_jax.load(tmp_path / f'model{is_transformers}'))
  first, second = (jax.tree_util.tree_leaves_with_path(model.params) for model in loaded)
  assert [(path, leaf.shape) for path, leaf in first] == [
      (path, leaf.shape) for path, leaf in second]
  assert loaded[0].config == loaded[1].config


@pytest.mark.parametrize('roles', [True, False])
def test_prompts_are_those_of_the_official_template(roles):
  text = bpe.Vocabulary(janus_files.tokenizer_file(roles))
  request, other = templates.janus_pro(text, '  a cat ', 24, 24)
  ids = text.ids
  if roles:
    words = [ids['<|User|>'], *text.encode(': a cat\n\n'), ids['<|Assistant|>'], *text.encode(':')]
  else:
    words = text.encode('<|User|>: a cat\n\n<|Assistant|>:')
  begin, pad, image = (ids[name] for name in (
      '<｜begin▁of▁sentence｜>', '<｜▁pad▁｜>', '<begin_of_image>'))
  assert request == [begin, *words, image]
  assert other == [begin, *[pad] * len(words), image]
  # Names of tokens in the words of a user are words.
  injected, _ = templates.janus_pro(text, 'a <begin_of_image> cat', 24, 24)
  assert injected.count(image) == 1


@pytest.mark.slow
def test_padding_of_the_second_context_is_read(model):
  condition = model.condition(PROMPTS)
  visible = np.asarray(condition.visible)
  np.testing.assert_array_equal(visible[:, 0], visible[:, 1])
  assert visible[0].sum() < visible[1].sum()
  tokens = np.asarray(condition.tokens)[0, 1][visible[0, 1]] - CONFIG.num_codes
  assert len(set(tokens[1:-1])) == 1 and len(tokens) > 6
  changed = condition._replace(tokens=condition.tokens.at[0, 1, -4].add(1))
  image = jnp.zeros((2, 12), jnp.int32)
  logits, other = (model.teacher.forward(model.params, prompt, image, jnp.ones(2, bool))[0]
                   for prompt in (condition, changed))
  assert np.abs(logits[0] - other[0]).max() > 1e-3
  np.testing.assert_array_equal(logits[1], other[1])


def test_ids_outside_the_vocabulary_are_refused():
  model = families.FAMILIES['janus_pro'].build(
      families.Parts('tiny', {'target': store.sketch('janus', CONFIG)}, {}))
  ids = np.full((1, 2, 3), CONFIG.text_size)
  with pytest.raises(ValueError, match='supports 0 to 299'):
    model.condition(Prompt(ids, np.ones(ids.shape, bool)))


@pytest.mark.slow
@pytest.mark.parametrize('decoder', representative(
    ['mc_sjd(window=2)', 'eagle(tree=chain(2))+rejection'], 'mc_sjd(window=2)'))
def test_decoders_draw_from_the_model(decoder):
  """Whole images of 3 codes out of 4, with guidance, against their enumerated distribution."""
  config = dataclasses.replace(CONFIG, height=1, width=3, num_codes=4, text_size=9)
  prompts = np.array([[[1, 5, 6, 3], [1, 2, 2, 3]], [[1, 8, 4, 3], [1, 2, 2, 3]]])
  enumerated.check('janus_pro', 'janus', janus.init, janus.logits_and_features, config, prompts,
                   decoder, num_free=3, guidance_scale=2.0)
