"""Tables of messages: calls that are refused, and words that say why and what to do."""

import re

import pytest


def each(call, *rows):
  """Rows of one call: what it is called with, behind the models, and the words."""
  return [(lambda at, row=row: call(at, *row[:-1]), row[-1]) for row in rows]


def slow(rows):
  return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]


def check(call, words):
  """Checks that a call is refused with words, and with an error of another type where they say so.

  What is said is a sentence, or a list of problems below one.
  """
  error, words = (ValueError, words) if isinstance(words, str) else words
  with pytest.raises(error, match=words) as caught:
    call()
  said = str(caught.value)
  assert said.replace('\n', '').isprintable(), said
  assert not re.search(r'[a-z)\]]\.(\n| (?!Otherwise)[A-Z])', said), said
  assert said.endswith(('.', '?')) or '\n' in said or error is AttributeError, said
