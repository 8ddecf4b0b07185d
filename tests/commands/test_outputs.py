"""Commands whose output is the folder of another command: nothing in it is touched."""

import json

import pytest

from cspd_jax.commands import compare, evaluate, generate, inspect, train, tune
from cspd_jax.files import run_folder
from cspd_jax.metrics import inception
from tests.builders import models
from tests.experiments import calls
from tests.families import tiny
from tests.marks import representative

pytestmark = pytest.mark.usefixtures('load_once')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A model, an Inception network, and a finished folder of `cspd-generate`."""
  folder = tmp_path_factory.mktemp('models')
  tiny.saved(folder / 'beach')
  models.save(folder, 'inception', 'inception', inception.InceptionConfig(unit=1, num_classes=6))
  assert generate.main(['cspd-generate', f'--model={folder}/beach', '--prompt=sea,sky,sea,sky',
                        f'--output={folder}/images']) == 0
  return folder


def _contents(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize('is_named', representative([True, False], True))
@pytest.mark.parametrize('main, words', [
    (evaluate.main, ['--images={folder}/images', '--reference={folder}/images',
                     '--inception={folder}/inception']),
    (compare.main, ['--model={folder}/beach', '--decoder=vanilla', '--prompt=sea']),
    (inspect.main, ['--model=demo']),
    pytest.param(tune.main, ['--model={folder}/beach', '--dry_run'], marks=pytest.mark.slow),
    pytest.param(train.main, ['--model=demo', '--workdir={folder}/images'],
                 marks=pytest.mark.slow)])
def test_images_are_not_removed(folder, capsys, main, words, is_named):
  images = folder / 'images'
  if not is_named:  # As programs of the lab do.
    report = json.loads((images / 'report.json').read_text())
    del report['program']
    (images / 'report.json').write_text(json.dumps(report))
  before = _contents(images)
  words = [word.format(folder=folder) for word in words]
  output = folder / 'network' if main is train.main else images
  code = main(['command', *words, f'--output={output}'])
  captured = capsys.readouterr()
  whose = "of 'cspd-generate'" if is_named else 'of another program'
  *notes, error = captured.err.splitlines()
  assert code == 2 and f"images', which holds a report {whose}" in error and '--output' in error
  assert captured.out == '' and all('is left out' in note for note in notes), captured.err
  assert _contents(images) == before and len(list(images.glob('*.png'))) == 4
  if not is_named:
    (images / 'report.json').write_text(json.dumps(report | dict(program='cspd-generate')))


def test_overwrite_replaces_images_only(folder, capsys, tmp_path):
  run_folder.Report(tmp_path / 'out', program='cspd-compare').write(settings={}, rows=[])
  words = [f'--model={folder}/beach', '--prompt=sea']
  for more in ([], ['--overwrite']):
    result = calls.call(generate.main, capsys, tmp_path / 'out', *words, *more)
    assert result.code == 2 and "holds a report of 'cspd-compare'" in result.err
  assert [path.name for path in (tmp_path / 'out').iterdir() if path.is_file()] == ['report.json']
