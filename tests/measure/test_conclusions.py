"""Tests of published claims, on artificial curves and rows."""

import numpy as np
import pytest

from cspd_jax.core.guarantees import Guarantee
from cspd_jax.decoding.base import Decoded
from cspd_jax.measure import tradeoff
from cspd_jax.measure.measurements import Measurement
from cspd_jax.measure.tradeoff import Claim, Point, TradeoffCurve
from cspd_jax.metrics.base import Sample

CURVES = [TradeoffCurve('uniform', 'uniform(delta={})', ()), TradeoffCurve('Cool-SD',
                                                                           'cool(delta={})', ()),
          TradeoffCurve('printed', 'cool(delta={}, clamp=False)', (), from_exact=False,
                        like='Cool-SD'),
          TradeoffCurve('best', 'lantern_pp(lam={})', ()), TradeoffCurve('released',
                                                                         'lantern_pp(lam={})', ())]
CLAIMS = [Claim('one', 'Cool-SD', 'uniform'), Claim('two', 'Cool-SD', 'printed'),
          Claim('three', 'best', 'released'),
          Claim('four', 'eagle(tree=EAGLE)+rejection', 'eagle2(num_nodes=25, depth=5)+rejection',
                'accepted_length')]


def point(curve, value, length, tv_bound, noise=0.0):
  """Returns a point of a curve, of 8 images, with this accepted length and bound per token."""
  rng = np.random.default_rng(len(curve or 'exact'))
  rounds = 100 / length + 1 + noise * rng.normal(size=8)
  decoded = Decoded(
      np.zeros((8, 101), int), rounds, None, None,
      101 * tv_bound * (1 + noise * rng.normal(size=8)), np.ones(8, bool), None)
  return Point(curve, value, Measurement('', {}, Sample(decoded, None, None)))


def points(released_tv_bound, noise=0.0):
  result = [point(None, None, 2, 0)]
  for curve, slope in (('uniform', 0.1), ('Cool-SD', 0.06), ('printed', 0.08), ('best', 0.05),
                       ('released', released_tv_bound)):
    result += [point(curve, x, x, slope * (x - 2), noise) for x in (2.5, 3, 4)]
  return {'chain': result}


@pytest.mark.parametrize('tv_bound,answer', [(0.07, 'yes'), (0.04, 'no'), (0.05, 'unclear')])
def test_conclusions_of_curves(tv_bound, answer):
  result = tradeoff.curve_conclusions(points(tv_bound), CURVES, CLAIMS)
  assert [one.answer for one in result] == ['yes', 'yes', answer]
  assert [one.claim for one in result] == ['one, chain', 'two, chain', 'three, chain']
  # Straight lines from length 2 to 4: at 3 the bounds are the slopes.
  assert '0.0600 against 0.1000 per token at length 3.00' in result[0].numbers
  assert 'lower by 0.0400' in result[0].numbers


def test_noise_makes_conclusions_unclear():
  result = tradeoff.curve_conclusions(points(0.052, noise=0.3), CURVES, CLAIMS)
  assert result[-1].answer == 'unclear'


def test_curves_without_common_lengths():
  rows = [point(None, None, 2, 0), point('Cool-SD', 1.0, 2.1, 0.1),
          point('uniform', 1.0, 2.2, 0.1), point('printed', 1.0, 3, 0.1),
          point('best', 1.0, 3, 0.1), point('released', 1.0, 3, 0.1)]
  printed = tradeoff.curve_conclusions({'chain': rows}, CURVES, CLAIMS)[1]
  assert printed.answer == 'unclear' and 'no accepted length in common' in printed.numbers


def row(decoder, guarantee, length, excess=0.01, in_window=None):
  return Measurement(decoder, dict(
      decoder=decoder, guarantee=Guarantee(guarantee), accepted_length=length,
      accepted_length_error=0.05,
      nll_excess=excess, nll_excess_error=0.01,
      equal_to_baseline=(
          (1.0 if in_window is None else 0.5) if guarantee.startswith('seed-exact') else None),
      equal_in_window=in_window), None)


@pytest.mark.parametrize('dynamic,answer', [(2.0, 'yes'), (3.5, 'no'), (3.05, 'unclear')])
def test_conclusions_of_rows(dynamic, answer):
  rows = [row('vanilla', 'seed-exact', 1.0), row('eagle2+match', 'seed-exact', dynamic),
          row('eagle(tree=EAGLE)+rejection', 'exact', 3.0),
          row('eagle2(depth=5, num_nodes=25)+rejection', 'exact', dynamic),
          row('eagle2+cool', 'bounded', 4.0, excess=1.0)]
  result = [*tradeoff.guarantee_conclusions(rows, 'vanilla'),
            *tradeoff.claim_conclusions(rows, CLAIMS)]
  assert [one.answer for one in result] == ['yes', 'yes', answer]
  assert '1.0 standard errors for all 4' in result[0].numbers
  rows.append(row('model+rejection', 'exact', 2.0, excess=-0.05))
  biased = tradeoff.guarantee_conclusions(rows, 'vanilla')[0]
  assert biased.answer == 'no' and 'model+rejection' in biased.numbers
  excluded = row('model+rejection', 'exact', 2.0)  # Infinite, so that reports have None.
  excluded.figures.update(nll_excess=None, nll_excess_error=None)
  assert tradeoff.guarantee_conclusions([*rows[:2], excluded], 'vanilla')[0].answer == 'no'
  assert not tradeoff.claim_conclusions(rows[:2], CLAIMS)


@pytest.mark.parametrize('in_window, answer', [(1.0, 'yes'), (0.9, 'no')])
def test_images_that_are_rounded_differently(in_window, answer):
  rows = [row('vanilla', 'seed-exact', 1.0), row('seed_exact', 'seed-exact', 2.0),
          row('corrected_seed_exact', 'seed-exact', 2.0, in_window=in_window),
          row('eagle2', 'seed-exact up to rounding', 2.0, in_window=0.1)]
  result = tradeoff.guarantee_conclusions(rows, 'vanilla')[-1]
  assert result.answer == answer and f'{(1 + in_window) / 2:.0%}' in result.numbers


def test_panels():
  known = points(0.07)['chain']
  figures = lambda i: dict(accepted_length=2.0 + i, tv_bound_per_token=0.1 * i, frechet=None,
                           tv_bound_per_token_error=0.01, nll_excess=0.2, nll_excess_error=None)
  result = [one._replace(row=one.row._replace(figures=figures(i))) for i, one in enumerate(known)]
  (line,) = tradeoff.panels({'chain, 4 drafts': result}, CURVES, 'vanilla', {'frechet': (1, 2)})
  assert [panel.ylabel for panel in line] == [
      'bound on total variation per token', 'NLL above the entropy, nats per token']
  assert len(line[0].curves['Cool-SD'].x) == 4 and len(line[0].curves['printed'].x) == 3
  assert line[0].curves['printed'].like == 'Cool-SD'
  assert line[0].curves['uniform'].error and not line[1].curves['uniform'].error
