"""`python -m experiments.generate` with a MAR model, and the fit of its head's drafter."""

import csv
import dataclasses
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import mar_tables
from cspd_jax.core import checkpoint
from cspd_jax.continuous import blend
from cspd_jax.continuous import schedule as schedule_lib
from cspd_jax.continuous.registry import DECODERS
from cspd_jax.models import kl_vae
from cspd_jax.models import mar
from experiments import mar_tables_runs
from tests.experiments import programs

# What is wrong with the input: arguments, and words that the message must hold.
_BAD = {
    'option of other models': (['--window=3'], ['window is not an option', 'head_length']),
    'unknown decoder': (['--decoder=vanilla'], ['vanilla', 'exact_head']),
    'no draft model': (['--draft_model=', '--decoder=exact_path'], ['exact_path', 'draft_model']),
    'draft model of other tokens': (['--draft_model={tmp}/narrow'], ['token_dim', '3', '4']),
    'tokenizer of other tokens': (['--tokenizer={tmp}/other_vae'], ['z_channels', '2', '4']),
    'model of another kind': (['--model={tmp}/vae'], ["'kl_vae'", "'mar'"]),
    'label out of range': (['--label=3'], ["label is '3'", '0 to 2']),
    'temperature of 0': (['--temperature=0'], ['temperature is 0.0', 'above 0']),
    'guidance not finite': (['--guidance_scale=inf'], ['guidance_scale is inf']),
    'unknown guidance': (['--config.guidance=cosine'], ['cosine', 'linear, constant']),
    'one level': (['--config.num_levels=1'], ['num_levels is 1', '2 to 1000']),
    'too many steps': (['--config.num_iter=5'], ['num_iter is 5', '4']),
    'no drafts': (['--config.length=0'], ['length is 0']),
    'too many kernels': (['--config.head_length=9'], ['head_length is 9', 'at most 4']),
    'too many drafts': (['--config.length=5'], ['length is 5', 'at most 4, the number of tokens']),
    'too many drafts of a path': (['--config.path_length=5'], ['path_length is 5', 'at most 4']),
    'too many residual draws': (['--config.max_trials=70000'], ['max_trials is 70000', '65536']),
    'draft model of other patches': (['--draft_model={tmp}/patches'], ['patch_size', '2', '1']),
    'prefix share above 1': (['--config.prefix_share=1.5'], ['prefix_share is 1.5']),
}

# Decoders that verify whole blocks.
_BLOCKS = ('cspd_released', 'cspd_relaxed')


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  """Tiny models with random weights."""
  folder = tmp_path_factory.mktemp('models')

  def save(name, kind, config):
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.2, leaf.shape).astype(np.float32),
        jax.eval_shape(lambda: checkpoint.KINDS[kind].init(config, jax.random.key(0))))
    checkpoint.save(folder / name, kind, config, params)

  for name, dim, token_dim, patch_size in (
      ('target', 16, 4, 1), ('draft', 8, 4, 1), ('narrow', 8, 3, 1), ('patches', 8, 4, 2)):
    save(name, 'mar', mar.MARConfig(
        height=2, width=2, token_dim=token_dim, patch_size=patch_size, dim=dim, num_layers=1,
        num_heads=2, head_width=8, head_layers=1, num_classes=3, buffer_size=2))
  for name, channels in (('vae', 4), ('other_vae', 2)):
    save(name, 'kl_vae', kl_vae.KLVAEConfig(
        ch=4, ch_mult=(1, 1), num_res_blocks=1, z_channels=channels))
  return folder


def _run(commands, models, out):
  config = ['--config=configs/mar_demo.py', f'--model={models}/target',
            f'--draft_model={models}/draft', f'--tokenizer={models}/vae',
            '--config.num_levels=4', '--config.head_length=3', '--config.length=2',
            '--config.path_length=1', '--config.repeats=1', '--num_images=2']
  commands = {name: config + [word.format(tmp=models) for word in words]
              for name, words in commands.items()}
  return programs.run('generate', commands, [], out)


@pytest.fixture(scope='module')
def calls(models, tmp_path_factory):
  commands = {name: words for name, (words, _) in _BAD.items()}
  commands['without draft model'] = ['--draft_model=', '--guidance_scale=1', '--config.num_iter=2',
                                     '--decoder=mar,exact_head']
  return _run(commands, models, tmp_path_factory.mktemp('out'))


