"""`cspd-verify`: a right model passes, and a wrong one fails at the check that is for it."""

import dataclasses
import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax import families
from cspd_jax.commands import verify
from cspd_jax.files import store
from cspd_jax.measure.bench import Bench
from cspd_jax.training import drafter
from cspd_jax.verify import decoders, likelihood, network, pictures, stored
from tests.builders import folders
from tests.verify import mistakes
from tests.verify.conftest import verdicts


@pytest.fixture(scope='module')
def seen(emoji):
  return pictures.of_model(emoji)


# The first check that fails for each model.
WRONG = {
    'swapped channels': (mistakes.swapped_channels, 'image tokenizer'),
    'tokenizer of another checkpoint': (mistakes.other_tokenizer, 'image tokenizer'),
    'swapped code table': (mistakes.swapped_code_table, 'order of tokens'),
    'wrong rotation': (mistakes.wrong_rotation, 'likelihood'),
    'swapped layers': (mistakes.swapped_layers, 'likelihood'),
    'swapped conditions': (mistakes.swapped_conditions, 'prompt')}


def of_pictures(model, seen):
  return {**verdicts(pictures.check(model, seen)), **verdicts(likelihood.check(model, seen))}


def test_a_right_model_expects_pictures_that_survive_its_tokenizer(emoji, seen):
  assert len(seen.right) == 8 and seen.are_usual
  assert set(of_pictures(emoji, seen).values()) == {'passed'}


@pytest.mark.slow
@pytest.mark.parametrize('name', WRONG)
def test_wrong_weights_fail(emoji, seen, name):
  make, fails = WRONG[name]
  found = of_pictures(make(emoji), seen)
  assert next(name for name, verdict in found.items() if verdict == 'failed') == fails, found


def test_windows_and_the_pass_of_the_training(emoji):
  tokens = np.random.default_rng(0).integers(0, 1117, (1, emoji.num_tokens))
  check = lambda model: verdicts(network.check(model, network.passes(
      model, model.condition(['a fox']), tokens)))
  assert check(emoji) == {'windows': 'passed', "the training's pass": 'passed'}
  # A cached pass that turns positions otherwise than the training's.
  other = mistakes.wrong_rotation(emoji)
  assert check(other) == {'windows': 'passed', "the training's pass": 'failed'}


@pytest.fixture(scope='module')
def bench(emoji):
  return Bench(emoji, ['a fox', 'a bear', 'an owl', 'a frog'] * 8, batch_size=32)


@pytest.mark.slow
def test_decoders(emoji, bench):
  texts = decoders.chosen(emoji)
  assert texts[0] == str(emoji.specification()) and len(texts) == 3
  found = list(decoders.exact(emoji, bench, texts))
  assert {result.verdict for result in found} == {'passed'}, found


@pytest.mark.slow
def test_decoders_that_break_their_word(emoji, bench, monkeypatch):
  """A verifier that prefers probable drafts, rows that share their noise, another seed's images."""
  failed = lambda text: [result.name for result in decoders.exact(emoji, bench, [text])
                         if result.verdict == 'failed']
  biased = 'eagle(tree=chain(4))+lantern(delta=0.4)'
  bench.sample(bench.baseline), bench.sample(biased)
  exact = bench.images('mc_sjd(window=8)')
  with monkeypatch.context() as patch:
    patch.setattr(bench, 'images', lambda text, **more: exact)
    assert failed(biased) == [f'{biased}: distribution']
  text = 'seed_exact(window=8)'
  sample = bench.sample(text)
  for change, check in ((lambda rows: np.roll(rows, 1, axis=0), 'same images'),
                        (lambda rows: np.tile(rows[:4], (8, 1)), 'rows')):
    changed = dataclasses.replace(sample, decoded=sample.decoded._replace(
        tokens=change(sample.decoded.tokens)), _cache={})
    with monkeypatch.context() as patch:
      patch.setattr(bench, 'sample', lambda name, right=bench.sample: (
          changed if name == text else right(name)))
      assert f'{text}: {check}' in failed(text)


