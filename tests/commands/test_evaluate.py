"""`cspd-evaluate`: its scores, what it keeps, and what it refuses."""

import json
import shutil

import jax
import numpy as np
import pytest
from PIL import Image

from cspd_jax.commands import evaluate
from cspd_jax.files import store
from cspd_jax.generation import memory
from cspd_jax.metrics import clip, evaluation, image_scores, inception, scenes
from cspd_jax.models import clip as clip_network, inception as network_lib
from cspd_jax.text import bpe
from tests.experiments import calls
from tests.marks import representative
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
  shapes = jax.eval_shape(lambda: inception.inception.init(CONFIG, jax.random.key(0)))
  for seed, name in enumerate(['inception', 'other']):
    rng = np.random.default_rng(seed)
    # As in a fresh network, where kernels are random and variances 1.
    params = jax.tree_util.tree_map_with_path(lambda path, leaf, rng=rng: np.float32(
        rng.normal(0, np.prod(leaf.shape[:-1])**-0.5, leaf.shape) if path[-1].key == 'kernel'
        else np.full(leaf.shape, path[-1].key in ('scale', 'variance'))), shapes)
    store.save(place / name, 'inception', CONFIG, params)
  for name, count in (('samples', 11), ('reference', 13)):
    images = _images(count, count)
    _write(place / name, images)
    np.savez(place / f'{name}.npz', arr_0=images)
  np.savez(place / 'gray.npz', arr_0=np.zeros((3, 8, 8), np.uint8))
  np.savez(place / 'nothing.npz', mean=np.zeros(3))
  np.savez(place / 'few.npz', arr_0=_images(3, 3))
  (place / 'empty').mkdir()
  (place / 'broken.npz').write_bytes((place / 'samples.npz').read_bytes()[:900])
  np.savez(place / 'two.npz', _images(4, 0), _images(4, 1))
  _write(place / 'deep', _images(4, 0))
  Image.fromarray(np.full((SIDE, SIDE), 999, np.uint16)).save(place / 'deep' / 'deep.png')
  _write(place / 'mixed', _images(3, 0))
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


def _scores(result):
  assert result.code == 0, result.err
  report = json.loads((result.folder / 'report.json').read_text())
  return {row['score']: row['value'] for row in report['rows']}


@pytest.mark.slow
def test_all_scores(run, place, network):
  result = run()
  scores = _scores(result)
  names = [f'{name} (ADM, 11)' for name in ('FID', 'sFID', 'IS', 'precision', 'recall')]
  assert list(scores) == names and all(f'{name}: ' in result.out for name in names)
  pool = [np.asarray(inception.features(
      network.params, CONFIG, _images(count, count), 'adm').pool) for count in (11, 13)]
  expected = image_scores.distance(*map(image_scores.gaussian, pool))
  assert expected > 0 and scores[names[0]] == pytest.approx(expected, rel=1e-3)
  stored = evaluation.opened('images', str(result.folder / 'features.npz'), network, 4).features
  np.testing.assert_allclose(stored.pool, pool[0], atol=1e-4 * np.abs(pool[0]).max())


@pytest.mark.slow
def test_scores_that_mislead(run):
  assert 'warning: images has 11 images, fewer than features' in run().err
  result = run('--reference={place}/samples.npz', out='same')
  assert list(_scores(result)) == ['IS (ADM, 11)']
  (warning,) = json.loads((result.folder / 'report.json').read_text())['warnings']
  assert 'are the same images' in warning and f'warning: {warning}.' in result.err


@pytest.mark.slow
def test_folders_arrays_and_features_are_alike(run):
  scores = _scores(run(out='first'))
  assert _scores(run('--images={place}/samples.npz', '--reference={place}/reference.npz')) == scores
  features = '--images={tmp}/first/features.npz'
  assert _scores(run(features, out='second')) == scores
  for words, message in [('--evaluator=pytorch_fid', ["evaluator 'adm'", 'pytorch_fid']),
                         ('--inception={place}/other', ['features of another network'])]:
    calls.check_refused(run(features, words, out='third'), message)


