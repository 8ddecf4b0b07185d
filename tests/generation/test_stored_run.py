"""One runner for all modes: any batch size, stopped and continued, wrong input refused."""

import dataclasses
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.decoding import decoders
from cspd_jax.generation import memory
from cspd_jax.generation.images import fitted
from cspd_jax.generation.sampler import Sampler
from cspd_jax.generation.stored_run import decode, fingerprint, run
from tests.builders import models
from tests.generation import test_memory
from tests.generation.test_rollouts import counted

PROMPTS = [0, 2, 1, 1, 0]
SJD = 'sjd(window=3)'


def _decoded(model, decoder=SJD, prompts=PROMPTS, *, seed=7, batch_size=2, **options):
  modes = {name: options.pop(name) for name in ('folder', 'progress') if name in options}
  sampler = model.sampler(decoder, batch_size=batch_size)
  return decode(fitted(sampler.images(prompts, seed=seed, **options)), **modes)


@pytest.fixture(scope='module')
def model():
  return models.of_table()


@pytest.fixture(scope='module')
def one_by_one(model):
  return _decoded(model, batch_size=1)


def test_images_are_those_of_the_decoder(model, one_by_one):
  alone = jax.jit(decoders.sjd(model.target(guided=False), window=3))
  for i, label in enumerate(PROMPTS):
    key = jax.random.fold_in(jax.random.key(7), i)
    image = alone(model.params, model.condition([label]), key[None])
    np.testing.assert_array_equal(one_by_one.tokens[i], image.tokens[0])
  assert isinstance(one_by_one.tokens, np.ndarray) and one_by_one.tokens.shape == (5, 4)


@pytest.mark.parametrize('batch_size, slots', [
    (2, True), (2, False), pytest.param(9, False, marks=pytest.mark.slow)])
