"""Prompts on the command line and in files: what is typed is what the model gets."""

import pytest

import cspd_jax
from cspd_jax.cli import groups, inputs
from cspd_jax.generation import prompts as prompts_lib


@pytest.fixture(scope='module')
def words():
  return cspd_jax.load('text_demo')


@pytest.fixture(scope='module')
def classes():
  return cspd_jax.load('demo')


def _prompts(model, *texts):
  return inputs.images(groups.Images(prompt=texts), model)[0]


@pytest.mark.parametrize('text', [
    'an orange cat,', ' an orange cat', 'a cat, orange ', 'cat,coffee', ',', '1,2', 'a\u2028b'])
def test_a_description_stays_as_it_is(words, text):
  """Its last comma and the spaces around it were lost, unlike in `model.generate`."""
  assert _prompts(words, text) == [text]
  assert _prompts(words, text, 'a rocket') == [text, 'a rocket']


def test_a_description_that_the_model_refuses_is_not_divided(words, monkeypatch):
  """Its parts may be valid prompts, but are not what was meant."""
  encode = words.conditions.encode

  def short(prompts):
    if any(len(prompt) > 9 for prompt in prompts):
      raise ValueError('prompts is too long')
    return encode(prompts)

  model = cspd_jax.load('text_demo')
  object.__setattr__(model, 'conditions', model.conditions._replace(
      encode=short, prompts=('a cat',)))
  assert _prompts(model, 'a, b, c') == ['a, b, c']
  with pytest.raises(ValueError, match='too long'):
    _prompts(model, 'a cat, orange')


@pytest.mark.parametrize('text, parts', [
    ('cat,coffee', ['cat', 'coffee']), ('cat,', ['cat']), (' cat , 3,', ['cat', '3']),
    ('1,2', ['1', '2']), ('cat', ['cat'])])
def test_classes_are_divided(classes, text, parts):
  assert _prompts(classes, text) == parts


def test_no_prompt(words, classes):
  for model, text in ((words, ' '), (classes, ','), (classes, '')):
    with pytest.raises(ValueError, match='there is no prompt'):
      _prompts(model, text)
  with pytest.raises(ValueError, match="prompts holds 'cow'"):
    _prompts(classes, 'cat,cow')


def test_files_of_prompts(tmp_path, words):
  """A byte order mark became a part of the first prompt, and U+2028 and others ended a prompt."""
  path = tmp_path / 'prompts.txt'
  path.write_bytes(b'\xef\xbb\xbf' + 'a cat\r\none\u2028two\x0cthree\n\n  dusk \rdawn'.encode())
  expected = ['a cat', 'one\u2028two\x0cthree', 'dusk', 'dawn']
  assert prompts_lib.listed(path) == expected
  assert inputs.images(groups.Images(prompts=str(path)), words)[0] == expected
