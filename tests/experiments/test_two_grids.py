"""The small model with two grids: its training, its sequences and the counts of its passes."""

import json
import types

import numpy as np
import pytest

import cspd_jax
from experiments import two_grids
from tests.demo_models import emoji_files
from tests.experiments import calls

pytest.importorskip('matplotlib')


def test_passes_are_counted_in_each_grid():
  """Two images of 1 x 2 and 1 x 4 tokens, whose last token ends them."""
  rounds = np.array([[0, 1, 1, 2, 2, 2, 3], [0, 0, 1, 2, 3, 3, 3]])
  out = types.SimpleNamespace(decoded=types.SimpleNamespace(
      round_of_token=rounds, rounds=np.array([4, 4])))
  model = types.SimpleNamespace(config=types.SimpleNamespace(num_small=2),
                                generate=lambda *args, **options: out)
  row = two_grids.measure(model, 'vanilla', ['a cat', 'a dog'], '-')
  assert (row['passes'], row['tokens_per_pass']) == (4, 14 / 8)
  assert (row['of_small'], row['of_large']) == (4 / 3, 8 / 5)


@pytest.mark.slow  # It trains.
def test_a_model_is_trained_and_measured(capsys, tmp_path):
  sources = emoji_files.write(tmp_path)
  words = [f'--{name}={value}' for name, value in sources.items()] + [
      '--num_steps=4', '--batch_size=4', '--num_train_images=32', '--num_held_out_images=32',
      '--num_corrector_steps=2', '--num_measured_images=2']
  first = calls.call(two_grids.main, capsys, tmp_path / 'out', *words,
                     '--decoder=mc_sjd(window=16, initialization=repeat-small)')
  assert first.code == 0, first.err
  decoders = 'corrected(window=16, corrector=neighbours, iterations=2)'
  result = calls.call(two_grids.main, capsys, tmp_path / 'out', *words, f'--decoder={decoders}')
  assert result.code == 0 and 'step 4/4' not in result.err, result.err
  rows = json.loads((result.folder / 'report.json').read_text())['rows']
  assert [(row['decoder'], row['reads_small']) for row in rows] == [
      ('vanilla', '-'), (decoders, 'yes'), (decoders, 'no')]
  assert rows[0]['passes'] == 321 and rows[0]['of_large'] == 1
  model = cspd_jax.load(result.folder / 'model')
  tokens, _ = two_grids.tokenised(two_grids.Config(), 'train', result.folder)
  assert tokens.shape == (32, model.num_tokens) and set(tokens[:, -1]) == {1024}
  assert (result.folder / 'grids.png').read_bytes().startswith(b'\x89PNG')
