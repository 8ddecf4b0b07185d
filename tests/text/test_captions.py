"""Captions for T5: cleaning and tokens, as LlamaGen's official program has them.

`tests/data/llamagen_words.npz` holds, beside what `tests/families/test_words.py` says, `tokenizer`,
the tokenizer.json that transformers 5.23 makes of a sentencepiece model of 300 pieces with four
extra ids and a few rules of normalisation (full-width letters, a ligature, a composed accent, wide
spaces), and the ids, one caption of `CLEANED` behind the other, `counts` of each, that its
tokenizer gives after the official cleaning with `max_length=120` and truncation. What the captions
become is what the official cleaning gave with ftfy 6.3.1 and beautifulsoup4 4.15.0; on 50000
random rows of awkward pieces, 5600 published prompts and 8000 rows of any characters nothing
differed, but where the official one stops at markup such as `<![x`, a caption stays as it is. The
text of `<![CDATA[text]]>` was compared on 60000 rows of markup with such sections.
"""

import functools
import json
import sys

import numpy as np
import pytest

from cspd_jax.text import bpe
from tests.builders import published

for _package in ('ftfy', 'tokenizers'):  # They read words.
  pytest.importorskip(_package)

from cspd_jax.text import captions  # noqa: E402

CLEANED = {
    'A portrait photo of a kangaroo wearing an orange hoodie, “Welcome Friends!”':
        'a portrait photo of a kangaroo wearing an orange hoodie, "welcome friends!"',
    'a map of the world made out of sushi. ' * 12:
        ('a map of the world made out of sushi. ' * 12).strip(),
    '': '',
    'A caf\xe9 in M\xfcnchen \u2014 na\xefve \ufb01sh &amp; jalape\u0303o':
        'a café in münchen - naïve fish jalapẽo',
    '\uff57\uff49\uff44\uff45 letters\u3000and e\u0301 composed\u200b ones':
        'wide letters and \xe9 composed\u200b ones',
    'see https://a.co/b and www.some-site.com/path?x=1 or photo_01.jpg': 'see and ?x=1 or',
    '<b>bold</b> &lt;text&gt; &#39;quoted&#39; <person> on a <br/> horse':
        "bold 'quoted' person on a horse",
    '中文 and ひらがな, 😀 emoji, Русский хлеб': 'and ひらがな, 😀 emoji, русский хлеб',
    'this-is-my-cute-cat_on_a_mat': 'this is my cute cat on a mat',
    'IMG1234 jc6640vc 6640vc231 #12345 @nickname 3:45 ': '3:45',
    'Free  shipping! download free, click for more, 640x480 png image, page 12': '! , ,',
    '100%25 discount+on+tea %26 cake': '100% discount on tea cake',
    '***AUSVERKAUFT*** """sale""" ... now . then': 'ausverkauft "sale" now then',
    "'a single quoted phrase'": 'a single quoted phrase',
    '.hidden': '',
    'cost : 5,000.00 dollars;not,more': 'cost: 5,000.00 dollars;not, more',
    '</s> <pad> <extra_id_0>': '',
}


@functools.cache
def _file():
  return published.recorded('llamagen_words')['tokenizer']


def _text(file=None):
  return bpe.read({'file': _file() if file is None else np.frombuffer(file, np.uint8)}, 't5')


@pytest.mark.parametrize('caption', CLEANED)
def test_captions_are_cleaned_as_officially(caption):
  assert captions.clean(captions.clean(caption)) == CLEANED[caption]


@pytest.mark.parametrize('caption, lost', [
    ('中文', ['中文']), ('download', ['download']), ('R2D2', ['R2D2']), ('@robot!', ['@robot']),
    ('1920x1080', ['1920x1080']), ('日本, 猫!', ['日本', '猫']), ('.hidden', ['hidden']),
    ('http://a.com/b', ['http://a.com/b']), ('()', []), ('</s> <pad>', ['</s>', '<pad>'])])
def test_a_caption_of_which_nothing_is_left_is_refused(caption, lost):
  """Different prompts became one image."""
  with pytest.raises(ValueError, match='of which nothing is left: .* in other words') as error:
    captions.check(caption)
  assert repr(caption) in str(error.value)
  assert set(lost) <= set(captions.unknown_words(_text(), caption, 120))


