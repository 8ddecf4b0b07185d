"""Timed rounds: set acceptance, random weights, measured rates, accepted tokens of reports."""

import dataclasses
import json
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cspd_jax import families
from cspd_jax.decoding import warp
from experiments.costs import devices, predicted, timed_rounds


@pytest.fixture(name='model', scope='module')
def _model():
  model = families.describe('demo', dtype='float32', layers=1)
  return dataclasses.replace(model, params=timed_rounds.random_like(model.params))


def _condition(model, count):
  return timed_rounds.random_like(
      families.FAMILIES[model.family].published.condition(model.config, count))


@pytest.mark.parametrize('tokens', [1, 1.01, 1.5, 2.5, 2.74, 4.5, 7.4, 10.4])
def test_accepted_drafts_have_the_given_mean(tokens):
  lengths, counts = [], [1]
  while counts[-1] < 4000:
    lengths.append(1 + timed_rounds.accepted_drafts(counts[-1], tokens))
    counts.append(counts[-1] + lengths[-1])
  traced = timed_rounds.accepted_drafts(jnp.asarray(counts[:-1], jnp.int32), tokens)
  np.testing.assert_array_equal(1 + traced, lengths)
  np.testing.assert_array_equal(
      np.cumsum(lengths), np.floor(np.arange(1, len(lengths) + 1) * tokens + 1e-6))
  # A decode may be timed from any number of tokens, which need not be where a round ends.
  others = {1 + timed_rounds.accepted_drafts(count, tokens) for count in range(1, 2000)}
  assert min(others) >= 1 and max(others) == max(lengths) == math.ceil(tokens)


@pytest.mark.slow
@pytest.mark.parametrize('text, tokens', [
    ('mc_sjd(window=8)', 1.5), ('mc_sjd(window=8)', 2.6), ('mc_sjd(window=8)', 4.5),
    ('seed_exact(window=6)', 6), ('sjd_pac(window=12)', 1)])
def test_rounds_commit_the_given_number_of_tokens(model, text, tokens):
  decoder = timed_rounds.with_acceptance(model.decoder(text, guided=False), tokens)
  decoded = jax.jit(decoder)(model.params, _condition(model, 2), jax.random.key(1))
  lengths = np.arange(decoded.accepted.shape[1])
  counts = np.asarray(decoded.accepted)
  assert counts.sum(1).tolist() == [math.ceil(255 / tokens)] * 2  # The prefill has the first token.
  # The end of the image cuts the last round short.
  others = lengths[(counts > 0).any(0)][1:] if tokens > 1 else lengths[(counts > 0).any(0)]
  assert set(others) <= {math.floor(tokens), math.ceil(tokens)}


@pytest.mark.slow
@pytest.mark.parametrize('tokens', [0.5, 9, np.nan])
def test_no_more_than_the_main_chain(model, tokens):
  with pytest.raises(ValueError, match='7 drafts in a row, so it must be 1 to 8'):
    timed_rounds.with_acceptance(model.decoder('mc_sjd(window=8)', guided=False), tokens)


@pytest.mark.slow
def test_rounds_are_counted_and_timed(model):
  decoder = timed_rounds.with_acceptance(model.decoder('mc_sjd(window=4)', guided=True), 2)
  program = timed_rounds.program(
      decoder, model.params, _condition(model, 2), warp.drop_inactive(model.sampling()), None)
  for count in (0, 5):
    # Rounds of two tokens end at odd numbers of tokens, the first one as well.
    assert program.run(count)[0].tolist() == [128 + max(0, 2 * count - 1)] * 2
  cost = program.cost(devices.ACCELERATORS['h200'])
  assert cost.bytes > 0 and cost.flops > 0 and cost.kernels > 0
  result = timed_rounds.measure({'mc_sjd': program}, count=32, repeats=3)['mc_sjd']
  assert len(result.seconds) == 3 and result.median > 0
  still = program._replace(run=lambda count: None if count else time.sleep(0.05))
  with pytest.raises(ValueError, match='32 rounds of still took no longer than none'):
    timed_rounds.measure({'still': still}, count=32, repeats=1)


@pytest.mark.slow
def test_accepted(tmp_path):
  path = tmp_path / 'report.json'
  path.write_text('{"rows": [{"decoder": "mc_sjd(window=8)", "step_compression": 2.5}]}')
  assert predicted.measured(path, 'mc_sjd( window = 8 )') == (2.5, None)
  assert predicted.measured(path, 'mc_sjd(window=9)') == (None, None)
  assert predicted.measured('nothing', 'vanilla', override=3.0).tokens == 1
  assert predicted.measured('nothing', 'mc_sjd', override=3.0).tokens == 3
  for text, message in (('[]', 'cannot be read as JSON .it holds a list, not a dict'),
                        ('{"rows": [{"x": 1}]}', 'not a report with step_compression')):
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
      predicted.measured(path, 'mc_sjd')


def _report(path, *rows):
  path.write_text(json.dumps(dict(rows=[dict(decoder='mc_sjd', **row) for row in rows])))
  return path


def test_rows_that_do_not_disagree(tmp_path):
  twice = _report(tmp_path / 'twice.json', *[dict(step_compression=2, curve=c) for c in 'ab'])
  assert predicted.measured(twice, 'mc_sjd').tokens == 2
  rows = [dict(model=model, options=dict(guidance_scale=scale), tokens_per_pass=tokens)
          for model, scale, tokens in (('a', 3, 2), ('a', 1, 4), ('b', 3, 5), ('b', 6, 7))]
  several = _report(tmp_path / 'several.json', *rows)
  assert predicted.measured(several, 'mc_sjd', 'a').tokens == 2
  assert predicted.measured(several, 'mc_sjd', 'b').tokens == 5
  with pytest.raises(ValueError, match='model: a, b'):
    predicted.measured(several, 'mc_sjd')
