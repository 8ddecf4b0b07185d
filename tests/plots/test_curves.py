"""Trade-off curves: valid files, styles that tell curves apart, bad input refused."""

import pathlib
import tempfile
from xml.etree import ElementTree

from absl.testing import parameterized
from matplotlib import image as mpl_image

from cspd_jax.plots import charts
from cspd_jax.plots.charts import Curve, Panel


def panels():
  lines = {'cool': Curve([1, 2, 3], [0, 0.1, 0.4], [0, 0.01, 0.02]),
           'cool, printed': Curve([1, 2], [0.2, 0.5], like='cool'), 'uniform': Curve([2], [0.3])}
  return [[Panel('chain', 'tv_bound', lines), Panel('chain', 'distance', lines, floor=0.1)],
          [Panel('tree', 'tv_bound', {'uniform': Curve([4], [0.7])}),
           Panel('tree', 'distance', {})]]


class CurvesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def test_png(self):
    charts.save_curves(self.folder / 'a.png', panels(), xlabel='length')
    self.assertEqual([file.name for file in self.folder.iterdir()], ['a.png'])
    self.assertGreater(mpl_image.imread(self.folder / 'a.png')[..., :3].std(), 0.05)

  def test_svg(self):
    charts.save_curves(self.folder / 'a.svg', panels(), xlabel='length')
    self.assertEqual(ElementTree.parse(self.folder / 'a.svg').getroot().tag,
                     '{http://www.w3.org/2000/svg}svg')

  @parameterized.parameters(
      (ValueError, 'path', 'a.jpg', panels()),
      (AssertionError, '8 curves', 'a.png',
       [[Panel('a', 'b', {str(i): Curve([1], [1]) for i in range(8)})]]))
  def test_bad_input(self, error, words, name, wrong):
    with self.assertRaisesRegex(error, words):
      charts.save_curves(self.folder / name, wrong, xlabel='x')
    self.assertEmpty(list(self.folder.iterdir()))
