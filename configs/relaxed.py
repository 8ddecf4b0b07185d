"""Relaxed verifiers: their speed, and what they change of the images, for every drafter.

  python -m experiments.sweep --config=configs/relaxed.py

Every drafter with every verifier, trade-off curves on a chain and on a tree, and tests of the
papers' claims. Results: in runs/benchmark (rows.csv, curves.png, report.json).
"""

import functools

from cspd_jax.measure.tradeoff import Claim, TradeoffCurve
from experiments.sweep import Config

# EAGLE-2 has the number of drafts and the depth of EAGLE-1's tree, to compare the two.
DRAFTERS = (
    'model', 'jacobi(coupling=independent)', 'jacobi(coupling=maximal)', 'eagle(tree=chain(5))',
    'eagle(tree=EAGLE)', 'eagle2(num_nodes=25, width=10, depth=5)', 'medusa',
    'medusa(tree=branching("4 0:3 1:2 2:2 3:1 00:3 01:2 02:2 10:1 000:3"))')
# The settings are those of the papers' tables. Cool-SD distributes its relaxation over the depths
# of EAGLE's tree, also in Jacobi windows, which are longer than their accepted lengths.
VERIFIERS = (
    'rejection', 'match', 'block', 'kseq', 'uniform(delta=1.1)', 'cool(delta=1.1, length=5)',
    'cool(delta=1.1, length=5, clamp=False)', 'cool_linear(delta=1.1, length=5)',
    'lantern(delta=0.1)', 'lantern_pp(lam=2)', 'lantern_pp(lam=2, residual=released_llamagen)',
    'lantern_pp(lam=2, residual=released_dynamic)', 'grouped(group=10)', 'typical')
# For static trees and chains. With a linear schedule from 5 / 3 on no factor is below 1.
CURVES = (
    TradeoffCurve('uniform', 'uniform(delta={})', (1.3, 1.8, 3.0)),
    TradeoffCurve('Cool-SD', 'cool(delta={}, length=5)', (0.7, 1.1, 1.8, 3.0)),
    TradeoffCurve('Cool-SD, printed', 'cool(delta={}, length=5, clamp=False)', (0.9, 1.3, 2.0, 3.0),
                  from_exact=False, like='Cool-SD'),
    TradeoffCurve('Cool-SD linear', 'cool_linear(delta={}, length=5)', (1.3, 1.8, 3.0)),
    TradeoffCurve('Cool-SD linear, printed', 'cool_linear(delta={}, length=5, clamp=False)',
                  (0.9, 1.1, 1.3), from_exact=False, like='Cool-SD linear'),
    TradeoffCurve('LANTERN++, G*', 'lantern_pp(lam={})', (1.5, 2.0, 3.0, 5.0)),
    TradeoffCurve('LANTERN++, released', 'lantern_pp(lam={}, residual=released_llamagen)',
                  (1.5, 2.0, 3.0, 5.0), like='LANTERN++, G*'),
    TradeoffCurve('GSD', 'grouped(group={})', (3, 8, 24)))
CLAIMS = (
    Claim('clamped Cool-SD is closer to the target than uniform relaxation', 'Cool-SD', 'uniform'),
    Claim('clamped Cool-SD is closer to the target than the printed one', 'Cool-SD',
          'Cool-SD, printed'),
    Claim('LANTERN++ is closer to the target with G* than with the released residual',
          'LANTERN++, G*', 'LANTERN++, released'),
    Claim("EAGLE-1's tree accepts more than one of EAGLE-2 with as many drafts",
          'eagle(tree=EAGLE)+rejection', 'eagle2(num_nodes=25, width=10, depth=5)+rejection',
          'accepted_length'))

# What the measurements of relaxed verifiers have in common.
measured = functools.partial(
    Config, curves=CURVES, claims=CLAIMS, length=5, metrics=None, reference_sets=8,
    curve_drafter=('eagle(tree=chain(5))', 'eagle(tree=EAGLE)'), columns=(
        'step_compression', 'accepted_length', 'tv_bound', 'tv_bound_per_token', 'nll_difference',
        'nll_excess', 'frechet'))


def get_config() -> Config:
  return measured(
      drafter=DRAFTERS, verifier=VERIFIERS, timed_images=2, workdir='runs/benchmark')
