"""Images into a folder: the images of `generate`, whatever the batches are."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageFile

import cspd_jax
from cspd_jax.generation import memory
from cspd_jax.generation.stored_run import decode
from tests.builders import models as models_lib
from tests.generation import test_memory
from tests.generation.many_processes import opened


@pytest.fixture(name='model', scope='module')
def _model(beach):
  return cspd_jax.load(str(beach))


@pytest.mark.slow
def test_options_per_image(model, tmp_path):
  options = dict(seed=4, decoder='sjd(window=4)', guidance_scale=[1.0, 2.0, 3.0],
                 temperature=[1.0, 0.5, 0.0])
  gallery = opened(model, ['sea', 'sky', 'sea'], tmp_path / 'out', batch_size=2, **options)
  assert gallery.headline == '3 images with sjd(window=4), 2 at once; model beach on cpu'
  steps = []
  gallery.generate({}, lambda *step: steps.append(step))
  assert steps == [(0, 3), (1, 3), (3, 3)]
  result = []
  for name in gallery.names:
    with Image.open(tmp_path / 'out' / name) as image:
      result.append(np.asarray(image))
  np.testing.assert_array_equal(
      result, model.generate(['sea', 'sky', 'sea'], batch_size=2, **options).images)


def test_memory_and_time_before_the_start(model, tmp_path, monkeypatch):
  options = dict(decoder='sjd(window=4)', batch_size=2)
  measured = {model.devices[0].device_kind: {'2': ['sjd(window=4)', 12.5]}}
  tuned = dataclasses.replace(model, defaults={**model.defaults, 'seconds': measured})
  line = lambda model, **changes: opened(
      model, ['sea'] * 20, tmp_path / 'out', **(options | changes)).estimate
  monkeypatch.setattr(memory, 'free', lambda devices: 3e9)
  assert re.fullmatch(r'needs about \S+ GB of 3 GB of free memory for caches and passes, '
                      r'apart from the weights \(\S+ GB\) and the program', line(model))
  assert line(tuned).endswith(', and about 4 minutes as cspd-tune measured')
  assert line(tuned, process=(1, 4)).endswith('and about 62 seconds as cspd-tune measured')
  some = opened(tuned, ['sea'] * 20, tmp_path / 'stopped', **options)
  for name in some.names[:16]:  # Of a run that was stopped.
    some._report.path(name).touch()
  assert some.estimate.endswith('and about 50 seconds as cspd-tune measured')
  monkeypatch.setattr(memory, 'free', lambda devices: None)
  assert re.match(r'needs about [1-9]\S+ GB of memory for caches', line(model))
  # Another decoder or batch size was not measured.
  assert line(tuned, decoder='vanilla') == line(model, decoder='vanilla')
  assert line(tuned, batch_size=3) == line(model, batch_size=3)


def test_pixels_that_are_not_finite_are_an_error(model):
  tokenizer = model.tokenizer._replace(
      params=jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), model.tokenizer.params))
  broken = dataclasses.replace(model, tokenizer=tokenizer)
  with pytest.raises(ValueError, match="returned NaN or infinity for 'sea' with seed 3, number 0;"):
    broken.generate(['sea'], seed=3, decoder='vanilla')


def test_an_interrupted_run_keeps_its_batch_size(model, tmp_path, monkeypatch):
  options = dict(seed=4, decoder='vanilla')
  prompts = ['sea', 'sky', 'sea', 'sand', 'sky']
  per_image = test_memory.estimate(model.images(prompts, **options)).needed(1)
  free = lambda count: monkeypatch.setattr(memory, 'free', lambda devices: count * per_image)
  free(3)
  first = opened(model, prompts, tmp_path / 'out', most=4, **options)
  assert first.images.batch_size == 2

  def stop(done, total):
    if done:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    first.generate({}, stop)
  del first  # It holds the folder.
  free(50)
  assert opened(model, prompts, tmp_path / 'other', most=4, **options
                 ).images.batch_size == 4
  again, steps = opened(model, prompts, tmp_path / 'out', most=4, **options), []
  monkeypatch.setattr(ImageFile.ImageFile, 'load', None)  # No pixels are decoded for the report.
  again.generate({}, lambda *step: steps.append(step))
  assert again.images.batch_size == 2 and steps == [(2, 5), (4, 5), (5, 5)]
  assert '\n3 images in ' in again.gained(0.0), 'those of this run'


def _stopped(model, folder):
  """Opens a run that was stopped after its first image."""
  stopped = opened(model, ['sea', 'sky'], folder, decoder='vanilla', batch_size=1)
  stopped._report.path(stopped.names[0]).write_bytes(b'an image')


def _changed(model, part):
  """The model with another grid, config or image tokenizer and the same parameters."""
  if part == 'grid':
    return dataclasses.replace(model, grid=(2, 8))
  if part == 'config':
    return dataclasses.replace(model, config=dataclasses.replace(model.config, height=2, width=8))
  tokenizer = model.tokenizer
  if part == 'tokenizer config':
    return dataclasses.replace(model, tokenizer=tokenizer._replace(
        config=dataclasses.replace(tokenizer.config, side=2)))
  return dataclasses.replace(model, tokenizer=tokenizer._replace(
      params={'colours': -tokenizer.params['colours']}))


@pytest.mark.parametrize('part', ['grid', 'config', 'tokenizer', 'tokenizer config'])
def test_a_run_has_pictures_of_one_kind(model, tmp_path, part):
  """A folder could hold images of several grids and image tokenizers."""
  _stopped(model, tmp_path / 'out')
  again = lambda model: opened(model, ['sea', 'sky'], tmp_path / 'out', decoder='vanilla')
  with pytest.raises(ValueError, match='where another run was stopped'):
    again(_changed(model, part))
  assert again(model)._report.has('00000_sea_seed0.png')
  both = ['sea', 'sky']
  for prompts, change, words in (
      (both, dict(seed=1), 'seed was 0, now 1'),
      (both, dict(top_k=2), 'sampling.top_k was 0, now 2'),
      (both, dict(seed=[1, 2]), r'seed was 0, now \[\[1, 0\], \[2, 0\]\]'),
      (['sea', 'sand'], {}, 'other prompts'),
      (['sea'], {}, 'other prompts; num_images was 2, now 1')):
    with pytest.raises(ValueError, match=rf'another run was stopped \({words}\); .* --output'):
      opened(model, prompts, tmp_path / 'out', decoder='vanilla', **change)


@pytest.mark.parametrize('part', ['grid', 'config'])
def test_batches_of_another_grid_are_not_mixed(model, tmp_path, part):
  run = lambda model: decode(
      model.images(['sea', 'sky'], decoder='vanilla', batch_size=1), folder=tmp_path / 'out')
  run(model)
  with pytest.raises(ValueError, match=rf'which holds another run \((other )?{part}'):
    run(_changed(model, part))


def test_the_batch_size_of_a_run_in_the_home_folder(model, tmp_path, monkeypatch):
  """It was looked for in a folder called ~."""
  monkeypatch.setenv('HOME', str(tmp_path))
  _stopped(model, tmp_path / 'out')
  again = opened(model, ['sea', 'sky'], '~/out', decoder='vanilla')
  assert again.images.batch_size == 1 and again.folder == str(tmp_path / 'out')


@pytest.mark.slow
@pytest.mark.parametrize('options', [{}, {'dtype': 'bfloat16', 'cache_dtype': 'int8'}])
def test_the_metadata_generate_an_image_again(tmp_path, options):
  """They lacked the grid, the precision and the prefix."""
  models_lib.llamagens(tmp_path)
  model = cspd_jax.load(tmp_path / 'model', **options)
  prefix = np.random.default_rng(0).integers(0, model.config.vocab_size, (2, 2 * 4))
  made = model.generate(['cat', 'owl'], seed=5, decoder='mc_sjd(window=4)', prefix=prefix,
                        temperature=[1.0, 0.9])
  made.save(tmp_path)
  with Image.open(tmp_path / made.names()[1]) as image:
    pixels, text = np.asarray(image), image.info
  read = lambda name: json.loads(text[name])
  assert read('grid') == [4, 4] and text['dtype'] == options.get('dtype', 'float32')
  assert text.get('cache_dtype') == options.get('cache_dtype') and 'quantize' not in text
  again = cspd_jax.load(tmp_path / text['model'], **{
      name: text[name] for name in ('dtype', 'cache_dtype') if name in text})
  assert again.precision == made.precision
  if not options:  # In bfloat16, batches of other sizes may round differently.
    np.testing.assert_array_equal(again.generate(
        [text['prompt']], seed=[(read('seed'), read('number'))], decoder=text['decoder'],
        prefix=np.array([read('prefix')]), **read('sampling')).images[0], pixels)


@pytest.mark.slow
def test_other_words_of_the_same_tokens_are_another_run(tmp_path):
  """Files are named after them."""
  model = cspd_jax.load('emoji')
  options = dict(seed=4, decoder='vanilla')
  opened(model, ['a zzz fox'], tmp_path, **options).generate({})
  with pytest.raises(ValueError, match='holds a report already'):
    opened(model, ['a qqq fox'], tmp_path, **options)
  assert opened(model, ['a zzz fox'], tmp_path, **options).is_complete
