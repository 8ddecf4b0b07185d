"""Cleans and tokenizes prompts for models that were trained on captions from the web, with T5.

The training captions were cleaned twice, of links, markup, file names, article numbers and the
like, and so are prompts. The steps and their order are LlamaGen's (arXiv 2406.06525), which
uses the ones of DeepFloyd IF. A plain sentence is only converted to lower case.
"""

import bisect
import collections
import html
import html.entities
import html.parser
import re
import urllib.parse

from cspd_jax.text import bpe
from cspd_jax.text.bpe import Text, words

_FILES = '(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)'
_LINK = r'[a-z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)'
_DASHES = ('\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0'
           '\ufe31\ufe32\ufe58\ufe63\uff0d')
# Patterns and their replacements, in order: before markup is removed, ...
_LINKS = (
    ('<person>', 'person'),
    (rf'\b(?:https?:(?:/{{1,3}}|[a-z0-9%])|{_LINK})', ''),
    (rf'\b(?:www:(?:/{{1,3}}|[a-z0-9%])|{_LINK})', ''))
# ... before broken characters are repaired, ...
_SIGNS = (
    (r'@\w+', ''),  # Nicknames.
    ('[\u31c0-\u9fff]+', ''),  # Chinese, Japanese and Korean characters.
    (f'[-{_DASHES}]+', '-'),
    ('[`´«»“”¨]', '"'),
    ('[‘’]', "'"),
    ('&quot;?', ''),
    ('&amp', ''),
    (r'\d{1,3}(?:\.\d{1,3}){3}', ' '),  # Internet addresses.
    (r'\d:\d\d\s+$', ''),
    (r'\\n', ' '),  # Two characters, a backslash and an n.
    (r'#(?:\d{1,3}|\d{5,})\b', ''),
    (r'\b\d{6,}\b', ''),
    (rf'\S+\.{_FILES}', ''),
    ('["\']{2,}', '"'),
    (r'\.{2,}', ' '),
    (r'[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+', ' '),
    (r'\s+\.\s+', ' '))
# ... and after that.
_CODES = (
    (r'\b[a-zA-Z]{1,3}\d{3,15}\b', ''),
    (r'\b[a-zA-Z]+\d+[a-zA-Z]+\b', ''),
    (r'\b\d+[a-zA-Z]+\d+\b', ''),
    (r'(?:worldwide\s+)?(?:free\s+)?shipping', ''),
    (r'(?:free\s)?download(?:\sfree)?', ''),
    (r'\bclick\b\s(?:for|on)\s\w+', ''),
    (rf'\b{_FILES}(?:\simages?)?', ''),
    (r'\bpage\s+\d+\b', ''),
    (r'\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b', ' '),
    (r'\b\d+\.?\d*[xх×]\d+\.?\d*\b', ''),  # Sizes, including those with the Cyrillic letter.
    (r'\b\s+:\s+', ': '),
    (r'(\D[,./])\b', r'\1 '),
    (r'\s+', ' '),
    (r'^["\']([\w\W]+)["\']$', r'\1'),
    (r"^['_,\-:;]", ''),
    (r"['_,\-:+]$", ''),
    (r'^\.\S+$', ''))
_END = '</s>'
_SECTION = 'CDATA['  # `<![CDATA[text]]>`.


def tokens(text: Text, caption: str, length: int) -> list[int]:
  """Returns the published ids of a caption, once cleaned, for T5, with the end token last.

  Longer captions than `length` ids are truncated.
  """
  return [*text.encode(clean(clean(caption)))[:length - 1], bpe.id_of(text, _END)]


def check(caption: str) -> None:
  """Raises ValueError if the cleaning leaves nothing of a prompt that is not blank."""
  cleaned = clean(clean(caption))
  if caption.strip() and (not cleaned or words(caption) and not words(cleaned)):
    raise ValueError(
        f'prompts holds {caption!r:.80}, of which nothing is left: the captions that the model was '
        'trained on were cleaned of Chinese characters, links, names of files, sizes, numbers of '
        'articles and the like, and so are prompts; describe the image in other words.')


def unknown_words(text: Text, caption: str, length: int) -> list[str]:
  """Returns the words of a prompt that do not reach the model, once each.

  These are the words that the cleaning removes, those that the tokenizer has no tokens for, and
  those behind the maximum length.
  """
  cleaned = clean(clean(caption))
  return list(dict.fromkeys([*_removed(caption, cleaned), *bpe.unknown_words(text, cleaned),
                             *_cut(text, cleaned, length - 1)]))