@pytest.mark.slow
def test_evaluators_differ(run):
  adm, other = _scores(run(out='adm')), _scores(run('--evaluator=pytorch_fid', out='other'))
  assert list(other) == ['FID (pytorch-fid, 11)']
  assert abs(other['FID (pytorch-fid, 11)'] / adm['FID (ADM, 11)'] - 1) > 1e-3
  fidelity = _scores(run('--evaluator=torch_fidelity', out='fidelity'))
  assert list(fidelity) == [f'{name} (torch-fidelity, 11)' for name in ('FID', 'IS')]
  assert fidelity['FID (torch-fidelity, 11)'] == adm['FID (ADM, 11)']
  assert fidelity['IS (torch-fidelity, 11)'] != adm['IS (ADM, 11)']


@pytest.mark.slow
def test_published_statistics(run, place, tmp_path):
  scores = _scores(run(out='first'))
  network = store.load(place / 'inception')
  features = inception.features(network.params, CONFIG, _images(13, 13), 'adm')
  pool, spatial = (image_scores.gaussian(np.asarray(x)) for x in (features.pool, features.spatial))
  moments = dict(mu=pool.mean, sigma=pool.covariance)
  np.savez(tmp_path / 'few.npz', **moments)
  calls.check_refused(run('--images={tmp}/few.npz', out='none'), ['statistics only'])
  result = _scores(run('--reference={tmp}/few.npz', out='few'))
  assert list(result) == ['FID (ADM, 11)', 'IS (ADM, 11)']
  assert result['FID (ADM, 11)'] == pytest.approx(scores['FID (ADM, 11)'], rel=1e-3)
  np.savez(tmp_path / 'all.npz', arr_0=_images(5, 5), mu_s=spatial.mean, sigma_s=spatial.covariance,
           **moments)
  every = _scores(run('--reference={tmp}/all.npz', out='all'))
  assert every['FID (ADM, 11)'] == result['FID (ADM, 11)']
  assert every['sFID (ADM, 11)'] == pytest.approx(scores['sFID (ADM, 11)'], rel=1e-3)
  assert {'precision (ADM, 11)', 'recall (ADM, 11)'} <= every.keys()


_BAD = {
    'another network': (['--inception={place}/samples'], ['samples']),
    'no images': (['--images={place}/empty'], ['images', 'folder without images', '.png']),
    'gray': (['--images={place}/gray.npz'], ['uint8[3, 8, 8]', 'uint8 [N, H, W, 3]']),
    'no array': (['--images={place}/nothing.npz'], ['arrays mean', 'arr_0']),
    'cut': (['--images={place}/broken.npz'], ['images', '.npz file']),
    'several sizes': (
        ['--images={place}/mixed'], ["'small.png' has 8x24", '24x24', '--evaluator=pytorch_fid']),
    'several arrays': (['--reference={place}/two.npz'], ['arr_0 and as arr_1']),
    'deep pictures': (['--images={place}/deep'], ['deep.png', '16 bits per channel']),
    'folders': (['--reference={place}'], ['0 images', 'folders, such as']),
    'few': (['--images={place}/few.npz'], ['images has 3 images', 'at least 4']),
    'no evaluator': (['--evaluator=clean'], ['clean', 'adm'])}


@pytest.mark.parametrize('name', representative(
    _BAD, 'another network', 'cut', 'several sizes', 'deep pictures', 'few'))
def test_bad_input(run, name):
  words, message = _BAD[name]
  result = run(*words)
  assert result.code == 2 and result.err.count('error: ') == 1, result.err
  assert 'Traceback' not in result.err
  for word in message:
    assert word in result.err, result.err


def test_missing_options_are_named(capsys, tmp_path):
  result = calls.call(evaluate.main, capsys, tmp_path / 'out', '--images=x', '--reference=y')
  calls.check_refused(result, ['inception is None', 'pt_inception-2015-12-05', 'cspd-convert'])
  result = calls.call(evaluate.main, capsys, tmp_path / 'out')
  calls.check_refused(result, ['images is None'])


