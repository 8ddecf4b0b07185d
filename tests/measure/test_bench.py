"""Many decoders on the same images: shared programs, keys, cached results."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cspd_jax
from cspd_jax.decoding.drafters.jacobi import jacobi
from cspd_jax.decoding.loop import make_decoder
from cspd_jax.decoding.verifiers.cool import uniform
from cspd_jax.decoding.verifiers.rejection import rejection
from cspd_jax.generation.stored_run import decode
from cspd_jax.measure import bench, measurements, timing
from cspd_jax.measure.bench import Bench
from cspd_jax.testing import tabular

DECODERS = ['jacobi(window=3)+rejection', 'jacobi(window=3)+uniform(delta=2.0)',
            'jacobi(window=3)+match', 'vanilla', 'jacobi(window=3)+match(seed_exact=False)']


@pytest.fixture(scope='module')
def model(beach):
  return cspd_jax.load(str(beach))


@pytest.mark.slow
def test_the_switch_makes_no_difference():
  model = tabular.tabular(jax.random.key(0), vocab_size=4, length=6)
  verifiers, key = [rejection(), uniform(2.0)], jax.random.key(2)
  labels = jnp.zeros((16,), jnp.int32)

  def decode(verifier):
    return make_decoder(model.target, jacobi(3), verifier)(model.params, labels, key)

  chosen = jax.jit(lambda index: decode(bench.switch(verifiers, index)))
  for index, verifier in enumerate(verifiers):
    alone, got = jax.jit(lambda verifier=verifier: decode(verifier))(), chosen(index)
    np.testing.assert_array_equal(got.tokens, alone.tokens)
    np.testing.assert_allclose(got.tv_bound, alone.tv_bound, rtol=1e-5)
    assert (float(got.tv_bound.mean()) > 0) == (index > 0)


@pytest.mark.slow
def test_decoders_of_one_drafter_share_a_program(model):
  bench = Bench(model, ['sea', 'sky', 'sand'], batch_size=2)
  bench.share(DECODERS)
  model.kept.programs.clear()
  result = [bench.sample(text).tokens for text in DECODERS]
  # One for the first two, which return no draws, and three that others cannot share.
  assert len(model.kept.programs) == 4
  for text, tokens in zip(DECODERS, result):
    alone = decode(dataclasses.replace(
        model.images(bench.prompts, decoder=text, batch_size=2), slots=False))
    np.testing.assert_array_equal(tokens, alone.tokens)
  np.testing.assert_array_equal(result[2], result[3])
  seconds = bench.seconds
  assert bench.sample(DECODERS[0]).tokens is result[0] and bench.seconds == seconds > 0


@pytest.mark.parametrize('vanilla, window, expected', [
    (0, 4, {'equal_to_baseline': 1.0}),
    (1, 4, {'equal_to_baseline': 0.5, 'equal_in_window': 1.0}),
    (1, 99, {'equal_to_baseline': 0.5})])
def test_where_vanilla_differs_its_window_decides(model, monkeypatch, vanilla, window, expected):
  """The window is used only if it fits an image, and only if images differ."""
  bench = Bench(model, ['sea', 'sky'])
  own = types.SimpleNamespace(tokens=np.zeros((2, 5), int))
  others = {'vanilla': own.tokens.copy(), 'vanilla(window=4)': own.tokens}
  others['vanilla'][0, 3:] = vanilla
  monkeypatch.setattr(bench, 'sample', lambda name: types.SimpleNamespace(tokens=others[name]))
  assert measurements._equal(bench, own, f'vanilla(window={window})') == expected


def test_images_of_other_seeds(model):
  bench = Bench(model, ['sea', 'sky', 'sand'], batch_size=2, seed=5)
  first, sets = bench.reference(2)
  assert first.tokens.shape == (6, 16) and len(sets) == 2
  assert all(one.reference is first for one in sets)
  every = [first.tokens[:3], first.tokens[3:], sets[0].tokens, sets[1].tokens,
           bench.sample('vanilla').tokens]
  for i, one in enumerate(every):
    assert one.shape == (3, 16)
    for other in every[:i]:
      assert np.any(one != other, axis=1).all(), 'every image has a key of its own'
  np.testing.assert_array_equal(first.condition, [1, 2, 0, 1, 2, 0])


def test_a_run_goes_past_the_prompts(model):
  bench = Bench(model, ['sea', 'sky'], seed=1)
  one, two, three = (bench.run('vanilla', *sizes)() for sizes in ((4,), (2, 2), (1,)))
  seconds = bench.seconds
  bench.run('vanilla', 4)
  assert bench.seconds == seconds > 0, 'it is compiled already'
  np.testing.assert_array_equal(one[0].tokens, np.concatenate([part.tokens for part in two]))
  np.testing.assert_array_equal(one[0].tokens[:1], three[0].tokens)
  assert np.any(np.asarray(one[0].tokens[0] != one[0].tokens[2]))
  own = Bench(model, ['sea', 'sky'], seed=[1, 5]).images('vanilla', count=4)
  assert own.seeds == [(1, 0), (5, 0), (1, 1), (5, 1)]


def test_a_round_of_more_images_than_prompts(model, monkeypatch):
  bench = Bench(model, ['sea', 'sky'], seed=1)
  sample = bench.sample('seed_exact(window=4)')
  rounds = sum(int(part.rounds[0]) for part in bench.run('seed_exact(window=4)', batches=5)())
  assert rounds / 5 != sample.decoded.rounds.mean()

  def measure(runs, *args, **options):
    for run in runs.values():
      run()
    return dict.fromkeys(runs, timing.Timing(np.array([7.0])))

  monkeypatch.setattr(measurements.timing, 'measure', measure)
  row, = measurements.each(bench, ['seed_exact(window=4)'], (), timed_images=5)
  assert row.figures['ms_per_round'] == pytest.approx(7000 / rounds)
  assert row.figures['seconds_per_image'] == pytest.approx(7 / 5)


def test_decoders_that_cannot_run_are_named(model):
  bench = Bench(model, ['sea', 'sky'])
  able, left_out = measurements.supported_decoders(
      bench, ['vanilla', 'jacobi+block', 'medusa', 'vanilla'])
  assert able == ['vanilla']
  assert 'keeps drafts' in left_out['jacobi+block'] and 'heads' in left_out['medusa']
  with pytest.raises(ValueError, match="a name in metrics is 'beauty'; .* one of rounds, "):
    measurements.choose('discrete', ['beauty'])
