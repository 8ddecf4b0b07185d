"""`cspd-inspect`: sizes of models that are not there."""

import json
import math

import jax
import pytest

import cspd_jax
from cspd_jax.commands import inspect
from tests.builders import models
from tests.experiments import calls


@pytest.mark.slow
def test_sizes_of_the_shipped_model(capsys, tmp_path):
  result = calls.call(inspect.main, capsys, tmp_path / 'out', '--model=demo', '--window=1,4',
                     '--dtype=float32', '--batch=2')
  assert result.code == 0 and 'cache of 2 images of 256 tokens' in result.out
  report = json.loads((tmp_path / 'out' / 'report.json').read_text())
  model = cspd_jax.load('demo', dtype='float32')
  count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model.params))
  target, *_, one, four = report['rows']
  assert target['parameters'] == count and target['gigabytes'] == pytest.approx(4e-9 * count)
  config = model.config.transformer
  per_token = 1e-9 * 2 * 2 * config.num_layers * 2 * config.num_kv_heads * config.head_dim * 4
  assert report['cache_gigabytes'] == pytest.approx(per_token * 257, rel=0.05)
  # Two products per weight of the layers and of the output, for two streams of two images.
  tables = config.vocab_size * config.dim
  assert 2 * 4 * (count - 2 * tables) < 1e9 * one['gflops'] < 2 * 4 * count * 1.5
  assert four['gflops'] == pytest.approx(4 * one['gflops'], rel=0.05)
  assert one['gigabytes'] == pytest.approx(
      target['gigabytes'] + report['cache_gigabytes'] - per_token * 128)


@pytest.mark.slow
def test_networks_that_a_folder_lacks_are_left_out(capsys, tmp_path):
  models.llamagens(tmp_path / 'models')
  result = calls.call(inspect.main, capsys, tmp_path / 'out', '--window=1',
                     f'--model={tmp_path}/models/model')
  assert result.code == 0, result.err
  names = [row['network'] for row in json.loads((result.folder / 'report.json').read_text())['rows']
           if 'network' in row]
  assert names == ['target', 'model', 'layers'] and ' 0.000' not in result.out


@pytest.mark.slow
def test_the_cache_holds_the_condition_once(capsys, tmp_path):
  """The captions of `t2i_xl_256` are 120 tokens, which were counted twice."""
  result = calls.call(inspect.main, capsys, tmp_path / 'out', '--model=t2i_xl_256', '--window=1')
  assert 'cache of 1 image of 256 tokens: 0.139 GB' in result.out, result.out
