"""Text-conditional LlamaGen: prompts and features, what is refused, what identifies a run."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.commands import generate as generate_command
from cspd_jax.files import store
from cspd_jax.generation import stored_run
from cspd_jax.text import bpe
from tests.builders import folders, published, sizes

pytestmark = pytest.mark.usefixtures('precise')

for _package in ('ftfy', 'tokenizers'):  # They read words.
  pytest.importorskip(_package)

SMALL, T5 = sizes.T2I, sizes.T5


@pytest.fixture
def folder():
  return folders.model('llamagen')


@pytest.fixture(scope='module')
def model():
  return cspd_jax.load(folders.model('llamagen'))


def test_a_prompt_does_not_depend_on_others(model):
  together = model.condition(['a red fox', 'a map', 'a red fox'])
  alone = model.condition('a red fox')
  for some, one in zip(together, alone):
    np.testing.assert_array_equal(some[0], one[0])
    np.testing.assert_array_equal(some[2], one[0])
    assert not np.array_equal(some[1], one[0])
  assert not alone.embeddings[~alone.mask].any() and alone.embeddings[alone.mask].all()


def test_unknown_words_are_those_of_the_prompt_and_of_the_cleaned_caption(model):
  assert model.prompt_kind.unknown_words('A fox, жук and été; 日本 🦄 http://a.com') == [
      '日本', 'http://a.com', 'жук', 'été', '🦄']
  with pytest.raises(ValueError, match="prompts holds '日本', of which nothing is left"):
    model.generate(['a red fox', '日本'], decoder='vanilla')
  prepare = functools.partial(model.images, decoder='vanilla')
  task = prepare(['a red fox', 'жук'])
  assert task.unknown_words == [[], ['жук']]
  assert prepare(task.condition).unknown_words == [[], []]


def test_features_in_place_of_words(model, folder):
  condition = model.condition(['a red fox', 'a map of the world'])
  features = [row[mask] for row, mask in zip(*condition)]
  silent = cspd_jax.load(folder, t5=None, text=None)
  for given in (features, condition):
    for want, result in zip(condition, silent.condition(given)):
      np.testing.assert_array_equal(result, want)
  stacked = silent.condition(jnp.stack([features[1]] * 2))
  np.testing.assert_array_equal(stacked.embeddings[0], condition.embeddings[1])
  for prompts in (features, condition, stacked.embeddings):
    assert silent.prompt_kind.titles(prompts) == ['caption 0', 'caption 1']


@pytest.mark.parametrize('left_out, message', [
    ((), 'this model accepts a list of prompts in words, or T5 features: an array .B, L, 40.'),
    (('t5',), 'because it lacks the part t5: .* --family=t5, or load it with t5=FOLDER'),
    (('t5', 'text'), 'lacks the parts t5 and text: .* --family=t5 and --family=t5_text, or load')])
def test_prompts_of_other_kinds_are_refused(folder, left_out, message):
  silent = cspd_jax.load(folder, **dict.fromkeys(left_out))
  for prompts in ([3], ['a fox'] if left_out else [3, 4]):
    with pytest.raises(ValueError, match=message):
      silent.condition(prompts)
  for rows in ([np.zeros((121, 40))], [np.zeros((0, 40))], [np.zeros(40)],
               [np.zeros((2, 40)), np.zeros((2, 41))]):
    with pytest.raises(ValueError, match=r'every text has \[L, D\].* 1 to 120 tokens'):
      silent.condition(rows)


@pytest.mark.slow
def test_parts_that_do_not_belong_together_are_refused(folder, tmp_path):
  load = lambda **parts: cspd_jax.load(folder, **{
      role: store.Loaded(kind, config, params, {})
      for role, (kind, config, params) in parts.items()})
  file = published.recorded('llamagen_words')['tokenizer']
  narrow, few = dataclasses.replace(T5, dim=8), dataclasses.replace(T5, vocab_size=300)
  with pytest.raises(ValueError, match='t5 has dim 8, but the target of .* has caption_dim 40'):
    load(t5=('t5', narrow, {}))
  with pytest.raises(ValueError, match='text has tokens up to 303, but t5 has 300'):
    load(t5=('t5', few, {}))
  other = ('text', bpe.TextConfig('anole', len(file)), {'file': file})
  with pytest.raises(ValueError, match='text is a tokenizer file for anole, but .* for t5'):
    load(text=other)
  classes = dataclasses.replace(SMALL, conditioning='class', num_classes=3)
  params = published.params('llamagen', classes, 1)
  with pytest.raises(ValueError, match="the part 't5', but its target is class-conditional"):
    load(target=('llamagen', classes, params))


def test_a_run_is_identified_by_its_words(model):
  condition = model.condition(['a fox', 'a map'])
  moved = condition._replace(embeddings=condition.embeddings * (1 + 1e-7))
  def settings(condition, prompts=None, of=model):
    return stored_run.settings(of.sampler('vanilla').images(
        condition if prompts is None else prompts, condition=condition))

  assert settings(condition) != settings(moved)
  words = settings(condition, ['a fox', 'a map'])
  assert words == settings(moved, ['a fox', 'a map']) != settings(condition, ['a fox', 'a cap'])
  assert settings(condition, list(condition.embeddings)) == settings(condition)
  moved = jax.tree.map(lambda leaf: leaf + 1, model.prompt_kind.params)
  other = model.prompt_kind._replace(params=moved)
  for changed, given in ((dataclasses.replace(model, prompt_kind=other), condition),
                         (model.with_prefix(np.zeros(3, int)), None)):
    given = changed.condition(['a fox', 'a map']) if given is None else given
    assert settings(given, ['a fox', 'a map'], changed) != words


def test_a_missing_package_ends_with_a_message(folder, tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ftfy', None)
  assert generate_command.main(
      ['cspd-generate', f'--model={folder}', '--prompt=a fox', f'--output={tmp_path}/out']) == 2
  assert "error: Text prompts need the package ftfy" in capsys.readouterr().err
