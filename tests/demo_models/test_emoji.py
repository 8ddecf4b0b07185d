"""Scenes of emoji: deterministic, true to their captions, and split by pairs."""


import numpy as np
import pytest

from tests.demo_models import emoji_files

pytest.importorskip('matplotlib')

from cspd_jax.metrics import requests, scenes as score
from experiments.demo_models import emoji


@pytest.fixture(scope='module')
def sources(tmp_path_factory):
  return emoji_files.write(tmp_path_factory.mktemp('emoji'))


@pytest.fixture(scope='module')
def sprites(sources):
  return emoji.load(**sources)


def test_scenes_are_those_of_their_arguments_and_show_what_captions_say(sprites):
  batch, again = (emoji.scenes(sprites, 3, 1, 'train', 60) for _ in range(2))
  np.testing.assert_array_equal(batch.images, again.images)
  assert batch.captions.tolist() == again.captions.tolist()
  assert batch.images.shape == (60, 64, 64, 3) and np.abs(batch.images).max() <= 1
  for image, caption, complete in zip(batch.images, batch.captions, batch.complete, strict=True):
    assert set(caption.split()) <= set(emoji.WORDS)
    request = requests.parse(caption)
    assert [item.name for item in request.items] == [item.name for item in complete.items]
    assert all(one.colour in (None, other.colour)
               for one, other in zip(request.items, complete.items, strict=True))
    assert request.style in (None, complete.style) and request.small == complete.small
    assert request.ground in (None, complete.ground)
    corner = np.round((image[0, 0] + 1) * 127.5)
    np.testing.assert_array_equal(corner, requests.GROUNDS[complete.ground])
  every = batch.complete
  assert {len(request.items) for request in every} == {1, 2}
  assert {request.small for request in every} == {True, False}
  assert {request.style for request in every} == set(requests.STYLES)
  counts = [sum(getattr(requests.parse(caption), part) is None for caption in batch.captions)
            for part in ('style', 'ground')]
  assert all(5 < count < 40 for count in counts)


def test_a_part_of_the_pairs_is_held_out(sprites):
  shown = {split: [request for step in range(20) for request in emoji.scenes(
      sprites, 0, step, split, 30, size=8).complete] for split in emoji.SPLITS}
  assert not any(emoji.is_held_out(sprites, request) for request in shown['train'])
  assert all(emoji.is_held_out(sprites, request) for request in shown['held_out'])

  def pairs(requested):
    grounds = {(item.name, request.ground) for request in requested for item in request.items}
    colours = {(item.name, item.colour) for request in requested for item in request.items}
    return grounds, colours

  held = {(name, ground) for name in emoji.NAMES for ground in requests.GROUNDS
          if emoji.is_held_out(sprites, requests.SceneRequest((requests.Thing(name),),
                                                              ground=ground))}
  assert len(held) == len(emoji.NAMES) * len(requests.GROUNDS) // 10
  assert not any(ground == 'white' for _, ground in held)
  assert not held & pairs(shown['train'])[0] and held & pairs(shown['held_out'])[0]
  colours = {(name, emoji.held_out_colour(sprites, number))
             for number, name in enumerate(emoji.NAMES)}
  colours = {pair for pair in colours if pair[1]}
  assert len(colours) > 40
  assert not colours & pairs(shown['train'])[1] and colours & pairs(shown['held_out'])[1]
  natural = {(name, requests.COLOURS[colour]) for name, row in zip(emoji.NAMES, sprites.colours)
             for colour in row[:, 0] if colour >= 0}
  assert not natural & colours


def test_the_score_sees_what_was_drawn(sprites):
  templates = emoji.templates(sprites)
  assert templates.pixels.shape[:2] == (64, 2) and templates.pixels.dtype == np.uint8
  batch = emoji.scenes(sprites, 1, 0, 'train', 24)
  images = np.round((batch.images + 1) * 127.5).astype(np.uint8)
  marks = score.score(images, [requests.caption(one) for one in batch.complete], templates)
  # The font's letters for some of the things are alike.
  assert np.mean(marks['all']) > 0.7 and np.nanmean(marks['ground']) == 1


def test_a_source_without_a_picture_is_named(sources, tmp_path):
  with pytest.raises(ValueError, match=r'fluent is .*, which has no file 0041\.webp'):
    emoji.load(**{**sources, 'fluent': str(tmp_path)})
  (tmp_path / 'data.json').write_text('[]')
  with pytest.raises(ValueError, match=r"names is .*, which has no entry 'dog face'"):
    emoji.load(**{**sources, 'names': str(tmp_path / 'data.json')})
