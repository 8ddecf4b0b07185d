"""Seed-exact decoders of the shipped models of discrete tokens: images of vanilla in few passes."""

import functools

import numpy as np
import pytest

import cspd_jax
from cspd_jax.decoding.specification import CORRECTORS

PROMPTS = {'demo': ['cat', 'rocket', 'flower'],
           'emoji': ['a fox on white', 'a ghost on purple', 'a frog 3d on blue',
                     'a castle flat on yellow']}
SEEDS = [3, 3, 4, 4]
# Tokens per forward pass at least, by corrector, with windows of 32.
LEAST = {'corrector': 5.5, 'eagle': 4.5, 'local': 4.5, 'neighbours': 4, 'model': 3.5, 'layers': 2.5}
CASES = [
    ('demo', 'seed_exact(window=16)', 1.7), ('demo', 'seed_exact(window=40)', 1.7),
    *(('demo', f'corrected_seed_exact(corrector={by}, window=32, iterations=3)', least)
      for by, least in LEAST.items()),
    ('emoji', 'seed_exact(window=32)', 1.2), ('emoji', 'model(length=4)+match', 1.2),
    ('emoji', 'corrected_seed_exact(corrector=layers, window=16)', 1.2),
    ('emoji', 'corrected_seed_exact(corrector=neighbours, window=32)', 1.2)]


@functools.cache
def vanilla(name):
  """A model and its images, one token per pass."""
  model = cspd_jax.load(name)
  return model, model.generate(
      PROMPTS[name], seed=SEEDS[:len(PROMPTS[name])], decoder='vanilla')


def test_all_correctors_are_tried():
  assert LEAST.keys() == CORRECTORS.keys()


@pytest.mark.slow
@pytest.mark.parametrize('name, decoder, least', CASES)
def test_images_are_vanillas(name, decoder, least):
  model, expected = vanilla(name)
  made = model.generate(PROMPTS[name], seed=SEEDS[:len(PROMPTS[name])], decoder=decoder)
  np.testing.assert_array_equal(made.tokens, expected.tokens)
  assert np.mean(model.num_tokens / made.decoded.rounds) > least


@pytest.mark.slow
@pytest.mark.parametrize('order', [[2, 0, 1], [1], [2, 1]])
def test_an_image_does_not_depend_on_the_others(order):
  model, expected = vanilla('demo')
  made = model.generate([PROMPTS['demo'][i] for i in order], seed=[SEEDS[i] for i in order],
                        decoder='seed_exact(window=16)')
  np.testing.assert_array_equal(made.tokens, expected.tokens[order])


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_what_is_called_seed_exact_equals_its_baseline_bit_for_bit(dtype):
  shipped = cspd_jax.load('demo', dtype=dtype)
  generate = lambda text: shipped.generate(['cat', 'rocket'], seed=5, decoder=f'{text}(window=24)')
  expected = generate('vanilla')
  for text in ('seed_exact', 'corrected_seed_exact'):
    made = generate(text)
    assert made.guarantee == 'seed-exact'
    assert made.decoded.rounds.max() < 0.6 * expected.tokens.shape[1]
    np.testing.assert_array_equal(made.tokens, expected.tokens)
  with_tree = shipped.sampler('seed_exact(tree=default_tree, window=24)')
  assert with_tree.guarantee == 'seed-exact up to rounding'


def test_a_model_without_networks_corrects_by_its_first_layers():
  model = cspd_jax.load(
      'demo', draft=None, eagle=None, medusa=None, neighbours=None, local=None,
      corrector=None)
  assert set(model.drafts) == {'layers', 'corrector'}
  train = 'train one with cspd-train --model=demo --kind={0}, or load it with {0}=FOLDER'.format
  for decoder, advice in (('corrected(corrector=neighbours)', train('neighbours') + '.'),
                          ('corrected(corrector=local)', train('local') + '.'),
                          ('eagle', train('eagle') + ', .* that cspd-convert wrote.'),
                          ('corrected(corrector=eagle)', train('eagle')),
                          ('medusa', train('medusa') + '.'),
                          ('speculative', 'load it with draft=FOLDER, .* that cspd-convert wrote')):
    with pytest.raises(ValueError, match=f"model 'demo' has none: .*{advice}"):
      model.generate(['cat'], decoder=decoder)
