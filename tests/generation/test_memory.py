"""Bytes of parameters and caches against arrays that are really allocated; batches that fit."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.continuous import head
from cspd_jax.core import programs, random as random_lib
from cspd_jax.decoding import warp
from cspd_jax.generation import memory
from cspd_jax.generation.model import Model
from cspd_jax.generation.parts import DraftNetwork
from cspd_jax.models import mar
from tests.marks import representative

# The other tests compile without fusions.
_FLAGS = {'xla_cpu_use_fusion_emitters': True} if 'emitters=false' in os.environ.get(
    'XLA_FLAGS', '') else {}


@pytest.fixture(scope='module')
def model():
  return cspd_jax.load('demo', dtype='float32')


def test_live_cache_grows_with_streams_and_images(model):
  one, two = (model.condition(model.prompts[:count]) for count in (1, 2))
  size = memory.live_cache(model.target(False), model.params, one)
  # One slot per head for the class, and half of the image's tokens; keys and values.
  config, slots = model.config.transformer, 1 + model.num_tokens // 2
  assert size == pytest.approx(
      2 * 4 * config.num_layers * config.num_kv_heads * config.head_dim * slots, rel=0.02)
  assert memory.live_cache(
      model.target(), model.params, one) == pytest.approx(2 * size, rel=0.01)
  assert memory.live_cache(
      model.target(False), model.params, two) == pytest.approx(2 * size, rel=0.01)


# Estimates, and the batch sizes that they allow.


def _task(model, count=3, **options):
  return model.images(_prompts(model, count), **options)


def estimate(images):
  return images.sampler.estimate(images)


def _prompts(model, count):
  return [model.prompts[i % len(model.prompts)] for i in range(count)]


@pytest.fixture
def device(model, monkeypatch):
  """Sets the free memory of the device in bytes; what fits in it is looked at once."""
  def set_free(number):
    monkeypatch.setattr(memory, 'free', lambda devices: number)
    model._samplers.clear()
  return set_free


@pytest.mark.parametrize('decoder', representative(
    ['vanilla', 'mc_sjd(window=8)', 'seed_exact(window=8)', 'eagle(tree=chain(3))',
     'speculative(length=3)'], 'mc_sjd(window=8)', 'eagle(tree=chain(3))'))
def test_an_estimate_is_what_a_round_carries(model, decoder):
  task = _task(model, decoder=decoder, batch_size=3)
  state = jax.eval_shape(
      lambda params, condition, keys, *args: task.sampler.decoder.start(
          params, condition, random_lib.row_keys(keys, 3), *args),
      *task.sampler.arguments(task, np.arange(3)))
  needs = estimate(task)
  assert 3 * needs.per_image == memory.size(state)
  assert needs.needed(3) == memory.size(state) + task.sampler.decoder.intermediate(3)
  # Both streams have a slot for the class, every token and every draft.
  target, tree = task.sampler.decoder.target, task.sampler.decoder.drafter.tree
  assert memory.size(state.cache) == memory.cache_size(
      target, model.params, task.condition, target.num_tokens + tree.num_nodes)


def _compared(model, decoder, num_rows):
  """Estimated bytes of a decode, as a multiple of what the compiled program needs."""
  specification, shapes = model.specification(decoder), lambda tree: jax.eval_shape(lambda: tree)
  built, sampling = model.decoder(specification, guided=True), warp.drop_inactive(
      model.sampling(guidance_scale=2.0))
  condition, draft_params = np.arange(num_rows), model.draft_params(specification)
  key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num_rows))
  program = jax.jit(built).lower(
      model.params, shapes(jnp.asarray(condition)), key, shapes(sampling), draft_params)
  analysis = program.compile(_FLAGS).memory_analysis()
  needs = memory.estimate(model, specification, built, condition, sampling, draft_params)
  return needs.needed(num_rows) / (analysis.temp_size_in_bytes + analysis.output_size_in_bytes)


@pytest.mark.slow
@pytest.mark.parametrize('decoder, num_rows', representative([
    ('vanilla', 4), ('mc_sjd(window=16)', 8), ('seed_exact(window=16)', 4),
    ('eagle(tree=chain(8))', 4), ('corrected(corrector=neighbours, window=16)', 4)],
    ('mc_sjd(window=16)', 8)))
def test_an_estimate_is_about_what_a_compiled_decoder_needs(decoder, num_rows):
  model = families.describe('c2i_b_256', dtype='float32', layers=2)
  assert 0.8 < _compared(model, decoder, num_rows) < 1.5


def _described_mar(name):
  """A described MAR model with two layers and a draft model of the same sizes."""
  model = families.describe(name, dtype='float32', layers=2)
  return dataclasses.replace(model, drafts={'model': DraftNetwork(
      lambda guided: mar.target(model.config, guided=guided), model.params)})


# With one image the modulations are the largest, with eight the transformer, except at the wide
# blocks of `cspd_released`.
@pytest.mark.slow
@pytest.mark.parametrize('name, decoder, num_rows', representative([
    ('mar_demo', 'mar', 2), ('mar_demo', 'exact_head', 4), ('mar_demo', 'exact_path', 4),
    ('mar_demo', 'cspd_released', 2), ('mar_demo', 'windows(window=4)', 2), ('mar_b', 'mar', 8),
    ('mar_b', 'exact_head', 1), ('mar_b', 'exact_path', 1), ('mar_b', 'exact_path', 8),
    ('mar_b', 'cspd_released', 8)],
    ('mar_demo', 'exact_head', 4), ('mar_b', 'mar', 8)))
def test_an_estimate_of_continuous_tokens_is_about_what_a_compiled_decoder_needs(
    name, decoder, num_rows):
  assert 0.8 < _compared(_described_mar(name), decoder, num_rows) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize('decoder', ['exact_head', 'cspd_released', 'exact_path'])
def test_modulations_that_are_not_stored_need_no_memory(decoder, monkeypatch):
  monkeypatch.setattr(head, 'MODULATION_BYTES', 1000)
  assert 0.8 < _compared(_described_mar('mar_b'), decoder, 64) < 1.5


@pytest.mark.slow
def test_parameters_in_sixteen_bits_have_a_copy_on_cpus():
  model = families.describe('c2i_b_256', layers=1)
  task = lambda model: memory.estimate(
      model, 'vanilla', model.decoder('vanilla'), np.arange(2), model.sampling())
  assert task(model).fixed == 2 * memory.size(model.params)
  assert task(families.describe('c2i_b_256', dtype='float32', layers=1)).fixed == 0
  for dtype, size in (('float32', 4), ('bfloat16', 2)):
    model = cspd_jax.load('demo', dtype=dtype, quantize='int8')
    rounded = memory.size([leaf for leaf in jax.tree.leaves(model.params) if leaf.dtype == np.int8])
    others = memory.size(model.params) - rounded
    assert rounded and 0 <= task(model).fixed - size * rounded <= 2 * others


@pytest.mark.slow
@pytest.mark.parametrize('options', [
    dict(dtype='float32'), dict(dtype='bfloat16'), dict(dtype='float32', quantize='int8'),
    dict(dtype='bfloat16', quantize='int8')], ids=str)
def test_an_estimate_of_narrow_parameters_is_about_what_a_compiled_decoder_needs(options):
  assert 0.8 < _compared(cspd_jax.load('demo', **options), 'vanilla', 2) < 1.5


def test_an_estimate_is_made_once_for_all_batch_sizes_and_prompts(model, monkeypatch):
  task = _task(model, decoder='mc_sjd(window=6)')
  monkeypatch.setattr(memory, 'random_lib', None)
  other = model.images(_prompts(model, 7)[2:], dict(guidance_scale=3.0),
                        decoder='mc_sjd(window=6)', seed=5, batch_size=2)
  assert estimate(other).per_image == estimate(task).per_image
  with pytest.raises(AttributeError):
    _task(model, decoder='mc_sjd(window=7)')


def test_images_that_do_not_fit_are_refused_before_anything_compiles(model, device, monkeypatch):
  needs = estimate(_task(model, decoder='mc_sjd(window=8)'))
  per_image = needs.needed(1)
  device(5 * per_image)
  monkeypatch.setattr(programs, 'jit', None)
  with pytest.raises(ValueError, match='are free on cpu; pass batch_size=2 or less[.]$'):
    model.generate(_prompts(model, 6), decoder='mc_sjd(window=8)', batch_size=6)
  with pytest.raises(ValueError, match='prompts has 6 images, but .*; pass at most 3 prompts'):
    model.stream(_prompts(model, 6), decoder='mc_sjd(window=8)')
  with pytest.raises(ValueError, match='batch_size is 5, but'):
    # Images that wait for a row need memory as well.
    assert needs._replace(queue=6).needed(5) == 5 * per_image + needs.per_image
    _task(model, 6, decoder='mc_sjd(window=8)', batch_size=5)
  _task(model, 5, decoder='mc_sjd(window=8)', batch_size=5)
  device(per_image / 2)
  with pytest.raises(ValueError, match='decoding 1 image at once .* on cpu; use a device with'):
    _task(model, decoder='mc_sjd(window=8)')
  device(None)
  _task(model, 50, decoder='mc_sjd(window=8)', batch_size=50)


def test_no_batch_size_means_as_many_as_fit(model, device):
  task = _task(model, 30, decoder='vanilla')
  assert task.batch_size == 30
  per_image = estimate(task).needed(1)
  device(10 * per_image)
  # A quarter is left.
  assert _task(model, 30, decoder='vanilla').batch_size == 7
  assert _task(model, 30, decoder='vanilla', most=4).batch_size == 4
  assert memory.Estimate(1.0, 0.0, 12.5, queue=9).most(9) == 9, 'none of them waits'
  # One image waits per four rows.
  per_image = estimate(_task(model, 30, decoder='mc_sjd(window=8)')).needed(1)
  device(10 * per_image)
  assert _task(model, 30, decoder='mc_sjd(window=8)').batch_size == 6
  assert _task(model, 7, decoder='mc_sjd(window=8)').batch_size == 7
  device(1.1 * per_image)
  assert _task(model, 30, decoder='vanilla').batch_size == 1


def test_the_default_decoder_is_that_of_the_chosen_batch_size(model, device):
  model = dataclasses.replace(model, defaults=dict(model.defaults) | {
      'decoder': {'cpu': {'1': 'mc_sjd(window=4)', '4': 'vanilla'}}})
  per_image = estimate(_task(model, 1)).needed(1)
  assert _task(model, 8).sampler.text == 'vanilla'
  device(3 * per_image)
  model._samplers.clear()
  task = _task(model, 8)
  assert (task.batch_size, task.sampler.text) == (1, 'mc_sjd(window=4)')


@pytest.mark.slow
@pytest.mark.parametrize('decoder', ['mar', 'exact_head'])
def test_continuous_tokens_are_estimated_too(device, decoder):
  model = cspd_jax.load('mar_demo')
  assert estimate(_task(model, 4, decoder=decoder)).per_image > 0
  device(1.0)
  with pytest.raises(ValueError, match='decoding 4 images at once with .* needs at least'):
    _task(model, 4, decoder=decoder, batch_size=4)


def test_the_most_images_are_looked_for_one_by_one():
  # Ten images need less than nine: their tables are not stored.
  estimate = memory.Estimate(1.0, 0.0, 20.0, intermediate=lambda rows: 2.0 * rows * (rows < 10))
  assert estimate.needed(9) == 27 and estimate.needed(10) == 10
  assert (estimate.most(9), estimate.most(12), estimate.most(20)) == (5, 12, 15)


def test_memory_is_divided_over_a_mesh(model):
  whole = memory.Estimate(10.0, 0.0, 100.0)
  assert (whole.most(20), whole.needed(4), whole.fits(10), whole.fits(11)) == (7, 40, True, False)
  assert whole._replace(groups=2).most(20) == 14
  assert whole._replace(fixed=60.0).most(20) == 1
  with pytest.raises(ValueError, match='prompts has 11 images'):  # Every group has all of a stream.
    memory.check(model, 'vanilla', whole._replace(groups=2), 11, 'prompts')


class _Device:
  """A device that reports statistics."""

  device_kind = 'Fast'

  def __init__(self, stats, platform='gpu', process_index=0):
    self._stats, self.platform, self.process_index = stats, platform, process_index

  def memory_stats(self):
    return self._stats


def test_free_memory_of_devices():
  full = _Device(dict(bytes_limit=100, bytes_in_use=90))
  empty = _Device(dict(bytes_limit=100, bytes_in_use=10))
  assert memory.free([empty, full]) == 10 and memory.free([empty]) == 90
  assert memory.free([_Device(None)]) is None and memory.free([_Device({})]) is None
  assert memory.free([full, _Device(None, process_index=1)]) == 10


def test_statistics_of_an_accelerator_limit_a_batch(model, monkeypatch):
  per_image = estimate(_task(model, decoder='mc_sjd(window=8)')).needed(1)
  # Names as in `Device.memory_stats` on GPUs; the peak and the largest block do not matter.
  stats = dict(num_allocs=9, bytes_in_use=int(7 * per_image), peak_bytes_in_use=int(12 * per_image),
               largest_alloc_size=1, bytes_limit=int(12 * per_image), bytes_reserved=0,
               peak_bytes_reserved=0, largest_free_block_bytes=0)
  monkeypatch.setattr(Model, 'devices', [_Device(stats)])
  with pytest.raises(ValueError) as error:
    _task(model, 6, decoder='mc_sjd(window=8)', batch_size=6)
  assert str(error.value) == (
      'batch_size is 6, but decoding 6 images at once with mc_sjd(window=8) needs at least '
      f'{6e-9 * per_image:.3g} GB of memory, and {5e-9 * per_image:.3g} GB are free on Fast; pass '
      "batch_size=2 or less, or load the model with dtype='bfloat16' or quantize='int8' or "
      "cache_dtype='int8'.")
  assert _task(model, 3, decoder='mc_sjd(window=8)').batch_size == 3
  assert _task(model, 30, decoder='mc_sjd(window=8)').batch_size < 5
  # Options that do not apply are not named.
  monkeypatch.setattr(Model, 'devices', [_Device(dict(bytes_limit=1, bytes_in_use=0))])
  with pytest.raises(ValueError, match='are free on Fast; use a device with more memory'):
    cspd_jax.load('demo', dtype='bfloat16', quantize='int8', cache_dtype='int8').generate(
        decoder='vanilla', batch_size=1)


def test_free_memory_of_a_machine_and_its_control_groups(tmp_path, monkeypatch):
  write = lambda name, text: (path := tmp_path / name).parent.mkdir(
      parents=True, exist_ok=True) or path.write_text(text)
  monkeypatch.setattr(memory, '_MEMINFO', tmp_path / 'meminfo')
  monkeypatch.setattr(memory, '_GROUPS', tmp_path / 'cgroup')
  monkeypatch.setattr(memory, '_OWN_GROUPS', tmp_path / 'self')
  host = [_Device(None, 'cpu')]
  assert memory.free(host) is None
  write('meminfo', 'MemTotal: 9 kB\nMemAvailable:    4 kB\n')
  assert memory.free(host) == 4096 and memory.free(host * 2) == 2048
  write('self', '0::/a/b\n')
  write('cgroup/a/memory.max', '3000\n')
  write('cgroup/a/memory.current', '2500\n')
  write('cgroup/a/memory.stat', 'anon 100\ninactive_file 300\nactive_file 20\n')
  write('cgroup/a/b/memory.max', 'max\n')
  write('cgroup/a/b/memory.current', '2500\n')
  assert memory.free(host) == 820
  write('self', '4:memory:/c\n1:cpu:/\n')
  assert memory.free(host) == 4096
  write('cgroup/memory/memory.limit_in_bytes', '1000\n')
  write('cgroup/memory/memory.usage_in_bytes', '900\n')
  assert memory.free(host) == 100
