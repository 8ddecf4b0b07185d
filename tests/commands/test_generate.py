"""`cspd-generate` from end to end: images with all that made them, stopped and continued."""

import io
import json
import re

import jax
import numpy as np
import pytest
from PIL import Image

import cspd_jax
from cspd_jax.commands import generate
from cspd_jax.files import store
from cspd_jax.generation.sampler import Sampler
from cspd_jax.metrics import evaluation, image_sets, inception
from tests.experiments import calls
from tests.families import tiny

pytestmark = pytest.mark.usefixtures('load_once')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('models')
  tiny.saved(folder / 'beach')
  (folder / 'prompts').write_text('sea\n\n sky\nsea\n2\n0\n')
  (folder / 'empty').write_text('\n')
  return folder


@pytest.fixture
def run(folder, capsys, tmp_path):
  def run(*words):
    words = [word.format(tmp=folder) for word in words]
    return calls.call(generate.main, capsys, tmp_path / 'out', f'--model={folder}/beach', *words)
  return run


def _names(result):
  assert result.code == 0, result.err
  return sorted(file.name for file in result.folder.iterdir())


def test_images_of_a_file_of_prompts(run, folder):
  words = ['--prompts={tmp}/prompts', '--decoder=sjd(window=4)', '--seed=3']
  result = run(*words, '--batch_size=2')
  names = ['00000_sea_seed3.png', '00001_sky_seed3.png', '00002_sea_seed3.png',
           '00003_sky_seed3.png', '00004_sand_seed3.png']
  assert _names(result) == [*names, 'report.json']
  images = np.stack([np.asarray(Image.open(result.folder / name)) for name in names])
  model = cspd_jax.load(str(folder / 'beach'), dtype=None)
  out = model.generate(
      ['sea', 'sky', 'sea', '2', '0'], seed=3, decoder='sjd(window=4)', batch_size=2)
  np.testing.assert_array_equal(images, out.images)
  report = json.loads((result.folder / 'report.json').read_text())
  assert [row['file'] for row in report['rows']] == names
  assert [row['passes'] for row in report['rows']] == out.decoded.rounds.tolist()
  assert report['guarantee'] == 'exact' and report['versions']['jax']
  assert report['model'] == 'beach' and report['examples'] == list(model.prompts)


@pytest.mark.parametrize('words, programs', [
    ([], ['mc_sjd(window=3)', 'the image tokenizer']),
    pytest.param(['--batch_size=2'], ['mc_sjd(window=3)', 'the image tokenizer'],
                 marks=pytest.mark.slow),
    pytest.param(['--stream={tmp}/now.png'],
                 ['the prefill of mc_sjd(window=3)', 'mc_sjd(window=3)', 'the image tokenizer'],
                 marks=pytest.mark.slow)])
def test_compilations_are_counted(run, words, programs):
  cspd_jax.load.cache_clear()
  result = run('--prompt=sea,sky,sea', '--decoder=mc_sjd(window=3)', *words)
  _names(result)
  lines = [line for line in result.err.splitlines() if line.startswith('compiling ')]
  assert sorted(lines) == sorted(
      f'compiling {program} ({number} of {len(programs)})...' for number, program in
      enumerate(_by_appearance(programs, lines), 1))


def _by_appearance(programs, lines):
  """The programs in the order of the lines."""
  return sorted(programs, key=lambda program: [
      f'compiling {program} (' in line for line in lines].index(True))


def test_prompts_become_pictures(folder, tmp_path, capsys):
  words = [f'--model={folder}/beach', '--prompt=sea', '--prompt=sky', '--seed=3,5',
           '--decoder=mc_sjd(window=4)', '--temperature=0.9', f'--output={tmp_path / "out"}']
  assert generate.main(['cspd-generate', *words]) == 0
  out = capsys.readouterr().out
  assert '2 images with mc_sjd(window=4); model beach' in out
  assert re.search(
      r"report.json are in .*\nmc_sjd\(window=4\): images of the model's distribution \(exact\), "
      r'in \d+ forward passes instead of 16 \(\d\.\d times fewer\)\.\n'
      r'2 images in \d+\.\d s \(\d\.\d\d s each\), and \d+\.\d s to compile\.\nNext: ', out)
  assert out.endswith(f'Next: cspd-tune --model={folder}/beach --temperature=0.9 stores the '
                      'fastest decoder for this machine.\n')
  paths = sorted((tmp_path / 'out').iterdir())
  assert [path.name for path in paths] == [
      '00000_sea_seed3.png', '00001_sky_seed5.png', 'report.json']
  with Image.open(paths[1]) as picture:
    assert picture.size == (16, 16) and '"temperature": 0.9' in picture.text['sampling']
  before = [path.read_bytes() for path in paths]
  assert generate.main(['cspd-generate', *words]) == 0
  assert f'images in {tmp_path / "out"} are complete' in capsys.readouterr().out
  assert [path.read_bytes() for path in sorted((tmp_path / 'out').iterdir())] == before
  for others, changed in (
      ('--temperature=0.8', 'sampling.temperature was 0.9, now 0.8'),
      ('--seed=4,5', 'seed was [[3, 0], [5, 0]], now [[3, 0], [5, 0], [4, 0], [5, 0]]; other '
       'prompts; num_images was 2, now 4'),
      ('--batch_size=1', 'batch_size was 2, now 1')):
    assert generate.main(['cspd-generate', *words, others]) == 2, others
    assert f'holds a report already ({changed}); use another folder, with --output' in (
        capsys.readouterr().err)
  paths[0].write_bytes(before[0][:-1])  # Not what the report lists.
  assert generate.main(['cspd-generate', *words]) == 2
  assert 'holds a report already' in capsys.readouterr().err
  paths[0].write_bytes(before[0])
  assert generate.main(['cspd-generate', *words, '--overwrite']) == 0
  more = ['--seed=3', '--num_images=4', '--overwrite']  # The number at once is not that of before.
  assert generate.main(['cspd-generate', *words[:3], *words[4:], *more]) == 0
  assert '4 images with mc_sjd(window=4); model beach' in capsys.readouterr().out