@pytest.fixture(name='network', scope='module')
def _network(place):
  return evaluation.load(str(place / 'inception'), 'adm')


def _features(network, count=5):
  """The arrays of features.npz."""
  rng = np.random.default_rng(0)
  values = {name: rng.normal(size=(count, width)).astype(np.float32)
            for name, width in network_lib.widths(CONFIG)._asdict().items()}
  return values | dict(evaluator=np.asarray('adm'), network=np.asarray(network.digest))


def _covariance(change=lambda sigma: sigma):
  """Statistics of pool features whose covariance is changed."""
  sigma = np.cov(np.random.default_rng(0).normal(size=(128, 300)))
  return dict(mu=np.zeros(128), sigma=change(sigma))


def _entry(row, column, value):
  def change(sigma):
    sigma[row, column] = value
    return sigma
  return change


@pytest.mark.parametrize('change, message', [
    (dict(logits=np.zeros((3, 6), np.float32)), r'logits is float32\[3, 6\]; .* same N'),
    (dict(arr_0=np.zeros((3, 8, 8, 3), np.uint8)), r'pool is float32\[5, 128\]; .* same N'),
    (dict(pool=np.zeros((5, 127), np.float32)), r'pool is float32\[5, 127\]; .* \[N, 128\]'),
    (dict(pool=np.zeros((5, 128))), r'pool is float64'),
    (dict(pool=np.full((5, 128), np.nan, np.float32)), 'pool is not finite'),
    (dict(evaluator=np.zeros(3)), 'evaluator is not a text'),
    (dict(network=np.asarray('x' * 5000)), 'network is not a text')])
def test_features_that_contradict_each_other(network, tmp_path, change, message):
  path, arrays = tmp_path / 'features.npz', _features(network)
  np.savez(path, **arrays)
  assert len(evaluation.opened('images', str(path), network, 4).features.pool) == 5
  np.savez(path, **arrays | change)
  with pytest.raises(ValueError, match=f'images is .*features.npz.*{message}'):
    evaluation.opened('images', str(path), network, 4)


@pytest.mark.parametrize('stored, of, is_read', [
    ('adm', 'torch_fidelity', True), ('adm', 'pytorch_fid', False), ('other', 'adm', False),
    # Its images may have several sizes, which ADM's evaluator does not read.
    ('torch_fidelity', 'adm', False)])
def test_features_of_another_evaluator(network, tmp_path, stored, of, is_read):
  path = tmp_path / 'features.npz'
  np.savez(path, **_features(network) | dict(evaluator=np.asarray(stored)))
  opened = lambda: evaluation.opened('images', str(path), network._replace(evaluator=of), 4)
  if is_read:
    assert opened().num_images == 5
  else:
    with pytest.raises(ValueError, match=f'features for the evaluator {stored!r}.* is {of}; give'):
      opened()


@pytest.mark.parametrize('arrays, message', [
    (_covariance(_entry(3, 5, 9.)), 'covariance; those are symmetric'),
    (_covariance(_entry(3, 3, -9.)), 'covariance; those are without negative eigenvalues'),
    (_covariance(lambda sigma: 1e300 * sigma), 'covariance; those are finite'),
    (_covariance(lambda sigma: sigma + 0j), r'sigma is complex128\[128, 128\]'),
    (_covariance(lambda sigma: sigma[:9, :9]), r'sigma is float64\[9, 9\]; for this network'),
    (dict(mu=np.zeros(2048), sigma=np.eye(2048)), r'mu is float64\[2048\]; .*\[128\]'),
    (_covariance() | dict(mu_s=np.zeros(2023)), 'holds no sigma_s; statistics are mu_s and'),
    (dict(mu=np.zeros(128), arr_0=np.zeros((9, 8, 8, 3), np.uint8)), 'holds no sigma')])
def test_statistics_that_cannot_be(network, tmp_path, arrays, message):
  np.savez(tmp_path / 'a.npz', **arrays)
  with pytest.raises(ValueError, match=f'reference is .*a.npz.*{message}'):
    evaluation.opened('reference', str(tmp_path / 'a.npz'), network, 4)


