"""Texts that come from files and folders of others, as a terminal may show them."""

import re

# Control characters, which may move the cursor or hide text, and those that reorder it.
_CONTROLS = re.compile('[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]')


def visible(text: str) -> str:
  """Returns a text of one line in which control characters are replaced by their escapes.

  Example:
    visible('a\\x1b[2Kb')  # 'a\\\\x1b[2Kb'
  """
  return _CONTROLS.sub(lambda match: match[0].encode('unicode_escape').decode(), text)


def lines(text: str) -> str:
  """Returns a text of lines in which all other control characters are replaced by their escapes.

  A line may begin and end with a carriage return, as those of progress bars do.
  """
  return '\n'.join(_line(line) for line in text.split('\n'))


def _line(line: str) -> str:
  """A line whose carriage returns at its ends stay."""
  inner = line.strip('\r')
  start = line[:len(line) - len(line.lstrip('\r'))]
  return line if not inner else start + visible(inner) + line[len(start) + len(inner):]
