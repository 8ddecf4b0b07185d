"""Many images: any batch size, stopped and continued, wrong input refused."""

import jax
import numpy as np
import pytest

from cspd_jax.decoding import decoders
from cspd_jax.generation import batches, memory
from tests.measure import tiny

PROMPTS = [0, 2, 1, 1, 0]


@pytest.fixture(scope='module')
def model():
  return tiny.model()


@pytest.fixture(scope='module')
def one_by_one(model):
  return batches.run(model, 'sjd', PROMPTS, seed=7, batch_size=1)


def test_images_are_those_of_the_decoder(model, one_by_one):
  decode = jax.jit(decoders.sjd(model.table.target, window=3))
  for i, label in enumerate(PROMPTS):
    key = jax.random.fold_in(jax.random.key(7), i)
    alone = decode(model.params, model.condition([label]), key[None])
    np.testing.assert_array_equal(one_by_one.tokens[i], alone.tokens[0])
  assert isinstance(one_by_one.tokens, np.ndarray) and one_by_one.tokens.shape == (5, 4)


@pytest.mark.parametrize('batch_size', [2, 9])
def test_batch_size_makes_no_difference(model, one_by_one, batch_size):
  progress = []
  found = batches.run(model, 'sjd', PROMPTS, seed=7, batch_size=batch_size,
                     progress=lambda *numbers: progress.append(numbers))
  assert tiny.rows(found) == tiny.rows(one_by_one)
  assert progress[-1] == (5, 5) and len(progress) == -(-5 // batch_size)


def test_one_program_is_compiled_and_other_sampling_reuses_it(model):
  traces = []

  def decode(condition, keys, sampling):
    traces.append(condition.shape)
    return condition, sampling.temperature + 0 * condition

  found = batches.run(model, jax.jit(decode), PROMPTS, batch_size=2)
  assert traces == [(2,)]
  assert found[0].tolist() == PROMPTS and found[1].tolist() == [1.0] * 5


def test_options_of_every_image(model):
  sampling = model.sampling(temperature=np.arange(1.0, 6.0))
  found = batches.run(model, lambda condition, keys, sampling: sampling.temperature, PROMPTS,
                     sampling=sampling, batch_size=2)
  assert found.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_seeds_of_every_image(model):
  seeds = [3, 3, 4, 0, 7]
  found = batches.run(model, 'sjd', PROMPTS, seed=seeds, batch_size=2)
  for i, seed in enumerate(seeds):
    alone = batches.run(model, 'sjd', PROMPTS[i:i + 1], seed=seed)  # One program for all.
    np.testing.assert_array_equal(found.tokens[i], alone.tokens[0])
  pairs = batches.run(model, 'sjd', PROMPTS, seed=[(seed, 0) for seed in seeds], batch_size=2)
  np.testing.assert_array_equal(pairs.tokens, found.tokens)


def test_a_key_takes_the_place_of_a_seed():
  data = jax.random.key_data
  np.testing.assert_array_equal(
      data(batches.keys(jax.random.key(5), [0, 3])), data(batches.keys(5, [0, 3])))
  np.testing.assert_array_equal(
      data(batches.keys(5, [3]))[0], data(jax.random.fold_in(jax.random.key(5), 3)))
  np.testing.assert_array_equal(
      data(batches.keys([(5, 3), (6, 1)], [0, 1]))[0], data(batches.keys(5, [3]))[0])


def test_a_stopped_run_goes_on(model, one_by_one, tmp_path, monkeypatch):
  def stop_after_two(done, total):
    if done == 4:
      raise KeyboardInterrupt

  arguments = dict(seed=7, batch_size=2, folder=tmp_path / 'run')
  with pytest.raises(KeyboardInterrupt):
    batches.run(model, 'sjd', PROMPTS, progress=stop_after_two, **arguments)
  names = sorted(file.name for file in (tmp_path / 'run').iterdir())
  assert names == ['batch_0000000.npz', 'batch_0000002.npz', 'run.json']
  calls, call = [], batches.BatchDecoder.__call__
  monkeypatch.setattr(
      batches.BatchDecoder, '__call__', lambda self, *args: calls.append(1) or call(self, *args))
  found = batches.run(model, 'sjd', PROMPTS, **arguments)
  assert tiny.rows(found) == tiny.rows(one_by_one) and type(found) is type(one_by_one)
  assert len(calls) == 1
  again = batches.run(model, 'sjd', PROMPTS, **arguments)
  assert tiny.rows(again) == tiny.rows(one_by_one) and len(calls) == 1


@pytest.mark.parametrize('change, words', [
    (dict(seed=8), 'seed was 7, now 8'),
    (dict(batch_size=1), 'batch_size was 2, now 1'),
    (dict(prompts=[0, 2, 1, 1, 1]), 'prompts was'),
    (dict(decoder='vanilla'), "decoder was 'sjd', now 'vanilla'"),
    (dict(sampling=dict(temperature=0.5)), 'sampling was'),
    (dict(model=1), 'parameters was'),
])
def test_a_folder_belongs_to_one_run(model, tmp_path, change, words):
  def run(change):
    options = dict(decoder='sjd', seed=7, batch_size=2) | change
    used = tiny.model(options.pop('model')) if 'model' in options else model
    sampling = used.sampling(**options.pop('sampling', {}))
    return batches.iterate(used, options.pop('decoder'), options.pop('prompts', PROMPTS),
                          sampling=sampling, folder=tmp_path / 'run', **options)

  next(run({}))
  with pytest.raises(ValueError, match=words):
    next(run(change))


def test_damaged_and_foreign_files(model, tmp_path):
  folder = tmp_path / 'run'
  batches.run(model, 'sjd', PROMPTS, folder=folder, batch_size=2)
  path = folder / 'batch_0000000.npz'
  path.write_bytes(path.read_bytes()[:100])
  with pytest.raises(ValueError, match='cannot be read'):
    batches.run(model, 'sjd', PROMPTS, folder=folder, batch_size=2)
  with pytest.raises(ValueError, match='holds other files'):
    batches.run(model, 'sjd', PROMPTS, folder=tmp_path)


@pytest.mark.parametrize('options, words', [
    (dict(prompts=[]), 'prompts is empty'),
    (dict(batch_size=0), 'batch_size is 0'),
    (dict(seed=[1, 2]), 'seed has shape'), (dict(seed=2**32 + 7), 'seed is 4294967303'),
    (dict(seed=np.full(5, 2**32 + 7)), 'seed is array'), (dict(seed=1.5), 'seed is 1.5'),
    (dict(decoder='fast'), "decoder is 'fast'"),
    (dict(prompts=[3]), 'condition'),
    (dict(decoder=lambda *args: args, folder='/nowhere'), 'decoder is a function'),
])
def test_wrong_input(model, options, words):
  options = dict(decoder='sjd', prompts=PROMPTS) | options
  with pytest.raises(ValueError, match=words):
    batches.run(model, options.pop('decoder'), options.pop('prompts'), **options)


def test_no_batch_size_means_as_many_as_fit(model, one_by_one, tmp_path, monkeypatch):
  decode, sampling = batches.BatchDecoder(model, 'sjd', model.sampling()), model.sampling()
  per_image = decode.estimate(model.condition(PROMPTS), sampling).needed(1)
  free = lambda count: monkeypatch.setattr(memory, 'free', lambda devices: count * per_image)
  free(3)
  progress = []
  found = batches.run(model, 'sjd', PROMPTS, seed=7, batch_size=None, folder=tmp_path / 'run',
                      progress=lambda *numbers: progress.append(numbers))
  assert tiny.rows(found) == tiny.rows(one_by_one) and progress == [(2, 5), (4, 5), (5, 5)]
  with pytest.raises(ValueError, match='batch_size is 4, but .*; pass batch_size=2 or less'):
    batches.run(model, 'sjd', PROMPTS, batch_size=4)
  free(50)  # The folder determines the batch size of its run.
  again = batches.run(model, 'sjd', PROMPTS, seed=7, batch_size=None, folder=tmp_path / 'run')
  assert tiny.rows(again) == tiny.rows(one_by_one)
