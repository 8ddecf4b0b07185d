"""Folders of strangers: no name and no link in them leads to a file outside that is changed."""

import json
import os

import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.cli import inputs
from cspd_jax.files import atomic, store
from cspd_jax.training import loop
from cspd_jax.training.optimizer import OptimizerConfig
from tests.reliability.test_checkpoint_faults import save
from tests.reliability.test_training_faults import State

# Names that are no plain name of a file of a checkpoint.
NAMES = ['../mine', 'mine', 'model.safetensors/mine', './model.safetensors', '', 'a\nb', '\0',
         'x' * 256, 'model-00001-of-00002.safetensors\n']
LINK = 'model-00001-of-00001.safetensors'


def _described(folder, **changes):
  """Changes what the description of a checkpoint says."""
  path = folder / 'model.json'
  description = json.loads(path.read_text())
  for name, entries in changes.items():
    description[name] = ({**description[name], **entries} if isinstance(entries, dict)
                         else [*description[name], *entries])
  path.write_text(json.dumps(description))


@pytest.mark.parametrize('name', [*NAMES, '{tmp}/mine', LINK])
def test_names_in_a_checkpoint_lead_nowhere(tmp_path, name):
  save(tmp_path / 'm', 1)
  (tmp_path / 'mine').write_text('mine')
  (tmp_path / 'm' / LINK).symlink_to(tmp_path / 'mine')
  name = name.format(tmp=tmp_path)
  _described(tmp_path / 'm', files={name: 4}, blake2b={name: ''})
  with pytest.raises(store.CheckpointError, match='not a checkpoint|holds the name|a link'):
    save(tmp_path / 'm', 2)
  if name != LINK:  # Caches of a hub have links; they are read.
    with pytest.raises(store.CheckpointError, match='holds the name'):
      store.describe(tmp_path / 'm')
  assert (tmp_path / 'mine').read_text() == 'mine'


@pytest.mark.parametrize('part', ['', 'tar\nget', 'a\0b'])
def test_parts_of_a_model_are_names(tmp_path, part):
  save(tmp_path / 'm' / 'target', 1)
  families.save(tmp_path / 'm', 'llamagen', {'target': 'target'})
  _described(tmp_path / 'm', parts={'target': part})
  with pytest.raises(store.CheckpointError, match='must be named by its folder'):
    families.load(tmp_path / 'm')


def test_no_network_is_written_through_a_link(tmp_path):
  save(tmp_path / 'mine', 1)
  (tmp_path / 'm').mkdir()
  (tmp_path / 'm' / 'target').symlink_to(tmp_path / 'mine')
  with pytest.raises(store.CheckpointError, match='target is a link'):
    families.check_place(tmp_path / 'm', 'llamagen', {'target': 'target'})


def test_no_model_is_exported_through_a_link(tmp_path):
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'export').symlink_to(tmp_path / 'mine')
  with pytest.raises(ValueError, match='export is a link'):
    inputs.output_folder('export', None, tmp_path / 'run')
  new = tmp_path / 'new'
  assert inputs.output_folder('export', str(new), tmp_path / 'run') == new


def test_a_file_is_not_written_through_a_link(tmp_path, monkeypatch):
  (tmp_path / 'mine').write_text('mine')
  (tmp_path / '.a.json.000000.part').symlink_to(tmp_path / 'mine')
  tokens = iter(['000000', '000001'])  # A stranger has guessed the first.
  monkeypatch.setattr(atomic.secrets, 'token_hex', lambda size: next(tokens))
  atomic.write_json(tmp_path / 'a.json', 1)
  assert (tmp_path / 'mine').read_text() == 'mine' and not (tmp_path / 'a.json').is_symlink()
  assert sorted(os.listdir(tmp_path)) == ['.a.json.000000.part', 'a.json', 'mine']


def _train(workdir):
  return loop.run(
      State(np.int32(0), np.ones(3, np.float32)),
      lambda state, batch: (State(state.step + np.int32(1), state.value), {'value': batch}),
      float, OptimizerConfig(num_steps=2, batch_size=1, warmup_steps=0), loop.Intervals(), workdir,
      'net')


@pytest.mark.parametrize('file, target', [
    ('net.jsonl', 'mine'), ('net.jsonl', 'nothing'), ('net.jsonl', None), ('net', 'states/net')])
def test_nothing_of_a_run_is_written_through_a_link_or_into_a_pipe(tmp_path, file, target):
  (tmp_path / 'mine').write_text('mine')
  _train(tmp_path / 'states')
  before = sorted((tmp_path / 'states' / 'net').iterdir())
  (tmp_path / 'run').mkdir()
  if target is None:
    os.mkfifo(tmp_path / 'run' / file)
  else:
    (tmp_path / 'run' / file).symlink_to(tmp_path / target)
  with pytest.raises(ValueError, match=f'{file} is a link'):
    _train(tmp_path / 'run')
  assert (tmp_path / 'mine').read_text() == 'mine' and not (tmp_path / 'nothing').exists()
  assert sorted((tmp_path / 'states' / 'net').iterdir()) == before
