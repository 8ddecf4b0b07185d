"""Correctors of the shipped model: the images of vanilla in few passes."""

import numpy as np
import pytest

import cspd_jax
from cspd_jax.decoding.specification import CORRECTORS
from tests.marks import representative

# Tokens per forward pass at least, of two images with windows of 32.
LEAST = {'corrector': 5.5, 'eagle': 4.5, 'local': 4.5, 'neighbours': 4, 'model': 3.5, 'layers': 2.5}


@pytest.fixture(scope='module')
def vanilla():
  model = cspd_jax.load('demo')
  return model, model.generate(['cat', 'rocket'], seed=3, decoder='vanilla').decoded.tokens


def test_all_are_tried():
  assert LEAST.keys() == CORRECTORS.keys()


@pytest.mark.slow
@pytest.mark.parametrize('by', representative(LEAST, 'corrector'))
def test_images_are_vanillas(vanilla, by):
  model, tokens = vanilla
  result = model.generate(
      ['cat', 'rocket'], seed=3,
      decoder=f'corrected_seed_exact(corrector={by}, window=32, iterations=3)')
  np.testing.assert_array_equal(result.decoded.tokens, tokens)
  assert np.mean(256 / np.asarray(result.decoded.rounds)) > LEAST[by]


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
    with pytest.raises(ValueError, match=f"model 'demo' has none: {advice}"):
      model.generate(['cat'], decoder=decoder)
