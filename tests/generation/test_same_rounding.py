"""Where passes round otherwise than the baseline's, all that names the guarantee says so.

And where they do not, images equal those of `vanilla(window=N)` bit for bit however they are run.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import cspd_jax
from cspd_jax.core import kernels, programs
from cspd_jax.decoding import rounding
from cspd_jax.families.folder import with_cache_dtype
from cspd_jax.generation.parts import Kept
from cspd_jax.generation.slots import Runner
from cspd_jax.generation.stored_run import decode
from cspd_jax.serve import wire
from tests.generation import many_processes
from tests.marks import representative
from tests.serve import tiny
from tests.sharding import several_devices

VANILLA, OTHER, WORDS = 'vanilla(window=3)', tiny.SEED_EXACT, 'seed-exact up to rounding'


class Compiler:
  """Stands for the compiler of a GPU: programs have two products, computed by these kernels."""

  def __init__(self):
    self.chosen = {'a product by cuBLAS', 'another by Triton'}
    self.count = 0

  def of(self, text):
    assert text.startswith('HloModule')
    self.count += 1
    return frozenset(self.chosen)

  def choose(self):
    """Chooses another kernel for one of them, from now on."""
    self.chosen = {'a product by cuBLAS', 'another by cuBLAS'}


@pytest.fixture(name='compiler')
def _compiler(monkeypatch):
  """A process on a GPU, which keeps nothing on disk."""
  compiler, folder = Compiler(), jax.config.jax_compilation_cache_dir
  monkeypatch.setattr(programs, 'on_cuda', lambda: True)
  monkeypatch.setattr(kernels, 'chosen', compiler.of)
  jax.config.update('jax_compilation_cache_dir', None)
  yield compiler
  jax.config.update('jax_compilation_cache_dir', folder)


def _generate(model, decoder, **options):
  return model.generate(['cat'], seed=1, decoder=decoder, **options)


@pytest.mark.parametrize('first,same', representative(
    itertools.product([VANILLA, OTHER], [True, False]), (VANILLA, False), (OTHER, True)))
def test_guarantees_say_whether_the_kernels_are_the_same(compiler, caplog, tmp_path, first, same):
  model = tiny.model()
  before = _generate(model, first)
  assert before.guarantee == 'seed-exact'  # There is nothing to compare with.
  if not same:
    compiler.choose()
  with caplog.at_level('WARNING', logger='absl'):
    made = {text: _generate(model, text) for text in (VANILLA, OTHER)}
  assert (made[OTHER].tokens == made[VANILLA].tokens).all() and compiler.count == 2
  words = 'seed-exact' if same else WORDS
  assert made[VANILLA].guarantee == 'seed-exact' and made[OTHER].guarantee == words
  assert f'({words})' in repr(made[OTHER]) and model.sampler(OTHER).guarantee == words
  path, = made[OTHER].save(tmp_path)
  assert Image.open(path).text['guarantee'] == words
  assert (f'{OTHER} is {WORDS}: for 1 of 2 products' in caplog.text) == (not same)
  # Other shapes are other programs, and other decoders are not compared.
  assert _generate(model, 'seed_exact(window=2)').guarantee == 'seed-exact'
  assert _generate(model, 'sjd(window=3)').guarantee == 'exact' and compiler.count == 3


def test_programs_of_slots_and_streams_are_compared(compiler):
  model = tiny.model()
  for text in (VANILLA, OTHER):
    model.generate(['cat', 'dog'] * 2, decoder=text, batch_size=2)
    list(model.stream(['cat'], decoder=text, every=2))
  count = compiler.count
  assert count == 6 and model.sampler(OTHER).guarantee == 'seed-exact'
  compiler.choose()
  model = tiny.model()
  list(model.stream(['cat'], decoder=OTHER, every=2))
  compiler.chosen |= {'another by Triton'}  # More than the baseline's are the drafter's.
  list(model.stream(['cat'], decoder=VANILLA, every=2))
  assert model.sampler(OTHER).guarantee == WORDS


def test_an_answer_of_the_server_says_so(compiler):
  model = tiny.model()
  served = wire.serving(model, (OTHER, VANILLA))
  for text in (VANILLA, OTHER):
    runner = Runner(model, 2, decoder=text)
    runner.join([tiny.request(model, decoder=text)])
    while not (done := runner.finished()):
      runner.step()
    image = wire.image(done[0].result(), 2, wire.Form())
    compiler.choose()
  assert image['guarantee'] == WORDS
  assert [one['guarantee'] for one in served.description('tiny')['decoders']] == [
      WORDS, 'seed-exact']


def test_kernels_of_the_baseline_are_stored_for_other_processes(compiler, tmp_path):
  jax.config.update('jax_compilation_cache_dir', str(tmp_path))
  _generate(tiny.model(), VANILLA)
  assert _generate(tiny.model(), OTHER).guarantee == 'seed-exact'
  compiler.choose()
  assert _generate(tiny.model(), OTHER).guarantee == WORDS
  for path in tmp_path.glob('kernels-*/*.json'):
    path.write_bytes(b'1')
  assert _generate(tiny.model(), OTHER).guarantee == 'seed-exact'


def _last_place(logits, params):
  return jnp.arange(logits.shape[2])[:, None] == logits.shape[2] - 1


# Which logits `[S, B, N, V]` of a pass round otherwise.
DOCTORED = {
    'a place': _last_place,
    'a row': lambda logits, params: (jnp.arange(logits.shape[1]) == 1)[:, None, None],
    'a place in bfloat16': lambda logits, params: _last_place(logits, params) & (
        jax.tree.leaves(params)[0].dtype == jnp.bfloat16)}


def _doctored(model, change):
  target = model.target(False)

  def score(params, *args):
    logits, features, cache = target.score(params, *args)
    return logits * (1 + np.float32(2**-22) * change(logits, params)), features, cache

  return dataclasses.replace(model, build_target=lambda guided: target._replace(score=score))


@pytest.mark.parametrize('name', DOCTORED)
def test_passes_that_depend_on_a_place_or_a_row_are_seed_exact_up_to_rounding(
    name, caplog, tmp_path):
  model = _doctored(tiny.model(), DOCTORED[name])
  if 'bfloat16' in name:
    assert _generate(model, OTHER).guarantee == 'seed-exact'
    model = dataclasses.replace(model, params=model.params.astype(jnp.bfloat16))
  with caplog.at_level('WARNING', logger='absl'):
    out = model.generate(['cat', 'dog'], seed=1, decoder=OTHER)
  assert out.guarantee == model.sampler(OTHER).guarantee == WORDS
  assert Image.open(out.save(tmp_path)[0]).text['guarantee'] == WORDS
  assert 'seed-exact up to rounding in windows of 3: of ' in caplog.text
  # Another window is measured by itself, and other guarantees do not depend on it.
  assert _generate(model, 'sjd(window=3)').guarantee == 'exact'
  assert _generate(model, 'vanilla').guarantee == 'seed-exact'


def test_a_pass_is_measured_once_for_its_shapes(monkeypatch):
  model, measured = tiny.model(), []
  monkeypatch.setattr(rounding, 'compare', lambda begins, digests: measured.append(
      digests.shape[0]) or rounding.Comparison(0, 0, 1))
  for _ in range(2):
    _generate(model, OTHER)
    _generate(model, OTHER, temperature=0.5)
    _generate(model, 'vanilla(window=3)')
  model.generate(['cat', 'dog'], decoder=OTHER)
  list(model.stream(['cat', 'dog'], decoder=OTHER, every=9))
  model.generate(['cat', 'dog'] * 2, decoder=OTHER, batch_size=2)
  runner = Runner(model, 3, decoder=OTHER)
  runner.join([tiny.request(model, decoder=OTHER)])
  assert measured == [1, 2, 3]


@pytest.mark.parametrize('run', ['generate', 'refill', 'stream', 'slots'])
def test_however_images_are_run_their_guarantee_is_measured(run):
  model = _doctored(tiny.model(), _last_place)
  if run == 'slots':
    runner = Runner(model, 2, decoder=OTHER)
    runner.join([tiny.request(model, decoder=OTHER)])
    while not (done := runner.finished()):
      runner.step()
    out = done[0].result()
  elif run == 'stream':
    *_, last = model.stream(['cat'], decoder=OTHER, every=2)
    out = last.result()
  else:
    out = model.generate(['cat'] * 3, decoder=OTHER, batch_size=2 if run == 'refill' else None)
  assert out.guarantee == WORDS


@pytest.fixture(name='network', scope='module')
def _network(tmp_path_factory):
  """A small transformer in bfloat16, where another order of a sum soon changes a token."""
  folder = tmp_path_factory.mktemp('network')
  several_devices.save(folder)
  return cspd_jax.load(folder, dtype='bfloat16')


def _streamed(model, decoder):
  images = _request(model, decoder, [0, 1, 2])
  *_, last = images.sampler.stream(images, 3)
  return last.decoded


def _request(model, decoder, prompts, **options):
  return model.images(
      prompts, dict(guidance_scale=2.0), decoder=decoder, pixels=False, **options)


def _joined(model, decoder):
  """Five images that join two slots, whenever one is free."""
  runner, found = Runner(model, 2, decoder=decoder), {}
  waiting = [_request(model, decoder, [number % 3], seed=[(7, number)]) for number in range(5)]
  while waiting or runner.images:
    runner.join([waiting.pop(0) for _ in range(min(runner.free, len(waiting)))])
    runner.step(2)
    for done in runner.finished():
      found[done.image.seeds[0][1]] = done.decoded
  return jax.tree.map(lambda *leaves: np.concatenate(leaves), *(found[i] for i in range(5)))


def _decoded(model, decoder, **options):
  return decode(_request(model, decoder, [0, 1, 2, 0, 1], **options))


# How images are run, see the table in docs/exactness.md; also the tests of priors and of meshes.
RUNS = {
    'one batch': _decoded,
    'batches': lambda model, decoder: decode(dataclasses.replace(
        _request(model, decoder, [0, 1, 2, 0, 1], batch_size=2), slots=False)),
    'refilled slots': lambda model, decoder: _decoded(model, decoder, batch_size=2),
    'a stream': _streamed,
    'slots that images join': _joined,
    'given rows': lambda model, decoder: _decoded(
        model.with_prefix(np.arange(8, dtype=np.int32)), decoder),
    'int8 keys and values': lambda model, decoder: _decoded(
        with_cache_dtype(model, 'int8'), decoder)}


@pytest.mark.parametrize('run', representative(RUNS, 'refilled slots'))
def test_images_and_log_probabilities_are_those_of_vanilla_bit_for_bit(network, run):
  want = RUNS[run](network, 'vanilla(window=5)')
  for text in ('seed_exact(window=5)', 'corrected_seed_exact(window=5, corrector=layers)'):
    if run == 'given rows' and 'corrected' in text:
      continue
    got = RUNS[run](network, text)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_array_equal(got.log_probs, want.log_probs)
    assert got.rounds.max() < want.rounds.min()


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_whatever_the_options(network, dtype):
  """They change probabilities, and not the logits that they are made of; ties flip soonest."""
  model = dataclasses.replace(network, kept=Kept(), params=jax.tree.map(
      lambda leaf: leaf.astype(dtype), network.params))
  # One program: the options are its arguments.
  for temperature, scale, top_k, top_p in itertools.product(
      (0.2, 1.0, 2.0), (1.5, 20.0), (5, 16), (0.5, 0.95)):
    options = dict(temperature=temperature, guidance_scale=scale, top_k=top_k, top_p=top_p)
    want, got = (decode(model.images([0, 1, 2], options, seed=3, decoder=decoder, pixels=False))
                 for decoder in ('vanilla(window=5)', 'seed_exact(window=5)'))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_array_equal(got.log_probs, want.log_probs)


@pytest.mark.slow
def test_images_of_several_processes_are_those_of_vanilla(beach, tmp_path):
  model, written = cspd_jax.load(str(beach)), []
  for decoder in ('seed_exact(window=4)', 'vanilla(window=4)'):
    folder = tmp_path / decoder
    for index in range(2):
      many_processes.gallery(model, folder, index, 2, decoder=decoder).generate({})
    written.append({path.name: np.asarray(Image.open(path)).tolist()
                    for path in sorted(folder.glob('*.png'))})
  assert written[0] == written[1] and len(written[0]) == len(many_processes.PROMPTS)
