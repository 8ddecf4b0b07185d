"""`cspd-evaluate --layout`: the folders of evaluators, and what it refuses."""

import json
import os
import shutil
import subprocess
import tracemalloc

import numpy as np
import pytest
from PIL import Image

import cspd_jax
from cspd_jax.commands import evaluate
from cspd_jax.files import output, paths, reading
from cspd_jax.metrics import layouts
from tests.experiments import calls

SIDE = 12
PROMPTS = ['a cat', 'two dogs', 'a cat']  # An evaluator may have a text twice.


def _pixels(number):
  return np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


@pytest.fixture(name='place')
def _place(tmp_path):
  """Images of four prompts each, and the files of the evaluators."""
  folder, rows = tmp_path / 'images', []
  folder.mkdir()
  for number in range(4 * len(PROMPTS)):
    name = f'{number:04}.png'
    Image.fromarray(_pixels(number)).save(folder / name)
    rows.append(dict(file=name, prompt=PROMPTS[number % 3], seed=0, number=number, rounds=1))
  (folder / 'report.json').write_text(json.dumps(dict(rows=rows)))
  (tmp_path / 'lines.jsonl').write_text(''.join(
      json.dumps(dict(tag=str(i), prompt=prompt)) + '\n' for i, prompt in enumerate(PROMPTS)))
  (tmp_path / 'prompts').mkdir()
  for name, prompt in (('first', 'a cat'), ('second', 'two dogs')):
    (tmp_path / 'prompts' / f'{name}.txt').write_text(prompt + '\n')
  return tmp_path


@pytest.fixture(name='run')
def _run(place, capsys):
  def run(*words):
    words = [word.format(place=place) for word in words]
    return calls.call(evaluate.main, capsys, place / 'out', f'--images={place}/images',
                      '--layout=adm', *words)
  return run


def _read(path):
  return np.asarray(Image.open(path))


def test_adm(run):
  result = run()
  assert result.code == 0, result.err
  assert [file.name for file in result.folder.iterdir()] == ['samples.npz']
  array = np.load(result.folder / 'samples.npz')['arr_0']
  np.testing.assert_array_equal(array, [_pixels(number) for number in range(12)])


def test_geneval(run):
  result = run('--layout=geneval', '--prompts={place}/lines.jsonl')
  assert result.code == 0, result.err
  assert sorted(file.name for file in result.folder.iterdir()) == ['00000', '00001', '00002']
  numbers = {'00000': [0, 2, 3, 5], '00001': [1, 4, 7, 10], '00002': [6, 8, 9, 11]}
  for index, (name, own) in enumerate(numbers.items()):
    metadata = json.loads((result.folder / name / 'metadata.jsonl').read_text())
    assert metadata == dict(tag=str(index), prompt=PROMPTS[index])
    for place, number in enumerate(own):
      np.testing.assert_array_equal(
          _read(result.folder / name / 'samples' / f'{place:04}.png'), _pixels(number))


