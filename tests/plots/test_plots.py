"""The pictures: valid PNG files, bad input refused, no half-written files."""

import pathlib
import tempfile

import numpy as np
import pytest
from absl.testing import parameterized
from matplotlib import image as mpl_image

from cspd_jax.plots import canvas, charts, grid
from tests.marks import representative


def _save_map(path, *args, **options):
  path.write_bytes(grid.acceptance_map(*args, **options))


class PlotsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.path = self.folder / 'picture.png'
    self.images = np.random.default_rng(0).uniform(-1, 1, (3, 8, 12, 3)).astype(np.float32)
    self.rounds = {
        'vanilla': np.arange(24).reshape(1, 4, 6).repeat(3, 0),
        'sjd': np.arange(24).reshape(1, 4, 6).repeat(3, 0) // 3}

  def read(self):
    """The picture's pixels, after a look that nothing else lies beside it."""
    self.assertEqual([file.name for file in self.folder.iterdir()], ['picture.png'])
    return mpl_image.imread(self.path)[..., :3]

  def test_rows_of_decoders_with_their_notes(self):
    rows, captions = {'vanilla': self.images, 'sjd': -self.images}, ['a'] * len(self.images)
    grid.save_rows(self.path, rows, captions=captions)
    plain = self.read()
    grid.save_rows(self.path, rows, captions=captions, notes={'sjd': '3 rounds'})
    self.assertFalse(np.array_equal(self.read(), plain))
    self.assertGreater(plain.std(), 0.05)

  def test_captions_are_no_formulas(self):
    for text in ('$', '$x$', r'$\frac$', 'a $5 and a $6 cat', r'\$x$', '$$', '{$^$}'):
      for name, shown in (('plain', text.replace('$', 'S')), ('dollars', text)):
        figure = canvas.figure(3, 1, shown)
        (words,) = figure.texts if not figure._suptitle else [figure._suptitle]
        self.assertEqual(words._preprocess_math(words.get_text()), (shown, False), name)
    text = r'$\frac$'  # It would be an error.
    grid.save_grid(self.path, self.images, captions=[text] * 3, title=text)
    _save_map(
        self.path, {text: self.rounds['sjd']}, images={text: self.images}, captions=[text] * 3,
        title=text)
    charts.save_bars(self.path, [charts.BarPanel('t', {text: 1.0}, '{:.1f}', text)], baseline=text,
                     title=text)
    self.read()

  def test_grid_shows_the_images_colours(self):
    image = np.broadcast_to(np.float32([1, 0, -1]), (1, 8, 8, 3))
    grid.save_grid(self.path, image)
    picture = self.read()
    middle = picture[picture.shape[0] // 2, picture.shape[1] // 2]
    np.testing.assert_allclose(middle, [1, 0.5, 0], atol=0.01)

  def test_images_of_a_broken_tokenizer(self):
    with self.assertRaisesRegex(ValueError, 'finite'):
      grid.save_grid(self.path, self.images * np.nan)
    self.assertEmpty(list(self.folder.iterdir()))


def test_replaced_map(tmp_path):
  rng = np.random.default_rng(0)
  images = {'one': rng.uniform(-1, 1, (2, 8, 8, 3)), 'two': rng.uniform(-1, 1, (2, 8, 8, 3))}
  marks = {name: rng.random((2, 4, 4)) < 0.5 for name in images}
  grid.save_replaced_map(tmp_path / 'map.png', images, marks, marks, captions=['a', 'b'])
  assert (tmp_path / 'map.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize('text, lines', [
    ('short', ['short']), ('', ['']),
    ('eagle(tree=chain(4))+lantern_pp(lam=2)',
     ['eagle(tree=', 'chain(4))+', 'lantern_pp(', 'lam=2)']),
    ('a word and anotherverylongword end', ['a word and', 'anotherverylongword', 'end'])])
def test_texts_are_broken_where_they_are_too_wide(text, lines):
  assert canvas.fit(text, 1.0, 10).split('\n') == lines


@pytest.mark.filterwarnings('error')
def test_letters_are_drawn_by_a_font_that_has_them(tmp_path, monkeypatch, caplog):
  """They were boxes, with a warning for each; words that no font has are left out."""
  monkeypatch.setattr(canvas, '_fonts', lambda: ['DejaVu Sans', 'DejaVu Sans Mono', 'no such font'])
  canvas._font.cache_clear()
  other, missing = '\u2312', '\u65e5\u672c'  # In the second font alone, and in neither.
  assert canvas.fit(f'a {missing} cat {other} caf\udce9', 3, 8) == f'a cat {other} caf\\udce9'
  assert canvas.plain(f'{missing} $') == r'\$' and canvas.fit(missing, 3, 8) == ''
  images, name = np.zeros((2, 8, 8, 3)), f'{other}{missing} vanilla'
  captions, rounds = [missing, f'{other} {missing}'], {name: np.zeros((2, 4, 4), int)}
  grid.save_grid(tmp_path / 'a.png', images, captions=captions, title=name)
  _save_map(tmp_path / 'b.png', rounds, captions=captions, title=missing, notes={name: missing})
  charts.save_bars(tmp_path / 'c.png', [charts.BarPanel(missing, {name: 1.0}, note=missing)])
  charts.save_curves(tmp_path / 'd.svg', [[charts.Panel(missing, missing, {
      name: charts.Curve([1], [2])})]], xlabel=missing)
  assert not caplog.records
  canvas._font.cache_clear()


def test_texts_have_an_end():
  assert canvas.fit('one two three four five six', 0.5, 10, most=2) == 'one two\nthree ...'
  assert canvas.fit('a\nb\n\n\nc', 2.0, 8) == 'a b c'


@pytest.mark.parametrize('count', representative([1, 4], 4))
def test_titles_and_names_fit(tmp_path, count):
  """Nothing is drawn on the edge of a picture."""
  name = 'eagle(tree=kary(3, 3))+lantern_pp(lam=2, residual=released_dynamic)'
  images = np.random.default_rng(0).uniform(-1, 1, (count, 8, 8, 3))
  rounds = np.arange(16).reshape(1, 4, 4).repeat(count, 0)
  captions, title = ['a caption of some length, as prompts have'] * count, f'{name}: 80 passes'
  grid.save_grid(tmp_path / 'a.png', images, captions=captions, title=title)
  _save_map(tmp_path / 'b.png', {name: rounds}, captions=captions, title=title,
                           images={name: images})
  grid.save_replaced_map(tmp_path / 'c.png', {name: images}, {name: rounds}, {name: rounds},
                         captions=captions, title=title)
  charts.save_bars(tmp_path / 'd.png', [
      charts.BarPanel('speed', {name: 1.0, 'vanilla': 2.0, 'none': None}, '{:.1f}',
                      'a note: ' + title)] * count,
                   title=title)
  for file in sorted(tmp_path.iterdir()):
    picture = mpl_image.imread(file)[..., :3]
    edges = picture[0], picture[-1], picture[:, 0], picture[:, -1]
    assert all(np.all(edge == 1) for edge in edges) and picture.std() > 0.02, file.name
