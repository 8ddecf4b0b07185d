"""Scores that mislead: the warning, its remedy, and none for scores as people publish them."""

import re

import numpy as np
import pytest
from PIL import Image

from cspd_jax.metrics import evaluation, image_scores, image_sets, inception
from cspd_jax.models.inception import Features

CLASSES, WIDTH = 20, 6
# ADM's evaluator with short splits.
SHORT = inception.EVALUATORS['adm']._replace(split=100)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
  monkeypatch.setitem(inception.EVALUATORS, 'adm', SHORT)


def scored(count, seed=0, by_class=False, width=WIDTH):
  rng = np.random.default_rng(seed)
  labels = np.arange(count) * CLASSES // count if by_class else np.arange(count) % CLASSES
  values = Features(*(rng.normal(size=(count, size)).astype(np.float32) for size in (width, 4)),
                    8 * np.eye(CLASSES, dtype=np.float32)[labels])
  return evaluation.Source(
      None, values, image_scores.gaussian(values.pool), image_scores.gaussian(values.spatial))


def warnings(samples, reference=None, evaluator='adm'):
  return evaluation.warnings(samples, scored(400, 1) if reference is None else reference, evaluator)


@pytest.mark.parametrize('evaluator', inception.EVALUATORS)
def test_scores_as_people_publish_them(evaluator):
  assert not warnings(scored(400), evaluator=evaluator)


def test_images_by_class():
  in_turn, by_class = (image_scores.inception_score(
      scored(400, by_class=order).features.logits, 100) for order in (False, True))
  assert in_turn > 3 * by_class
  (warning,) = warnings(scored(400, by_class=True))
  assert f'IS is {by_class:.2f}' in warning and 'in random order, or the classes in turn' in warning
  assert not warnings(scored(100, by_class=True))  # One split.
  assert not warnings(scored(400, by_class=True), evaluator='torch_fidelity')  # It shuffles.


@pytest.mark.parametrize('count,evaluator,message', [
    (401, 'adm', 'the last of 5 splits of the IS has 1 images in place of 100.*multiple of 100'),
    (12, 'adm', 'splits of 12 images, which score at most 12, and the network has 20 classes'),
    (101, 'torch_fidelity', 'splits of 10 images, which score at most 10')])
def test_splits(count, evaluator, message):
  (warning,) = warnings(scored(count), evaluator=evaluator)
  assert re.search(message, warning), warning


@pytest.mark.parametrize('form', ['array', 'folder'])
def test_numbers_from_0_to_1_as_uint8(tmp_path, form):
  pixels = np.random.default_rng(0).integers(0, 2, (9, 6, 5, 3), np.uint8)

  def source(pixels):
    np.savez(tmp_path / 'images.npz', pixels)
    for number, image in enumerate(pixels):
      Image.fromarray(image).save(tmp_path / f'{number}.png')
    place = tmp_path / 'images.npz' if form == 'array' else tmp_path
    return scored(400)._replace(images=image_sets.opened('images', str(place)))

  (warning,) = warnings(source(pixels))
  assert re.match(f"images is '{tmp_path}.*no number above 1 .* multiply them by 255", warning)
  (warning,) = warnings(scored(400), source(pixels)._replace(pool=scored(400, 1).pool))
  assert warning.startswith('reference is')
  assert not warnings(source(pixels * 2))


def test_fewer_images_than_features():
  few = scored(400, width=500)
  (warning,) = warnings(few, scored(600, 1, width=500))
  assert warning.startswith('images has 400 images, fewer than features (500 of the FID)')
  assert 'at least 500' in warning
  (warning,) = warnings(scored(600, 1, width=500), few, 'pytorch_fid')
  assert warning.startswith('reference has 400 images')
  (warning,) = warnings(few, scored(600, 1, width=500)._replace(features=None))  # Statistics.
  assert warning.startswith('images has 400 images')


def test_equal_sets_have_no_distance():
  """60 images in another order: a FID of 0 is that of the same images."""
  samples = scored(60)
  order = np.random.default_rng(0).permutation(60)
  same = Features(*(leaf[order] * np.float32(1 + 1e-6) for leaf in samples.features))
  reference = evaluation.Source(None, same, *map(image_scores.gaussian, same[:2]))
  (warning,) = warnings(samples, reference)
  assert 'same images' in warning and 'give other images' in warning
  assert list(evaluation.scores(samples, reference, 'adm')) == ['IS (ADM, 60)']
  for other in (scored(60, 1), scored(100_000, 1)):
    assert len(evaluation.scores(samples, other, 'pytorch_fid')) == 1
