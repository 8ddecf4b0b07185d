"""Prompts of models that were trained on captions of the web: cleaned, then tokens for T5.

The captions were cleaned of links, markup, file names, codes of articles and the like, twice, and
so are prompts. The steps and their order are those of LlamaGen (arXiv 2406.06525), which has them
from DeepFloyd IF; what is left of a plain sentence is the sentence in lower case.
"""

import html
import html.entities
import html.parser
import re
import urllib.parse

from cspd_jax.text.bpe import Text, id_of
from cspd_jax.text.packages import need

_FILES = '(?:png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4)'
_LINK = r'[a-z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)'
_DASHES = ('\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0'
           '\ufe31\ufe32\ufe58\ufe63\uff0d')
# Patterns and what takes their place, in order: before markup is removed, ...
_LINKS = (
    ('<person>', 'person'),
    (rf'\b(?:https?:(?:/{{1,3}}|[a-z0-9%])|{_LINK})', ''),
    (rf'\b(?:www:(?:/{{1,3}}|[a-z0-9%])|{_LINK})', ''),
)
# ... before broken characters are mended, ...
_SIGNS = (
    (r'@\w+', ''),  # Nicknames.
    ('[\u31c0-\u9fff]+', ''),  # Signs of Chinese and of its kin.
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
    (r'\s+\.\s+', ' '),
)
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
    (r'\b\d+\.?\d*[xх×]\d+\.?\d*\b', ''),  # Sizes, also with the Cyrillic letter.
    (r'\b\s+:\s+', ': '),
    (r'(\D[,./])\b', r'\1 '),
    (r'\s+', ' '),
    (r'^["\']([\w\W]+)["\']$', r'\1'),
    (r"^['_,\-:;]", ''),
    (r"['_,\-:+]$", ''),
    (r'^\.\S+$', ''),
)
_END = '</s>'
_SECTION = 'CDATA['  # `<![CDATA[text]]>`.


def tokens(text: Text, caption: str, length: int) -> list[int]:
  """The published ids that T5 reads of a caption, at most `length`, the last of which ends it.

  Args:
    text: the tokenizer.
    caption: a prompt as it was given.
    length: what is longer is cut.

  Raises:
    ImportError: if a package that reads words is not installed.
  """
  return [*text.encode(clean(clean(caption)))[:length - 1], id_of(text, _END)]


def clean(caption: str) -> str:
  """Cleans a caption once, as the captions of the training were, twice.

  Raises:
    ImportError: if the package that mends broken characters is not installed.
  """
  caption = urllib.parse.unquote_plus(caption).strip().lower()
  caption = _replaced(_shown(_replaced(caption, _LINKS)), _SIGNS)
  if len(re.findall('[-_]', caption)) > 3:  # a-name-like-this
    caption = re.sub('[-_]', ' ', caption)
  caption = need('ftfy').fix_text(caption)
  return _replaced(html.unescape(html.unescape(caption)).strip(), _CODES).strip()


def _replaced(caption: str, steps: tuple[tuple[str, str], ...]) -> str:
  for pattern, replacement in steps:
    caption = re.sub(pattern, replacement, caption)
  return caption


def _shown(markup: str) -> str:
  """Returns the text of markup; what cannot be read as markup stays."""
  page = _Page()
  try:
    # Newer versions of Python recognize a section by capitals only.
    page.feed(markup.replace(f'<![{_SECTION.lower()}', f'<![{_SECTION}'))
    page.close()
  except AssertionError:  # How the parser calls a declaration that it does not know.
    return markup
  return ''.join(page.parts).replace(f'<![{_SECTION}', f'<![{_SECTION.lower()}')


class _Page(html.parser.HTMLParser):
  """Collects the text of markup.

  References are resolved here, because the parser would take `&copy` for a sign without its `;`.
  """

  _HIDDEN = frozenset({'rp', 'rt', 'script', 'style', 'template'})

  def __init__(self) -> None:
    super().__init__(convert_charrefs=False)
    self.parts: list[str] = []
    self._within = ''  # The tag whose contents are not shown.

  def handle_starttag(self, tag, attrs):
    """See `HTMLParser`."""
    if tag in self._HIDDEN and not self._within:
      self._within = tag

  def handle_endtag(self, tag):
    """See `HTMLParser`."""
    if tag == self._within:
      self._within = ''

  def handle_data(self, data):
    """See `HTMLParser`."""
    if not self._within:
      self.parts.append(data)

  def unknown_decl(self, data):
    """See `HTMLParser`; the text of a section stays as it is, within hidden tags too."""
    if data.startswith(_SECTION):
      self.parts.append(data.removeprefix(_SECTION) or ' ')

  def handle_entityref(self, name):
    """See `HTMLParser`."""
    self.handle_data(html.entities.html5.get(f'{name};', f'&{name}'))

  def handle_charref(self, name):
    """See `HTMLParser`."""
    self.handle_data(html.unescape(f'&#{name};'))
