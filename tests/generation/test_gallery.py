"""Images into a folder: the images of `generate`, whatever the batches are."""

import dataclasses
import re

import numpy as np
import pytest
from PIL import Image

import cspd_jax
from cspd_jax.generation import generate, memory
from cspd_jax.generation.gallery import Gallery
from tests.families import tiny


def test_options_per_image(tmp_path):
  model = cspd_jax.load(str(tiny.saved(tmp_path / 'beach')))
  options = dict(seed=4, decoder='sjd(window=4)', guidance_scale=[1.0, 2.0, 3.0],
                 temperature=[1.0, 0.5, 0.0])
  gallery = Gallery(model, ['sea', 'sky', 'sea'], tmp_path / 'out', batch_size=2, **options)
  assert gallery.headline == '3 images with sjd(window=4), 2 at once; model beach'
  steps = []
  gallery.generate({}, lambda *step: steps.append(step))
  assert steps == [(0, 3), (1, 3), (3, 3)]
  found = []
  for name in gallery.names:
    with Image.open(tmp_path / 'out' / name) as image:
      found.append(np.asarray(image))
  np.testing.assert_array_equal(
      found, model.generate(['sea', 'sky', 'sea'], batch_size=2, **options).images)


def test_memory_and_time_before_the_start(tmp_path, monkeypatch):
  model = cspd_jax.load(str(tiny.saved(tmp_path / 'beach')))
  options = dict(decoder='sjd(window=4)', batch_size=2)
  measured = {model.device.device_kind: {'2': ['sjd(window=4)', 12.5]}}
  tuned = dataclasses.replace(model, defaults={**model.defaults, 'seconds': measured})
  line = lambda model, **changes: Gallery(
      model, ['sea'] * 20, tmp_path / 'out', **(options | changes)).estimate
  monkeypatch.setattr(memory, 'free', lambda devices: 3e9)
  assert re.fullmatch(r'needs about \S+ GB of memory of 3 GB that are free', line(model))
  assert line(tuned).endswith(', and about 4 minutes as cspd-tune measured')
  assert line(tuned, process_index=1, process_count=4).endswith('and about 62 seconds as cspd-tune '
                                                                'measured')
  # Another decoder or batch size was not measured.
  assert line(tuned, decoder='vanilla') == line(model, decoder='vanilla')
  assert line(tuned, batch_size=3) == line(model, batch_size=3)


def test_an_interrupted_run_keeps_its_batch_size(tmp_path, monkeypatch):
  model = cspd_jax.load(str(tiny.saved(tmp_path / 'beach')))
  options = dict(seed=4, decoder='vanilla')
  prompts = ['sea', 'sky', 'sea', 'sand', 'sky']
  per_image = generate.prepare(model, prompts, **options).estimate().needed(1)
  free = lambda count: monkeypatch.setattr(memory, 'free', lambda devices: count * per_image)
  free(3)
  first = Gallery(model, prompts, tmp_path / 'out', max_batch_size=4, **options)
  assert first.task.batch_size == 2

  def stop(done, total):
    if done:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    first.generate({}, stop)
  del first  # It holds the folder.
  free(50)
  assert Gallery(model, prompts, tmp_path / 'other', max_batch_size=4, **options
                 ).task.batch_size == 4
  again, steps = Gallery(model, prompts, tmp_path / 'out', max_batch_size=4, **options), []
  again.generate({}, lambda *step: steps.append(step))
  assert again.task.batch_size == 2 and steps == [(2, 5), (4, 5), (5, 5)]
