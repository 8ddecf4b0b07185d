"""Lumina-mGPT 2.0: contexts of its official program, its tokenizer files and settings.

`tests/data/lumina_mgpt_2.npz` was recorded in float32 from the official repository (commit
f44a4d7) with transformers 4.46, and with the weights of `published.py` (its `logits` are those of
`tests/models/test_parity.py`):

- `words_0` to `words_2`: the ids of `WORDS` for an image of 64x32 pixels by `FlexARItemProcessor`,
  which read the folder of `writers.lumina_mgpt_2`.
- `probabilities` and `ids`: see `test_logits_processors.py`.
"""

import dataclasses
import json

import numpy as np
import pytest

from checkpoints_conversion import convert as convert_lib, rules
from cspd_jax.models import early_fusion
from cspd_jax.text import templates
from tests.builders import folders, published, sizes, texts
from tests.conversion import published_settings

pytest.importorskip('tokenizers')  # It reads the file of words.

CONFIG = sizes.LUMINA_MGPT_2
WORDS = ('a cat', '', 'e\u0301t\u00e9 \u4e2d\u6587, 12 cats\n\nand  dogs')


@pytest.fixture(scope='module')
def recorded():
  return published.recorded('lumina_mgpt_2')


def _text():
  return texts.vocabulary(texts.lumina_mgpt_2(), 'lumina_mgpt_2')


def test_sizes_without_tokens_are_refused():
  for size in ((3, 4), (4, 6), (2, 4)):
    with pytest.raises(ValueError, match=f'image has {size[0]}x{size[1]} .* only multiples of 4'):
      templates.lumina_mgpt_2(_text(), 'a cat', *size)
  with pytest.raises(ValueError, match="no token '<reserved08864>'"):
    templates.lumina_mgpt_2(_text(), 'a cat', 256, 4)


@pytest.mark.parametrize('number', range(3))
def test_contexts_are_those_of_the_official_program(recorded, number):
  request, away = templates.lumina_mgpt_2(_text(), WORDS[number], 4, 8, first_token='<|im_end|>')
  image = [151665, 151701, 151702]
  assert request == [*recorded[f'words_{number}'], *image] and away == image
  assert templates.lumina_mgpt_2(_text(), WORDS[number], 4, 8)[0] == [151643, *request[1:]]


@pytest.mark.slow
def test_words_begin_with_the_token_of_the_settings(recorded):
  condition = folders.loaded('lumina_mgpt_2').condition(['a cat'])
  ids = early_fusion.order(CONFIG)[np.asarray(condition.tokens)[0, 0]]
  size = [151665, 151701, 151702]
  assert ids[np.asarray(condition.visible)[0, 0]].tolist() == [*recorded['words_0'], *size]
  assert recorded['words_0'][0] == 151645


def _opened(folder, settings=None):
  """The output of a conversion of the tokenizer file with settings next to it."""
  folder.mkdir()
  (folder / 'tokenizer.json').write_bytes(texts.lumina_mgpt_2())
  if settings is not None:
    (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
  return convert_lib.open_source('lumina_mgpt_2_text', folder / 'tokenizer.json')


@pytest.mark.parametrize('settings, name', [
    ({'bos_token': '<|im_start|>', 'eos_token': '<|im_end|>'}, '<|im_start|>'),
    ({'bos_token': {'content': '<|im_start|>'}}, '<|im_start|>'),
    ({'bos_token': None, 'eos_token': '<|im_end|>'}, '<|im_end|>'),
    (published_settings.TOKENIZER, '<|endoftext|>')])
def test_the_first_token_is_that_of_the_settings(tmp_path, settings, name):
  opened = _opened(tmp_path / 'files', settings)
  assert opened.network.config.first_token == name and not opened.assumptions


def test_without_settings_the_first_token_is_assumed(tmp_path):
  opened = _opened(tmp_path / 'files')
  assert opened.network.config.first_token is None
  assert opened.assumptions == (
      "assumed prompts that begin with <|endoftext|>; the model's tokenizer_config.json next to "
      'the tokenizer.json specifies another token',)


def test_settings_without_a_usable_first_token_are_refused(tmp_path):
  with pytest.raises(rules.ConversionError, match='bos_token or eos_token is 3; it must be the na'):
    _opened(tmp_path / 'number', {'bos_token': 3})
  opened = _opened(tmp_path / 'absent', {'bos_token': '<s>'})
  with pytest.raises(ValueError, match="the tokenizer file has no token '<s>'"):
    opened.params()


def test_the_vocabulary_may_have_another_size():
  file = rules.get('lumina_mgpt_2')
  for size in (171384, 200000):
    config = dataclasses.replace(CONFIG, vocab_size=size)
    shapes = convert_lib.published_shapes(file, config)
    assert file.infer(shapes, {'height': 4, 'width': 8}) == config
  shapes = convert_lib.published_shapes(rules.get('lumina_mgpt'), sizes.LUMINA_MGPT)
  with pytest.raises(rules.ConversionError, match='65536 tokens; .* has at least 171384'):
    file.infer(shapes, {})


def test_fields_that_the_official_program_does_not_read():
  file = rules.get('lumina_mgpt_2')
  read = lambda **change: file.settings(
      {'config.json': {**published_settings.LUMINA_MGPT_2, **change}})
  assert read(vocabulary_map={'IMGIMGAZ': 4}, boi_token_id=8197, eoi_token_id=8196) == read()
  for change in ({'attention_bias': True}, {'sliding_window': 3}, {'rope_scaling': {'type': 'x'}}):
    with pytest.raises(rules.ConversionError, match=next(iter(change))):
      read(**change)