def test_images_are_watched_while_they_come_about(folder, tmp_path, monkeypatch, capsys):
  seen, write = [], generate.atomic.write
  monkeypatch.setattr(generate.atomic, 'write', lambda path, data: (
      write(path, data), seen.append(data) if path.name == 'now.png' else None))
  words = [f'--model={folder}/beach', '--prompt=sea', '--prompt=sky', '--decoder=vanilla']
  assert generate.main(['cspd-generate', *words, f'--output={tmp_path / "out"}',
                       f'--stream={tmp_path / "now.png"}']) == 0
  assert '\nvanilla (seed-exact): 16 forward passes, one token at a time.\n' in (
      capsys.readouterr().out)
  first, *_, last = (np.asarray(Image.open(io.BytesIO(data))) for data in seen)
  assert len(seen) > 2 and first.shape == last.shape == (16, 32, 3)
  assert (first[-1] == 128).all(), 'grey where nothing is committed yet'
  assert generate.main(['cspd-generate', *words, f'--output={tmp_path / "again"}']) == 0
  for folder_ in ('out', 'again'):
    names = ('00000_sea_seed0.png', '00001_sky_seed0.png')
    pictures = [np.asarray(Image.open(tmp_path / folder_ / name)) for name in names]
    np.testing.assert_array_equal(np.concatenate(pictures, axis=1), last)


def test_nothing_is_overwritten_unless_asked(run, tmp_path):
  words = ['--decoder=sjd(window=4)', '--batch_size=2']
  first = _names(run(*words, '--prompt=sea', '--num_images=2'))
  refused = run(*words, '--prompt=sky')
  assert refused.code == 2 and 'holds a report already' in refused.err
  assert 'or pass --overwrite.' in refused.err
  (tmp_path / 'out' / 'mine.png').write_text('mine')
  second = _names(run(*words, '--prompt=sky', '--num_images=2', '--overwrite'))
  assert 'mine.png' in second and not set(first) & set(second) - {'report.json'}


def test_a_file_of_the_users_own_is_never_overwritten(run, tmp_path):
  (tmp_path / 'out').mkdir()
  (tmp_path / 'out' / '00000_sea_seed0.png').write_text('mine')
  result = run('--prompt=sea', '--overwrite')
  assert result.code == 2 and '00000_sea_seed0.png was not written by this program' in result.err
  assert (tmp_path / 'out' / '00000_sea_seed0.png').read_text() == 'mine'


@pytest.mark.parametrize('decoder', ['vanilla', 'sjd(window=4)'])
def test_a_stopped_run_goes_on(run, monkeypatch, decoder):
  """In batches, and where rows that are complete take the next image."""
  words = [f'--decoder={decoder}', '--prompt=sand', '--num_images=5', '--batch_size=2']
  whole, made = Sampler.batches, []

  def counted(sampler, images):
    for numbers, decoded in whole(sampler, images):
      if len(made) == 2:
        raise KeyboardInterrupt
      made.append(len(numbers))
      yield numbers, decoded

  monkeypatch.setattr(Sampler, 'batches', counted)
  stopped = run(*words)
  assert stopped.code == 130 and stopped.err.endswith(
      'interrupted: finished images are kept; the same command resumes\n')
  assert not list(stopped.folder.glob('*.png'))
  left, made[:] = 5 - sum(made), [0, 0, 0]
  result = run(*words)
  assert 0 < left == sum(made) < 5 and len(_names(result)) == 6
  monkeypatch.setattr(Sampler, 'batches', whole)
  alone = run(*words, f'--output={result.folder}_whole')
  for file in result.folder.glob('*.png'):
    np.testing.assert_array_equal(
        np.asarray(Image.open(file)),
        np.asarray(Image.open(f'{alone.folder}_whole/{file.name}')))


def test_overwriting_takes_the_batch_size_of_the_same_run_alone(run, monkeypatch):
  whole, sizes = Sampler.batches, []

  def stopped(sampler, images):
    sizes.append(images.batch_size)
    yield next(whole(sampler, images))
    raise KeyboardInterrupt

  monkeypatch.setattr(Sampler, 'batches', stopped)
  words = ['--decoder=vanilla', '--num_images=5', '--overwrite']
  assert run(*words, '--prompt=sand', '--batch_size=2').code == 130
  assert run(*words, '--prompt=sand').code == 130  # Goes on.
  assert run(*words, '--prompt=sea').code == 130  # Replaces it.
  assert sizes == [2, 2, 5]


@pytest.mark.slow
def test_features_while_sampling_are_those_of_the_images(run, folder):
  config = inception.InceptionConfig(unit=1, num_classes=6)
  store.save(folder / 'inception', 'inception', config,
             inception.inception.init(config, jax.random.key(0)))
  result = run('--num_images=3', '--batch_size=2', '--inception={tmp}/inception')
  names = _names(result)
  assert 'features.npz' in names and len(names) == 5
  network = evaluation.load(str(folder / 'inception'), 'adm')
  stored = evaluation.opened('images', str(result.folder / 'features.npz'), network, 4).features
  images = image_sets.opened('images', str(result.folder))
  later = evaluation.features(images, network, 3, lambda done, total: None)
  for one, other in zip(stored, later, strict=True):
    assert np.abs(other[0] - other[1]).max() > 1e-3 * np.abs(other).max()
    np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max())
