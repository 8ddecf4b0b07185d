"""Tables as text, Markdown and CSV."""

import jax

from cspd_jax.files import run_folder
from cspd_jax.measure import tables

COLUMNS = {'decoder': '{name}', 'kind': '{kind}', 'speed': '{speed:.1f}x +- {error:.1f}'}
ROWS = [dict(name='vanilla', kind='exact', speed=1.0, error=0.25), dict(name='a|b', speed=None)]


def test_text():
  assert tables.text(COLUMNS, ROWS).splitlines() == [
      'decoder  kind         speed',
      '---------------------------',
      'vanilla  exact  1.0x +- 0.2',
      'a|b      -                -']


def test_markdown():
  assert tables.markdown(COLUMNS, ROWS).splitlines() == [
      '| decoder | kind | speed |', '| :-- | :-- | --: |', '| vanilla | exact | 1.0x +- 0.2 |',
      '| a\\|b | - | - |']


def test_columns_of_numbers_are_aligned_right_in_markdown():
  rows = [dict(name='1', numbers=numbers, words=words) for numbers, words in zip(
      ['-', '0.42 GB to 1.88 GB', '256 x 256', '-0.04 +- 0.02', '65% +- 2%'],
      ['4.51x, FID 30', '371 of 2357 passes', 'yes', 'needs 5,000', '2'])]
  rule = tables.markdown({name: f'{{{name}}}' for name in rows[0]}, rows).splitlines()[1]
  assert rule == '| :-- | --: | :-- |'


def test_csv():
  assert tables.csv(ROWS) == 'name,kind,speed,error\nvanilla,exact,1.0,0.25\na|b,,,\n'


def test_a_report_has_its_tables_and_its_command_beside_it(tmp_path):
  columns = {'decoder': '{decoder}', 'speed': '{speed:.1f}x'}
  rows = [dict(decoder='vanilla', speed=1.0), dict(decoder='sjd', speed=2.0)]
  report = run_folder.Report(tmp_path)
  tables.write(report, 'cspd-compare --all', [tables.Table('demo', columns, rows)], settings={},
               num_images=3, weights=dict(target='0123456789'), commit='abc',
               url='https://github.com/a/b')
  assert (tmp_path / tables.PAGE).read_text().splitlines() == [
      '**demo**', '', '| decoder | speed |', '| :-- | --: |', '| `vanilla` | 1.0x |',
      '| `sjd` | 2.0x |', '',
      f'*`cspd-compare --all`: 3 images, {jax.devices()[0].device_kind}, jax {jax.__version__}, '
      'weights 01234567, commit abc of a/b.*']
  assert tables.read_tables(tmp_path)[0].rows == rows


def test_a_missing_error_is_a_dash_of_its_own():
  assert tables.cells(COLUMNS, dict(ROWS[0], error=None))[2] == '1.0x +- -'
  assert tables.cells({'a': 'plain'}, {}) == ['plain']