def test_rounded_statistics_are_read(network, tmp_path):
  """Those of float32, also in the byte order of another machine, and of few images."""
  points = np.random.default_rng(0).normal(size=(60, 128)).astype(np.float32)
  centered = points - points.mean(axis=0)
  for kind in ('<f4', '>f4', '<f2', '>f8'):
    np.savez_compressed(tmp_path / 'a.npz', mu=points.mean(axis=0).astype(kind),
                        sigma=(centered.T @ centered / 59).astype(kind))
    pool = evaluation.opened('reference', str(tmp_path / 'a.npz'), network, 4).pool
    np.testing.assert_allclose(pool.covariance, np.cov(points.T), atol=1e-3)


@pytest.mark.slow
def test_batches_fit_in_memory(network, place, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(memory, '_available', lambda: 2e9)
  np.savez_compressed(tmp_path / 'large.npz', arr_0=np.zeros((40, 1300, 1300, 3), np.uint8))
  with pytest.raises(ValueError, match=r'batch_size is 40, but 40 images of 1300x1300 pixels at '
                     r'once need at least 2.09 GB of memory, and 2 GB .*batch_size=28 or less'):
    evaluation.opened('images', str(tmp_path / 'large.npz'), network, 5_000_000)
  monkeypatch.setattr(memory, '_available', lambda: 1e6)
  result = calls.call(evaluate.main, capsys, tmp_path / 'out', f'--images={place}/samples',
                     f'--reference={place}/reference', f'--inception={place}/inception')
  calls.check_refused(result, ['batch_size is 11, but 11 images', 'smaller images'])


@pytest.mark.slow
def test_references_of_several_sizes(run, place, monkeypatch):
  """The help names one, a folder of photographs."""
  shapes = []

  def features(params, config, images, evaluator):
    del params, config, evaluator
    shapes.append(images.shape[1:])
    pool = np.asarray(images, np.float32)[:, :8, :8, :2].reshape(len(images), 128)
    return network_lib.Features(pool, np.resize(pool, (len(images), 2023)), pool[:, :6])

  monkeypatch.setattr(inception, 'features', features)
  (place / 'mixed' / 'notes.txt').write_text('x', encoding='utf-8')
  result = run('--reference={place}/mixed', '--evaluator=pytorch_fid')
  assert list(_scores(result)) == ['FID (pytorch-fid, 11)']
  assert set(shapes) == {(SIDE, SIDE, 3), (299, 299, 3)}
  assert f"reference is '{place}/mixed'; what it holds besides is left out: 'notes" in result.err


def test_computed_features_are_kept_when_a_later_image_is_damaged(
    run, place, tmp_path, monkeypatch):
  """A damaged image is found after hours; the repeated command computes the rest only."""
  shutil.copytree(place / 'reference', tmp_path / 'reference')
  last = sorted((tmp_path / 'reference').iterdir())[-1]
  content, computed = last.read_bytes(), []
  last.write_bytes(content[:len(content) // 2])

  def features(params, config, images, evaluator):
    del params, config, evaluator
    computed.append(len(images))
    pool = np.asarray(images, np.float32).reshape(len(images), -1)[:, :128]
    return network_lib.Features(pool, np.resize(pool, (len(images), 2023)), pool[:, :6])

  monkeypatch.setattr(inception, 'features', features)
  command = ['--reference={tmp}/reference', '--evaluator=torch_fidelity']
  failed = run(*command)
  assert failed.code == 2 and last.name in failed.err and len(computed) == 3 + 3
  last.write_bytes(content)
  scores = _scores(run(*command))
  assert len(computed) == 7 and 'FID (torch-fidelity, 11)' in scores
  assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == [
      'features.npz', 'report.json']


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
  images = clip.features(clip_network.image_features, params, CLIP, pixels)
  texts = clip.features(clip_network.text_features, params, CLIP, tokens, ends)
  return np.sum(np.asarray(images) * np.asarray(texts), axis=1)


@pytest.mark.slow
def test_clip_scores(run, place, captions, capsys, tmp_path):
  network = ('--clip={place}/clip', '--tokenizer={place}/tokenizer.json')
  both = run(*network)
  scores = _scores(both)
  names = ['CLIPScore (another ViT/8, 11, 11 captions of over 7 tokens)',
           'torchmetrics CLIP score (another ViT/8, 11)']
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


@pytest.mark.parametrize('words, message', [
    (['--clip={place}/clip'], ['tokenizer is None', 'openai/clip-vit-base-patch32']),
    (['--tokenizer={place}/tokenizer.json'], ['clip is None']),
    (['--clip={place}/inception', '--tokenizer={place}/tokenizer.json'],
     ["holds a 'inception' network", 'cspd-convert --family=clip']),
    (['--clip={place}/clip', '--tokenizer={place}/gray.npz'], ['tokenizer']),
    (['--clip={place}/clip', '--tokenizer={place}/tokenizer.json', '--images={place}/reference'],
     ['images', 'report.json']),
    (['--asked', '--images=nothere'], ["images is 'nothere', which is not a folder"])])
@pytest.mark.usefixtures('captions')
def test_bad_clip_input(run, words, message):
  calls.check_refused(run(*words), message)


def _scenes(place, captions):
  """Writes pictures of the templates of 'fox', on white, with captions."""
  shipped = scenes.templates()
  luminance, alpha = np.moveaxis(shipped.pixels[shipped.names.index('fox')][1], -1, 0)
  scene = Image.new('L', (64, 64), 255)
  scene.paste(Image.fromarray(luminance.copy()).resize((56, 56)), (4, 4),
              Image.fromarray(alpha.copy()).resize((56, 56)))
  place.mkdir()
  _write(place / 'images', [np.asarray(scene.convert('RGB'))] * len(captions))
  (place / 'captions.json').write_text(json.dumps([
      dict(file_name=f'{number:04}.png', caption=caption)
      for number, caption in enumerate(captions)]))
  return f'--images={place}'


def test_scenes_are_scored_by_what_their_captions_ask_for(capsys, tmp_path):
  captions = ['a fox on white', 'a fox on white', 'an owl flat', 'a fox on red']
  called = calls.call(evaluate.main, capsys, tmp_path / 'out', _scenes(tmp_path / 'in', captions),
                      '--asked', '--batch_size=3')
  assert _scores(called) == {'thing': 3 / 4, 'style': 1, 'ground': 2 / 3, 'all': 1 / 2,
                             'asked': pytest.approx((3 / 4 + 1 + 2 / 3) / 3), 'any': 1 / 3}
  assert 'ground: 0.6667 +- ' in called.out
  for line in called.out.splitlines():
    name = line.split(':')[0]
    assert (name in scenes.MEANINGS) == line.endswith(f'  ({scenes.MEANINGS.get(name)})'), line
  assert 'any: 0.3333 +- ' in called.out and '(the share of captions with at least' in called.out
  refused = calls.call(evaluate.main, capsys, tmp_path / 'no', _scenes(
      tmp_path / 'other', ['a cat and a zebra']), '--asked')
  calls.check_refused(refused, ["'a cat and a zebra'", "'zebra'", 'the things are: dog'])


@pytest.mark.parametrize('prompt, examples, message', [
    # The grammar reads this caption, but the model does not draw scenes.
    ('a fox on white', ['a cat on a mat'], ["names the model 'janus'", 'leave asked out']),
    ('a fox on white', [], ["names the model 'janus'", 'give images of emoji or']),
    ('astronaut', ['a fox'], ["caption is 'astronaut'", 'asked is True', 'leave asked out'])])
def test_images_of_models_without_scenes_are_not_scored(
    prompt, examples, message, capsys, tmp_path):
  _write(tmp_path / 'in', _images(1, 0))
  report = dict(model='janus', rows=[dict(file='0000.png', prompt=prompt, number=0)])
  (tmp_path / 'in' / 'report.json').write_text(json.dumps(report | dict(examples=examples)))
  words = f'--images={tmp_path}/in', '--asked'
  calls.check_refused(calls.call(evaluate.main, capsys, tmp_path / 'out', *words), message)
