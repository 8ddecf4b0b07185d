"""Tokenizers are compared with the rows that a network has for text, when a model is built."""

import dataclasses
import json

import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.files import store
from cspd_jax.text import bpe
from tests.builders import sizes, texts


def _build(family, kind, config, form, file):
  """A model of a described target and a tokenizer file."""
  text = store.Loaded('text', bpe.TextConfig(form, len(file)), {
      'file': np.frombuffer(file, np.uint8)}, {})
  parts = {'target': store.sketch(kind, config), 'text': text}
  return families.FAMILIES[family].build(families.Parts('tiny', parts, {}))


def _edited(file, **ids):
  """A tokenizer file with some more tokens."""
  content = json.loads(file)
  content['model']['vocab'] |= ids
  return json.dumps(content).encode()


JANUS, NEXTSTEP, CHAMELEON = texts.janus_pro(), texts.nextstep(), texts.chameleon()
LUMINA_2 = texts.lumina_mgpt_2()


@pytest.mark.parametrize('family, kind, config, form, file, message', [
    ('janus_pro', 'janus', dataclasses.replace(sizes.JANUS, text_size=276), 'janus_pro',
     JANUS, 'up to 276, but the target of .tiny. has 276 rows of text'),
    ('nextstep', 'nextstep', dataclasses.replace(sizes.NEXTSTEP_1, vocab_size=151668),
     'nextstep', NEXTSTEP, 'up to 151669, but the target of .tiny. has 151668 rows of text'),
    ('early_fusion', 'early_fusion', sizes.ANOLE, 'anole', _edited(CHAMELEON, word=65536),
     'up to 65536, but the target of .tiny. has 65536 rows of text'),
    ('early_fusion', 'early_fusion', sizes.LUMINA_MGPT, 'lumina_mgpt',
     _edited(CHAMELEON, IMGIMGJZ=30000), 'does not name the 8192 image tokens from id 4 on'),
    ('early_fusion', 'early_fusion', sizes.LUMINA_MGPT_2, 'lumina_mgpt_2',
     _edited(LUMINA_2, word=171385), 'up to 171385, but the target of .tiny. has 171385 rows'),
    ('early_fusion', 'early_fusion', sizes.SIMPLEAR, 'simplear',
     texts.of_language_model('simplear', 0), 'text has 103 tokens, but the target of .tiny. has '
     '151672 rows of text before its codes'),
    ('early_fusion', 'early_fusion', sizes.EMU3, 'emu3',
     texts.emu3(151642), 'it has 151642 tokens of text, and the model 151643'),
    ('early_fusion', 'early_fusion', sizes.EMU3_5, 'emu3_5',
     texts.emu3(151644), 'it has 151644 tokens of text, and the model 151643')])
def test_tokens_without_a_row_of_text_are_refused(family, kind, config, form, file, message):
  with pytest.raises(ValueError, match=message):
    _build(family, kind, config, form, file)


@pytest.mark.slow
def test_rows_without_a_token_are_padding():
  """Where the ids of codes do not depend on the number of tokens."""
  _build('janus_pro', 'janus', dataclasses.replace(sizes.JANUS, text_size=320), 'janus_pro',
         JANUS)
  _build('early_fusion', 'early_fusion', sizes.ANOLE, 'anole', CHAMELEON)
