"""Janus-Pro: both published formats, the official template, and the padding of its contexts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.models.conditions import Prompt
from cspd_jax.text import bpe, templates
from tests.builders import folders, sizes, texts

pytest.importorskip('tokenizers')

CONFIG = sizes.JANUS
PROMPTS = ['a cat', 'a dog, 中文']


@pytest.mark.slow
def test_both_formats_are_one_model():
  first, second = (jax.tree_util.tree_leaves_with_path(folders.loaded(name).params)
                   for name in ('janus_pro', 'janus_pro of DeepSeek'))
  assert [(path, leaf.shape) for path, leaf in first] == [
      (path, leaf.shape) for path, leaf in second]


@pytest.mark.parametrize('roles', [True, False])
def test_prompts_are_those_of_the_official_template(roles):
  text = bpe.Vocabulary(texts.janus_pro(roles))
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
def test_padding_of_the_second_context_is_read():
  model = folders.loaded('janus_pro')
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
