"""The distance of an int8 target from the original: the numbers, and the program."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.metrics import likelihood
from experiments import quantized
from tests.experiments import calls


@pytest.mark.slow
def test_numbers_are_those_of_the_distributions(llamagens):
  whole = cspd_jax.load(llamagens / 'alone', dtype='float32')
  small = cspd_jax.load(llamagens / 'alone', dtype='float32', quantize='int8')
  target, sampling = whole.target(guided=True), whole.sampling(guidance_scale=2.0, top_k=5)
  condition, tokens = whole.condition([0, 1]), jnp.tile(jnp.arange(16), (2, 1)) % 4
  result = likelihood.distance(target, whole.params, small.params, condition, tokens, sampling)
  own, other = (np.asarray(likelihood.distributions(target, params, condition, tokens, sampling))
                for params in (whole.params, small.params))
  apart = 0.5 * np.abs(own - other).sum(axis=-1)
  np.testing.assert_allclose(result.total_variation, apart.mean(axis=1), rtol=1e-5)
  np.testing.assert_allclose(result.largest, apart.max(axis=1), rtol=1e-5)
  assert result.total_variation.min() > 0 and result.largest.max() < 0.3
  # A cut may leave tokens that the other target excludes: their relative entropy is infinite.
  uncut = whole.sampling(guidance_scale=2.0)
  own, other = (np.asarray(likelihood.distributions(target, params, condition, tokens, uncut),
                           np.float64) for params in (whole.params, small.params))
  result = likelihood.distance(target, whole.params, small.params, condition, tokens, uncut)
  np.testing.assert_allclose(
      result.relative_entropy, (own * np.log(own / other)).sum(axis=-1).mean(axis=1), atol=1e-6)
  assert result.relative_entropy.min() > 1e-5
  same = likelihood.distance(target, whole.params, whole.params, condition, tokens, sampling)
  np.testing.assert_array_equal(same.nll, same.other_nll)
  assert not np.any(same.largest) and not np.any(same.relative_entropy)


@pytest.mark.slow
def test_the_program(llamagens, capsys, tmp_path):
  result = calls.call(
      quantized.main, capsys, tmp_path / 'out', f'--model={llamagens}/alone', '--num_images=4',
      '--guidance_scale=1,2')
  assert result.code == 0, result.err
  rows = json.loads((result.folder / 'report.json').read_text())['rows']
  assert [(row['int8'], row['guidance_scale']) for row in rows] == [
      (part, scale) for part in ('matrices', 'cache', 'both') for scale in (1, 2)]
  for row in rows:
    assert (row['other_mib'] < row['mib']) == (row['int8'] != 'cache')
    assert (row['other_cache_mib'] < row['cache_mib']) == (row['int8'] != 'matrices')
    assert 0 < row['total_variation'] <= row['largest'] < 0.3
    assert 0 < row['relative_entropy'] < row['total_variation']
    assert 0 < row['relative_entropy_error'] < row['relative_entropy']
