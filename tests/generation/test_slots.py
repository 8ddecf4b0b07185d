"""Images that join at any round and leave: the images of one after the other."""

import jax
import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.decoding import continuous_batching
from cspd_jax.generation import memory
from cspd_jax.generation.slots import Runner
from cspd_jax.generation.stored_run import decode
from tests.builders import models
from tests.generation import test_prefix

SJD = 'sjd(window=3)'


@pytest.fixture(scope='module')
def model():
  return models.of_table(length=9)


def _requests(model):
  """Five images that differ in prompt, seed and options."""
  options = [{}, dict(temperature=0.0), dict(top_k=2), dict(top_p=0.6, temperature=1.5), {}]
  return [model.images([number % 3], own, seed=20 + number, decoder=SJD)
          for number, own in enumerate(options)]


def _run(runner, waiting, rounds=1):
  """Lets every request join as soon as a slot is free; returns results by seed."""
  images, waiting = {}, list(waiting)
  while waiting or runner.images:
    joined = [waiting.pop(0) for _ in range(min(runner.free, len(waiting)))]
    runner.join(joined)
    events = runner.step(rounds)
    assert [event.slot for event in events] == sorted(runner.images)
    for done in runner.finished():
      images[done.image.seeds[0][0]] = done
  return images


@pytest.mark.slow
@pytest.mark.parametrize('num_slots, rounds', [(2, 1), (5, 3), (1, 9)])
def test_images_are_those_of_one_after_the_other(model, num_slots, rounds):
  requests = _requests(model)
  images = _run(Runner(model, num_slots, decoder=SJD), requests, rounds)
  assert len(images) == 5
  for request in requests:
    alone, done = decode(request), images[request.seeds[0][0]]
    np.testing.assert_array_equal(done.decoded.tokens, alone.tokens)
    np.testing.assert_array_equal(done.decoded.rounds, alone.rounds)
    np.testing.assert_allclose(done.decoded.log_probs, alone.log_probs, rtol=1e-5, atol=1e-6)
    assert done.image.result(done.decoded).metadata(0)['seed'] == request.seeds[0][0]


def test_events_looks_and_images_that_leave(model):
  runner, (first, second, third, *_) = Runner(model, 2, decoder=SJD), _requests(model)
  assert runner.step() == [] and runner.finished() == [] and runner.free == 2
  assert runner.join([first]) == [0]
  (event,) = runner.step()
  assert event.slot == 0 and event.rounds == 2 and 1 < event.num_tokens < 9 and not event.complete
  look = runner.look(0)
  assert look.count.tolist() == [event.num_tokens] and not look.complete
  expected = first.sampler.result(first, decode(first)).images
  np.testing.assert_array_equal(look.images[0, 0, :event.num_tokens],
                                expected[0, 0, :event.num_tokens])
  assert runner.join([second]) == [1]
  runner.leave(0)
  assert runner.join([third]) == [0] and runner.images == {1: second, 0: third}
  images = _run(runner, [])
  for request in (second, third):
    np.testing.assert_array_equal(
        images[request.seeds[0][0]].decoded.tokens, decode(request).tokens)


def test_nan_is_an_error_of_its_image_alone_and_slots_can_be_cleared(model):
  broken = model.with_params(model.params.at[1].set(np.nan))
  runner = Runner(broken, 2, decoder=SJD)
  runner.join([broken.images([label], dict(temperature=0.0), seed=7, decoder=SJD)
               for label in (0, 1)])
  runner.step()
  runner.clear()
  assert runner.free == 2 and runner.events() == [] and runner.finished() == []
  first, second = requests = [broken.images([label], seed=7, decoder=SJD) for label in (0, 1)]
  images = []
  runner.join(requests)
  while runner.images:
    runner.step()
    images += runner.finished()
  for done in images:
    if done.image is second:
      with pytest.raises(ValueError, match="for 1 of 1 images .'1' with seed 7"):
        done.result()
    else:
      np.testing.assert_array_equal(done.result().tokens, decode(first).tokens)
  assert len(images) == 2


def test_an_estimate_is_that_of_the_slots(model):
  request, runner = model.images([0], decoder=SJD), Runner(model, 4, decoder=SJD)
  estimate = runner.estimate(request)
  runner.join([request])
  assert 4 * estimate.per_image == memory.size(runner._slots.state)


@pytest.mark.slow
def test_prompts_of_any_length_and_prefixes():
  """Guided and not, in one program."""
  model, prompts = test_prefix._mixed('early_fusion')
  spec, width = 'mc_sjd(window=3)', model.target(guided=True).row_width
  first = model.generate(test_prefix._joined('early_fusion', prompts[:1]), decoder='vanilla').tokens
  requests = [model.images(test_prefix._joined('early_fusion', [prompt]),
                      dict(guidance_scale=scale), seed=seed, decoder=spec, prefix=first, rows=1)
              for seed, (prompt, scale) in enumerate(zip(prompts[:3], (2.0, 1.0, 1.5)))]
  runner = Runner(model.with_prefix(first[0, :width]), 2, decoder=spec, prompt_length=8)
  images = _run(runner, requests)
  for seed, request in enumerate(requests):
    np.testing.assert_array_equal(images[seed].decoded.tokens, decode(request).tokens)
  with pytest.raises(ValueError, match='prompt has 6 tokens, but there is room for 2'):
    Runner(model.with_prefix(first[0, :width]), 2, decoder=spec, prompt_length=2).join(requests[:1])


@pytest.mark.slow
@pytest.mark.parametrize('decoder', ['vanilla', 'mc_sjd(window=16)'])
def test_slots_need_what_their_compiled_prefill_does(decoder):
  """Which has the state of an image besides those in the slots."""
  model = families.describe('c2i_b_256', dtype='float32', layers=2)
  runner = Runner(model, 4, decoder=decoder)
  request = model.images([3], dict(guidance_scale=2.0), decoder=decoder, batch_size=1,
                    pixels=False)
  image = continuous_batching.Queue(*runner._arguments(request), np.zeros(1, np.int32), np.int32(1),
                       np.bool_(True))
  slots = jax.eval_shape(runner._jitted.batcher.idle, model.params, image, None)
  analysis = runner._jitted.join.lower(model.params, slots, image, None).compile().memory_analysis()
  needs = runner.estimate(request)
  prefill = memory.needed_of_slots([needs._replace(intermediate=lambda rows: 0.0)], 4)
  assert prefill == 5 * needs.per_image
  assert 0.8 < prefill / (analysis.temp_size_in_bytes + analysis.output_size_in_bytes) < 1.25