@pytest.mark.parametrize('name', _BAD)
def test_bad_input(calls, name):
  programs.check_refused(calls[name], _BAD[name][1])


@pytest.mark.slow
def test_every_decoder(models, tmp_path):
  code, out, err, folder = _run(
      {'good': ['--guidance_scale=1.5', '--seed=5']}, models, tmp_path)['good']
  assert code == 0, err
  report = json.loads((folder / 'report.json').read_text())
  assert list(report['decoders']) == list(DECODERS)
  rows = report['decoders']
  assert rows['mar']['target_passes'] == 4 and rows['mar']['head_calls'] == 4 * 4
  assert rows['mar']['head_rows'] == 2 * rows['mar']['head_calls']
  # A prefix of one token, then blocks that end after places 2 and 3.
  for name in ('parallel', 'cspd_released', 'cspd_relaxed'):
    assert rows[name]['target_passes'] == 3
  for name, row in rows.items():
    assert (row['acceptance'] is None) == (name in ('mar', 'parallel'))
    assert (row['draft_passes'] > 0) == (DECODERS[name].needs is not None)
    assert row['distribution'] in out and row['seconds_per_image'] > 0
    assert (folder / row['images']).read_bytes().startswith(b'\x89PNG')
  assert np.shape(rows['cspd_relaxed']['acceptance_by_position']) == (2, 2)
  assert 'accept' not in out[:out.index('mar: ')], 'acceptance rates share no column'


def test_without_draft_model(calls):
  code, out, err, folder = calls['without draft model']
  assert code == 0, err
  report = json.loads((folder / 'report.json').read_text())
  assert list(report['decoders']) == ['mar', 'exact_head']
  rows = report['decoders']
  assert rows['mar']['head_calls'] == 2 * 4 and rows['mar']['head_rows'] == 4 * 4
  assert 0 <= rows['exact_head']['acceptance'] <= 1 and rows['mar']['acceptance'] is None
  assert 'accepts' in out and 'accept' not in out[:out.index('mar: ')]
  assert report['decoders']['exact_head']['target_passes'] == 2


def test_fit_is_stored_and_used(models):
  schedule = schedule_lib.make()
  checkpoint.annotate(models / 'draft', blend.describe_rho(
      schedule, np.linspace(0, 1, 100), np.linspace(1, 0, 100)))
  loaded = checkpoint.load(models / 'draft')
  coarse = schedule_lib.make(10)
  for guided, ends in ((False, (0, 1)), (True, (1, 0))):
    rho = blend.stored_rho(coarse, loaded.metadata, guided)
    np.testing.assert_allclose(rho[[0, -1]], ends)
    assert rho.shape == (10,)
  assert blend.stored_rho(schedule, checkpoint.load(models / 'target').metadata, True) is None


@pytest.mark.slow
def test_program_fits(models):
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.fit_head_drafter', f'--model={models}/narrow',
       '--num_chains=64', '--num_iter=2', '--length=4'],
      cwd=programs.ROOT, env=dict(os.environ, JAX_PLATFORMS='cpu'), capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert 'without guidance, head calls per token at batch 1: default ' in done.stdout
  assert 'fitted to 4 levels' in done.stdout
  metadata = checkpoint.load(models / 'narrow').metadata
  assert blend.stored_rho(schedule_lib.make(), metadata, True).shape == (100,)


