"""Names of control tokens are plain text in prompts, whatever a tokenizer file says of them."""

import json

import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.families import prompt_kinds
from cspd_jax.metrics import clip
from cspd_jax.models.conditions import renumbered
from cspd_jax.text import bpe, captions
from tests.builders import texts
from tests.metrics import clip_files

pytest.importorskip('tokenizers')
# By the form: a file, and names of control tokens that the template does not look up.
FILES = {
    'lumina_mgpt': (texts.chameleon, ['<eoss>', '<reserved08804>', 'IMGIMGBAZ']),
    'anole': (texts.chameleon, ['<pad>', '<reserved08799>', 'IMGIMGHZ']),
    'lumina_mgpt_2': (texts.lumina_mgpt_2, ['<|im_start|>', '<reserved08805>']),
    'simplear': (lambda: texts.of_language_model('simplear', 0), ['<|vtokens|>']),
    'liquid': (lambda: texts.of_language_model('liquid', 0), ['<eoi>', '<pad>']),
    'janus_pro': (texts.janus_pro, ['<end_of_image>', '<｜end▁of▁sentence｜>']),
    'nextstep': (texts.nextstep, ['<|end_of_image|>', '[PAD]'])}


def _unflagged(file, names=()):
  """A file none of whose added tokens is flagged as special, with some tokens added as well."""
  content = json.loads(file)
  content['added_tokens'] = [{**token, 'special': False} for token in content['added_tokens']]
  have = {token['content'] for token in content['added_tokens']}
  content['added_tokens'] += [
      dict(id=content['model']['vocab'].get(name, 10**6), content=name, special=False,
           single_word=False, lstrip=False, rstrip=False, normalized=False)
      for name in names if name not in have]
  return json.dumps(content).encode()


def _contexts(form, file, prompt, grid=(4, 4)):
  """The published ids of both contexts of a prompt, and the tokenizer."""
  family = next(one for one in families.FAMILIES.values() if form in one.text_forms)
  text = family.text_forms[form](file)
  made = prompt_kinds.tokens(
      grid, text, family.prompt_writers[form],
      lambda prompt: renumbered(prompt, np.arange(2 * 10**6)), image_ids={8803}).encode([prompt])
  return [np.asarray(ids)[np.asarray(seen)].tolist()
          for ids, seen in zip(made.tokens[0], made.visible[0])], text


@pytest.mark.parametrize('form', FILES)
def test_names_of_control_tokens_are_plain_text(form):
  make, others = FILES[form]
  file = _unflagged(make(), others)
  (plain, empty), text = _contexts(form, file, 'a cat')
  family = next(one for one in families.FAMILIES.values() if form in one.text_forms)
  own = bpe.looked_up(text, lambda text: family.prompt_writers[form](text, 'a cat', 4, 4))
  assert len(own) > 1 and own <= text.ids.keys()
  for name in [*own, *others]:
    (request, other), _ = _contexts(form, file, f'a {name} cat{name}')
    control = text.ids[name]
    assert request.count(control) == plain.count(control) and len(request) > len(plain) + 2
    if form != 'janus_pro':  # Its second context is as long as the first.
      assert other == empty
  # A subject that was added is a token.
  file = _unflagged(make(), [*others, '<sks>'])
  words = bpe.read({'file': np.frombuffer(file, np.uint8)}, form)
  assert len(words.encode('<sks>')) == 1 < len(words.encode(others[0]))


@pytest.mark.parametrize('form', [*FILES, 't5', 'glm_image', 'clip'])
def test_the_same_words_are_the_same_ids(form):
  """BPE with dropout, and Unigram models that sample, draw ids for training."""
  file = {'t5': texts.t5, 'glm_image': texts.glm_image,
          'clip': clip_files.tokenizer_file, **{name: make for name, (make, _) in FILES.items()}
          }[form]()
  content = json.loads(file)
  if content['model']['type'] == 'BPE':  # Files of tests have few merges.
    content['model'] |= dict(merges=[['a', 't']], vocab=content['model']['vocab'] | {'at': 60000})
  ids = bpe.Vocabulary(json.dumps(content).encode()).encode('a cat that attacks')
  content['model'] |= dict(dropout=0.5, alpha=0.1, nbest_size=9)
  text = bpe.Vocabulary(json.dumps(content).encode())
  assert ids and [text.encode('a cat that attacks') for _ in range(4)] == [ids] * 4
  assert text.with_control(['cat']).encode('attat') == text.encode('attat')


