"""Prompts on the command line and in files: what is typed is what the model gets."""

import json

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax import sharding
from cspd_jax.cli import fields, groups, inputs
from cspd_jax.generation import prompts as prompts_lib


@pytest.fixture(scope='module')
def words():
  return cspd_jax.load('emoji')


@pytest.fixture(scope='module')
def classes():
  return cspd_jax.load('demo')


def _prompts(model, *texts):
  return inputs.images(groups.Images(prompt=texts), model)[0]


@pytest.mark.slow
@pytest.mark.parametrize('text', [
    'an orange cat,', ' an orange cat', 'a cat, orange ', 'cat,coffee', ',', '1,2', 'a\u2028b'])
def test_a_description_stays_as_it_is(words, text):
  """Its last comma and the spaces around it were lost, unlike in `model.generate`."""
  assert _prompts(words, text) == [text]
  assert _prompts(words, text, 'a rocket') == [text, 'a rocket']


def test_a_description_that_the_model_refuses_is_not_divided(words, monkeypatch):
  """Its parts may be valid prompts, but are not what was meant."""
  encode = words.prompt_kind.encode

  def short(prompts):
    if any(len(prompt) > 9 for prompt in prompts):
      raise ValueError('prompts is too long')
    return encode(prompts)

  model = cspd_jax.load('emoji')
  object.__setattr__(model, 'prompt_kind', model.prompt_kind._replace(
      encode=short, prompts=('a cat',)))
  assert _prompts(model, 'a, b, c') == ['a, b, c']
  with pytest.raises(ValueError, match='too long'):
    _prompts(model, 'a cat, orange')


@pytest.mark.parametrize('text, parts', [
    ('cat,coffee', ['cat', 'coffee']), ('cat,', ['cat']), (' cat , 3,', ['cat', '3']),
    ('1,2', ['1', '2']), ('cat', ['cat'])])
def test_classes_are_divided(classes, text, parts):
  assert _prompts(classes, text) == parts


@pytest.mark.parametrize('text', ['', ' ', 'None'])
def test_blank_prompts_are_those_of_generate(words, classes, text):
  """They were left out, other prompts with them; `generate` accepted some of them."""
  for texts in ([text], ['cat', text]):
    assert _prompts(words, *texts) == texts == prompts_lib.listed(texts)
    for refused in (lambda texts=texts: _prompts(classes, *texts),
                    lambda texts=texts: classes.generate(texts)):
      with pytest.raises(ValueError, match=f'prompts holds \'{text.strip()} ?\''):
        refused()


def test_no_prompt(words, classes):
  for text in (',', ',cat', 'cat,,coffee'):
    with pytest.raises(ValueError, match="prompts holds ''"):
      _prompts(classes, text)
  with pytest.raises(ValueError, match="prompts holds 'cow'"):
    _prompts(classes, 'cat,cow')
  for model in (words, classes):
    with pytest.raises(ValueError, match='prompts is empty; pass at least one'):
      inputs.images(groups.Images(prompt=()), model)
    for empty in ([], (), np.zeros(0, int)):
      with pytest.raises(ValueError, match='prompts is empty; pass at least one'):
        model.generate(empty)


def test_none_stands_alone():
  """As a flag it stood for the model's own prompts, and dropped the others."""
  for texts in (['cat', 'None'], ['none', 'cat'], ['None', 'none']):
    with pytest.raises(ValueError, match=f'--prompt is none and {len(texts) - 1} more; give none'):
      fields.override(groups.Images(), dict(prompt=texts))
  assert fields.override(groups.Images(prompt='cat'), dict(prompt=['None'])).prompt is None
  assert fields.override(groups.Images(), dict(prompt=['cat', '', 'dog'])).prompt == (
      'cat', '', 'dog')


