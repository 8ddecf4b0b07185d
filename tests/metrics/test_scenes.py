"""The score `asked` on drawn scenes: right where they show the request, wrong where not."""


import numpy as np
import pytest
from PIL import Image, ImageDraw

from cspd_jax.metrics import layouts, paired, requests, scenes
from cspd_jax.metrics.requests import SceneRequest, Thing

NAMES = ('box', 'cross', 'moon', 'arrow')


def _shapes(draw, name, fill):
  match name:
    case 'box':
      draw.rectangle((3, 8, 44, 40), fill=fill)
    case 'cross':
      draw.rectangle((19, 2, 29, 46), fill=fill)
      draw.rectangle((2, 19, 46, 29), fill=fill)
    case 'moon':
      draw.pieslice((2, 2, 46, 46), 40, 320, fill=fill)
    case 'arrow':
      draw.polygon([(2, 24), (24, 2), (24, 46)], fill=fill)
      draw.rectangle((24, 18, 46, 30), fill=fill)


def _picture(name, style, fill):
  """Draws a thing as RGBA; the style 'flat' has a dark spot."""
  picture = Image.new('RGBA', (48, 48))
  draw = ImageDraw.Draw(picture)
  _shapes(draw, name, fill)
  if style == 'flat':
    draw.ellipse((18, 18, 30, 30), fill=(10, 10, 10))
  return picture


@pytest.fixture(scope='module')
def templates():
  return scenes.Templates(NAMES, np.array([[
      np.asarray(_picture(name, style, (180, 60, 40)).convert('LA'))
      for style in requests.STYLES] for name in NAMES]))


FILLS = {'red': (210, 40, 40), 'green': (40, 170, 60), 'blue': (40, 80, 220)}


