"""The program that fits a corrector: what it refuses, what it stores."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

import cspd_jax
from cspd_jax.commands import fit_corrector
from cspd_jax.generation import memory
from tests.experiments import models as models_lib


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp('models')
  models_lib.llamagens(folder)
  np.savez(folder / 'images.npz', tokens=np.random.default_rng(0).integers(0, 16, (64, 16)))
  np.savez(folder / 'few.npz', tokens=np.zeros((3, 16), int))
  np.savez(folder / 'others.npz', tokens=np.full((64, 16), 16))
  (folder / 'broken.npz').write_bytes(b'PK')
  (folder / 'zip.npz').write_bytes(b'PK\x03\x04' + bytes(40))
  (folder / 'empty.npz').write_bytes(b'')
  np.save(folder / 'plain.npy', np.zeros((64, 16), int))
  return folder


def _fit(capsys, *words):
  code = fit_corrector.main(
      ['fit', '--num_steps=4', '--num_measured=2', '--window=4', '--batch_size=64', *words])
  return (code, *capsys.readouterr())


@pytest.mark.parametrize('words, message', [
    (['--num_images=3'], 'num_images is 3; it must be a whole number from 64'),
    (['--num_steps=0'], 'num_steps is 0'), (['--window=17'], 'window is 17'),
    (['--model=mar_demo'], 'whose tokens are continuous'),
    (['--model=demo'], "output is none, but 'demo' is part of the package"),
    (['--output={tmp}'], 'which exists; give another folder'),
    (['--tokens={tmp}/none.npz'], 'cannot be read'), (['--tokens={tmp}/broken.npz'], 'cannot be'),
    (['--tokens={tmp}/zip.npz'], 'cannot be'), (['--tokens={tmp}/plain.npy'], 'cannot be'),
    (['--tokens={tmp}/empty.npz'], 'cannot be'),
    (['--model={tmp}/target'], 'the folder of a target alone'),
    (['--mesh=9x9'], 'which requires 81 devices'), (['--mesh=two'], "mesh is 'two'"),
    (['--guidance_scale=nan'], 'guidance_scale is nan'),
    (['--tokens={tmp}/few.npz'], 'holds int64[3, 16]; it must hold at least 64 images of 16'),
    (['--tokens={tmp}/others.npz'], 'whole numbers from 0 to 15'),
    (['--tokens={tmp}/images.npz', '--num_images=100'], 'num_images is 100 and tokens is'),
    (['--tokens={tmp}/images.npz', '--decoder=vanilla'], "decoder is 'vanilla' and tokens is")])
def test_what_is_refused(models, capsys, words, message):
  code, out, err = _fit(
      capsys, f'--model={models}/model', *(word.format(tmp=models) for word in words))
  assert code == 2 and not out and message in err and err.count('\n') == 1


@pytest.mark.slow
def test_the_batch_size_is_what_fits(models, tmp_path, monkeypatch):
  config = fit_corrector.Config(
      f'{models}/model', num_images=64, window=4, output=f'{tmp_path}/new',
      workdir=f'{tmp_path}/work')
  job = fit_corrector.prepare(config)
  assert job.batch_size == 16
  per_image = job.request.estimate().needed(1)
  monkeypatch.setattr(memory, 'free', lambda devices: 5 * per_image)
  assert fit_corrector.prepare(config).batch_size == 3
  with pytest.raises(ValueError, match='batch_size is 16, but .*; pass batch_size=3 or less'):
    fit_corrector.prepare(dataclasses.replace(config, batch_size=16))


@pytest.mark.slow
def test_it_becomes_a_part_of_the_model(models, capsys):
  code, out, err = _fit(capsys, f'--model={models}/model', f'--tokens={models}/images.npz')
  assert code == 0, err
  assert 'compiling a training step (1 of at most 3)...' in err and '(3 of at most 3)' in err
  assert 'before: ' in out and 'after:  ' in out and 'accepted at distance 1: ' in out
  model = cspd_jax.load(models / 'model')
  assert 'neighbours' in model.drafts
  decode = lambda decoder: model.generate(['cat'] * 3, seed=1, decoder=decoder).decoded
  found = decode('corrected_seed_exact(by=neighbours, window=5, passes=2)')
  np.testing.assert_array_equal(found.tokens, decode('vanilla').tokens)


@pytest.mark.slow
def test_it_samples_images(models, capsys, tmp_path):
  output = tmp_path / 'neighbours'
  code, out, err = _fit(
      capsys, f'--model={models}/alone', '--num_images=64', f'--output={output}',
      f'--workdir={tmp_path}/work', '--mesh=1x1')
  assert code == 0, err
  assert f"neighbours={str(output)!r}).generate(decoder='corrected(by=neighbours)')" in out
  assert 'neighbours' not in cspd_jax.load(models / 'alone').drafts


@pytest.mark.slow
def test_nothing_is_lost_if_nobody_reads_what_it_prints(models, tmp_path):
  """As with `| head -1`: it ended at its first line, before the network was stored."""
  output = tmp_path / 'neighbours'
  with subprocess.Popen(
      [sys.executable, '-m', 'cspd_jax.commands.fit_corrector', f'--model={models}/model',
       f'--tokens={models}/images.npz', f'--output={output}', '--num_steps=2',
       '--num_measured=0', '--window=4'],
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
    process.stdout.close()
    assert process.wait() == 0
  assert (output / 'model.json').exists()
