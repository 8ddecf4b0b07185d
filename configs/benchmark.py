"""Every drafter with every verifier, and what the relaxed ones cost in fidelity.

  python -m experiments.benchmark

Runtime: 25 minutes on two busy CPU cores, a third of it compilation; less on idle ones.
Result: in runs/benchmark, a table of all pairs and the points of the trade-off curves (rows.csv),
a picture of the curves (curves.png, curves.svg), and all of it with what can be concluded
(report.json).
"""

import dataclasses

import jax

from cspd_jax.cli import groups
from cspd_jax.commands import compare
from cspd_jax.core import fields
from cspd_jax.measure.conclusions import Claim
from cspd_jax.measure.tradeoff import Curve

# EAGLE-2 gets as many drafts as EAGLE-1's tree, and as deep, to compare the two.
DRAFTERS = (
    'model', 'jacobi(coupling=redraw)', 'jacobi(coupling=maximal)', 'eagle(tree=chain(5))',
    'eagle(tree=EAGLE)', 'eagle2(num_nodes=25, width=10, depth=5)', 'medusa',
    'medusa(tree=cut(EAGLE, 4))')

# The settings are those of the papers' tables. Cool-SD spreads its relaxation over the depths of
# EAGLE's tree, also in Jacobi windows, which are longer than what they accept.
VERIFIERS = (
    'exact', 'match', 'block', 'kseq', 'uniform(delta=1.1)', 'cool(delta=1.1, length=5)',
    'cool(delta=1.1, length=5, clamp=False)', 'cool_linear(delta=1.1, length=5)',
    'lantern(delta=0.1)', 'lantern_pp(lam=2)', 'lantern_pp(lam=2, residual=released_llamagen)',
    'lantern_pp(lam=2, residual=released_dynamic)', 'grouped(group=10)', 'typical')

# For static trees and chains. With a linear schedule from 5 / 3 on no factor is below 1.
CURVES = (
    Curve('uniform', 'uniform(delta={})', (1.3, 1.8, 3.0)),
    Curve('Cool-SD', 'cool(delta={}, length=5)', (0.7, 1.1, 1.8, 3.0)),
    Curve('Cool-SD, printed', 'cool(delta={}, length=5, clamp=False)', (0.9, 1.3, 2.0, 3.0),
          from_exact=False, like='Cool-SD'),
    Curve('Cool-SD linear', 'cool_linear(delta={}, length=5)', (1.3, 1.8, 3.0)),
    Curve('Cool-SD linear, printed', 'cool_linear(delta={}, length=5, clamp=False)',
          (0.9, 1.1, 1.3), from_exact=False, like='Cool-SD linear'),
    Curve('LANTERN++, G*', 'lantern_pp(lam={})', (1.5, 2.0, 3.0, 5.0)),
    Curve('LANTERN++, released', 'lantern_pp(lam={}, residual=released_llamagen)',
          (1.5, 2.0, 3.0, 5.0), like='LANTERN++, G*'),
    Curve('GSD', 'grouped(group={})', (3, 8, 24)))
CURVE_DRAFTERS = ('eagle(tree=chain(5))', 'eagle(tree=EAGLE)')

CLAIMS = (
    Claim('clamped Cool-SD is closer to the target than uniform relaxation', 'Cool-SD', 'uniform'),
    Claim('clamped Cool-SD is closer to the target than the printed one', 'Cool-SD',
          'Cool-SD, printed'),
    Claim('LANTERN++ is closer to the target with G* than with the released residual',
          'LANTERN++, G*', 'LANTERN++, released'),
    Claim("EAGLE-1's tree accepts more than one of EAGLE-2 with as many drafts",
          'eagle(tree=EAGLE)+exact', 'eagle2(num_nodes=25, width=10, depth=5)+exact',
          'accepted_length'))


@dataclasses.dataclass(frozen=True)
class Config:
  """What to measure.

  Attributes:
    model: a shipped model or a folder.
    parts: networks that take the place of its own.
    drafter: drafters, each of which is paired with every verifier.
    verifier: verifiers, likewise. Pairs that cannot work are left out, with the reason.
    decoder: specifications of further decoders.
    curve_drafter: drafters whose trade-off curves are drawn.
    curves: families of verifiers, from mild to strong.
    claims: what papers say, to be answered from the numbers.
    metrics: figures to measure; none for all there are.
    columns: those of them that the console shows; the files hold all.
    images: which images, the same with every decoder.
    sampling: how tokens are drawn.
    sizes: parameters of decoders whose specification leaves them open.
    reference_sets: images of the baseline with each of two further seeds, in as many sets of as
      many images, that others are held against; none leaves out what needs them.
    batch_size: images decoded at once, except for the times.
    timed_images: images decoded one by one for the times; none leaves them out.
    dtype: of the parameters: float32 or bfloat16.
    workdir: folder of the results.
  """

  model: str = 'demo'
  parts: groups.Parts = groups.Parts()
  drafter: tuple[str, ...] = ()
  verifier: tuple[str, ...] = ()
  decoder: tuple[str, ...] = ()
  curve_drafter: tuple[str, ...] = ()
  curves: tuple[Curve, ...] = ()
  claims: tuple[Claim, ...] = ()
  metrics: tuple[str, ...] | None = None
  columns: tuple[str, ...] = (
      'step_compression', 'accepted_length', 'tv_bound', 'tv_bound_per_token', 'nll_difference',
      'nll_excess', 'frechet')
  images: groups.Images = groups.Images(num_images=16)
  sampling: groups.Sampling = groups.Sampling()
  sizes: compare.Sizes = compare.Sizes()
  reference_sets: int | None = 8
  batch_size: int = 16
  timed_images: int | None = 2
  dtype: str | None = None
  workdir: str = 'runs/benchmark'

  def __post_init__(self):
    fields.check(self, reference_sets=(2, fields.MOST))


def base() -> Config:
  """A configuration without decoders, with sizes that suit the machine."""
  # A CPU pays for every token of a window, an accelerator hardly does.
  return Config(sizes=compare.Sizes(window=8 if jax.default_backend() == 'cpu' else 64, length=5))


def get_config() -> Config:
  """The configuration of `experiments.benchmark`."""
  return dataclasses.replace(
      base(), drafter=DRAFTERS, verifier=VERIFIERS, curve_drafter=CURVE_DRAFTERS, curves=CURVES,
      claims=CLAIMS)