@pytest.mark.parametrize('caption, lost', [
    ('A caf\xe9 in M\xfcnchen \u2014 na\xefve \ufb01sh &amp; jalape\u0303o, “d´or”', []),
    ('this-is-my-cute-cat_on_a_mat, \uff57\uff49\uff44\uff45 ΟΔΟΣ', []), ('', []), (' ', []),
    ('!!', []),
    ('A robot @robot and R2D2, 1920x1080: a fox', ['@robot', 'R2D2', '1920x1080']),
    ('http://a.com a fox (https://b.org/x)', ['http://a.com', 'https://b.org/x']),
    ('a cat 123456 AND IMG1234 of Download', ['123456', 'IMG1234', 'Download']),
    ('a red+blue fox™', ['+', '™'])])
def test_words_that_the_cleaning_removes(caption, lost):
  captions.check(caption)
  assert captions._removed(caption, captions.clean(captions.clean(caption))) == lost


def test_words_behind_the_end_are_reported():
  """They were cut without a word, so prompts that differ there only became one image."""
  text, start = _text(), 'a map of the world. ' * 40
  words = captions.unknown_words(text, start + 'a castle', 120)
  assert words[-1] == 'castle' and 'castle' not in captions.unknown_words(text, 'a castle', 120)
  assert captions.tokens(text, start + 'a castle', 120) == captions.tokens(text, start, 120)
  words = ['a', 'map', 'of', 'the', 'world']
  for count in range(len(text.encode(' '.join(words))) + 1):
    number = len(words) - len(captions._cut(text, ' '.join(words), count))
    size = lambda number: len(text.encode(' '.join(words[:number])))
    assert size(number) <= count and (number == len(words) or size(number + 1) > count)


def test_the_text_of_a_section_stays():
  assert captions.clean('A <![CDATA[Red]]> fox in <rt>x<![cdata[snow]]></rt><![if y]>') == (
      'a red fox in snow')


def test_tokens_are_those_of_transformers():
  recorded, text = published.recorded('llamagen_words'), _text()
  result = [captions.tokens(text, caption, 120) for caption in CLEANED]
  assert [len(ids) for ids in result] == recorded['counts'].tolist()
  assert max(map(len, result)) == 120 and min(map(len, result)) == 1
  assert sum(result, []) == recorded['ids'].tolist()


def test_truncation_and_padding_of_tokenizer_files_are_ignored():
  content = json.loads(_file().tobytes())
  content |= {
      'truncation': dict(direction='Right', max_length=3, strategy='LongestFirst', stride=0),
      'padding': dict(strategy={'Fixed': 9}, direction='Right', pad_to_multiple_of=None, pad_id=0,
                      pad_type_id=0, pad_token='<pad>')}
  text = _text(json.dumps(content).encode())
  for caption in ('a', 'a map of the world'):
    assert captions.tokens(text, caption, 120) == captions.tokens(_text(), caption, 120)


@pytest.mark.parametrize('markup, shown', [
    ('a <i>red</i> fox<br/> &amp; &#233; &notasign; &#xe9;', 'a red fox & é &notasign é'),
    ('a<!-- hidden --> <rt>small</rt>fox<script>x</script> <style/>end', 'a fox end'),
    ('1 < 2 & 3', '1 < 2 & 3'),
    ('a <![CDATA[x <b> &amp; y]]> <script><![CDATA[z]]></script>end', 'a x <b> &amp; y end'),
    ('a <![cdata[x]]><![CDATA[]]><template>y<![CDATA[z]]></template>', 'a x z'),
    ('a <![cdata[<![cdata[x]]> <![temp[y]]> <![cdata[z', 'a <![cdata[x  <![cdata[z')])
def test_markup_is_read_as_a_browser_does(markup, shown):
  assert captions._visible_text(markup) == shown


@pytest.mark.parametrize('end', ['<![x', '<!', '<?', '<!--', '</', '&', '&#', '<a'])
def test_markup_that_breaks_off_stops_nothing(end):
  assert captions.clean(f'a red fox {end}').startswith('a red fox')


def test_a_file_without_an_end_is_refused():
  content = json.loads(_file().tobytes())
  content['model']['vocab'][1][0] = '</x>'
  content['added_tokens'][1]['content'] = '</x>'
  with pytest.raises(ValueError, match="has no token '</s>'"):
    captions.tokens(_text(json.dumps(content).encode()), 'a', 120)
  for vocab in ([['a']], [3], None):
    with pytest.raises(ValueError, match='the tokenizer file cannot be read'):
      _text(json.dumps({'model': {'type': 'Unigram', 'vocab': vocab}}).encode())


def test_missing_packages_are_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'ftfy', None)
  with pytest.raises(ImportError, match=r"need the package ftfy.*pip install -e '\.\[text\]'"):
    captions.clean('a fox')
