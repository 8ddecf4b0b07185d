"""Files whose values are of another type or size: they are read, or one sentence names the file."""

import json

import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.continuous import head_drafter, schedule
from cspd_jax.files import reading, run_folder
from cspd_jax.generation import defaults, options
from cspd_jax.measure import tables
from cspd_jax.metrics import evaluation, inception, layouts
from cspd_jax.models import inception as inception_network
from tests.reliability import damage, test_checkpoint_faults

COUNTS = [40, pytest.param(3000, marks=pytest.mark.slow)]
REPORT = {
    'program': 'cspd-generate', 'settings': {'output': 'x'}, 'files': {'a.png': '00' * 32},
    'rows': [{'file': 'a.png', 'prompt': 'cat', 'number': 0, 'seconds': 1.5},
             {'file': 'b.png', 'prompt': '', 'number': 1, 'seconds': None}],
    'tables': [{'title': 'all', 'columns': {'time': '{seconds:.2f}'}, 'rows': [0, 1]}]}
CAPTIONS = [{'file_name': 'a.png', 'caption': 'cat'}, {'file_name': 'b.png', 'caption': 'dog'}]


def _model(folder):
  """Saves a model with everything that its files may hold; returns what reads and uses it."""
  test_checkpoint_faults.save(folder / 'target', 1)
  path = folder / 'target' / 'model.json'
  content = json.loads(path.read_text())
  content['metadata'] |= {'labels': ['sea', 'sky', 'sand'], 'prompts': ['sea']}
  path.write_text(json.dumps(content))
  families.save(folder, 'llamagen', {'target': 'target'}, {
      'guidance_scale': 1.5, 'top_k': 2, 'dtype': 'float32',
      'decoder': {'cpu': {'1': 'mc_sjd(window=2)', '4': 'vanilla'}},
      'seconds': {'cpu': {'1': ['mc_sjd(window=2)', 1.5]}}})

  def use(path):
    del path
    model = families.load(folder)
    model.condition(list(model.prompts)[:1])
    model.conditions.titles(list(model.prompts)[:1])
    defaults.seconds(model.defaults.get('seconds'), 'cpu', 1, 'mc_sjd(window=2)')
    options.default(
        model.table, model.defaults.get('decoder'), model.drafts, model.devices[0], 1)

  return use


def _check(path, content, read, count, where):
  """Reads versions of a JSON file: each is read, or one sentence names it or its folder."""
  refused = 0
  for text in damage.replaced(content, count):
    path.write_text(text)
    try:
      read(path)
    except ValueError as error:
      message = ' '.join(str(error).split('\n  '))  # Lists of problems.
      assert message.isprintable() and len(message) < 2500, text
      assert any(name in message for name in where), (message, text)
      refused += 1
  path.write_text(json.dumps(content))
  read(path)
  assert refused > count / 16


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('part', ['', 'target'])
def test_descriptions_of_models(tmp_path, part, count):
  use, path = _model(tmp_path / 'm'), tmp_path / 'm' / part / 'model.json'
  _check(path, json.loads(path.read_text()), use, count,
         (str(tmp_path), 'model.json', 'of the target', "model 'm'"))


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('read', [
    tables.read_tables, lambda path: layouts.generated(str(path.parent)),
    lambda path: run_folder.check(path.parent, program='cspd-generate')])
def test_reports(tmp_path, read, count):
  _check(tmp_path / 'report.json', REPORT, read, count, (str(tmp_path),))


@pytest.mark.parametrize('count', COUNTS)
def test_captions(tmp_path, count):
  _check(tmp_path / 'captions.json', CAPTIONS, lambda path: layouts.captioned(str(path.parent)),
         count, (str(tmp_path),))


@pytest.mark.parametrize('count', COUNTS)
def test_blends_of_heads(tmp_path, count):
  levels = schedule.make(4)

  def read(path):
    rho = head_drafter.stored_rho(levels, reading.json(path, 'convert again'), guided=True)
    assert rho is None or np.isfinite(rho).all() and rho.shape == (4,)

  _check(tmp_path / 'model.json',
         head_drafter.describe_rho(levels, np.full(4, .5), np.full(4, .5)), read, count,
         ('head_drafter of the target', str(tmp_path)))


def _statistics(rng, width):
  """Arrays that a file of statistics may hold, one of which is not what it should be."""
  arrays = {'mu': np.zeros(width), 'sigma': np.eye(width)}
  strange = (np.eye(width, dtype=complex), np.eye(width - 1), np.ones(()), np.zeros(0),
             np.float64(1), np.asarray('x'), np.eye(width).astype('S3'),
             np.zeros(width, [('a', float)]), np.full(width, np.nan), -np.eye(width),
             np.full((width, width), 1e308), np.eye(width, dtype=bool), np.zeros((width, 1)))
  name = rng.choice(['mu', 'sigma', 'mu_s', 'sigma_s', 'pool', 'arr_0'])
  return arrays | {str(name): strange[rng.integers(len(strange))]}


@pytest.mark.parametrize('count', COUNTS)
def test_statistics(tmp_path, count):
  config = inception.InceptionConfig(unit=1, num_classes=6)
  width, path, refused = inception_network.widths(config).pool, tmp_path / 'a.npz', 0
  network = evaluation.InceptionEvaluator(None, config, 'adm', '')
  for seed in range(count):
    np.savez(path, **_statistics(np.random.default_rng(seed), width))
    try:
      evaluation.opened('reference', str(path), network, 4)
    except ValueError as error:
      assert str(path) in str(error) and str(error).isprintable() and len(str(error)) < 1000
      refused += 1
  assert count / 2 < refused < count


@pytest.mark.parametrize('digits, message', [(400, 'not finite'), (5000, 'not finite'), (25, None)])
def test_long_integers_are_numbers(tmp_path, digits, message):
  """Python does not parse those of more than 4300 digits, and its error says how to let it."""
  (tmp_path / 'a.json').write_text(f'{{"a": -{"9" * digits}}}')
  if message is None:
    assert reading.json(tmp_path / 'a.json', 'remove it') == {'a': -1e25}
  else:
    with pytest.raises(ValueError, match=message) as caught:
      reading.json(tmp_path / 'a.json', 'remove it')
    assert len(str(caught.value)) < 400 + len(str(tmp_path))
