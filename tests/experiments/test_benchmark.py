"""`python -m experiments.benchmark` from end to end on a tiny model, and its parts."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax.core import checkpoint
from cspd_jax.decoding import published_trees
from cspd_jax.decoding import tree as trees
from cspd_jax.decoding.base import Decoded
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.cool import uniform
from cspd_jax.decoding.verifiers.exact import exact
from cspd_jax.models import eagle as eagle_lib
from cspd_jax.models import llamagen
from cspd_jax.models import vq
from cspd_jax.testing import tabular
from experiments import benchmark_conclusions as conclusions
from experiments import benchmark_parts as parts_lib
from experiments import benchmark_plan as plan_lib
from experiments import benchmark_report as report_lib
from experiments import benchmark_runs as runs_lib
from tests.experiments import programs

# What is wrong with the input: arguments, and words that the message must hold.
_BAD = {
    'unknown flag': (['--windw=3'], ['windw']),
    'a word too many': (['cat'], ['cat', 'not a flag']),
    'config of another program': (['--config=configs/demo.py'], ['Config', 'reference_sets']),
    'unknown suite': (['--suite=speed'], ["suite is 'speed'", 'pairs, curves']),
    'unknown drafter': (['--drafter=eagle,falcon'], ['falcon', 'eagle_tree']),
    'no verifier': (['--verifier='], ["verifier is ''", 'lantern_pp']),
    'unknown drafter of curves': (['--curve_drafter=falcon'], ['curve_drafter', 'falcon']),
    'drafter without its model': (
        ['--medusa=', '--drafter=medusa'], ['medusa cannot run', 'heads']),
    'curves without their model': (
        ['--eagle=', '--suite=curves'], ['nothing can run', 'eagle', 'give eagle']),
    'a pair that cannot work': (
        ['--suite=pairs', '--drafter=jacobi', '--verifier=block'], ['nothing can run', 'keeps']),
    'one image': (['--num_images=1'], ['num_images is 1', 'at least 2']),
    'one set': (['--config.reference_sets=1'], ['reference_sets is 1', 'at least 2']),
    'no batch': (['--batch_size=0'], ['batch_size is 0']),
    'nothing timed': (['--config.timed_images=0'], ['timed_images is 0']),
    'greedy': (['--temperature=0'], ['temperature is 0.0', 'above 0']),
    'window too large': (['--window=99'], ['window is 99', '16']),
    'label out of range': (['--label=3'], ["label is '3'", '0 to 2']),
    'other network': (['--eagle={tmp}/other_eagle'], ['vocab_size', '32', '16']),
    'no such model': (['--model={tmp}/nothing'], ['model', 'no such folder']),
    'workdir under a file': (['--workdir={tmp}/file/out'], ['workdir', 'file']),
}


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  """Tiny models with random weights."""
  folder = tmp_path_factory.mktemp('models')

  def save(name, kind, config):
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32),
        jax.eval_shape(lambda: checkpoint.KINDS[kind].init(config, jax.random.key(0))))
    checkpoint.save(folder / name, kind, config, params)

  sizes = dict(height=4, width=4, num_layers=1, num_heads=2, ffn_dim=16, vocab_size=32,
               num_classes=3)
  save('target', 'llamagen', llamagen.LlamaGenConfig(dim=16, **sizes))
  save('draft', 'llamagen', llamagen.LlamaGenConfig(dim=8, **sizes))
  for name, vocab in (('eagle', 32), ('other_eagle', 16)):
    save(name, 'eagle', eagle_lib.EagleConfig(
        num_tokens=16, row_width=4, dim=16, num_heads=2, ffn_dim=16, vocab_size=vocab))
  save('tokenizer', 'vq', vq.VQConfig(
      ch=4, ch_mult=(1,), num_res_blocks=1, z_channels=4, codebook_size=32, codebook_dim=2))
  (folder / 'file').write_text('')
  return folder


def _run(commands, models, out):
  tiny = [f'--config.model={models}/target', f'--config.draft_model={models}/draft',
          f'--config.eagle={models}/eagle', '--config.medusa=',
          f'--config.tokenizer={models}/tokenizer', '--config.window=4',
          '--config.draft_length=2', '--config.num_images=3', '--config.batch_size=1',
          '--config.reference_sets=2', '--config.timed_images=1']
  commands = {name: [word.format(tmp=models) for word in words]
              for name, words in commands.items()}
  return programs.run('benchmark', commands, tiny, out)


@pytest.fixture(scope='module')
def refused(models, tmp_path_factory):
  commands = {name: words for name, (words, _) in _BAD.items()}
  return _run(commands, models, tmp_path_factory.mktemp('refused'))


@pytest.fixture(scope='module')
def good(models, tmp_path_factory):
  words = ['--drafter=mc_jacobi', '--verifier=exact,match,block,cool_printed',
           '--curve_drafter=model', '--seed=3', '--guidance_scale=1.5']
  return _run({'good': words}, models, tmp_path_factory.mktemp('good'))['good']


@pytest.mark.parametrize('name', _BAD)
def test_bad_input(refused, name):
  programs.check_refused(refused[name], _BAD[name][1])


@pytest.mark.slow
def test_pairs(good):
  code, out, err, folder = good
  assert code == 0, err
  rows = list(csv.DictReader((folder / 'benchmark.csv').open()))
  guarantees = {(row['drafter'], row['verifier']): row['guarantee'] for row in rows}
  assert guarantees == {
      ('vanilla', 'match'): 'seed-exact', ('mc_jacobi', 'exact'): 'exact',
      ('mc_jacobi', 'cool_printed'): 'relaxed', ('mc_jacobi', 'match'): 'seed-exact'}
  for row in rows:
    assert 1 <= float(row['step_compression']) and float(row['accepted_length']) <= 4
    assert (float(row['tv_bound']) > 0) == (row['guarantee'] == 'relaxed')
    assert float(row['tv_bound_per_token']) == pytest.approx(float(row['tv_bound']) / 16)
    assert row['equal_to_vanilla'] == ('1.0' if row['guarantee'] == 'seed-exact' else '')
    assert float(row['speedup']) > 0 and float(row['ms_per_round']) > 0
    assert float(row['nll']) > 0 and float(row['frechet']) >= 0
    assert float(row['nll_excess_error']) > 0
    assert row['drafter'] in out and row['verifier'] in out
  report = json.loads((folder / 'report.json').read_text())
  assert len(report['pairs']) == len(rows)
  assert 'keeps drafts' in report['left_out']['mc_jacobi + block']
  assert 'mc_jacobi + block is left out' in out
  assert report['frechet_noise'] > 0 and report['settings']['seed'] == 3
  # Vanilla's images of the same classes and other keys are as likely as its own.
  assert abs(float(rows[0]['nll_difference'])) < 6 * float(rows[0]['nll_difference_error']) + 0.5


@pytest.mark.slow
def test_curves(good):
  code, out, err, folder = good
  assert code == 0, err
  rows = list(csv.DictReader((folder / 'curves.csv').open()))
  points = [(row['verifier'], row['value'] and float(row['value'])) for row in rows]
  assert points == [('exact', '')] + [
      (name, value) for name, method in parts_lib.METHODS.items() for value in method.values]
  assert 'speedup' not in rows[0]
  assert (folder / 'curves.png').read_bytes().startswith(b'\x89PNG')
  assert (folder / 'curves.svg').read_bytes().startswith(b'<?xml')
  report = json.loads((folder / 'report.json').read_text())
  assert {one['answer'] for one in report['conclusions']} <= {'yes', 'no', 'unclear'}
  claims = [one['claim'] for one in report['conclusions']]
  assert 'exact decoders are exact' in claims
  assert any('G*' in claim and claim.endswith(', model') for claim in claims)
  for claim in claims:
    assert claim in out


@pytest.mark.slow
def test_the_switch_makes_no_difference():
  model = tabular.tabular(jax.random.key(0), vocab_size=4, length=6)
  verifiers, labels, key = [exact(), uniform(2.0)], jnp.zeros((16,), jnp.int32), jax.random.key(2)

  def decode(verifier):
    return make_decoder(model.target, jacobi(3), verifier)(model.params, labels, key)

  chosen = jax.jit(lambda index: decode(runs_lib.one_of(verifiers, index)))
  for index, verifier in enumerate(verifiers):
    alone, got = jax.jit(lambda verifier=verifier: decode(verifier))(), chosen(index)
    np.testing.assert_array_equal(got.tokens, alone.tokens)
    np.testing.assert_allclose(got.tv_bound, alone.tv_bound, rtol=1e-5)
    assert (float(got.tv_bound.mean()) > 0) == (index > 0)


def test_samples_of_any_number_are_decoded_in_equal_batches():
  bench = plan_lib.Bench(*[None] * len(plan_lib.Bench._fields))._replace(
      labels=np.arange(3, dtype=np.int32), seed=0, batch_size=2)
  seen = []

  def decode(labels, keys):
    seen.append(np.asarray(jax.random.key_data(keys)))
    return Decoded(jnp.asarray(labels)[:, None], *[jnp.asarray(labels)] * 4)

  look = lambda labels, tokens: (labels, labels + 0.5, tokens + 1)
  got = runs_lib.sample(bench, decode, look, sets=3)
  np.testing.assert_array_equal(got.decoded.tokens[:, 0], [0, 1, 2] * 3)
  np.testing.assert_array_equal(got.nll, [0, 1, 2] * 3)
  np.testing.assert_array_equal(got.features[:, 0], [1, 2, 3] * 3)
  assert [len(keys) for keys in seen] == [2] * 5
  assert len({tuple(key) for keys in seen for key in keys}) == 10
  # The first keys do not depend on how many images there are, other streams are different.
  first = jax.random.key_data(runs_lib.keys(bench, 2))
  np.testing.assert_array_equal(first, seen[0])
  assert not np.any(first == jax.random.key_data(runs_lib.keys(bench, 2, stream=1)))


@pytest.mark.parametrize('depth', [1, 2, 4, 5])
def test_cut(depth):
  tree = published_trees.EAGLE
  got = parts_lib.cut(tree, depth)
  assert got.max_depth == depth
  assert got.num_nodes == (tree.depth[1:] <= depth).sum()
  assert sorted(got.rank[got.depth == depth]) == sorted(tree.rank[tree.depth == depth])
  assert got == tree if depth == 5 else got != tree
  assert parts_lib.cut(trees.chain(3), 2) == trees.chain(2)


def row(verifier, value, length, tv_bound, noise=0.0):
  """A point of a curve, of 8 images, with this accepted length and bound per token."""
  rng = np.random.default_rng(len(verifier))
  rounds = 100 / length + 1 + noise * rng.normal(size=8)
  decoded = Decoded(
      np.zeros((8, 101), int), rounds, None, None,
      101 * tv_bound * (1 + noise * rng.normal(size=8)))
  sample = runs_lib.Sample(decoded, None, None, None)
  return report_lib.Row('chain', verifier, value, {}, sample)


def points(released_tv_bound, noise=0.0):
  rows = [row('exact', None, 2, 0)]
  for method, slope in (('uniform', 0.1), ('Cool-SD', 0.06), ('Cool-SD, printed', 0.08),
                        ('LANTERN++, G*', 0.05), ('LANTERN++, released', released_tv_bound)):
    rows += [row(method, x, x, slope * (x - 2), noise) for x in (2.5, 3, 4)]
  return {'chain': rows}


@pytest.mark.parametrize('tv_bound,answer', [(0.07, 'yes'), (0.04, 'no'), (0.05, 'unclear')])
def test_conclusions_of_curves(tv_bound, answer):
  found = conclusions.of_curves(points(tv_bound))
  assert [one.answer for one in found] == ['yes', 'yes', answer]
  # Straight lines from length 2 to 4: at 3 the drifts are the slopes.
  assert '0.0600 against 0.1000 per token at length 3.00' in found[0].numbers
  assert 'lower by 0.0400' in found[0].numbers


def test_noise_makes_conclusions_unclear():
  found = conclusions.of_curves(points(0.052, noise=0.3))
  assert found[-1].answer == 'unclear'


def test_curves_without_common_lengths():
  rows = [row('exact', None, 2, 0), row('Cool-SD', 1.0, 2.1, 0.1), row('uniform', 1.0, 2.2, 0.1),
          row('Cool-SD, printed', 1.0, 3, 0.1), row('LANTERN++, G*', 1.0, 3, 0.1),
          row('LANTERN++, released', 1.0, 3, 0.1)]
  printed = conclusions.of_curves({'chain': rows})[1]
  assert printed.answer == 'unclear' and 'no accepted length in common' in printed.numbers


@pytest.mark.parametrize('dynamic,answer', [(2.0, 'yes'), (3.5, 'no'), (3.05, 'unclear')])
def test_conclusions_of_pairs(dynamic, answer):
  def figures(guarantee, length, excess=0.01):
    return dict(guarantee=guarantee, accepted_length=length, accepted_length_error=0.05,
                nll_excess=excess, nll_excess_error=0.01, equal_to_vanilla=1.0)

  rows = [report_lib.Row(*name, None, value, None) for name, value in {
      ('vanilla', 'match'): figures('seed-exact', 1.0),
      ('eagle2', 'match'): figures('seed-exact', dynamic),
      ('eagle_tree', 'exact'): figures('exact', 3.0),
      ('eagle2', 'exact'): figures('exact', dynamic),
      ('eagle2', 'cool'): figures('relaxed', 4.0, excess=1.0)}.items()]
  found = conclusions.of_pairs(rows)
  assert [one.answer for one in found] == ['yes', 'yes', answer]
  assert '1.0 standard errors for all 4' in found[0].numbers
  rows.append(report_lib.Row('model', 'exact', None, figures('exact', 2.0, excess=-0.05), None))
  biased = conclusions.of_pairs(rows)[0]
  assert biased.answer == 'no' and 'model + exact' in biased.numbers