@pytest.mark.slow
def test_tables(models, tmp_path):
  config = [f'--config.model={models}/target', f'--config.draft_model={models}/draft',
            f'--config.tokenizer={models}/vae', '--num_images=3', '--config.lengths=2',
            '--config.prefix_shares=0,0.3', '--config.scales=1,2', '--config.temperatures=0.9,1',
            '--config.batch_sizes=1', '--config.head_lengths=2', '--config.repeats=1',
            '--config.images_at_once=1', '--config.guidance=constant',
            '--decoder=cspd_released']
  calls = programs.run('mar_tables', {
      'good': config,
      'others': [*config, '--suite=table1', '--decoder=cspd_relaxed,exact_path',
                 '--config.images_at_once=2'],
      'unknown suite': [*config, '--suite=table2'],
      'no lengths': [*config, '--config.lengths=()'],
      'too many drafts': [*config, '--config.lengths=2,5'],
      'prefix share above 1': [*config, '--config.prefix_shares=2.0'],
      'unknown guidance': [*config, '--config.guidance=cosine'],
      'unknown decoder': [*config, '--decoder=mar']}, [], tmp_path)
  programs.check_refused(calls['unknown suite'], ["suite is 'table2'", 'table1, table3'])
  programs.check_refused(calls['no lengths'], ['lengths is empty'])
  programs.check_refused(calls['too many drafts'], ['length is 5', 'all of an image, 4'])
  programs.check_refused(calls['prefix share above 1'], ['prefix_share is 2.0'])
  programs.check_refused(calls['unknown guidance'], ['cosine', 'linear, constant'])
  programs.check_refused(calls['unknown decoder'], ["decoder is 'mar'", 'cspd_paper'])
  code, out, err, folder = calls['good']
  assert code == 0, err
  rows = json.loads((folder / 'report.json').read_text())['rows']
  assert {row['suite'] for row in rows} == {'table1', 'table3', 'table4', 'figures', 'head'}
  others = calls['others']
  assert others.code == 0, others.err
  rows += json.loads((others.folder / 'report.json').read_text())['rows']
  _check_rows(rows)
  with open(folder / 'tables.csv', newline='') as file:
    columns = next(csv.reader(file))
  assert 'acceptance_exact_head' in columns and 'acceptance' not in columns
  for number in (8, 11, 13, 14, 15, 16):
    assert (folder / f'figure_{number}.png').read_bytes().startswith(b'\x89PNG')
  assert 'Table 3, cspd_released' in out and 'exact_head without guidance' in out
  assert 'Table 1, exact_path' in others.out
  assert others.out.count("paper's 1/(c+1/gamma)") == 1, 'only decoders with a schedule of passes'


def _check_rows(rows):
  for row in rows:
    # Acceptance of one decoder never shares a column with that of another.
    rates = [name for name in row if name.startswith('acceptance_')]
    assert rates == ['acceptance_is_share_of', f'acceptance_{row["mode"]}']
    assert row['distribution'] and row['guarantee']
    assert row['compiled'] == 'yes' and row['num_images'] == 3
    assert row['num_iter'] == 4 and row['num_levels'] == 100 and row['dtype'] == 'float32'
    assert row['guidance'] == ('constant' if row['guided'] else 'none')
    assert row['contexts'].startswith('block' if row['mode'] in _BLOCKS else 'true')
    assert min(row['temperature'], row['guidance_scale'], row['target_passes'], row['head_calls'],
               row['batch']) > 0 and row['draft_passes'] >= 0
    if row['suite'] in ('table1', 'table4', 'head'):
      assert row['speed'] > 0
  for row in (row for row in rows if row['suite'] == 'table1'):
    assert row['batch'] == 1 and ('parallel_speed' in row) == (row['mode'] in _BLOCKS)
    if row['mode'] in _BLOCKS:
      # 4 tokens in a prefix of one and two blocks, with 3 drafts.
      assert row['target_passes'] == 3 and row['draft_passes'] == 3
      np.testing.assert_allclose(row['expected_speed'], 4 / (3 + 3 * row['draft_step_cost']))
      np.testing.assert_allclose(
          row['paper_identity_speed'], 1 / (row['draft_step_cost'] + 1 / 2))
  assert {(row['mode'], row['aligned']) for row in rows if row['suite'] == 'table3'} == {
      ('cspd_released', True), ('cspd_released', False)}


def test_few_programs_are_kept(models, monkeypatch):
  """Memory maps of all of them are more than a process gets."""
  config = dataclasses.replace(
      mar_tables.get_config(), model=str(models / 'target'), draft_model=str(models / 'draft'),
      tokenizer=str(models / 'vae'), num_images=1, repeats=1, lengths=(2,))
  runner = mar_tables_runs.Runner(mar_tables_runs.prepare(config))
  monkeypatch.setattr(mar_tables_runs, '_PROGRAMS', 2)
  speeds = runner.speeds([('parallel', length, 0.0, True) for length in (1, 2, 3)], 1)
  assert min(speeds) > 0
  kept = [name for (name, *_), _ in runner._compiled]  # pylint: disable=protected-access
  assert kept == ['parallel', 'parallel']


def test_the_official_code_is_asked_for(tmp_path):
  done = subprocess.run(
      [sys.executable, '-m', 'experiments.mar_against_pytorch', f'--repo={tmp_path}'],
      cwd=programs.ROOT, env=dict(os.environ, JAX_PLATFORMS='cpu'), capture_output=True, text=True)
  assert done.returncode == 2 and done.stdout == ''
  assert 'there is no models/mar.py' in done.stderr and 'Traceback' not in done.stderr