def test_modes_and_batch_sizes_make_no_difference(model, one_by_one, batch_size, slots):
  progress = []
  result = _decoded(model, batch_size=batch_size, slots=slots,
                   progress=lambda *numbers: progress.append(numbers))
  for name, one, other in zip(result._fields, result, one_by_one):
    if one is not None:
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)
  assert progress[-1] == (5, 5) and (slots or len(progress) == -(-5 // batch_size))


def test_one_decoder_has_one_program(model):
  """Requests of all callers share it: other images, options and keys do not compile again."""
  model.kept.programs.clear()
  for seed, temperature in ((3, 1.0), (jax.random.key(3), 0.5)):
    sampler = model.sampler(SJD, batch_size=2, sampling=model.sampling(temperature=temperature))
    decode(sampler.images(PROMPTS, seed=seed, slots=False, pixels=False))
  cspd_jax.Model.generate(model, PROMPTS[:2], decoder=SJD)
  (name, program), = model.kept.programs.items()
  assert name == model.sampler(SJD).program_key() and program._cache_size() == 1


def test_picking_images_compiles_nothing(model):
  request = model.images(PROMPTS, dict(temperature=np.arange(1.0, 6.0)), decoder=SJD)
  assert request.pick(range(len(PROMPTS))) is request
  assert request.pick(range(len(PROMPTS))[::-1]).titles == request.titles[::-1]
  model.kept.programs.clear()
  jax.clear_caches()
  with counted() as compiled:
    parts = [request.pick(range(size)) for size in range(1, 6)]
  assert not compiled and [part.condition.tolist() for part in parts] == [
      PROMPTS[:size] for size in range(1, 6)]


def test_pixels_of_images_become_bytes_one_by_one(model):
  """The host never holds floating-point pixels of all images."""
  pixels = np.ones((1, 64, 64, 3), np.float32)
  tokenizer = models.TOKENIZER._replace(
      decode=lambda params, tokens: pixels * tokens[:, :1, None, None] / 4)
  many = models.of_table(tokenizer=tokenizer)
  request = many.images(PROMPTS * 8, decoder='vanilla')
  decoded = decode(request)
  request.sampler.result(request, decoded)  # Compiles.
  tracemalloc.start()
  images = request.sampler.result(request, decoded).images
  most = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert images.shape == (40, 64, 64, 3) and images.nbytes < most < 3 * images.nbytes


def test_seeds_of_every_image(model):
  seeds, prompts = [3, 3, 7], PROMPTS[:3]
  result = _decoded(model, prompts=prompts, seed=seeds)
  for i, seed in enumerate(seeds):
    alone = _decoded(model, prompts=prompts[i:i + 1], seed=seed)  # One program for all.
    np.testing.assert_array_equal(result.tokens[i], alone.tokens[0])
  pairs = _decoded(model, prompts=prompts, seed=[(seed, 0) for seed in seeds])
  np.testing.assert_array_equal(pairs.tokens, result.tokens)


def test_a_key_takes_the_place_of_a_seed(model):
  request = lambda seed: model.images(PROMPTS, decoder='vanilla', seed=seed, pixels=False)
  keys = lambda seed: jax.random.key_data(request(seed).inputs(np.array([0, 3]))[1])
  np.testing.assert_array_equal(keys(jax.random.key(5)), keys(5))
  np.testing.assert_array_equal(
      keys(5)[1], jax.random.key_data(jax.random.fold_in(jax.random.key(5), 3)))
  with pytest.raises(ValueError, match='seed holds 2 random keys; it must be one'):
    keys(jax.random.split(jax.random.key(5)))


def test_a_stopped_run_goes_on(model, one_by_one, tmp_path, monkeypatch):
  def stop_after_two(done, total):
    if done == 4:
      raise KeyboardInterrupt

  arguments = dict(folder=tmp_path / 'run')
  with pytest.raises(KeyboardInterrupt):
    _decoded(model, progress=stop_after_two, **arguments)
  names = sorted(file.name for file in (tmp_path / 'run').iterdir())
  assert names == ['batch_0000000.npz', 'batch_0000002.npz', 'run.json']
  calls, bound = [], Sampler.bound
  monkeypatch.setattr(Sampler, 'bound', lambda self, images, index: (
      calls.append(1) or bound(self, images, index)))
  result = _decoded(model, **arguments)
  assert models.rows(result) == models.rows(one_by_one) and type(result) is type(one_by_one)
  assert len(calls) == 1
  again = _decoded(model, **arguments)
  assert models.rows(again) == models.rows(one_by_one) and len(calls) == 1


@pytest.mark.parametrize('change, words', [
    (dict(seed=8), 'seed was 7, now 8'),
    (dict(batch_size=1), 'batch_size was 2, now 1'),
    (dict(prompts=[0, 2, 1, 1, 1]), 'other prompts'),
    (dict(decoder='vanilla'), r"decoder was 'sjd\(window=3\)', now 'vanilla'"),
    (dict(options=dict(temperature=0.5)), 'sampling.temperature was 1.0, now 0.5'),
    (dict(model=1), 'other parameters'),
])
def test_a_folder_belongs_to_one_run(model, tmp_path, change, words):
  def first(change):
    options = dict(decoder=SJD, seed=7, batch_size=2, prompts=PROMPTS) | change
    used = models.of_table(options.pop('model')) if 'model' in options else model
    return next(run(used.images(options.pop('prompts'), **options), folder=tmp_path / 'run'))

  first({})
  with pytest.raises(ValueError, match=words):
    first(change)


@pytest.mark.parametrize('decoder, is_another', [
    (SJD, False), ('jacobi(window=3)+lantern(k=1,delta=0.5)', True)])
def test_a_run_of_neighbours_in_a_codebook_belongs_to_it(model, tmp_path, decoder, is_another):
  """LANTERN reads it, and other decoders draw the same tokens with any."""
  def first(seed):
    vectors = np.random.default_rng(seed).standard_normal((4, 2))
    tokenizer = models.TOKENIZER._replace(codebook=lambda params: vectors)
    used = dataclasses.replace(model, tokenizer=tokenizer)
    return next(run(used.images(PROMPTS, decoder=decoder, batch_size=2), folder=tmp_path / 'run'))

  first(0)
  if not is_another:
    first(1)
  else:
    with pytest.raises(ValueError, match='other codebook'):
      first(1)


@pytest.mark.parametrize('size', [1 << 10, 1 << 11])  # Of the smaller one, every number is fetched.
@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16, np.int8, bool])
def test_a_fingerprint_has_every_number(size, dtype):
  numbers, zero = jnp.ones((size, 1 << 10), dtype), jnp.zeros((), dtype)
  whole = fingerprint({'output': numbers})
  assert whole == fingerprint({'output': jnp.ones_like(numbers)})
  for place in ((0, 0), (0, 1), (size - 1, 3)):
    assert whole != fingerprint({'output': numbers.at[place].set(zero)})
  one, other = (fingerprint({'output': numbers.at[place].set(zero)}) for place in ((0, 0), (0, 1)))
  assert one != other


def test_damaged_and_foreign_files(model, tmp_path):
  folder = tmp_path / 'run'
  _decoded(model, folder=folder)
  path = folder / 'batch_0000000.npz'
  path.write_bytes(path.read_bytes()[:100])
  with pytest.raises(ValueError, match='cannot be read'):
    _decoded(model, folder=folder)
  with pytest.raises(ValueError, match='holds other files'):
    _decoded(model, folder=tmp_path)


def test_no_batch_size_means_as_many_as_fit(model, one_by_one, tmp_path, monkeypatch):
  per_image = test_memory.estimate(model.images(PROMPTS, decoder=SJD, batch_size=1)).needed(1)
  free = lambda count: monkeypatch.setattr(memory, 'free', lambda devices: count * per_image)
  free(3)
  progress = []
  result = _decoded(model, batch_size=None, slots=False, folder=tmp_path / 'run',
                   progress=lambda *numbers: progress.append(numbers))
  assert models.rows(result) == models.rows(one_by_one) and progress == [(2, 5), (4, 5), (5, 5)]
  with pytest.raises(ValueError, match='batch_size is 4, but .*; pass batch_size=2 or less'):
    _decoded(model, batch_size=4, slots=False)