def _scene(request, side=56, size=64):
  """Draws a complete request."""
  scene = Image.new('RGB', (64, 64), requests.GROUNDS[request.ground])
  centres = [(16, 32), (48, 32)] if len(request.items) == 2 else [(32, 32)]
  for item, (x, y) in zip(request.items, centres, strict=True):
    width = 28 if request.small or len(centres) == 2 else side
    x, y = (48, 16) if request.small else (x, y)
    picture = _picture(item.name, request.style, FILLS[item.colour]).resize((width, width))
    scene.paste(picture, (x - width // 2, y - width // 2), picture)
  return np.asarray(scene.resize((size, size), Image.Resampling.NEAREST))


SHOWN = [SceneRequest((Thing(name, colour),), small, style, ground)
         for name, colour, small, style, ground in (
             ('box', 'red', False, '3d', 'white'), ('cross', 'blue', False, 'flat', 'yellow'),
             ('moon', 'green', True, '3d', 'pink'), ('arrow', 'red', False, 'flat', 'black'))]
SHOWN.append(SceneRequest((Thing('cross', 'red'), Thing('moon', 'blue')), False, 'flat', 'grey'))


def _marks(shown, asked, templates, **options):
  images = np.stack([_scene(request, **options) for request in shown])
  return scenes.score(images, [requests.caption(request) for request in asked], templates)


@pytest.mark.parametrize('options', [{}, dict(side=60), dict(side=52, size=128)])
def test_scenes_that_show_their_request_are_right(templates, options):
  marks = _marks(SHOWN, SHOWN, templates, **options)
  np.testing.assert_array_equal(marks['all'], 1)
  np.testing.assert_array_equal(marks['thing'], [1, 1, 1, 1, np.nan])
  np.testing.assert_array_equal(marks['two'], [np.nan] * 4 + [1])
  for kind in ('style', 'ground', 'colour'):
    np.testing.assert_array_equal(marks[kind], 1)


@pytest.mark.parametrize('kind, change', [
    ('thing', dict(items=(Thing('arrow', 'red'),))),
    ('colour', dict(items=(Thing('box', 'blue'),))),
    ('style', dict(style='flat')), ('ground', dict(ground='green'))])
def test_each_kind_of_request_can_fail_alone(templates, kind, change):
  marks = _marks(SHOWN[:1], [SHOWN[0]._replace(**change)], templates)
  assert {name for name, (mark,) in marks.items() if mark == 0} == {kind, 'all'}


def test_both_of_two_things_must_be_right_and_free_parts_have_no_marks(templates):
  swapped = SHOWN[4]._replace(items=SHOWN[4].items[::-1])
  marks = _marks(SHOWN[4:], [swapped], templates)
  assert marks['two'] == marks['colour'] == marks['all'] == 0 and marks['style'] == 1
  free = _marks(SHOWN[:1], [SceneRequest((Thing('box'),))], templates)
  assert free['thing'] == free['all'] == 1
  assert all(np.isnan(free[kind]).all() for kind in ('two', 'style', 'ground', 'colour'))


def test_the_summary_has_the_form_of_geneval():
  captions = ['a box'] * 4 + ['a moon on red'] * 4
  marks = {kind: np.full(8, np.nan) for kind in scenes.KINDS}
  marks |= {'thing': np.array([1, 1, 1, 1, 0, 0, 1, 0.]),
            'ground': np.array([np.nan] * 4 + [0, 0, 0, 1.]),
            'all': np.array([1, 1, 1, 1, 0, 0, 0, 0.])}
  values = scenes.asked(marks, captions)
  assert set(values) == {'thing', 'ground', 'asked', 'all', 'any'}
  assert values['thing'].mean == 5 / 8 and values['ground'].mean == 1 / 4
  # The error is that of two prompts with shares of 1 and 1/4.
  assert values['thing'].standard_error == pytest.approx(np.std([1, .25], ddof=1) / np.sqrt(2))
  assert values['asked'].mean == (5 / 8 + 1 / 4) / 2
  assert values['all'].mean == values['any'].mean == 1 / 2
  assert paired.difference(marks['all'], marks['all']) == (0, 0, pytest.approx(0.267, abs=1e-3))
  # The error of one prompt is unknown; kinds that are right or wrong together are as one.
  assert np.isnan(values['asked'].standard_error)
  values = scenes.asked({**marks, 'ground': marks['thing']}, captions)
  assert values['asked'] == pytest.approx(values['thing'])


def test_captions_are_read_as_they_are_written():
  free = SceneRequest((Thing('owl'),))
  for request in (*SHOWN, free, free._replace(small=True), free._replace(ground='red')):
    assert requests.parse(requests.caption(request)) == request
  assert requests.caption(free) == 'an owl'
  orange = SceneRequest((Thing('orange'),), style='flat', ground='white')
  assert requests.parse('an orange flat on white') == orange
  for text in ('', 'owl', 'a', 'a red', 'a fox on mauve', 'a fox and', 'a fox and a bee and a cow',
               'a small fox and a bee'):
    parsed = requests.parse(text)
    assert parsed is None or parsed == SceneRequest((Thing('red'),)), text


@pytest.mark.parametrize('caption, message', [
    ('the box', 'it must be like'), ('a box and a cow', "names 'cow'; the things are: box, cross")])
def test_other_captions_are_refused(templates, caption, message):
  with pytest.raises(ValueError, match=message):
    scenes.score(np.zeros((1, 64, 64, 3), np.uint8), [caption], templates)


@pytest.mark.parametrize('images', [np.zeros((1, 64, 64, 3)), np.zeros((1, 64, 32, 3), np.uint8),
                                    np.zeros((2, 64, 64, 3), np.uint8)])
def test_other_images_are_refused(templates, images):
  with pytest.raises(ValueError, match='it must be uint8'):
    scenes.score(images, ['a box'], templates)


@pytest.mark.parametrize('colour, pixel', [
    ('red', (210, 40, 50)), ('orange', (245, 130, 40)), ('yellow', (250, 210, 60)),
    ('green', (80, 180, 80)), ('blue', (70, 130, 230)), ('purple', (130, 70, 200)),
    ('pink', (240, 90, 190)), ('pink', (250, 140, 150)), ('brown', (120, 75, 50)),
    (None, (130, 130, 140)), (None, (250, 250, 250)), (None, (20, 10, 15))])
def test_colours_have_their_names(colour, pixel):
  assert requests.colour(np.array([pixel] * 6 + [(128, 128, 128)] * 2)) == colour


@pytest.mark.slow
def test_the_templates_of_the_package_are_told_apart():
  shipped = scenes.templates()
  assert len(shipped.names) == 64 and shipped.pixels.shape == (64, 2, 48, 48, 2)
  images = []
  for pictures in shipped.pixels[:8]:
    scene = Image.new('L', (64, 64), 255)
    picture = Image.fromarray(np.ascontiguousarray(pictures[1])).resize((56, 56))
    scene.paste(picture.getchannel(0), (4, 4), picture.getchannel(1))
    images.append(np.asarray(scene.convert('RGB')))
  captions = [f'a {name} flat on white' for name in shipped.names[:8]]
  assert scenes.score(np.stack(images), captions)['all'].all()


@pytest.mark.parametrize('batch_size', [1, 2])
def test_images_of_two_sizes_are_refused_whatever_the_batch(tmp_path, batch_size):
  images = []
  for side in (64, 32):
    Image.new('RGB', (side, side)).save(tmp_path / f'{side}.png')
    images.append(layouts.StoredImages(tmp_path / f'{side}.png', 'a cat'))
  with pytest.raises(ValueError, match='32.png has 32x32 pixels, the first image 64x64'):
    scenes.scores(images, batch_size, lambda done, total: None)
