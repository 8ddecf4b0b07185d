"""`cspd-evaluate`: its scores, what it keeps, and what it refuses."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from cspd_jax.checkpoints import store
from cspd_jax.commands import evaluate
from cspd_jax.metrics import clip, frechet, inception
from cspd_jax.models import clip as clip_network
from cspd_jax.text import bpe
from tests.experiments import calls
from tests.metrics import clip_files

CONFIG = inception.InceptionConfig(unit=1, num_classes=6)
SIDE = 24


def _images(count, seed):
  return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)


def _write(folder, images):
  folder.mkdir()
  for number, image in enumerate(images):
    Image.fromarray(image).save(folder / f'{number:04}.png')


@pytest.fixture(name='place', scope='module')
def _place(tmp_path_factory):
  """A network, and two sets of images as folders and as arrays."""
  place = tmp_path_factory.mktemp('place')
  params = inception.inception.init(CONFIG, jax.random.key(0))
  store.save(place / 'inception', 'inception', CONFIG, params)
  for name, count in (('samples', 11), ('reference', 13)):
    images = _images(count, count)
    _write(place / name, images)
    np.savez(place / f'{name}.npz', arr_0=images)
  store.save(place / 'other', 'inception', CONFIG,
             inception.inception.init(CONFIG, jax.random.key(1)))
  np.savez(place / 'gray.npz', arr_0=np.zeros((3, 8, 8), np.uint8))
  np.savez(place / 'nothing.npz', mean=np.zeros(3))
  (place / 'empty').mkdir()
  (place / 'broken.npz').write_bytes((place / 'samples.npz').read_bytes()[:900])
  _write(place / 'mixed', _images(2, 0))
  Image.fromarray(_images(1, 0)[0, :8]).save(place / 'mixed' / 'small.png')
  return place


@pytest.fixture(name='run')
def _run(place, capsys, tmp_path):
  def run(*words, out='out'):
    words = [word.format(place=place, tmp=tmp_path) for word in words]
    return calls.call(
        evaluate.main, capsys, tmp_path / out, f'--inception={place}/inception',
        f'--images={place}/samples', f'--reference={place}/reference', '--batch_size=4', *words)
  return run


def _scores(found):
  assert found.code == 0, found.err
  report = json.loads((found.folder / 'report.json').read_text())
  return {row['score']: row['value'] for row in report['rows']}


def test_all_scores(run, place):
  found = run()
  scores = _scores(found)
  names = [f'{name} (ADM, 11)' for name in ('FID', 'sFID', 'IS', 'precision', 'recall')]
  assert list(scores) == names and all(f'{name}: ' in found.out for name in names)
  network = store.load(place / 'inception')
  pool = [np.asarray(inception.features(
      network.params, CONFIG, _images(count, count), 'adm').pool) for count in (11, 13)]
  expected = frechet.distance(*map(frechet.gaussian, pool))
  assert expected > 0 and scores[names[0]] == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_folders_arrays_and_features_are_alike(run):
  scores = _scores(run(out='first'))
  assert _scores(run('--images={place}/samples.npz', '--reference={place}/reference.npz')) == scores
  features = '--images={tmp}/first/features.npz'
  assert _scores(run(features, out='second')) == scores
  calls.check_refused(
      run(features, '--evaluator=pytorch_fid', out='third'), ['evaluator adm', 'pytorch_fid'])
  calls.check_refused(
      run(features, '--inception={place}/other', out='third'), ['features of another network'])


@pytest.mark.slow
def test_evaluators_differ(run):
  adm, other = _scores(run(out='adm')), _scores(run('--evaluator=pytorch_fid', out='other'))
  assert list(other) == ['FID (pytorch-fid, 11)']
  assert abs(other['FID (pytorch-fid, 11)'] / adm['FID (ADM, 11)'] - 1) > 1e-3
  fidelity = _scores(run('--evaluator=torch_fidelity', out='fidelity'))
  assert list(fidelity) == [f'{name} (torch-fidelity, 11)' for name in ('FID', 'IS')]
  assert fidelity['FID (torch-fidelity, 11)'] == adm['FID (ADM, 11)']
  assert fidelity['IS (torch-fidelity, 11)'] != adm['IS (ADM, 11)']


def test_published_statistics(run, place, tmp_path):
  scores = _scores(run(out='first'))
  network = store.load(place / 'inception')
  features = inception.features(network.params, CONFIG, _images(13, 13), 'adm')
  pool, spatial = (frechet.gaussian(np.asarray(x)) for x in (features.pool, features.spatial))
  moments = dict(mu=pool.mean, sigma=pool.covariance)
  np.savez(tmp_path / 'few.npz', **moments)
  calls.check_refused(run('--images={tmp}/few.npz', out='none'), ['statistics only'])
  found = _scores(run('--reference={tmp}/few.npz', out='few'))
  assert list(found) == ['FID (ADM, 11)', 'IS (ADM, 11)']
  assert found['FID (ADM, 11)'] == pytest.approx(scores['FID (ADM, 11)'], rel=1e-3)
  np.savez(tmp_path / 'all.npz', arr_0=_images(5, 5), mu_s=spatial.mean, sigma_s=spatial.covariance,
           **moments)
  every = _scores(run('--reference={tmp}/all.npz', out='all'))
  assert every['FID (ADM, 11)'] == found['FID (ADM, 11)']
  assert every['sFID (ADM, 11)'] == pytest.approx(scores['sFID (ADM, 11)'], rel=1e-3)
  assert {'precision (ADM, 11)', 'recall (ADM, 11)'} <= every.keys()


_BAD = {
    'no network': (['--inception={place}/nothing'], ['nothing']),
    'another network': (['--inception={place}/samples'], ['samples']),
    'no images': (['--images={place}/empty'], ['images', 'folder without images', '.png']),
    'gray': (['--images={place}/gray.npz'], ['uint8[3, 8, 8]', 'uint8 [N, H, W, 3]']),
    'no array': (['--images={place}/nothing.npz'], ['arrays mean', 'arr_0']),
    'cut': (['--images={place}/broken.npz'], ['images', '.npz file']),
    'several sizes': (['--images={place}/mixed'], ['small.png', '8x24', '24x24']),
    'no file': (['--reference={place}/absent.npz'], ['reference', 'absent.npz']),
    'no evaluator': (['--evaluator=clean'], ['clean', 'adm']),
    'batch of 0': (['--batch_size=0'], ['batch_size is 0'])}


@pytest.mark.parametrize('name', _BAD)
def test_bad_input(run, name):
  words, message = _BAD[name]
  found = run(*words)
  assert found.code == 2 and found.err.count('error: ') == 1, found.err
  assert 'Traceback' not in found.err
  for word in message:
    assert word in found.err, found.err


def test_what_is_missing_is_named(capsys, tmp_path):
  found = calls.call(evaluate.main, capsys, tmp_path / 'out', '--images=x', '--reference=y')
  calls.check_refused(found, ['inception is None', 'pt_inception-2015-12-05', 'cspd-convert'])
  found = calls.call(evaluate.main, capsys, tmp_path / 'out')
  calls.check_refused(found, ['images is None'])


CLIP = clip.CLIPConfig(
    image_size=16, patch_size=8, image_dim=8, image_layers=1, image_heads=2, image_ffn=8,
    vocab_size=60, context=9, text_dim=8, text_layers=1, text_heads=2, text_ffn=8, feature_dim=6)


@pytest.fixture(name='captions', scope='module')
def _captions(place):
  """A CLIP network with large weights, its tokenizer, and captions of the images."""
  (place / 'tokenizer.json').write_bytes(clip_files.tokenizer_file())
  params = jax.tree.map(lambda leaf: 20 * leaf, clip_network.init(CLIP, jax.random.key(0)))
  store.save(place / 'clip', 'clip', CLIP, params)
  captions = ['a cat', 'cat', 'dog on a cat', 'a b c'] * 3
  names = [f'{number:04}.png' for number in range(11)]
  (place / 'samples' / 'report.json').write_text(json.dumps(dict(rows=[
      dict(file=name, prompt=caption, number=number)
      for number, (name, caption) in enumerate(zip(names, captions))])))
  (place / 'coco').mkdir()
  _write(place / 'coco' / 'images', _images(11, 11))
  (place / 'coco' / 'captions.json').write_text(json.dumps([
      dict(file_name=name, caption=caption) for name, caption in zip(names, captions)]))
  return captions[:11]


def _cosines(place, captions):
  params, text = store.load(place / 'clip').params, bpe.Vocabulary(clip_files.tokenizer_file())
  tokens, ends = clip.tokens(text, captions, CLIP.context)
  pixels = np.stack([clip.prepared(image, CLIP.image_size) for image in _images(11, 11)])
  return np.sum(np.asarray(clip.image_features(params, CLIP, pixels)) * np.asarray(
      clip.text_features(params, CLIP, tokens, ends)), axis=1)


def test_clip_scores(run, place, captions, capsys, tmp_path):
  network = ('--clip={place}/clip', '--tokenizer={place}/tokenizer.json')
  both = run(*network)
  scores = _scores(both)
  names = ['CLIPScore (another ViT/8, 11)', 'torchmetrics CLIP score (another ViT/8, 11)']
  assert list(scores)[-2:] == names and 'FID (ADM, 11)' in scores
  cosines = [_cosines(place, [prefix + caption for caption in captions])
             for prefix in ('A photo depicts ', '')]
  expected = clip.clip_score(cosines[0]), clip.torchmetrics_score(cosines[1])
  assert max(value.mean for value in expected) > .01 < abs(cosines[0] - cosines[1]).max()
  for name, value in zip(names, expected):
    assert scores[name] == pytest.approx(value.mean, abs=1e-3)
    assert f'{name}: {value.mean:.2f}'[:-1] in both.out
  alone = calls.call(evaluate.main, capsys, tmp_path / 'alone', f'--images={place}/coco',
                     '--batch_size=4', *(word.format(place=place) for word in network))
  assert _scores(alone) == {name: scores[name] for name in names}


@pytest.mark.usefixtures('captions')
def test_one_image_has_no_error(place, capsys, tmp_path):
  (tmp_path / 'one').mkdir()
  _write(tmp_path / 'one' / 'images', _images(1, 0))
  (tmp_path / 'one' / 'captions.json').write_text(
      json.dumps([dict(file_name='0000.png', caption='cat')]))
  found = calls.call(evaluate.main, capsys, tmp_path / 'out', f'--images={tmp_path}/one',
                     f'--clip={place}/clip', f'--tokenizer={place}/tokenizer.json')
  assert len(_scores(found)) == 2 and '+-' not in found.out
  report = json.loads((found.folder / 'report.json').read_text())
  assert all(row['error'] is None for row in report['rows'])


@pytest.mark.parametrize('words, message', [
    (['--clip={place}/clip'], ['tokenizer is None', 'openai/clip-vit-base-patch32']),
    (['--tokenizer={place}/tokenizer.json'], ['clip is None']),
    (['--clip={place}/inception', '--tokenizer={place}/tokenizer.json'],
     ["holds a 'inception' network", 'cspd-convert --family=clip']),
    (['--clip={place}/clip', '--tokenizer={place}/gray.npz'], ['tokenizer']),
    (['--clip={place}/clip', '--tokenizer={place}/tokenizer.json', '--images={place}/reference'],
     ['images', 'report.json'])])
@pytest.mark.usefixtures('captions')
def test_bad_clip_input(run, words, message):
  calls.check_refused(run(*words), message)
