"""Text-conditional LlamaGen from words: from files in the published layout, at tiny sizes, to PNGs.

`tests/data/llamagen_words.npz` was recorded in float32 from the official program of LlamaGen: its
cleaning and its tokenizer call (see `tests/text/test_captions.py`), the `T5EncoderModel` of
transformers 5.23 at the sizes of `T5` with the weights of `published.py`, seed 41, the padding on
the left of `sample_t2i.py`, and `generate` with guidance over the official transformer at the sizes
of `WIDE`, weight seed 43, where given tokens, `default_rng(44).integers(0, 48, (3, 64))`, took the
place of sampled ones. `logits` `[2, 3, 64, 48]` are those of every step, with the caption and with
the null caption, for the three `CAPTIONS` of 42, 120 (cut) and 1 tokens.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import cspd_jax
from cspd_jax.commands import generate as generate_command
from cspd_jax.decoding import tree
from cspd_jax.files import store
from cspd_jax.generation import stored_run
from cspd_jax.models import llamagen
from cspd_jax.text import bpe
from tests.families import published_files
from tests.families.published_files import convert
from tests.models import published

pytestmark = pytest.mark.usefixtures('precise')

for _package in ('ftfy', 'tokenizers'):  # They read words.
  pytest.importorskip(_package)

CAPTIONS = ['A portrait photo of a kangaroo wearing an orange hoodie, “Welcome Friends!”',
            'a map of the world made out of sushi. ' * 12, '']
SMALL, VQ, T5 = published_files.T2I, published_files.T2I_VQ, published_files.T5
WIDE = llamagen.LlamaGenConfig(
    conditioning='text', height=8, width=8, dim=64, num_layers=2, num_heads=4, ffn_dim=192,
    vocab_size=48, caption_dim=40)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """Files as they are published."""
  folder = tmp_path_factory.mktemp('published')
  save = safetensors.numpy.save_file
  save(published_files.tensors('llamagen', SMALL, 45), folder / 't2i.safetensors')
  save(published_files.tensors('llamagen_vq', VQ, 46), folder / 'vq.safetensors')
  published_files.flan_t5(folder / 'flan-t5-xl')
  return folder


@pytest.fixture(scope='module')
def folder(files, tmp_path_factory):
  """The model, converted by the command."""
  folder = tmp_path_factory.mktemp('models') / 't2i'
  assert not convert(files, 't5_text', 'flan-t5-xl/tokenizer.json', folder)
  assert not convert(files, 'llamagen', 't2i.safetensors', folder, '--image_size=48',
                     '--num_heads=2')
  assert not convert(files, 't5', 'flan-t5-xl', folder)
  assert not convert(files, 'llamagen_vq', 'vq.safetensors', folder)
  return folder


@pytest.fixture(scope='module')
def model(folder):
  return cspd_jax.load(folder)


def test_a_model_is_converted_part_by_part(model, folder):
  assert model.config == SMALL and model.tokenizer.config == VQ
  assert store.describe(folder / 't5').config == T5
  assert model.defaults == {
      'temperature': 1.0, 'top_p': 1.0, 'guidance_scale': 7.5, 'top_k': 1000}


def test_logits_of_words_agree_with_the_official_program(model):
  """Fixed tokens one at a time on top of the cache, and all at once."""
  condition, params = model.condition(CAPTIONS), published.params('llamagen', WIDE, 43)
  assert condition.mask.sum(axis=1).tolist() == [42, 120, 1]
  want = published.recorded('llamagen_words')['logits']
  tokens = jnp.asarray(np.random.default_rng(44).integers(0, 48, (3, 64)))
  target = llamagen.target(WIDE, guided=True)

  def step(cache, k):
    logits, _, cache = target.score(
        params, cache, tokens[:, k][:, None], jnp.full(3, k), tree.chain(0))
    return cache, logits[:, :, 0]

  @jax.jit
  def cached(condition):
    first, _, cache = target.prefill(params, condition, 64)
    _, rest = jax.lax.scan(step, cache, jnp.arange(63))
    return jnp.concatenate([first[:, :, None], jnp.moveaxis(rest, 0, 2)], axis=2)

  @jax.jit
  def whole(condition):
    return jnp.stack([
        llamagen.logits_and_features(params, WIDE, condition, tokens, jnp.full(3, drop))[0]
        for drop in (False, True)])

  for run in (cached, whole):
    np.testing.assert_allclose(run(condition), want, atol=3e-4, rtol=0)


def test_a_prompt_does_not_depend_on_others(model):
  together = model.condition(['a red fox', 'a map', 'a red fox'])
  alone = model.condition('a red fox')
  for some, one in zip(together, alone):
    np.testing.assert_array_equal(some[0], one[0])
    np.testing.assert_array_equal(some[2], one[0])
    assert not np.array_equal(some[1], one[0])
  assert not alone.embeddings[~alone.mask].any() and alone.embeddings[alone.mask].all()


def test_unknown_words_are_those_of_the_prompt_and_of_the_cleaned_caption(model):
  assert model.conditions.unknown_words('A fox, жук and été; 日本 🦄 http://a.com') == [
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
    assert silent.conditions.titles(prompts) == ['caption 0', 'caption 1']


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
  moved = jax.tree.map(lambda leaf: leaf + 1, model.conditions.params)
  other = model.conditions._replace(params=moved)
  for changed, given in ((dataclasses.replace(model, conditions=other), condition),
                         (model.with_prefix(np.zeros(3, int)), None)):
    given = changed.condition(['a fox', 'a map']) if given is None else given
    assert settings(given, ['a fox', 'a map'], changed) != words


def test_a_missing_package_ends_with_a_message(folder, tmp_path, capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ftfy', None)
  assert generate_command.main(
      ['cspd-generate', f'--model={folder}', '--prompt=a fox', f'--output={tmp_path}/out']) == 2
  assert "error: Text prompts need the package ftfy" in capsys.readouterr().err
