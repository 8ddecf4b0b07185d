"""Emu3.5: prompts and sampled distributions of the official program, a converted folder at work.

`tests/data/emu3_5.npz` was recorded from the program of baaivision/Emu3.5 (commit 8fcf1da):

- `ids_0` to `ids_3` are the ids of its text-to-image template for `PROMPTS`, `ids_empty` those of
  its prompt without words, and `ids_image` those of the start of an image of 2x3 codes, by its
  tokenizer with the ranks of `published_files.emu3_text`.
- `probabilities` and `probabilities_ids`: see `test_logits_processors.py`.
"""


import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.models import early_fusion
from cspd_jax.text import bpe, templates
from tests.families import published_files, whole
from tests.models import published

pytest.importorskip('tiktoken')

CONFIG = published_files.EMU3_5
PROMPTS = ['a cat', '', 'a dog, 中文', 'cafe\u0301']


@pytest.fixture(scope='module')
def text():
  return bpe.read({'file': np.frombuffer(published_files.emu3_text(), np.uint8)}, 'emu3_5')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp('emu3_5')
  whole.convert('emu3_5', root / 'published', root / 'model')
  return root / 'model'


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
def test_pictures_are_encoded_as_the_tokens_they_show(folder):
  """The tokenizer's map of tokens is the identity, with the grammar around it."""
  model = cspd_jax.load(folder)
  tokens = np.asarray(model.generate(PROMPTS[:3], seed=5, decoder='vanilla').tokens)
  params, tokenizer = model.tokenizer.params, model.tokenizer
  images = jax.jit(tokenizer.decode)(params, tokens)
  encoded = np.asarray(jax.jit(tokenizer.encode)(params, images))
  forced = np.asarray(early_fusion.forced(CONFIG, jnp.arange(8)))
  np.testing.assert_array_equal(encoded[:, forced >= 0], np.tile(forced[forced >= 0], (3, 1)))
  assert encoded.shape == (3, 8) and encoded[:, forced < 0].max() < 131072


@pytest.mark.slow
@pytest.mark.parametrize('words, scale', [((), 5.0), (('--sampling=emu3_5',), 2.0)])
def test_both_releases_have_their_guidance(words, scale, tmp_path):
  source = published_files.emu3_5(tmp_path)
  assert not published_files.convert(
      source.parent, 'emu3_5', source.name, tmp_path / 'model', '--height=2', '--width=3',
      '--role=target', *words)
  assert cspd_jax.load(tmp_path / 'model').defaults == {
      'temperature': 1.0, 'top_p': 1.0, 'top_k': 5120, 'guidance_scale': scale}
