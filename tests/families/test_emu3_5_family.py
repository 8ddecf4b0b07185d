"""Emu3.5: prompts and sampled distributions of the official program, encoded pictures.

`tests/data/emu3_5.npz` was recorded from the program of baaivision/Emu3.5 (commit 8fcf1da):

- `ids_0` to `ids_3` are the ids of its text-to-image template for `PROMPTS`, `ids_empty` those of
  its prompt without words, and `ids_image` those of the start of an image of 2x3 codes, by its
  tokenizer with the ranks of `texts.emu3`.
- `probabilities` and `probabilities_ids`: see `test_logits_processors.py`.
"""

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.models import early_fusion
from cspd_jax.text import templates
from tests.builders import folders, published, sizes, texts

pytest.importorskip('tiktoken')

PROMPTS = ['a cat', '', 'a dog, 中文', 'cafe\u0301']


@pytest.fixture(scope='module')
def text():
  return texts.vocabulary(texts.emu3(), 'emu3_5')


@pytest.mark.parametrize('number', range(len(PROMPTS)))
def test_prompts_are_those_of_the_official_program(text, number):
  recorded = published.recorded('emu3_5')
  image = recorded['ids_image'].tolist()
  request, empty = templates.emu3_5(text, PROMPTS[number], 2, 3)
  assert request == recorded[f'ids_{number}'].tolist() + image
  assert empty == recorded['ids_empty'].tolist() + image
  # Names of tokens in the words of a user are words.
  assert templates.emu3_5(text, 'a <|image start|> cat', 2, 3)[0].count(image[0]) == 1


@pytest.mark.slow
def test_pictures_are_encoded_as_the_tokens_they_show():
  """The tokenizer's map of tokens is the identity, with the grammar around it."""
  model = folders.loaded('emu3_5')
  tokens = np.asarray(model.generate(PROMPTS[:3], seed=5, decoder='vanilla').tokens)
  params, tokenizer = model.tokenizer.params, model.tokenizer
  images = jax.jit(tokenizer.decode)(params, tokens)
  encoded = np.asarray(jax.jit(tokenizer.encode)(params, images))
  forced = np.asarray(early_fusion.forced(sizes.EMU3_5, np.arange(8)))
  np.testing.assert_array_equal(encoded[:, forced >= 0], np.tile(forced[forced >= 0], (3, 1)))
  assert encoded.shape == (3, 8) and encoded[:, forced < 0].max() < 131072


@pytest.mark.slow
def test_the_other_release_has_its_guidance(tmp_path):
  folder = folders.convert('emu3_5', tmp_path, tmp_path / 'model', '--role=target',
                           '--sampling=emu3_5')
  assert cspd_jax.load(folder).defaults == {
      'temperature': 1.0, 'top_p': 1.0, 'top_k': 5120, 'guidance_scale': 2.0}