def _removed(caption: str, cleaned: str) -> list[str]:
  """The words of a caption that are not in the cleaned one."""
  # The same text in the characters of the cleaned one.
  caption = html.unescape(html.unescape(urllib.parse.unquote(caption)))
  caption = re.sub('[`´¨]', '"', bpe.import_package('ftfy').fix_text(caption))
  lost = collections.Counter(map(str.lower, words(caption))) - collections.Counter(words(cleaned))
  parts, removed = caption.split(), {}
  # Links and the like are reported as a whole, and before words that also stand alone.
  owned = [collections.Counter(map(str.lower, words(part))) for part in parts]
  for i in sorted(range(len(parts)), key=lambda i: (-len(owned[i]), parts[i].isalpha())):
    if owned[i] and owned[i] <= lost:
      lost -= owned[i]
      removed[i] = parts[i].strip('.,;:!?"\'()')
  rest = [word for word in words(caption) if lost[word.lower()]]
  return [*(removed[i] for i in sorted(removed)), *rest]


def _cut(text: Text, cleaned: str, count: int) -> list[str]:
  """The words of a cleaned caption behind its first `count` tokens."""
  if len(text.encode(cleaned)) <= count:
    return []
  ends = [match.end() for match in re.finditer(r'\S+', cleaned)]
  first = bisect.bisect_left(ends, True, key=lambda end: len(text.encode(cleaned[:end])) > count)
  return words(cleaned[ends[first - 1] if first else 0:])


def clean(caption: str) -> str:
  """Cleans a caption once, with ftfy, which must be installed; the training cleaned captions twice.
  """
  caption = urllib.parse.unquote_plus(caption).strip().lower()
  caption = _substituted(_visible_text(_substituted(caption, _LINKS)), _SIGNS)
  if len(re.findall('[-_]', caption)) > 3:  # a-name-like-this
    caption = re.sub('[-_]', ' ', caption)
  caption = bpe.import_package('ftfy').fix_text(caption)
  return _substituted(html.unescape(html.unescape(caption)).strip(), _CODES).strip()


def _substituted(caption: str, steps: tuple[tuple[str, str], ...]) -> str:
  for pattern, replacement in steps:
    caption = re.sub(pattern, replacement, caption)
  return caption


def _visible_text(markup: str) -> str:
  """Returns the text of markup, or the input itself if it cannot be parsed."""
  page = _Page()
  try:
    # Newer versions of Python recognize only the upper-case form of a section.
    page.feed(markup.replace(f'<![{_SECTION.lower()}', f'<![{_SECTION}'))
    page.close()
  except AssertionError:  # Raised by the parser for an unknown declaration.
    return markup
  return ''.join(page.parts).replace(f'<![{_SECTION}', f'<![{_SECTION.lower()}')


class _Page(html.parser.HTMLParser):
  """Collects the text of markup.

  References are resolved here, because the parser would also resolve `&copy` without a `;`.
  """

  _HIDDEN = frozenset({'rp', 'rt', 'script', 'style', 'template'})

  def __init__(self) -> None:
    super().__init__(convert_charrefs=False)
    self.parts: list[str] = []
    self._within = ''  # The tag whose contents are hidden.

  def handle_starttag(self, tag, attrs):
    """Hides the text of some tags."""
    if tag in self._HIDDEN and not self._within:
      self._within = tag

  def handle_endtag(self, tag):
    """Shows text again after the end of a hidden tag."""
    if tag == self._within:
      self._within = ''

  def handle_data(self, data):
    """Collects visible text."""
    if not self._within:
      self.parts.append(data)

  def unknown_decl(self, data):
    """Collects the text of a section unchanged, also within hidden tags."""
    if data.startswith(_SECTION):
      self.parts.append(data.removeprefix(_SECTION) or ' ')

  def handle_entityref(self, name):
    """Resolves a reference by name, if it ends in `;`."""
    self.handle_data(html.entities.html5.get(f'{name};', f'&{name}'))

  def handle_charref(self, name):
    """Resolves a reference by number."""
    self.handle_data(html.unescape(f'&#{name};'))
