"""`experiments.quality`: scores and confusions of a model's scenes."""

import json

import numpy as np
import pytest
from PIL import Image

from cspd_jax.metrics import scenes
from experiments import quality
from tests.builders import models
from tests.experiments import calls

CAPTIONS = ['a cat on white', 'a dog', 'an owl flat']


@pytest.mark.slow
def test_scores_of_every_scale_and_pictures(capsys, tmp_path, monkeypatch):
  monkeypatch.setattr(models, 'NAMES', CAPTIONS)
  models.llamagens(tmp_path)
  prompts = tmp_path / 'prompts.txt'
  prompts.write_text('\n'.join(CAPTIONS))
  run = lambda name, *words: calls.call(
      quality.main, capsys, tmp_path / name, f'--model={tmp_path}/model', f'--prompts={prompts}',
      *words)
  result = run('out', '--num_images=4', '--scale=1,2', '--batch_size=2')
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  assert [row['guidance_scale'] for row in report['rows']] == [1, 2] and report['num_images'] == 4
  for row in report['rows']:
    assert row['asked'] == pytest.approx((row['thing'] + row['ground'] + row['style']) / 3)
  # Pictures of noise show something else.
  assert sum(pair['images'] for pair in report['confused']) == round(
      4 * (1 - report['rows'][-1]['thing']))
  assert {'images.png', 'failures.png'} <= {file.name for file in result.folder.iterdir()}
  prompts.write_text('a zebra')
  calls.check_refused(run('other'), ["prompts holds 'a zebra'"])


def test_things_that_are_taken_for_others():
  templates = scenes.templates()

  def shown(name):
    luminance, alpha = (Image.fromarray(plane).resize((56, 56)) for plane in np.moveaxis(
        templates.pixels[templates.names.index(name), 0], -1, 0))
    scene = Image.new('L', (64, 64), 255)
    scene.paste(luminance, (4, 4), alpha)
    return np.asarray(scene.convert('RGB'))

  images = np.stack([shown(name) for name in ('owl', 'owl', 'owl', 'dog', 'dog')])
  asked = ['a cat', 'a cat on white', 'an owl', 'a fox', 'a dog and an owl']
  assert quality.confusions(images, asked) == [
      dict(requested='cat', shown='owl', images=2), dict(requested='fox', shown='dog', images=1)]