def test_dpg(run, place):
  (place / 'prompts' / 'third.txt').write_text('a cat')  # Four images of each.
  result = run('--layout=dpg', '--prompts={place}/prompts')
  assert result.code == 0, result.err
  grid = _read(result.folder / 'second.png')
  for index, number in enumerate([1, 4, 7, 10]):
    y, x = SIDE * (index // 2), SIDE * (index % 2)
    np.testing.assert_array_equal(grid[y:y + SIDE, x:x + SIDE], _pixels(number))
  assert {file.name for file in result.folder.iterdir()} == {'first.png', 'second.png', 'third.png'}


def test_coco_resized(run):
  result = run('--layout=coco', '--resize=8')
  assert result.code == 0, result.err
  captions = json.loads((result.folder / 'captions.json').read_text())
  assert [row['caption'] for row in captions] == [PROMPTS[number % 3] for number in range(12)]
  image = _read(result.folder / 'images' / captions[3]['file_name'])
  np.testing.assert_array_equal(image, layouts.resized(_pixels(3), 8))


@pytest.mark.parametrize('size', [7, 12, 31])
def test_resized_as_pytorch_does(size):
  torch = pytest.importorskip('torch')
  pixels = torch.tensor(_pixels(0)).permute(2, 0, 1)[None].to(torch.float64)
  expected = torch.nn.functional.interpolate(pixels, size=(size, size), mode='bicubic')
  expected = expected[0].permute(1, 2, 0).round().clamp(0, 255).numpy()
  np.testing.assert_array_equal(layouts.resized(_pixels(0), size), expected)


_BAD = {
    'large': (['--resize=20000'], ['resize is 20000', 'from 1 to 4096']),
    'unknown layout': (['--layout=hpd'], ['hpd', 'geneval']),
    'no prompts': (['--layout=geneval'], ['prompts is None', 'evaluation_metadata.jsonl']),
    'prompts of none': (['--prompts={place}/prompts'], ['leave prompts out']),
    'no folder of prompts': (
        ['--layout=dpg', '--prompts={place}/lines.jsonl'], ['folder dpg_bench/prompts']),
    'no JSON': (['--layout=geneval', '--prompts={place}/prompts/first.txt'], ['line 1']),
    'too few prompts': (
        ['--layout=dpg', '--prompts={place}/prompts'], ['2 of 2 prompts', '6 images each']),
    'no images': (['--images={place}/prompts'], ['report.json', 'cspd-generate']),
    'no report of images': (['--images={place}/other'], ['not one of cspd-generate']),
    'files elsewhere': (['--images={place}/evil'], ['secret.png']),
    'scores and a layout': (['--clip=x'], ["clip is 'x'", 'computes no scores']),
    'a batch size and a layout': (['--batch_size=3'], ['batch_size is 3', 'computes no scores']),
    'no layout': (['--layout=none', '--resize=8'], ['resize is 8', 'give a layout'])}


def test_grids_of_large_or_different_images(run, place, monkeypatch):
  words = ('--layout=dpg', '--prompts={place}/prompts')
  (place / 'prompts' / 'third.txt').write_text('a cat')
  with monkeypatch.context() as patch:
    patch.setattr(reading, 'MOST_PIXELS', 3 * SIDE**2)
    assert 'pixels; 4 images together must have at most 432' in run(*words).err
    assert run(*words, '--resize=6').code == 0
  Image.fromarray(_pixels(3)[:5]).save(place / 'images' / '0003.png')
  shutil.rmtree(place / 'out')
  assert '0003.png has 5x12 pixels, the first image 12x12' in run(*words).err


@pytest.mark.parametrize('name', _BAD)
def test_bad_input(run, place, name):
  for folder, rows in (('other', []), ('evil', [dict(
      file='../secret.png', prompt='a cat', number=0)])):
    (place / folder).mkdir()
    (place / folder / 'report.json').write_text(json.dumps(dict(rows=rows)))
  words, message = _BAD[name]
  calls.check_refused(run(*words), message)


def test_a_folder_in_use_is_filled_and_what_is_in_it_stays(run, place):
  (place / 'out').mkdir()
  (place / 'out' / 'mine').write_text('x')
  assert run().code == 0
  assert sorted(os.listdir(place / 'out')) == ['mine', 'samples.npz']
  assert run().code == 0, 'the same images once more'
  (place / 'out' / 'samples.npz').write_bytes(b'mine')
  result = run()
  assert result.code == 2 and 'samples.npz was not written by this program' in result.err
  assert sorted(os.listdir(place / 'out')) == ['mine', 'samples.npz']


def test_the_work_of_a_stopped_conversion_stays(run, place, monkeypatch):
  """It was removed in silence, finished networks with it."""
  with pytest.raises(KeyboardInterrupt), output.filling(
      place / 'out', dict(family='a conversion')) as new:
    (new / 'model.safetensors').write_text('hours of work')
    raise KeyboardInterrupt
  monkeypatch.setattr(layouts, 'write_adm', lambda *_, **__: pytest.fail('images are read'))
  result = run()
  assert result.code == 2 and 'where another run was stopped' in result.err
  assert (new / 'model.safetensors').read_text() == 'hours of work'


@pytest.fixture(name='disk')
def _disk(place):
  """A disk of 1.5 MB."""
  disk = place / 'disk'
  disk.mkdir()
  if os.geteuid() or subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1500k', 'none', disk],
                                    capture_output=True, check=False).returncode:
    pytest.skip('only root may mount a small disk')
  yield disk
  subprocess.run(['umount', disk], check=True)


_TOO_LARGE = [('--resize=256',), ('--resize=512', '--layout=coco')]


@pytest.mark.slow
@pytest.mark.parametrize('words', _TOO_LARGE)
@pytest.mark.parametrize('is_known', [True, False])
def test_a_full_disk_is_one_error(run, disk, monkeypatch, words, is_known):
  """An array that a file of zeros was mapped for killed the process, and its bytes stayed."""
  if not is_known:  # Another process fills it meanwhile.
    monkeypatch.setattr(paths, 'check_space', lambda *size: None)
  result = run(*words, f'--output={disk}/out')
  assert result.code == 2 and result.err.count('\n') == 1
  assert 'free some space and repeat' in result.err, result.err
  assert not os.listdir(disk)


@pytest.mark.slow
def test_the_array_of_all_images_is_not_in_memory(tmp_path):
  image, count = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8), 3000
  Image.fromarray(image).save(tmp_path / 'image.png')
  images = [layouts.StoredImages(tmp_path / 'image.png', 'a cat')] * count
  tracemalloc.start()
  layouts.write_adm(tmp_path, images, None)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  expected = np.repeat(image[None], count, axis=0)
  assert peak < expected.nbytes / 2
  np.testing.assert_array_equal(np.load(tmp_path / 'samples.npz')['arr_0'], expected)


def test_images_that_were_saved_in_python(beach, tmp_path, capsys):
  """The files of `Generated.save` hold their prompts; another picture among them is refused."""
  out = cspd_jax.load(str(beach)).generate(['sea', 'sky', 'sea'], decoder='vanilla')
  out.save(tmp_path / 'images')
  assert [(image.path.name, image.prompt) for image in layouts.generated(
      str(tmp_path / 'images'))] == list(zip(out.names(), out.prompts))
  words = f'--images={tmp_path}/images', '--layout=coco'
  result = calls.call(evaluate.main, capsys, tmp_path / 'out', *words)
  assert result.code == 0, result.err
  captions = json.loads((result.folder / 'captions.json').read_text())
  assert [row['caption'] for row in captions] == out.prompts
  Image.fromarray(_pixels(0)).save(tmp_path / 'images' / 'other.png')
  result = calls.call(evaluate.main, capsys, tmp_path / 'another', *words)
  assert result.code == 2 and 'other.png' in result.err and "no text 'prompt'" in result.err
