"""A second call of `generate` parses, builds and estimates nothing: what it enters is counted."""

import collections
import gc
import pathlib
import sys
import weakref

import pytest

import cspd_jax
from tests.builders import models

_ROOT = str(pathlib.Path(cspd_jax.__file__).parent)
# Comprehensions have frames of their own up to Python 3.11.
_INLINED = ('<genexpr>', '<listcomp>', '<dictcomp>', '<setcomp>')


def _entered(function):
  """Calls a function; returns how often it enters each function of the package."""
  seen = collections.Counter()

  def profile(frame, event, _):
    code = frame.f_code
    if event == 'call' and code.co_filename.startswith(_ROOT) and code.co_name not in _INLINED:
      seen[code.co_filename, code.co_qualname] += 1

  sys.setprofile(profile)
  try:
    function()
  finally:
    sys.setprofile(None)
  return seen


@pytest.mark.parametrize('load, prompts, decoder', [
    (models.of_table, [0], 'sjd(window=3)'),
    pytest.param(cspd_jax.load, ['a fox on white'], 'mc_sjd(window=32)', marks=pytest.mark.slow)])
def test_a_second_call_enters_few_functions(load, prompts, decoder):
  model = load()
  generate = lambda: model.generate(prompts, decoder=decoder, temperature=0.9)
  generate()
  seen = _entered(generate)
  assert len({file for file, _ in seen}) <= 16
  assert len(seen) <= 70
  assert sum(seen.values()) <= 300


def test_samplers_are_kept_by_all_that_they_depend_on():
  model = models.of_table()
  one = model.sampler('sjd(window=3)', temperature=1)
  assert model.sampler('sjd(window=3)', temperature=1) is one
  for decoder, options in (
      ('sjd(window=2)', dict(temperature=1)), ('sjd(window=3)', dict(temperature=0.5)),
      ('sjd(window=3)', dict(temperature=1, batch_size=2)), ('sjd', dict(temperature=1, window=3)),
      ('sjd(window=3)', dict(temperature=1, raw_log_probs=True))):
    assert model.sampler(decoder, **options) is not one
  with pytest.raises(ValueError, match='temperature is True'):
    model.sampler('sjd(window=3)', temperature=True)
  with pytest.raises(ValueError, match='raw_log_probs is 1'):
    model.sampler('sjd(window=3)', temperature=1, raw_log_probs=1)
  model.sampler('sjd(window=3)', temperature=1, batch_size=1)
  with pytest.raises(ValueError, match='batch_size is True'):
    model.sampler('sjd(window=3)', temperature=1, batch_size=True)
  assert model.sampler('sjd(window=3)', temperature=1) is one
  for number in range(10):
    model.sampler('vanilla', temperature=2.0 + number)
  assert model.sampler('sjd(window=3)', temperature=1) is not one  # Of the last few only.


def test_a_sampler_draws_the_images_of_generate():
  model = models.of_table()
  sampler = model.sampler('sjd(window=3)', batch_size=2, temperature=[1.0, 0.5, 2.0])
  options = dict(decoder='sjd(window=3)', temperature=[1.0, 0.5, 2.0], seed=7)
  images = sampler([0, 2, 1], seed=7)
  assert images.tokens.tolist() == model.generate([0, 2, 1], **options).tokens.tolist()
  assert images.metadata(1)['sampling']['temperature'] == 0.5
  with pytest.raises(ValueError, match=r'temperature has shape \(3,\); .* each of 1 images'):
    sampler([0])


def test_a_model_that_is_dropped_is_freed_at_once():
  """Samplers do not hold the model that keeps them: its parameters may fill a device."""
  model = models.of_table()
  model.generate([0], decoder='vanilla')
  gone = weakref.ref(model)
  gc.disable()
  try:
    del model
    assert gone() is None
  finally:
    gc.enable()