def test_a_key_that_is_there_twice_is_named():
  file = texts.chameleon().replace(b'"model":', b'"model": {}, "model":', 1)
  with pytest.raises(ValueError, match="tokenizer file cannot be read.*'model' is there twice"):
    bpe.Vocabulary(file)


def test_tokens_of_images_are_plain_text_whatever_their_names():
  """Here 8803, the end of a row, has the name of a word."""
  content = json.loads(texts.chameleon())
  content['model']['vocab'].pop('<reserved08799>')
  file = json.dumps(content).replace('<reserved08799>', 'rowrow').encode()
  file = _unflagged(file, ['rowrow'])
  content = json.loads(file)
  content['model']['vocab']['rowrow'] = 8803
  (request, _), text = _contexts('lumina_mgpt', json.dumps(content).encode(), 'a rowrow')
  assert text.ids['rowrow'] == 8803 and 8803 not in request and len(request) > 10
  assert text.encode('rowrow') == [8803]


def test_models_that_find_names_in_a_text_by_themselves():
  # Words as they stand in the vocabulary, before any merge.
  file = texts.chameleon()
  content = json.loads(file)
  content['model'] |= dict(ignore_merges=True)
  text = bpe.read({'file': np.frombuffer(json.dumps(content).encode(), np.uint8)}, 'lumina_mgpt')
  assert len(text.encode('IMGIMGBAZ')) == 9
  # Merges that lead to a name.
  content['model'] |= dict(
      ignore_merges=False, merges=[['s', '>'], ['<', 's>'], ['a', 't']],
      vocab=content['model']['vocab'] | {'s>': 60000, 'at': 60001})
  text = bpe.read({'file': np.frombuffer(json.dumps(content).encode(), np.uint8)}, 'anole')
  assert text.encode('at<s>') == [60001, 20000 + ord('<'), 60000]
  # One token per word: the names that a template looks up are not words of a prompt.
  names = ['<unk>', '<begin>', '<image>', 'a']
  file = json.dumps(dict(
      version='1.0', truncation=None, padding=None, added_tokens=[], normalizer=None,
      pre_tokenizer={'type': 'WhitespaceSplit'}, post_processor=None, decoder=None,
      model=dict(type='WordLevel', vocab={name: i for i, name in enumerate(names)},
                 unk_token='<unk>'))).encode()

  def write(text, prompt, height, width):
    del height, width
    return tuple([bpe.id_of(text, '<begin>'), *text.encode(words), bpe.id_of(text, '<image>')]
                 for words in (prompt, ''))

  made = prompt_kinds.tokens(
      (3, 4), bpe.Vocabulary(file), write, lambda prompt: renumbered(prompt, np.arange(9)))
  request = made.encode(['a <image> a']).tokens[0, 0]
  assert np.asarray(request)[-5:].tolist() == [1, 3, 0, 3, 2]
  assert made.unknown_words('a <image>') == ['<', 'image', '>']


def test_captions_of_t5_and_clip():
  file = texts.t5()
  text = bpe.read({'file': np.frombuffer(_unflagged(file), np.uint8)}, 't5')
  end = text.ids['</s>']
  assert end not in text.encode('a </s> b</s>')
  assert captions.tokens(text, 'a &lt;/s&gt; b', 20).count(end) == 1
  text = bpe.Vocabulary(_unflagged(clip_files.tokenizer_file()), r'<\|(start|end)oftext\|>')
  rows, ends = clip.tokens(text, ['a<|startoftext|>a'], 20)
  assert rows[0].tolist().count(text.ids['<|startoftext|>']) == 1 and ends[0] > 4