def test_files_of_prompts(tmp_path, words):
  """A byte order mark became a part of the first prompt, and U+2028 and others ended a prompt."""
  path = tmp_path / 'prompts.txt'
  path.write_bytes(b'\xef\xbb\xbf' + 'a cat\r\none\u2028two\x0cthree\n\n  dusk \rdawn'.encode())
  expected = ['a cat', 'one\u2028two\x0cthree', 'dusk', 'dawn']
  assert prompts_lib.listed(path) == expected
  assert inputs.images(groups.Images(prompts=str(path)), words)[0] == expected


def _lines(*values):
  return '\n'.join(json.dumps(value, ensure_ascii=False) for value in values)


@pytest.mark.parametrize('name', ['a.jsonl', 'a.JSONL', 'a.ndjson'])
def test_json_lines(tmp_path, name):
  """Pictures of JSON were drawn."""
  path, prompts = tmp_path / name, ['a cat', '', ' un caf\u00e9\u2028', 'cat']
  path.write_bytes(b'\xef\xbb\xbf' + _lines(
      *({'tag': 'x', 'prompt': prompt} for prompt in prompts)).replace('\n', '\r\n\n').encode())
  assert prompts_lib.listed(path) == prompts


@pytest.mark.parametrize('name, text, message', [
    ('a.jsonl', _lines({'prompt': 'a cat'}, {'caption': 'a dog'}),
     "line 2 is no JSON object with a text 'prompt', but has 'caption'; pass a UTF-8 file"),
    ('a.jsonl', 'a cat', "line 1 is no JSON object with a text 'prompt'; pass"),
    ('a.jsonl', _lines({'prompt': 3}), "line 1 is no JSON object with a text 'prompt', but has"),
    ('a.jsonl', '[' * 10**5, 'line 1 is no JSON object'),
    ('a.jsonl', '{"prompt": "a cat", "prompt": "a dog"}',
     "line 1 is no JSON object with a text 'prompt' .'prompt' is there twice.; pass"),
    ('a.jsonl', '\n', 'without prompts'),
    ('a.json', _lines(['a cat']), 'a file of data, such as JSON or a table; pass'),
    ('a.TSV', 'Prompt\na', 'a file of data'),
    ('a.csv', 'prompt,seed\na cat,1', 'a file of data'),
    ('a.txt', _lines({'prompt': 'a cat'}, {'prompt': 'a dog'}), 'a file of data, such as JSON'),
    ('a', json.dumps(['a cat', 'a dog'], indent=1), 'a file of data, such as JSON')])
def test_other_files_of_data_are_refused(tmp_path, name, text, message):
  (tmp_path / name).write_text(text, encoding='utf-8')
  with pytest.raises(ValueError, match=f'prompts is .*{message}'):
    prompts_lib.listed(tmp_path / name)


def test_lines_that_resemble_data_are_prompts(tmp_path):
  lines = ['[photo] a cat', '{curly}', '3', '"a sign"', 'prompt,seed']
  (tmp_path / 'a.txt').write_text('\n'.join(lines), encoding='utf-8')
  assert prompts_lib.listed(tmp_path / 'a.txt') == lines


def test_a_mesh_takes_the_first_devices(monkeypatch):
  """There was no flag for the devices that the library's error asked for."""
  monkeypatch.setattr(jax, 'devices', lambda: list('abcd'))
  monkeypatch.setattr(sharding, 'make_mesh', lambda *sizes, devices: (sizes, devices))
  assert inputs.mesh('1x2') == ((1, 2), ['a', 'b'])
  with pytest.raises(ValueError, match="mesh is '2x4'; it requires 8 devices, but there are 4"):
    inputs.mesh('2x4')


def test_runs_have_the_names_of_folders(tmp_path, monkeypatch):
  (tmp_path / 'models' / 'mine').mkdir(parents=True)
  monkeypatch.chdir(tmp_path / 'models' / 'mine')
  names = {'demo': 'demo', '.': 'mine', '..': 'models', '../': 'models', '/': 'model',
           'checkpoints/c2i_xl_384/': 'c2i_xl_384'}
  assert {model: inputs.run_name(model) for model in names} == names
