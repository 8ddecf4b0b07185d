"""`windows` on the shipped models: whole images are distributed as those of `mar` with noise.

For every model, 1000 images of either decoder with 12 levels. Compared are the tokens, as vectors
of 1024 numbers, and 64 features of an image: the mean and the mean square of each of a token's 16
numbers, and the mean products of each with those of the right and the lower neighbour. The energy
tests have a false-alarm rate of 0.005 each. The tests of Kolmogorov and Smirnov have one of 1e-3
for all coordinates and 24 projections together. A shift of all tokens by 0.1 deviations must be
detected for both models, and a decoder with a mistake for `emoji_continuous`. In `mar_demo` the
bias of that mistake is too small for 1000 images; the closed forms of `test_coupled_windows.py`
reject it.
"""

import functools

import jax
import numpy as np
import pytest

import cspd_jax
from cspd_jax.core.sampling import SamplingParams
from cspd_jax.testing.exactness import compare, energy_test
from tests.continuous import window_mutants

ROWS, BATCH, LEVELS, SIDE = 1000, 250, 12, 8
DECODERS = {'mar': f'mar(last_noise=True, schedule={LEVELS})',
            'windows': f'windows(window=8, schedule={LEVELS})'}
ALARM, SPLITS = 0.005, 399


def draw(name, decoder, seed):
  """Tokens `[ROWS, 64, 16]` of a model, of the same prompts for every decoder."""
  model = cspd_jax.load(name)
  condition = model.condition([model.prompts[i % len(model.prompts)] for i in range(BATCH)])
  decode = jax.jit(model.decoder(DECODERS[decoder], guided=False))
  return np.concatenate([
      np.asarray(decode(model.params, condition, key, SamplingParams()).tokens)
      for key in jax.random.split(jax.random.key(seed), ROWS // BATCH)])


@functools.cache
def exact(name, decoder):
  return draw(name, decoder, {'mar': 1, 'windows': 2}[decoder])


def features(tokens):
  """`[ROWS, 64]`; see the module."""
  grid = tokens.reshape(len(tokens), SIDE, SIDE, -1)
  parts = (grid, grid * grid, grid[:, 1:] * grid[:, :-1], grid[:, :, 1:] * grid[:, :, :-1])
  return np.concatenate([part.mean(axis=(1, 2)) for part in parts], axis=1)


def p_values(tokens, expected):
  """Of the energy tests: of the tokens, and of the features in units of their deviations."""
  first, second = features(tokens), features(expected)
  scale = second.std(axis=0)
  return [energy_test(*pair, permutations=SPLITS)
          for pair in ((tokens, expected), (first / scale, second / scale))]


def passes(tokens, expected):
  near = compare(tokens, expected), compare(features(tokens), features(expected))
  result = p_values(tokens, expected)
  return min(result) > ALARM and all(one.passed for one in near)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['mar_demo', 'emoji_continuous'])
def test_whole_images_are_those_of_the_sampler(name):
  if name == 'emoji_continuous':
    pytest.importorskip('tokenizers')
  tokens, expected = exact(name, 'windows'), exact(name, 'mar')
  assert passes(tokens, expected)
  assert not passes(tokens + 0.1 * expected.std(axis=0), expected)


@pytest.mark.slow
def test_a_mistake_is_detected(monkeypatch):
  pytest.importorskip('tokenizers')
  window_mutants.install(window_mutants.CAUSAL['parted chains go on as merged ones'], monkeypatch)
  tokens = draw('emoji_continuous', 'windows', 3)
  assert np.isfinite(tokens).all() and not passes(tokens, exact('emoji_continuous', 'mar'))
