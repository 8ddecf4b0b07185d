"""Where a GPU's kernels differ, the log, metadata and answers say seed-exact up to rounding."""

import jax
import pytest
from PIL import Image

from cspd_jax.core import kernels, programs
from cspd_jax.generation.runner import Runner
from cspd_jax.serve import wire
from tests.serve import tiny

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


@pytest.mark.parametrize('first', [VANILLA, OTHER])
@pytest.mark.parametrize('same', [True, False])
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
