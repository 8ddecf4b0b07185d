"""Tables of MAR decoders, and the fit of the head's drafter."""

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
from cspd_jax.continuous import blend, schedule as schedule_lib
from cspd_jax.core import checkpoint
from cspd_jax.models import kl_vae, mar
from experiments import mar_tables_runs
from tests.experiments import programs

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