@pytest.mark.slow
def test_drafts_are_accepted_as_the_training_predicted(emoji, bench):
  """But not those of a drafter that reads another layer, whose images are right all the same."""
  eagle = store.load(families.part_folder('emoji', 'eagle'), dtype='float32')
  sample = bench.sample('vanilla')
  batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:16], (sample.tokens, sample.condition))
  figures = jax.jit(lambda params, frozen: drafter.measure(
      params, frozen, batch, eagle.config, emoji.teacher, emoji.sampling(), 3))(
          eagle.params, emoji.params)
  text = 'eagle(tree=chain(3))'
  record = dict(decoder=text, sampling={}, predicted=[
      float(figures[f'overlap_{depth}']) for depth in (1, 2, 3)])
  right, = decoders.accepted(bench, [record])
  assert right.verdict == 'passed' and right.numbers['measured'][0] > 0.3, right
  wrong = Bench(mistakes.features_of_another_layer(emoji), bench.prompts, batch_size=32)
  assert {result.verdict for result in decoders.exact(emoji, wrong, [text])} == {'passed'}
  result, = decoders.accepted(wrong, [record])
  assert result.verdict == 'failed' and result.name == f'{text}: acceptance', result


@pytest.mark.slow
def test_decoders_on_tables(monkeypatch):
  monkeypatch.setattr(decoders, '_SAMPLES', 2**14)
  names = ['vanilla', 'eagle+typical']
  found = list(decoders.on_tables(names, lambda: False))
  assert [result.name for result in found] == [
      f'{name} on a table, temperature {value}' for value in ('0.9', '0') for name in names]
  assert {result.verdict for result in found} == {'passed'}, found
  skipped, = decoders.on_tables(names, lambda: True)
  assert skipped.name == '4 of 4 decoders on tables' and skipped.verdict == 'not compared'


def test_files(tmp_path, emoji):
  found = list(stored.check('emoji'))
  assert verdicts(found) == {'files': 'passed', 'sizes': 'not compared'}
  assert len(found[0].numbers['digest']) == 8


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
  code = verify.main(['cspd-verify', '--model=demo', f'--output={tmp_path}/out', '--minutes=30'])
  out, err = capsys.readouterr()
  assert code == 0, out + err
  report = json.loads((tmp_path / 'out' / 'report.json').read_text())
  assert {row['verdict'] for row in report['rows']} == {'passed', 'not compared'}
  assert (tmp_path / 'out' / 'sheet.png').exists() and '0 failed' in out
  assert 'checks passed' in (tmp_path / 'out' / 'report.md').read_text()


# What random weights fail: they expect no pictures, which survive no random image tokenizer.
OF_PICTURES = {'image tokenizer', 'order of tokens', 'prompt', 'likelihood'}


@pytest.mark.slow
@pytest.mark.parametrize('name', ['tar', 'emu3', 'janus_pro', 'llamagen', 'simplear'])
def test_random_weights_fail_what_is_about_pictures_alone(tmp_path, monkeypatch, name):
  folder = folders.model(name)
  model = cspd_jax.load(folder)  # Tiny sizes are those of the published model that it names.
  monkeypatch.setattr(stored, 'families', types.SimpleNamespace(
      describe=lambda name: getattr(model, 'second', model)))
  monkeypatch.setattr(verify, '_TIMED', 1)
  code = verify.main(['cspd-verify', f'--model={folder}', '--prompt=a cat', '--num_images=8',
                      f'--output={tmp_path}/out', '--minutes=30'])
  report = json.loads((tmp_path / 'out' / 'report.json').read_text())
  failed = [row['name'] for row in report['rows'] if row['verdict'] == 'failed']
  assert {*failed} <= OF_PICTURES and code == bool(failed)
  assert (f'the first that failed is: {failed[0]}.' in report['verdict'] if failed else
          ' 0 failed' in report['verdict'])
  passed = {row['name'] for row in report['rows'] if row['verdict'] == 'passed'}
  assert {'files', 'windows', "the training's pass"} <= passed
  assert any(name.endswith(': same images') for name in passed)


def test_what_does_not_fit_into_the_time_is_named(tmp_path, capsys):
  for _ in range(2):  # The second report takes the place of the first.
    code = verify.main(['cspd-verify', '--model=emoji', f'--output={tmp_path}/out', '--minutes=0'])
  assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == ['report.json', 'report.md']
  report = json.loads((tmp_path / 'out' / 'report.json').read_text())
  assert code == 0 and all(row['verdict'] == 'not compared' for row in report['rows'])
  assert 'the time was over; give more --minutes' in capsys.readouterr().out


def test_a_report_that_was_changed_does_not_match():
  reports = sorted((pathlib.Path(__file__).parents[2] / 'docs/reports/verified').glob('*.json'))
  assert len(reports) >= 4
  for path in reports:
    report = json.loads(path.read_text())
    assert verify.signature(report) == report['signature']
    report['speed'][-1]['seconds'] /= 2
    assert verify.signature(report) != report['signature']
