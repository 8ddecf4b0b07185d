"""`cspd-generate`: prompts in, pictures out."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from cspd_jax.commands import generate
from tests.families import tiny


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tiny.saved(tmp_path_factory.mktemp('models') / 'beach')


def test_prompts_become_pictures(folder, tmp_path, capsys):
  words = [f'--model={folder}', '--prompt=sea', '--prompt=sky', '--seed=3,5',
           '--decoder=mc_sjd(window=4)', '--temperature=0.9', f'--output={tmp_path / "out"}']
  assert generate.main(['cspd-generate', *words]) == 0
  out = capsys.readouterr().out
  assert '2 images with mc_sjd(window=4); model beach' in out
  assert re.search(
      r"report.json are in .*\nmc_sjd\(window=4\): images of the model's distribution \(exact\), "
      r'in \d+ forward passes instead of 16 \(\d\.\d times fewer\)\.\n'
      r'2 images in \d+\.\d s \(\d\.\d\d s each\), and \d+\.\d s to compile\.\nNext: ', out)
  assert out.endswith(f'Next: cspd-tune --model={folder} --temperature=0.9 stores the fastest '
                      'decoder for this machine.\n')
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
  words = [f'--model={folder}', '--prompt=sea', '--prompt=sky', '--decoder=vanilla']
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


@pytest.mark.parametrize('words, message', [
    (['--stream=missing/now.png'], 'stream is'),
    (['--stream=now.png', '--mesh=1x1'], 'cannot be streamed'),
    (['--model=nowhere'], "model is 'nowhere'"),
    (['--prompt=mud'], "prompts holds 'mud'"),
    (['--prompt=sea', '--prompts=x'], 'give only one of them'),
    (['--prompts=missing.txt'], 'cannot be read'),
    (['--decoder=fast'], "'fast' is not registered"),
    (['--seed=x'], 'error: --seed=x: it must be a whole number'),
    (['--seed=-1'], 'seed is -1'),
    (['--temprature=1'], 'did you mean --temperature'),
    (['--window=16'], "--window is a parameter of decoders; write --decoder='NAME(window=VALUE)'"),
    (['--batch_size=0'], 'batch_size is 0'),
])
def test_mistakes_end_with_one_line_and_code_2(folder, tmp_path, capsys, words, message):
  given = words if words[0].startswith('--model') else [f'--model={folder}', *words]
  assert generate.main(['cspd-generate', *given, f'--output={tmp_path / "out"}']) == 2
  error = capsys.readouterr().err
  assert message in error and error.startswith('error: ') and error.count('\n') == 1
  assert not (tmp_path / 'out').exists()


def test_help(capsys):
  assert generate.main(['cspd-generate', '--help']) == 0
  assert 'cspd-generate --model=checkpoints/c2i_xl_384' in capsys.readouterr().out
