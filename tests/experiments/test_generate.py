"""`python -m experiments.generate` from end to end on a tiny model, and with wrong input."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from cspd_jax.core import checkpoint
from cspd_jax.models import llamagen
from cspd_jax.models import vq
from configs import demo
from experiments import generation
from tests.experiments import programs

_NAMES = ['cat', 'dog', 'owl']

# What is wrong with the input: arguments, and words that the message must hold.
_BAD = {
    'unknown flag': (['--windw=3'], ['windw']),
    'not a number': (['--window=wide'], ['window', 'wide']),
    'a word too many': (['cat'], ['cat', 'not a flag']),
    'no such config': (['--config=configs/nothing.py'], ['configs/nothing.py']),
    'config of another program': (['--config={tmp}/other.py'], ['Other', 'num_images']),
    'unknown field': (['--config.windw=3'], ['windw', 'window']),
    'unknown decoder': (['--decoder=vanilla,fast'], ['fast', 'seed_exact']),
    'no decoder': (['--decoder='], ['decoder', 'seed_exact']),
    'window below 1': (['--window=0'], ['window is 0', 'at least 1']),
    'window too large': (['--window=99'], ['window is 99', '16']),
    'window far too large': (['--window=999999999999'], ['window is 999999999999', '16']),
    'too many drafts': (['--config.draft_length=17'], ['draft_length is 17', '16']),
    'no drafts': (['--config.draft_length=0'], ['draft_length is 0']),
    'no images': (['--num_images=0'], ['num_images is 0']),
    'fewer images than classes': (['--num_images=1', '--label=0,1'], ['num_images is 1', '2']),
    'no runs': (['--config.repeats=0'], ['repeats is 0']),
    'unknown dtype': (['--config.dtype=int8'], ['int8', 'bfloat16']),
    'negative seed': (['--seed=-1'], ['seed is -1']),
    'label out of range': (['--label=3'], ["label is '3'", '0 to 2']),
    'label not a number': (['--label=cat'], ["label is 'cat'", '0 to 2']),
    'unknown prompt': (['--prompt=cat,cow'], ['cat,cow', 'cat, dog, owl']),
    'prompt and label': (['--prompt=cat', '--label=0'], ['prompt', 'label', 'only one']),
    'prompt without names': (
        ['--model={tmp}/unnamed', '--prompt=cat'], ['no names', 'label', '0 to 2']),
    'guidance not finite': (['--guidance_scale=inf'], ['guidance_scale is inf']),
    'negative temperature': (['--temperature=-1'], ['temperature is -1']),
    'negative top_k': (['--top_k=-1'], ['top_k is -1']),
    'top_k far too large': (['--top_k=99999999999'], ['top_k is 99999999999']),
    'guidance beyond float32': (['--guidance_scale=1e300'], ['guidance_scale is inf']),
    'top_p of 0': (['--top_p=0'], ['top_p is 0']),
    'no draft model': (
        ['--draft_model=', '--decoder=speculative'], ['speculative', 'draft_model']),
    'draft model of the other target': (
        ['--model={tmp}/unnamed', '--decoder=speculative'], ['speculative', 'draft_model']),
    'EAGLE network of another target': (
        ['--eagle=demo/eagle'], ['vocab_size', '1024', '16', 'eagle']),
    'draft of another vocabulary': (
        ['--draft_model={tmp}/other_vocabulary'], ['vocab_size', '32', '16']),
    'no such model': (['--model={tmp}/nothing'], ['model', 'nothing', 'no such folder']),
    'no model': (['--model='], ['model is empty']),
    'not a checkpoint': (['--model={tmp}'], ['model', 'model.json']),
    'truncated checkpoint': (['--model={tmp}/truncated'], ['model', 'damaged']),
    'tokenizer as model': (['--model={tmp}/tokenizer'], ["'vq'", "'llamagen'"]),
    'text model': (['--model={tmp}/text'], ['text-conditional']),
    'tokenizer of another vocabulary': (
        ['--model={tmp}/other_vocabulary'], ['codebook_size', '16', '32']),
    'workdir under a file': (['--workdir={tmp}/other.py/out'], ['workdir', 'other.py']),
}


def _save_models(folder: pathlib.Path) -> None:
  """Tiny models with random weights."""
  sizes = dict(height=4, width=4, dim=16, num_layers=1, num_heads=2, ffn_dim=16, vocab_size=16,
               num_classes=3, caption_dim=8)

  def save(name, extra, **changes):
    config = llamagen.LlamaGenConfig(**{**sizes, **changes})
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32),
        jax.eval_shape(lambda: llamagen.init(config, jax.random.key(0))))
    checkpoint.save(folder / name, 'llamagen', config, params, extra=extra)

  save('target', {'labels': _NAMES})
  save('draft', {}, dim=8)
  save('unnamed', {})
  save('truncated', {})
  save('other_vocabulary', {}, vocab_size=32)
  save('text', {}, conditioning='text')
  config = vq.VQConfig(ch=4, ch_mult=(1, 1), num_res_blocks=1, z_channels=4, codebook_size=16,
                       codebook_dim=2)
  checkpoint.save(folder / 'tokenizer', 'vq', config, vq.init(config, jax.random.key(0)))
  largest = max((folder / 'truncated' / 'arrays').rglob('*'),
                key=lambda file: file.stat().st_size if file.is_file() else 0)
  largest.write_bytes(largest.read_bytes()[:-1])
  (folder / 'other.py').write_text(
      'import dataclasses\n\n@dataclasses.dataclass(frozen=True)\nclass Other:\n  seed: int = 0\n'
      '\ndef get_config():\n  return Other()\n')


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp('models')
  _save_models(folder)
  return folder


@pytest.fixture(scope='module')
def calls(models, tmp_path_factory):
  """Results `(code, stdout, stderr)` of all calls by name, and the folder of each."""
  tmp, out = models, tmp_path_factory.mktemp('out')
  tiny = [f'--config.model={tmp}/target', f'--config.draft_model={tmp}/draft',
          f'--config.tokenizer={tmp}/tokenizer', '--config.eagle=', '--config.medusa=',
          '--config.window=5']
  commands = {name: words for name, (words, _) in _BAD.items()}
  commands['good'] = ['--decoder=vanilla,seed_exact', '--prompt=owl',
                      '--num_images=1', '--guidance_scale=1.5', '--seed=5']
  commands['good without vanilla'] = [
      '--decoder=speculative', '--label=2,0', '--num_images=3', '--guidance_scale=1']
  commands = {name: [word.format(tmp=tmp) for word in words] for name, words in commands.items()}
  return programs.run('generate', commands, tiny, out)


@pytest.mark.parametrize('name', _BAD)
def test_bad_input(calls, name):
  programs.check_refused(calls[name], _BAD[name][1])


def test_writes_report_and_pictures(calls):
  code, out, err, folder = calls['good']
  assert code == 0, err
  names = ['vanilla', 'seed_exact']
  files = {f'images_{name}.png' for name in names} | {'acceptance.png', 'speed.png', 'report.json'}
  assert {file.name for file in folder.iterdir()} == files
  for file in files - {'report.json'}:
    assert (folder / file).read_bytes().startswith(b'\x89PNG')
  report = json.loads((folder / 'report.json').read_text())
  assert report['num_images'] == 1
  assert report['labels'] == [2] and report['captions'] == ['owl']
  assert list(report['decoders']) == names
  assert report['settings']['guidance_scale'] == 1.5
  for name, row in report['decoders'].items():
    assert row['guarantee'] == 'seed-exact'
    assert 1 <= row['rounds_mean'] <= 16
    assert row['step_compression'] == pytest.approx(16 / row['rounds_mean'])
    assert 1 <= row['accepted_length_mean'] <= 5
    assert 0 <= row['one_token_rounds'] <= 1
    assert row['seconds_per_image'] == pytest.approx(
        row['ms_per_round'] * row['rounds_mean'] / 1000)
    assert row['speedup'] == pytest.approx(
        report['decoders']['vanilla']['seconds_per_image'] / row['seconds_per_image'])
    assert row['compile_seconds'] > 0
    assert (folder / row['images']).is_file()
  assert report['decoders']['vanilla']['rounds_mean'] == 16
  assert report['decoders']['vanilla']['tokens_equal_vanilla'] is True
  assert report['decoders']['seed_exact']['tokens_equal_vanilla'] is True
  table = out[out.index('decoder  '):].splitlines()
  assert [line.split()[0] for line in table[2:4]] == names


def test_without_vanilla_there_is_no_speedup(calls):
  code, out, err, folder = calls['good without vanilla']
  assert code == 0, err
  report = json.loads((folder / 'report.json').read_text())
  assert report['labels'] == [2, 0, 2]
  row = report['decoders']['speculative']
  assert row['guarantee'] == 'exact'
  assert row['speedup'] is None and row['tokens_equal_vanilla'] is None
  assert ' - ' in out.splitlines()[-3]


def test_left_out_decoders_are_named(models):
  config = dataclasses.replace(
      demo.get_config(), model=str(models / 'target'), draft_model='', eagle='',
      medusa='',
      tokenizer=str(models / 'tokenizer'), window=5)
  job = generation.prepare(config)
  assert 'speculative' not in job.decoders and 'sjd_pac' in job.decoders
  assert 'draft_model' in job.left_out['speculative']
  assert 'medusa' in job.left_out['medusa']


def test_program_prints_one_message_and_ends_with_code_2(models):
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.generate', f'--model={models}/target',
       f'--tokenizer={models}/tokenizer', '--window=99'],
      cwd=programs.ROOT, env=dict(os.environ, JAX_PLATFORMS='cpu'), capture_output=True, text=True)
  assert done.returncode == 2
  assert done.stderr.startswith('error: window is 99') and done.stderr.count('\n') == 1
  assert not done.stdout
